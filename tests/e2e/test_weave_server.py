"""The test server itself: what is posted as raw HTTP, W&B's own client reads."""

from __future__ import annotations

import itertools
import urllib.error
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers.weave_process import WeaveServer

_numbers = itertools.count(1)


def make_call(project: str, *, step: int = 0, **changes: Any) -> dict[str, Any]:
    number = next(_numbers)
    call = {
        "project_id": f"local/{project}",
        "id": f"{number:016x}",
        "trace_id": f"{number:032x}",
        "op_name": "rollout calculator",
        "started_at": "2026-01-01T00:00:00.000001+00:00",
        "ended_at": "2026-01-01T00:00:01.500000+00:00",
        "attributes": {"step": step, "sample_index": number, "validate": False},
        "inputs": {"messages": [{"role": "user", "content": "2+2?"}]},
        "output": {"response_text": "4", "reward": 1.0},
        "summary": {"usage": {"policy": {"input_tokens": 7, "output_tokens": 0}}},
    }
    return {**call, **changes}


@pytest.fixture
def post(weave_server: WeaveServer) -> Callable[..., None]:
    def post_calls(*calls: dict[str, Any]) -> None:
        project = calls[0]["project_id"]
        weave_server.request(f"/v2/{project}/calls/complete", {"batch": calls})

    return post_calls


def test_a_posted_call_is_read_back(weave_server: WeaveServer, post: Callable[..., None]) -> None:
    call = make_call("read-back", step=3, thread_id="t1")
    child = make_call(
        "read-back",
        trace_id=call["trace_id"],
        parent_id=call["id"],
        exception='{"type": "ValueError", "message": "no"}',
    )
    post(call, child)

    root, leaf = sorted(weave_server.client("read-back").get_calls(), key=lambda c: c.id or "")

    assert root.id == call["id"]
    assert root.trace_id == leaf.trace_id == call["trace_id"]
    assert leaf.parent_id == root.id
    assert root.op_name == "rollout calculator"
    assert root.started_at.isoformat() == call["started_at"]
    assert root.thread_id == "t1"
    assert root.attributes["step"] == 3
    assert root.attributes["validate"] is False
    assert root.inputs["messages"] == call["inputs"]["messages"]
    assert root.output == call["output"]
    assert dict(root.summary or {})["usage"]["policy"]["output_tokens"] == 0
    assert "ValueError" in (leaf.exception or "")


def test_filters_on_attributes(weave_server: WeaveServer, post: Callable[..., None]) -> None:
    post(*(make_call("filters", step=step) for step in (0, 1, 2, 2)))
    client = weave_server.client("filters")
    field = {"$convert": {"input": {"$getField": "attributes.step"}, "to": "int"}}

    found = client.get_calls(query={"$expr": {"$eq": [field, {"$literal": 2}]}})
    early = client.get_calls(query={"$expr": {"$not": [{"$gt": [field, {"$literal": 0}]}]}})

    assert [call.attributes["step"] for call in found] == [2, 2]
    assert [call.attributes["step"] for call in early] == [0]


def test_feedback(weave_server: WeaveServer, post: Callable[..., None]) -> None:
    call = make_call("feedback")
    post(call)
    feedback = {
        "id": "018f1f2a-9c2b-7d3e-b5a1-8c9d2e4f6a7b",
        "project_id": "local/feedback",
        "weave_ref": f"weave:///local/feedback/call/{call['id']}",
        "feedback_type": "reward",
        "payload": {"name": "reward", "value": 0.5},
    }
    weave_server.request("/feedback/create", feedback)
    weave_server.request("/feedback/create", feedback)

    (read,) = weave_server.client("feedback").get_calls(include_feedback=True)

    (found,) = weave_server.feedback("feedback")
    (shown,) = dict(read.summary or {})["weave"]["feedback"]
    assert found["id"] == shown["id"] == feedback["id"]
    assert found["weave_ref"] == feedback["weave_ref"]
    assert found["payload"] == shown["payload"] == feedback["payload"]


def test_a_call_posted_again_replaces_the_first(
    weave_server: WeaveServer, post: Callable[..., None]
) -> None:
    call = make_call("again")
    before = weave_server.counts()
    post(call)
    post(call)
    post({**call, "output": {"reward": 0.0}})
    after = weave_server.counts()

    (read,) = weave_server.client("again").get_calls()

    assert read.output == {"reward": 0.0}
    assert after["calls"] - before["calls"] == 1
    assert after["duplicates"] - before["duplicates"] == 2
    assert after["changed"] - before["changed"] == 1
    assert [version["output"] for version in weave_server.posted(call["id"])] == [
        call["output"],
        call["output"],
        {"reward": 0.0},
    ]


def test_requests_are_noted(weave_server: WeaveServer, post: Callable[..., None]) -> None:
    post(make_call("noted"))

    (seen,) = weave_server.requests("/v2/local/noted/calls/complete")

    assert seen["method"] == "POST"
    assert seen["authorized"] is True
    assert seen["bytes"] > 400
    assert seen["status"] == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"started_at": "yesterday"}, 422), ({"project_id": "local/other"}, 422)],
)
def test_what_the_service_would_refuse(
    weave_server: WeaveServer, changes: dict[str, Any], status: int
) -> None:
    body = {"batch": [make_call("refused", **changes)]}

    with pytest.raises(urllib.error.HTTPError) as refused:
        weave_server.request("/v2/local/refused/calls/complete", body)

    assert refused.value.code == status
    assert list(weave_server.client("refused").get_calls()) == []


def test_credentials_and_size(weave_server: WeaveServer) -> None:
    path = "/v2/local/limits/calls/complete"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        weave_server.request(path, {"batch": []}, authorized=False)
    with pytest.raises(urllib.error.HTTPError, match="413"):
        weave_server.request(path, b" " * (32 * 2**20))


def test_failures_on_demand(weave_server: WeaveServer, post: Callable[..., None]) -> None:
    lost, late = make_call("failing"), make_call("failing")
    weave_server.fail_next("/local/failing/", 503, headers={"Retry-After": "1"})
    with pytest.raises(urllib.error.HTTPError, match="503"):
        post(lost)
    weave_server.fail_next("/local/failing/", 502, after=True)
    with pytest.raises(urllib.error.HTTPError, match="502"):
        post(late)

    assert [call.id for call in weave_server.client("failing").get_calls()] == [late["id"]]


def test_the_database_outlives_the_process(
    weave_server: WeaveServer, post: Callable[..., None]
) -> None:
    post(make_call("restart"))
    address = weave_server.url
    weave_server.stop()
    weave_server.start()

    assert weave_server.url == address
    assert len(list(weave_server.client("restart").get_calls())) == 1


def test_the_real_client_writes(weave_server: WeaveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in weave_server.environ().items():
        monkeypatch.setenv(name, value)
    import weave

    client = weave.init("local/written")
    try:
        call = client.create_call("op", {"x": 1})
        client.finish_call(call, output=2)
        client.flush()
        (read,) = weave_server.client("written").get_calls()
    finally:
        weave.finish()

    assert (read.inputs["x"], read.output) == (1, 2)

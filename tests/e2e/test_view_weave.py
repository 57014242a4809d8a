"""The viewer's server to Weave's real client: what is asked of W&B's server code, asked of it."""

from __future__ import annotations

import itertools
import time
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.synthetic_store import PROJECT, write_store
from otel_rollout.exporters.weave.client import Client, Destination
from otel_rollout.exporters.weave.oversize import shrink
from otel_rollout.local import open as open_store
from tests.e2e.test_weave_server import (  # noqa: F401  (the same tests, with our server below)
    make_call,
    post,
    test_a_posted_call_is_read_back,
    test_feedback,
    test_filters_on_attributes,
    test_the_real_client_writes,
    test_what_the_service_would_refuse,
)
from tests.e2e.viewer import Viewer

_numbers = itertools.count()


@pytest.fixture(scope="module")
def weave_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    viewer = Viewer(tmp_path_factory.mktemp("store"))
    viewer.start()
    yield viewer
    viewer.stop()


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A server over a store that was traced here, so that its projects have no entity."""
    directory = tmp_path_factory.mktemp("rollouts")
    write_store(directory, 32, samples=4, rollouts=4)
    viewer = Viewer(directory)
    viewer.start()
    roots = {"filter": {"trace_roots_only": True}}
    deadline = time.monotonic() + 60  # a store is shown while it is being indexed
    while len(viewer.client(PROJECT).get_calls(**roots)) < 32:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield viewer
    viewer.stop()


def field(path: str, to: str | None = None) -> dict[str, Any]:
    plain = {"$getField": path}
    return {"$convert": {"input": plain, "to": to}} if to else plain


def test_a_call_posted_again_replaces_the_first(weave_server: Viewer) -> None:
    call = make_call("twice")
    for changed in (call, {**call, "output": {"reward": 0.0}}):
        weave_server.request("/v2/local/twice/calls/complete", {"batch": [changed]})

    (read,) = weave_server.client("twice").get_calls()

    assert read.output == {"reward": 0.0}


def test_roots_by_reward_page_by_page(rollouts: Viewer) -> None:
    client = rollouts.client(PROJECT)
    roots: dict[str, Any] = {
        "filter": {"trace_roots_only": True},
        "sort_by": [{"field": "output.reward", "direction": "desc"}],
    }

    every = [call.output["reward"] for call in client.get_calls(**roots)]
    some = [call.output["reward"] for call in client.get_calls(**roots, limit=5, offset=3)]

    assert len(every) == len(client.get_calls(**roots)) == 32
    assert every == sorted(every, reverse=True)
    assert some == every[3:8]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"$eq": [field("attributes.rollout_n", "int"), {"$literal": 2}]}, {2}),
        ({"$eq": [field("attributes.rollout_n"), {"$literal": "2"}]}, {2}),
        ({"$gte": [field("attributes.rollout_n", "int"), {"$literal": 2}]}, {2, 3}),
        ({"$lt": [field("attributes.rollout_n", "int"), {"$literal": 1}]}, {0}),
        ({"$in": [field("attributes.rollout_n"), [{"$literal": 0}, {"$literal": 3}]]}, {0, 3}),
        (
            {
                "$and": [
                    {"$not": [{"$eq": [field("attributes.rollout_n"), {"$literal": 1}]}]},
                    {"$eq": [field("attributes.step"), {"$literal": 1}]},
                    {
                        "$contains": {
                            "input": field("op_name"),
                            "substr": {"$literal": "ROLLOUT"},
                            "case_insensitive": True,
                        }
                    },
                ]
            },
            {0, 2, 3},
        ),
        ({"$eq": [field("attributes.rollout_n"), {"$literal": 9}]}, set()),
    ],
)
def test_expressions(rollouts: Viewer, expression: Any, expected: set[int]) -> None:
    client = rollouts.client(PROJECT)

    found = client.get_calls(filter={"trace_roots_only": True}, query={"$expr": expression})

    assert {call.attributes["rollout_n"] for call in found} == expected
    assert len(found) == len(list(found)) == 8 * len(expected)


def test_a_trajectory_with_its_rewards(rollouts: Viewer) -> None:
    client = rollouts.client(PROJECT)
    (root,) = client.get_calls(filter={"trace_roots_only": True}, limit=1)

    calls = list(client.get_calls(filter={"trace_ids": [root.trace_id]}, include_feedback=True))

    assert [call.started_at for call in calls] == sorted(call.started_at for call in calls)
    assert len(calls) == 6
    whole = next(call for call in calls if call.parent_id is None)
    (reward,) = whole.summary["weave"]["feedback"]
    assert reward["payload"]["value"] == whole.output["reward"]


def test_what_an_exporter_sends_is_in_the_store(weave_server: Viewer) -> None:
    client = Client(Destination(weave_server.url, weave_server.url, None))
    call = make_call("sent", step=4)
    del call["project_id"]
    import orjson

    feedback = {
        "id": "018f1f2a-9c2b-7d3e-b5a1-8c9d2e4f6a7b",
        "call_id": call["id"],
        "feedback_type": "reward",
        "payload": {"name": "reward", "value": -1.0},
    }
    client.complete_calls("local/sent", [orjson.dumps(call)])
    client.create_feedback("local/sent", [feedback, {**feedback, "id": "018f1f2a-second"}])

    assert client.default_entity() == "local"
    assert client.stored_calls("local/sent", {call["id"], "other"}) == {call["id"]}
    assert client.stored_feedback("local/sent", {feedback["id"]}) == {feedback["id"]}
    with open_store(weave_server.directory) as store:
        (one,) = store.trajectories("project == 'local/sent'")
    assert (one["step"], one["reward"]) == (4, -1.0)


def test_large_fields_come_as_files(weave_server: Viewer) -> None:
    client = Client(Destination(weave_server.url, weave_server.url, None))
    import orjson

    call = {**make_call("large"), "output": {"response_text": "long " * 100_000}}
    del call["project_id"]
    small = shrink(
        orjson.dumps(call), 50_000, 1 << 20, lambda n, c: client.create_file("local/large", n, c)
    )
    client.complete_calls("local/large", [small])

    (read,) = weave_server.client("large").get_calls()

    assert len(small) < 50_000
    assert read.output["response_text"] is not None


@pytest.mark.parametrize("digest", ["../index.sqlite", "..%2Findex.sqlite", "/etc/passwd", "", "x"])
def test_no_path_leaves_the_store(weave_server: Viewer, digest: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        weave_server.request("/file/content", {"project_id": "local/x", "digest": digest})


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/calls/stream_query", b"[]", 422),
        ("/calls/stream_query", b"{", 422),
        ("/calls/stream_query", {"project_id": "p", "filter": {"unheard_of": 1}}, 422),
        ("/calls/stream_query", {"project_id": "local/sent", "query": {"$expr": {"$x": 1}}}, 422),
        ("/v2/local/p/calls/complete", {}, 422),
        ("/v2/local/p/call/end", {"end": {"id": "never started"}}, 422),
        ("/feedback/create", {"project_id": "p", "weave_ref": "weave:///a/b/object/c"}, 422),
        ("/v2/local/p/calls/complete", b" " * (33 << 20), 413),
    ],
)
def test_what_is_refused(weave_server: Viewer, path: str, body: Any, status: int) -> None:
    weave_server.request("/v2/local/sent/calls/complete", {"batch": [make_call("sent")]})
    with pytest.raises(urllib.error.HTTPError) as refused:
        weave_server.request(path, body)

    assert refused.value.code == status

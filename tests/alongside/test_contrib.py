"""Instrumentations of others in a trajectory: they carry its values and follow its sampling."""

from __future__ import annotations

import pytest

from tests.alongside.conftest import Run
from tests.alongside.http_server import HttpServer

HTTPX = """
import asyncio, httpx
from otel_rollout import trajectory

async def main():
    async with httpx.AsyncClient(trust_env=False) as client:
        async with trajectory(step=3, sample_index="a b", validate=True):
            await client.get("{url}")
            await asyncio.to_thread(lambda: httpx.get("{url}", trust_env=False))
        await client.get("{url}")

asyncio.run(main())
"""

OPENAI = """
import openai
from otel_rollout import trajectory

client = openai.OpenAI(base_url="{url}/v1", api_key="none")
with trajectory(step=3, agent="a"):
    client.chat.completions.create(model="policy", messages=[dict(role="user", content="6*7?")])
"""

THREAD = """
import threading
from otel_rollout import rollout_op, trajectory

@rollout_op(kind="tool", name="work")
def work(): ...

with trajectory(step=3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def entries(header: str) -> set[str]:
    return {entry.strip() for entry in header.split(",")}


class TestHttpx:
    """`opentelemetry-instrumentation-httpx`."""

    def test_its_spans_and_its_requests_carry_the_trajectory(
        self, run: Run, http_server: HttpServer
    ) -> None:
        calls = run(HTTPX.format(url=http_server.url)).calls()
        assert [call["op_name"] for call in calls] == ["rollout", "GET", "GET"]
        root = calls[0]
        for call in calls:
            assert call["trace_id"] == root["trace_id"]
            assert call["attributes"]["step"] == 3
            assert call["attributes"]["sample_index"] == "a b"
            assert call["attributes"]["validate"] is True
        inside, also_inside, outside = http_server.headers
        for headers in (inside, also_inside):
            assert root["trace_id"] in headers["traceparent"]
            assert {"rollout.step=3", "rollout.validate=true"} <= entries(headers["baggage"])
        assert "baggage" not in outside
        assert root["trace_id"] not in outside["traceparent"]

    def test_an_unsampled_trajectory_has_no_span_of_theirs(
        self, run: Run, http_server: HttpServer
    ) -> None:
        ran = run(HTTPX.format(url=http_server.url), OTEL_ROLLOUT_SAMPLE_RATE="0")
        assert ran.trajectories() == []
        for headers in http_server.headers[:2]:
            assert headers["traceparent"].endswith(("-00", "-02"))
            assert "rollout.sampled=false" in entries(headers["baggage"])


def test_openai(run: Run, http_server: HttpServer) -> None:
    ran = run(OPENAI.format(url=http_server.url))
    calls = {call["op_name"]: call for call in ran.calls()}
    chat = calls["chat policy"]
    assert chat["parent_id"] == calls["rollout a"]["id"]
    assert chat["attributes"]["step"] == 3
    assert chat["attributes"]["weave"]["kind"] == "llm"
    assert chat["summary"]["usage"]["policy"]["input_tokens"] == 3


@pytest.mark.parametrize("ours", [True, False])
def test_threads(run: Run, ours: bool) -> None:
    disabled = None if ours else "otel_rollout_threads"
    (_, tool) = run(THREAD, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=disabled).calls()
    assert tool["op_name"] == "execute_tool work"
    assert tool["attributes"]["step"] == 3

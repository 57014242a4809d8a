"""The life of a span, ids and random state, sizes: what ends how, below what, and stays alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy
import pytest
from opentelemetry import trace

from otel_rollout import record_reward, recording, rollout_op, trajectory
from otel_rollout.exporters.weave import WeaveSpanExporter
from tests.e2e.reported.whole_way import Arrived, Delivery, check_all, generate


def error_of(call: Any) -> dict[str, str]:
    return json.loads(call.exception or "{}")


def extra(call: Any) -> dict[str, Any]:
    return call.attributes.get("rollout", {})


class TestCancelled:
    """A cancelled call has an error of that kind, and so has all that it was inside of."""

    @staticmethod
    async def roll_out() -> list[str]:
        seen = []

        @rollout_op(kind="agent", name="cancelled")
        async def agent() -> None:
            with recording.active(recording.start("text_completion", "policy")):
                await asyncio.sleep(60)

        async def rolled_out() -> None:
            async with trajectory(attempt=1):
                await agent()

        task = asyncio.create_task(rolled_out())
        await asyncio.sleep(0.01)
        task.cancel("enough")
        try:
            await task
        except asyncio.CancelledError as error:
            seen.append(str(error))
        seen.append(str(trace.get_current_span().get_span_context().span_id))
        return seen

    def test_each_span_is_ended_as_an_error(self, arrived: Arrived) -> None:
        inside = [call for call in arrived.calls if "attempt" in extra(call)]
        names = {call.op_name for call in inside}
        assert names == {"rollout", "invoke_agent cancelled", "text_completion policy"}
        for call in inside:
            assert error_of(call) == {"type": "CancelledError", "message": "enough"}
            assert call.summary["weave"]["status"] == "error"
        assert {s.status for s in arrived.spans if s.span_id in {c.id for c in inside}} == {"ERROR"}

    def test_the_caller_gets_it_and_nothing_stays_current(self, arrived: Arrived) -> None:
        assert arrived.result == ["enough", str(int(arrived.root.id, 16))]
        assert arrived.root.exception is None


class TestAsyncGeneratorNeverStarted:
    """Cancelled or dropped before its first step: nothing happened, and nothing is left open."""

    @staticmethod
    async def roll_out() -> list[str]:
        @rollout_op(name="stream")
        async def stream(count: int) -> AsyncIterator[int]:
            for number in range(count):
                await asyncio.sleep(0)
                yield number

        async def consume(items: AsyncIterator[int]) -> None:
            async for _ in items:
                pass

        never = stream(3)
        task = asyncio.create_task(consume(never))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await never.aclose()  # type: ignore[attr-defined]
        dropped = stream(3)
        del dropped
        gc.collect()
        started = stream(3)
        await anext(started)
        task = asyncio.create_task(consume(started))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await consume(stream(2))
        return [format(trace.get_current_span().get_span_context().span_id, "016x")]

    def test_only_those_that_began_are_calls(self, arrived: Arrived) -> None:
        streams = [call for call in arrived.calls if call.op_name == "stream"]
        assert len(streams) == 2
        assert {call.parent_id for call in streams} == {arrived.root.id}
        assert error_of(streams[0])["type"] == "CancelledError"
        assert streams[1].output == {"items": 2}

    def test_the_context_is_what_it_was(self, arrived: Arrived) -> None:
        assert arrived.result == [arrived.root.id]


class TestLeftInAnotherContext:
    """Generators closed elsewhere, contexts left in another task: no log has a word of it."""

    @staticmethod
    async def roll_out() -> None:
        @rollout_op(name="half")
        async def half() -> AsyncIterator[int]:
            yield 1
            yield 2

        @rollout_op(name="sync half")
        def sync_half() -> Iterator[int]:
            with recording.active(recording.start("execute_tool", "inside")):
                yield 1

        generator = half()
        await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
        await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
        started = sync_half()
        next(started)
        await asyncio.to_thread(started.close)  # type: ignore[attr-defined]
        inner = trajectory(left="elsewhere")
        await asyncio.create_task(inner.__aenter__())  # type: ignore[arg-type]
        await asyncio.create_task(inner.__aexit__(None, None, None))  # type: ignore[arg-type]

    def test_each_is_a_call_that_has_ended(self, arrived: Arrived) -> None:
        names = sorted(call.op_name for call in arrived.calls)
        assert names == ["execute_tool inside", "half", "rollout", "rollout", "sync half"]


class TestALoopInsideATool:
    """An agent that a tool runs is below that tool, whatever runs beside it."""

    @staticmethod
    async def roll_out() -> None:
        @rollout_op(kind="tool", name="research")
        async def tool(topic: str) -> str:
            return await agent(topic, depth=1)

        @rollout_op(kind="agent", name="loop")
        async def agent(topic: str, depth: int = 0) -> str:
            await asyncio.sleep(0)
            generate([1], [2])
            if depth == 0:
                await asyncio.gather(tool(f"{topic}/a"), tool(f"{topic}/b"))
            return topic

        await agent("t")

    def test_the_tree(self, arrived: Arrived) -> None:
        below: dict[str | None, list[Any]] = {}
        for call in arrived.calls:
            below.setdefault(call.parent_id, []).append(call)
        (outer,) = below[arrived.root.id]
        tools = [call for call in below[outer.id] if call.op_name == "execute_tool research"]
        assert [call.inputs["topic"] for call in tools] == ["t/a", "t/b"]
        for tool in tools:
            (inner,) = below[tool.id]
            assert inner.op_name == "invoke_agent loop"
            assert inner.inputs == {"topic": tool.inputs["topic"], "depth": 1}
            assert [call.op_name for call in below[inner.id]] == ["text_completion policy"]


class TestAToolThatReturnsAnError:
    """What it returned is its result; that it is an error is said where the tool says so."""

    @staticmethod
    def roll_out() -> None:
        @rollout_op(kind="tool", name="search")
        def search(query: str) -> Any:
            return {"error": "no such index", "isError": True}

        @rollout_op(kind="tool", name="shell")
        def shell() -> str:
            return "Error: exit status 1"

        search("x")
        shell()
        with recording.active(recording.start("execute_tool", "swallowed")) as made:
            made.keep_text("gen_ai.tool.call.result", "Error when executing tool: timed out")
            made.failed("TimeoutError", "timed out")

    def test_the_result_is_there(self, arrived: Arrived) -> None:
        output = arrived.call("execute_tool search").output
        assert output == {"error": "no such index", "isError": True}
        assert arrived.call("execute_tool shell").output == "Error: exit status 1"
        span = arrived.span("execute_tool search")
        assert json.loads(span.attributes["gen_ai.tool.call.result"]) == output

    def test_it_is_an_error_where_the_result_says_so(self, arrived: Arrived) -> None:
        assert error_of(arrived.call("execute_tool search"))["type"] == "ToolError"
        assert arrived.span("execute_tool search").status == "ERROR"
        swallowed = arrived.call("execute_tool swallowed")
        assert error_of(swallowed) == {"type": "TimeoutError", "message": "timed out"}
        assert swallowed.output == "Error when executing tool: timed out"

    def test_a_text_alone_is_no_verdict(self, arrived: Arrived) -> None:
        assert arrived.call("execute_tool shell").exception is None

    def test_the_root_counts_them(self, arrived: Arrived) -> None:
        counts = arrived.root.attributes["rollout"]
        assert (counts["num_tool_calls"], counts["num_tool_errors"]) == (3, 2)


class TestNoRewardAndNoGeneration:
    """A rollout that made nothing is a trajectory as well; None is no reward, 0.0 is one."""

    @staticmethod
    def roll_out() -> None:
        record_reward(None)
        with trajectory(case="none"):
            record_reward(None, reason="timed out")
        with trajectory(case="zero"):
            record_reward(0.0)
        with trajectory(case="mapping"):
            record_reward({"score": None, "acc": 0})

    def test_each_is_a_call(self, arrived: Arrived) -> None:
        by_case = {extra(call).get("case"): call for call in arrived.calls}
        assert set(by_case) == {None, "none", "zero", "mapping"}
        for case, score in ((None, None), ("none", None), ("zero", 0.0), ("mapping", None)):
            call = by_case[case]
            assert (call.output or {}).get("reward") == score
            assert ("reward" in (call.output or {})) is (score is not None)
            assert [reward["value"] for reward in call.rewards] == [score]
            assert call.exception is None
            assert "num_generations" not in extra(call)
        assert by_case["none"].rewards[0]["reason"] == "timed out"

    def test_otlp_has_the_event_without_a_score(self, arrived: Arrived) -> None:
        for span in arrived.spans:
            (event,) = [e for e in span.events if e.name == "gen_ai.evaluation.result"]
            scored = "gen_ai.evaluation.score.value" in event.attributes
            assert scored is (span.attributes.get("rollout.case") == "zero")


class TestSeeded:
    """Equal seeds give different ids, and no generator is read or moved."""

    @staticmethod
    def roll_out() -> bool:
        same = True
        for _ in range(20):
            random.seed(42)
            numpy.random.seed(42)
            before = random.getstate(), repr(numpy.random.get_state())
            with trajectory(seeded=True):
                generate([1, 2], [3])
                with recording.active(recording.start("execute_tool", "add")):
                    record_reward(1.0)
            same = same and before == (random.getstate(), repr(numpy.random.get_state()))
        return same

    def test_ids_are_unique(self, arrived: Arrived) -> None:
        seeded = [call for call in arrived.calls if "seeded" in extra(call)]
        assert len({call.id for call in seeded}) == len(seeded) == 60

    def test_generators_stand_where_they_stood(self, arrived: Arrived) -> None:
        assert arrived.result is True


class TestTheCapOfAttributes:
    """200 attributes of the user's never evict who the span is, nor what it carries."""

    @staticmethod
    def roll_out() -> None:
        with recording.active(recording.start("text_completion", "policy")) as made:
            made.payload.prompt_ids = [1, 2, 3]
            for number in range(200):
                made.span.set_attribute(f"mine.{number}", number)

    def test_identity_and_payload_are_there(self, arrived: Arrived) -> None:
        (call,) = arrived.generations()
        assert call.attributes["sample_index"] == arrived.root.attributes["sample_index"]
        assert "token_ids" in extra(call)["prompt"]
        assert call.attributes["mine"]["199"] == 199
        attributes = arrived.span("text_completion policy").attributes
        assert attributes["rollout.step"] == 7
        assert "rollout.prompt.token_ids" in attributes
        assert attributes["mine.199"] == 199


SIZE = 11_000_000


class TestAHugeToolOutput:
    """11 MB of one tool leave its neighbours alone, in Weave and in OTLP."""

    @staticmethod
    def roll_out() -> None:
        for number in range(3):
            generate([number], [number])
        with recording.active(recording.start("execute_tool", "cat")) as made:
            made.keep_text("gen_ai.tool.call.result", "é" * SIZE)
        with recording.active(recording.start("execute_tool", "list")) as made:
            made.keep("gen_ai.tool.call.result", ["x" * 1_000_000] * (SIZE // 1_000_000))
        foreign = trace.get_tracer("foreign")  # no provider: nothing is recorded
        with foreign.start_as_current_span("outside"):
            generate([9], [9])

    def test_everything_arrived(self, arrived: Arrived) -> None:
        names = [call.op_name for call in arrived.calls]
        assert names.count("text_completion policy") == 4
        assert {"execute_tool cat", "execute_tool list"} <= set(names)
        assert sorted(names) == sorted(span.name for span in arrived.spans)

    def test_what_was_cut_is_said(self, arrived: Arrived) -> None:
        text = arrived.span("execute_tool cat").attributes["gen_ai.tool.call.result"]
        assert text.endswith(f"… ({SIZE - (1 << 20)} more characters cut)")
        listed = json.loads(arrived.span("execute_tool list").attributes["gen_ai.tool.call.result"])
        assert listed[-1] == "… (1000000 characters cut)"
        assert len(listed) == SIZE // 1_000_000


class TestACollectorThatIsNotHere:
    """A collector that this node cannot reach costs the rollout nothing, and Weave nothing."""

    @staticmethod
    def roll_out() -> float:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from otel_rollout.processor.behind import behind

        (processor,) = recording.tracer().span_processor._span_processors  # type: ignore[attr-defined]
        nowhere = OTLPSpanExporter(endpoint="http://127.0.0.1:9/v1/traces", timeout=1)
        processor._behind.append(behind(BatchSpanProcessor(nowhere), "text", 3 << 20))
        started = time.perf_counter()
        try:
            for number in range(200):
                generate([number], [number])
            return time.perf_counter() - started
        finally:
            assert processor._worker.wait_for_all(10)
            processor._behind.pop().shutdown()

    def test_the_calls_are_there(self, arrived: Arrived) -> None:
        assert len(arrived.generations()) == 200
        assert len(arrived.spans) == len(arrived.calls)


def test_nothing_is_said_in_any_log(delivery: Delivery) -> None:
    said = "\n".join(delivery.log.lines)
    assert "Failed to detach context" not in said
    assert "was created in a different Context" not in said
    assert "internal error" not in said
    assert "never retrieved" not in said


def test_no_span_is_left_open() -> None:
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_every_span_arrived_once_with_its_identity(delivery: Delivery) -> None:
    check_all(delivery)


@pytest.mark.parametrize("name", ["dead_letters", "failed_conversion", "failed_in_worker"])
def test_nothing_was_put_aside(delivery: Delivery, name: str) -> None:
    assert delivery.counters.get(name, 0) == 0
    assert WeaveSpanExporter.rollout_payload == "full"

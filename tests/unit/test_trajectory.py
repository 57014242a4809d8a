"""Trajectories: identity on every span, nesting, the end of the root, and unsampled ones."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracerProvider, StatusCode

from otel_rollout import (
    current_trajectory,
    identity,
    record_reward,
    recording,
    rollout_op,
    semconv,
    trajectory,
)
from otel_rollout.processor import sampling
from otel_rollout.processor.sampling import Sampler
from tests.unit.pipeline import Pipeline, attributes, loaded


def sampled_flag(headers: dict[str, str]) -> int:
    return int(headers["traceparent"].rsplit("-", 1)[1], 16) & trace.TraceFlags.SAMPLED


class TestIdentityOnSpans:
    """Every span below a trajectory carries its values with their own types."""

    def test_root_and_foreign_spans(self, pipeline: Pipeline) -> None:
        with (
            trajectory(step=np.int64(3), sample_index="7", validate=False, x=0.5, agent="a"),
            pipeline.foreign.start_as_current_span("http"),
        ):
            pass
        root, http = pipeline.named("rollout a"), pipeline.named("http")
        expected = {
            "rollout.step": 3,
            "rollout.sample_index": "7",
            "rollout.validate": False,
            "rollout.x": 0.5,
            "rollout.sampled": True,
        }
        for span in (root, http):
            assert {k: attributes(span)[k] for k in expected} == expected
            assert type(attributes(span)["rollout.step"]) is int
        assert http.parent is not None
        assert http.parent.span_id == root.context.span_id

    def test_a_root_is_a_new_trace_linked_to_what_was_current(self, pipeline: Pipeline) -> None:
        with pipeline.foreign.start_as_current_span("training step") as step, trajectory(step=1):
            pass
        root = pipeline.named("rollout")
        assert root.parent is None
        assert root.context.trace_id != step.get_span_context().trace_id
        assert [link.context for link in root.links] == [step.get_span_context()]

    def test_nested_ones_stay_in_the_trace_and_the_inner_values_win(
        self, pipeline: Pipeline
    ) -> None:
        with trajectory(step=1, sample_index=5, agent="outer"):
            with trajectory(sample_index=6, extra="e", agent="inner"), _span(pipeline, "in"):
                pass
            with _span(pipeline, "after"):
                pass
        outer, inner = pipeline.named("rollout outer"), pipeline.named("rollout inner")
        assert inner.context.trace_id == outer.context.trace_id
        assert inner.parent is not None
        assert inner.parent.span_id == outer.context.span_id
        for span in (inner, pipeline.named("in")):
            assert attributes(span)["rollout.step"] == 1
            assert attributes(span)["rollout.sample_index"] == 6
            assert attributes(span)["rollout.extra"] == "e"
        for span in (outer, pipeline.named("after")):
            assert attributes(span)["rollout.sample_index"] == 5
            assert "rollout.extra" not in attributes(span)

    async def test_many_in_one_event_loop_never_mix(self, pipeline: Pipeline) -> None:
        async def rollout(number: int) -> None:
            async with trajectory(step=number % 3, sample_index=number):
                for turn in range(3):
                    await asyncio.sleep(0.0001 * (number * 7 % 5))
                    with pipeline.foreign.start_as_current_span(f"{number}/{turn}"):
                        await asyncio.sleep(0)
                    handle = current_trajectory()
                    assert handle is not None
                    assert handle.identity.get("rollout.sample_index") == number
                record_reward(number)

        await asyncio.gather(*(rollout(number) for number in range(200)))
        assert current_trajectory() is None
        spans = pipeline.spans()
        assert len(spans) == 800
        by_trace: dict[int, set[Any]] = {}
        for span in spans:
            index = attributes(span)["rollout.sample_index"]
            by_trace.setdefault(span.context.trace_id, set()).add(index)
            if span.name != "rollout":
                assert span.name.startswith(f"{index}/")
            else:
                assert attributes(span)["rollout.reward"] == index
        assert len(by_trace) == 200
        assert all(len(indices) == 1 for indices in by_trace.values())

    async def test_one_object_shared_by_tasks_does_not_mix(self, pipeline: Pipeline) -> None:
        shared = trajectory(step=1)
        order = asyncio.Event()

        async def first() -> trace.Span:
            async with shared as handle:
                await order.wait()
            return handle.recording.span

        async def second() -> trace.Span:
            async with shared as handle:
                order.set()
                await asyncio.sleep(0.01)
                assert handle.recording.span.is_recording()
            return handle.recording.span

        spans = await asyncio.gather(first(), second())
        assert not any(span.is_recording() for span in spans)
        assert trace.get_current_span() is trace.INVALID_SPAN

    def test_threads_do_not_mix(self, pipeline: Pipeline) -> None:
        def rollouts(thread: int) -> None:
            for number in range(20):
                with trajectory(sample_index=thread * 100 + number), _span(pipeline, "call"):
                    pass

        threads = [threading.Thread(target=rollouts, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spans = pipeline.spans()
        roots = {s.context.trace_id: attributes(s) for s in spans if s.name == "rollout"}
        assert len(roots) == 160
        for span in spans:
            key = "rollout.sample_index"
            assert attributes(span)[key] == roots[span.context.trace_id][key]

    def test_the_identity_survives_the_attribute_cap(self) -> None:
        pipeline = Pipeline()
        with trajectory(step=1, sample_index=2) as handle:
            for number in range(300):
                handle.set(f"note{number}", number)
            with pipeline.foreign.start_as_current_span("busy") as span:
                for number in range(300):
                    span.set_attribute(f"a{number}", number)
        for span in pipeline.spans():
            assert attributes(span)["rollout.step"] == 1
            assert attributes(span)["rollout.sample_index"] == 2
        pipeline.close()


def _span(pipeline: Pipeline, name: str) -> Any:
    return pipeline.foreign.start_as_current_span(name)


class TestEnd:
    """However the block is left, the root ends with the right status and nothing is logged."""

    def test_success_leaves_the_status_unset(self, pipeline: Pipeline) -> None:
        with trajectory(step=1):
            pass
        assert pipeline.named("rollout").status.status_code is StatusCode.UNSET

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("x\ud800"),
            asyncio.CancelledError(),
            GeneratorExit(),
            KeyboardInterrupt(),
            SystemExit(3),
            StopIteration(1),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_an_exception_passes_unchanged_and_is_on_the_span(
        self, pipeline: Pipeline, error: BaseException
    ) -> None:
        with pytest.raises(type(error)) as raised, trajectory(step=1):
            raise error
        assert raised.value is error
        root = pipeline.named("rollout")
        assert root.status.status_code is StatusCode.ERROR
        assert attributes(root)[semconv.ERROR_TYPE] == type(error).__name__
        (event,) = root.events
        assert event.name == "exception"
        assert "test_trajectory.py" in str((event.attributes or {})["exception.stacktrace"])

    def test_an_exception_that_cannot_be_shown(self, pipeline: Pipeline) -> None:
        class Hostile(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        with pytest.raises(Hostile), trajectory(step=1):
            raise Hostile
        assert pipeline.named("rollout").status.status_code is StatusCode.ERROR

    async def test_a_cancelled_task(self, pipeline: Pipeline) -> None:
        async def rollout() -> None:
            async with trajectory(step=1):
                await asyncio.sleep(60)

        task = asyncio.create_task(rollout())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        root = pipeline.named("rollout")
        assert attributes(root)[semconv.ERROR_TYPE] == "CancelledError"

    def test_left_in_another_context(
        self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        def items() -> Iterator[int]:
            with trajectory(step=1):
                yield 1

        generator = items()
        contextvars.copy_context().run(next, generator)
        contextvars.copy_context().run(generator.close)
        assert pipeline.named("rollout").status.status_code is StatusCode.ERROR
        assert caplog.records == []

    async def test_left_in_another_task(
        self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def items() -> AsyncIterator[int]:
            async with trajectory(step=1):
                yield 1

        generator = items()
        await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
        await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
        assert len(pipeline.spans()) == 1
        assert caplog.records == []

    def test_one_block_ends_once(self, pipeline: Pipeline) -> None:
        block = trajectory(step=1)
        for _ in range(3):
            with block:
                pass
        assert len(pipeline.spans()) == 3


class BrokenProvider(NoOpTracerProvider):
    """A provider whose tracers raise, or give something that is no span."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        result = self.result

        class Broken(trace.NoOpTracer):
            def start_span(self, *args: Any, **kwargs: Any) -> Any:
                if isinstance(result, Exception):
                    raise result
                return result

        return Broken()


class BrokenSpan(trace.NonRecordingSpan):
    """Says that it records, and raises at everything else."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def is_recording(self) -> bool:
        return True

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken")

    set_attribute = set_status = add_event = end = get_span_context = _raise


class TestNeverRaises:
    """Whatever is broken about telemetry, the user's block runs as without it."""

    @pytest.mark.parametrize("result", [RuntimeError("no"), None, 7, BrokenSpan()])
    async def test_with_a_broken_provider(self, result: Any) -> None:
        recording.use_tracer_provider(BrokenProvider(result))

        @rollout_op
        def work() -> int:
            return 1

        @rollout_op
        async def work_async() -> int:
            return 2

        with trajectory(step=1) as handle:
            handle.set("a", object())
            handle.record_reward(1.0)
            record_reward({"score": 1})
            assert work() == 1
            assert await work_async() == 2
        with pytest.raises(ZeroDivisionError), trajectory(step=1):
            raise ZeroDivisionError

    def test_without_an_sdk(self) -> None:
        code = (
            "from otel_rollout import trajectory, rollout_op, record_reward\n"
            "@rollout_op\n"
            "def f(): return 1\n"
            "with trajectory(step=1, x=object()) as t:\n"
            "    record_reward(1); t.set('a', 1); assert f() == 1; assert not t.sampled\n"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

    def test_with_values_that_cannot_be_shown(self, pipeline: Pipeline) -> None:
        class Hostile:
            def __str__(self) -> str:
                raise RuntimeError("no")

        with trajectory(step=1, x=Hostile(), y=10**5000) as handle:
            handle.set("z", Hostile())
            handle.record_reward(Hostile(), detail={"a": Hostile()})
            handle.record_reward(1.0, detail=5)
            handle.record_reward({1: 2, "score": "x"})
        root = pipeline.named("rollout")
        assert attributes(root)["rollout.step"] == 1

    def test_with_a_log_handler_that_raises(self) -> None:
        class Raising(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                raise RuntimeError("no")

        handler = Raising()
        logging.getLogger("otel_rollout").addHandler(handler)
        recording.use_tracer_provider(BrokenProvider(RuntimeError("no")))
        try:
            with trajectory(**{"a b": 1}):
                pass
        finally:
            logging.getLogger("otel_rollout").removeHandler(handler)


class TestUnsampled:
    """An unsampled trajectory leaves no span anywhere, whatever the provider's own sampler."""

    @pytest.fixture(params=["parent-based", "always-on"])
    def pipeline(self, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
        self.peer = InMemorySpanExporter()
        made = Pipeline(
            SimpleSpanProcessor(self.peer),
            sampler=ALWAYS_ON if request.param == "always-on" else ParentBased(ALWAYS_ON),
        )
        sampling.use_sampler(Sampler(rate=0.0))
        yield made
        made.close()

    def test_no_span_of_ours_or_of_others(self, pipeline: Pipeline) -> None:
        @rollout_op(kind="tool")
        def tool() -> None:
            with _span(pipeline, "inside tool"):
                pass

        with trajectory(step=1) as handle, _span(pipeline, "foreign"):
            tool()
            with trajectory(step=2):
                tool()
            record_reward(1.0)
        assert not handle.sampled
        assert pipeline.spans() == []
        assert self.peer.get_finished_spans() == ()

    def test_what_is_called_is_told_so(self, pipeline: Pipeline) -> None:
        headers: list[dict[str, str]] = []

        @rollout_op
        def call() -> None:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            headers.append(carrier)

        with trajectory(step=1):
            call()
            with trajectory(step=2):
                call()
        for carrier in headers:
            assert sampled_flag(carrier) == 0
            there = identity.from_context(propagate.extract(carrier))
            assert there is not None
            assert there.sampled is False

    def test_nothing_is_copied_for_it(self, pipeline: Pipeline) -> None:
        class Watched(list[int]):
            def __iter__(self) -> Iterator[int]:
                raise AssertionError("read")

        @rollout_op
        def call(value: Any) -> Any:
            return value

        with trajectory(step=1) as handle:
            call(Watched([1]))
            assert not handle.recording.live

    def test_a_provider_in_the_next_process_drops_its_spans_too(self, pipeline: Pipeline) -> None:
        carrier: dict[str, str] = {}
        with trajectory(step=1):
            propagate.inject(carrier)
        there = Pipeline(sampler=ALWAYS_ON)
        with there.foreign.start_as_current_span("engine", propagate.extract(carrier)):
            pass
        assert there.spans() == []
        there.close()

    def test_processors_behind_see_neither_start_nor_end(self) -> None:
        seen: list[str] = []

        class Watching(SimpleSpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                seen.append("start")

            def _on_ending(self, span: Any) -> None:
                seen.append("ending")

            def on_end(self, span: Any) -> None:
                seen.append("end")

        pipeline = Pipeline(Watching(InMemorySpanExporter()), sampler=ALWAYS_ON)
        sampling.use_sampler(Sampler(rate=0.0))
        with trajectory(step=1), _span(pipeline, "foreign"):
            pass
        assert pipeline.spans() == []
        assert seen == []
        with trajectory(step=1):
            pass
        sampling.use_sampler(None)
        with trajectory(step=1):
            pass
        assert len(pipeline.spans()) == 1
        known = hasattr(SpanProcessor, "_on_ending")  # from SDK 1.31 on
        assert seen == ["start", *(["ending"] if known else []), "end"]
        pipeline.close()

    @pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(0))])
    def test_a_users_own_sampler_decides_for_the_whole_trajectory(self, sampler: Any) -> None:
        pipeline = Pipeline(sampler=sampler)
        other = Pipeline(sampler=ALWAYS_ON)
        recording.use_tracer_provider(pipeline.provider)
        carrier: dict[str, str] = {}
        with trajectory(step=1) as handle:
            propagate.inject(carrier)
            with _span(other, "foreign"):
                pass
        assert not handle.sampled
        assert sampled_flag(carrier) == 0
        assert pipeline.spans() == other.spans() == []
        pipeline.close()
        other.close()

    def test_an_unsampled_trace_around_it_does_not_decide(self, pipeline: Pipeline) -> None:
        sampling.use_sampler(None)
        absent = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(0))
        around = trace.set_span_in_context(trace.NonRecordingSpan(absent))
        token = otel_context.attach(around)
        with trajectory(step=1):
            pass
        otel_context.detach(token)
        (root,) = pipeline.spans()
        assert [link.context for link in root.links] == [absent]


class TestReward:
    """A reward is on the root: as attribute, as evaluation event, with its detail."""

    @pytest.mark.parametrize(
        ("value", "score"),
        [
            (1, 1.0),
            (True, 1.0),
            (0, 0.0),
            (-0.5, -0.5),
            (np.float32(0.5), 0.5),
            (np.int64(2), 2.0),
            (np.array(0.25), 0.25),
            ({"score": 0.75, "acc": True}, 0.75),
            ({"reward": 2, "why": "x"}, 2.0),
            (None, None),
            (float("nan"), None),
            (float("inf"), None),
            ("0.5", None),
            (10**400, None),
            ({}, None),
        ],
    )
    def test_score(self, pipeline: Pipeline, value: Any, score: float | None) -> None:
        with trajectory(step=1):
            record_reward(value)
        root = pipeline.named("rollout")
        assert attributes(root).get(semconv.REWARD) == score
        (event,) = root.events
        assert event.name == semconv.EVALUATION_EVENT
        assert dict(event.attributes or {}).get(semconv.EVALUATION_SCORE) == score

    def test_the_last_one_counts_and_other_sources_do_not(self, pipeline: Pipeline) -> None:
        with trajectory(step=1):
            record_reward(1)
            record_reward(5, name="format", tags=["a"], big=2**70)
            record_reward({"score": 2, "parts": {"a": 1}})
        root = pipeline.named("rollout")
        assert attributes(root)[semconv.REWARD] == 2.0
        assert loaded(root, semconv.REWARD_DETAIL) == {
            "format": {"tags": ["a"], "big": str(2**70)},
            "reward": {"parts": {"a": 1}},
        }
        assert len(root.events) == 3

    def test_outside_a_trajectory_it_goes_to_the_current_span(self, pipeline: Pipeline) -> None:
        record_reward(1)
        with _span(pipeline, "mine"):
            record_reward(1, why="x")
        (event,) = pipeline.named("mine").events
        assert (event.attributes or {})[semconv.EVALUATION_SCORE] == 1.0


class TestRandomState:
    """Random generators are neither read nor moved, and equal seeds give different ids."""

    def test_generators_stay(self, pipeline: Pipeline) -> None:
        random.seed(1)
        np.random.seed(1)
        before = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index,union-attr]
        sampling.use_sampler(Sampler(rate=0.5, quota=3))
        for number in range(20):
            with trajectory(sample_index=number), _span(pipeline, "x"):
                record_reward(1)
        pipeline.spans()
        after = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index,union-attr]
        assert before == after

    def test_ids_of_equally_seeded_workers_differ(self) -> None:
        code = (
            "import random; random.seed(42)\n"
            "from otel_rollout import IdGenerator\n"
            "g = IdGenerator(); print(g.generate_trace_id(), g.generate_span_id())"
        )
        run = [sys.executable, "-c", code]
        outputs = {subprocess.run(run, capture_output=True, text=True).stdout for _ in range(3)}
        assert len(outputs) == 3

    def test_the_traceparent_says_that_ids_are_random(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        ours = Pipeline()
        theirs = provider.get_tracer("x").start_span("x").get_span_context().trace_flags
        assert ours.foreign.start_span("x").get_span_context().trace_flags == theirs
        ours.close()

"""The processor: what goes through unchanged, what is rebuilt, flush, shutdown, overload, fork."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Status, StatusCode

from otel_rollout import RolloutSpanProcessor, record_reward, recording, semconv, trajectory
from otel_rollout.exporters.bounded import ByteBoundedExporter, estimated_size
from otel_rollout.settings import Settings
from tests.unit.pipeline import Memory, Pipeline, attributes, generation


class Keeping(SpanProcessor):
    """A processor that keeps the very spans it is given."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class Stalled(SpanExporter):
    """An exporter that is stuck until it is let go."""

    rollout_payload = "full"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.exported: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go.wait(60)
        self.exported += [span.name for span in spans]
        return SpanExportResult.SUCCESS


class Failing(SpanExporter):
    """An exporter that fails in one of the ways there are."""

    def __init__(self, result: SpanExportResult | Exception) -> None:
        self.result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class Ignoring(SpanProcessor):
    """A processor whose flush ignores its timeout."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        time.sleep(60)
        return True


def within(seconds: float, call: Callable[[], Any]) -> Any:
    started = time.monotonic()
    result = call()
    assert time.monotonic() - started < seconds
    return result


class TestWhatIsSeen:
    """Every trajectory's span is rebuilt; the original, and spans outside, stay as they are."""

    def test_the_original_span_is_untouched(self) -> None:
        peer = Keeping()
        pipeline = Pipeline(peers=[peer])
        with trajectory(step=1):
            generation([1, 2], [3])
        (original,) = [s for s in peer.ended if s.name == "text_completion m"]
        rebuilt = pipeline.named("text_completion m")
        assert rebuilt is not original
        assert semconv.PROMPT_IDS in attributes(rebuilt)
        assert semconv.PROMPT_IDS not in attributes(original)
        for field in ("context", "parent", "start_time", "end_time", "kind", "name", "resource"):
            assert getattr(rebuilt, field) == getattr(original, field)
        pipeline.close()

    def test_spans_outside_pass_unchanged_and_at_once(self) -> None:
        behind = Keeping()
        pipeline = Pipeline(behind)
        with pipeline.foreign.start_as_current_span("http") as span:
            assert behind.started == [span]
        (ended,) = behind.ended
        assert ended.get_span_context() == span.get_span_context()
        assert pipeline.named("http").attributes == ended.attributes
        pipeline.close()

    def test_starts_are_seen_at_once_inside_a_trajectory(self) -> None:
        behind = Keeping()
        pipeline = Pipeline(behind)
        with trajectory(step=1), pipeline.foreign.start_as_current_span("http"):
            assert [s.name for s in behind.started] == ["rollout", "http"]
            assert behind.started[1].attributes["rollout.step"] == 1
        pipeline.close()

    def test_each_level_gets_its_part(self) -> None:
        exporters = {level: Memory(level) for level in ("full", "text", "none")}
        pipeline = Pipeline(*exporters.values())
        with trajectory(step=1), recording.active(recording.start("chat", "m")) as made:
            made.keep(semconv.INPUT, {"a": 1})
            made.payload.response_ids = [1]
        assert pipeline.processor.force_flush()
        found = {k: attributes(e.get_finished_spans()[0]) for k, e in exporters.items()}
        assert {k for k, v in found.items() if semconv.RESPONSE_IDS in v} == {"full"}
        assert {k for k, v in found.items() if semconv.INPUT in v} == {"full", "text"}
        assert all("rollout.step" in v for v in found.values())
        pipeline.close()

    def test_spans_that_record_but_are_not_sampled_are_not_exported(self) -> None:
        class RecordOnly(Sampler):
            def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
                return SamplingResult(Decision.RECORD_ONLY)

            def get_description(self) -> str:
                return "record only"

        pipeline = Pipeline(sampler=RecordOnly())
        with trajectory(step=1):
            pass
        pipeline.foreign.start_span("outside").end()
        assert pipeline.spans() == []
        pipeline.close()

    def test_a_weave_like_exporter_behind_a_stock_processor_gets_everything(self) -> None:
        batched, simple = Memory("full"), Memory("full")
        pipeline = Pipeline(BatchSpanProcessor(batched), SimpleSpanProcessor(simple))
        with trajectory(step=1):
            generation([1], [2])
        assert pipeline.processor.force_flush()
        for exporter in (batched, simple):
            assert semconv.PROMPT_IDS in attributes(exporter.get_finished_spans()[0])
        pipeline.close()


class TestWithoutContent:
    """With NO_CONTENT no text, ids, arguments or messages leave the process."""

    def test_nothing_of_it_is_left(self) -> None:
        pipeline = Pipeline(capture_content=False)
        with contextlib.suppress(ValueError), trajectory(step=1):
            generation([1], [2])
            record_reward(0.5, why="hunter2")
            with recording.active(recording.start("chat", "m")) as made:
                made.keep(semconv.INPUT_MESSAGES, ["hunter2"])
                made.keep_text(semconv.TOOL_ARGUMENTS, "hunter2")
                made.event("parsed", {"names": ["hunter2"], "text": "hunter2", "count": 1})
                made.failed("ToolError", "hunter2")
            with pipeline.foreign.start_as_current_span("openai") as foreign:
                foreign.set_attribute("gen_ai.input.messages", "hunter2")
                foreign.set_attribute("gen_ai.prompt", "hunter2")
                foreign.set_attribute("gen_ai.request.model", "m")
                foreign.set_status(Status(StatusCode.ERROR, "hunter2"))
                foreign.record_exception(ValueError("hunter2"))
            raise ValueError("hunter2")
        spans = pipeline.spans()
        assert len(spans) == 4
        for span in spans:
            assert "hunter2" not in span.to_json()
            assert semconv.RESPONSE_IDS not in attributes(span)
        root, openai = pipeline.named("rollout"), pipeline.named("openai")
        assert attributes(root)[semconv.REWARD] == 0.5
        assert attributes(root)[semconv.ERROR_TYPE] == "ValueError"
        assert attributes(openai)["gen_ai.request.model"] == "m"
        assert openai.status.status_code is StatusCode.ERROR
        pipeline.close()

    def test_spans_outside_stay_as_they_are(self) -> None:
        pipeline = Pipeline(capture_content=False)
        span = pipeline.foreign.start_span("openai")
        span.set_attribute("gen_ai.input.messages", "mine")
        span.end()
        assert attributes(pipeline.named("openai"))["gen_ai.input.messages"] == "mine"
        pipeline.close()


class TestFlushAndShutdown:
    """A flush is a barrier in order that keeps its timeout; shutdown drains."""

    def test_all_that_ended_before_a_flush_is_exported(self, pipeline: Pipeline) -> None:
        for number in range(500):
            with trajectory(sample_index=number):
                pass
        assert pipeline.processor.force_flush()
        assert len(pipeline.exporter.get_finished_spans()) == 500

    def test_its_timeout_holds_against_a_processor_that_ignores_it(self) -> None:
        pipeline = Pipeline(Ignoring())
        with trajectory(step=1):
            pass
        assert within(2, lambda: pipeline.processor.force_flush(300)) is False
        assert len(pipeline.exporter.get_finished_spans()) == 1
        recording.use_tracer_provider(None)

    def test_its_timeout_holds_against_a_stalled_exporter(self) -> None:
        stalled = Stalled()
        pipeline = Pipeline(stalled)
        with trajectory(step=1):
            pass
        assert within(2, lambda: pipeline.processor.force_flush(300)) is False
        stalled.go.set()
        assert pipeline.processor.force_flush(5000)
        pipeline.close()

    def test_shutdown_drains(self) -> None:
        pipeline = Pipeline()
        for number in range(500):
            with trajectory(sample_index=number):
                pass
        pipeline.provider.shutdown()
        assert len(pipeline.exporter.get_finished_spans()) == 500

    def test_after_shutdown_nothing_blocks(self) -> None:
        pipeline = Pipeline()
        with trajectory(step=1):
            pass
        pipeline.close()
        recording.use_tracer_provider(pipeline.provider)
        with trajectory(step=2):
            pass
        within(2, lambda: pipeline.processor.force_flush(30_000))
        within(2, pipeline.processor.shutdown)
        assert len(pipeline.exporter.get_finished_spans()) == 1

    def test_before_the_first_span_nothing_blocks(self) -> None:
        pipeline = Pipeline()
        assert within(1, pipeline.processor.force_flush)
        within(1, pipeline.close)

    def test_batched_exporters_are_flushed_soon_by_themselves(self) -> None:
        batched = InMemorySpanExporter()
        pipeline = Pipeline(BatchSpanProcessor(batched, schedule_delay_millis=60_000))
        with trajectory(step=1):
            pass
        deadline = time.monotonic() + 5
        while not batched.get_finished_spans() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(batched.get_finished_spans()) == 1
        pipeline.close()


class TestOverload:
    """What is stalled behind never blocks the caller; what finds no room is dropped and counted."""

    def test_a_full_queue_drops_and_counts(self, caplog: pytest.LogCaptureFixture) -> None:
        stalled = Stalled()
        pipeline = Pipeline(stalled, max_queue_bytes=100_000)

        def rollouts() -> None:
            for number in range(300):
                with trajectory(sample_index=number):
                    pass

        within(5, rollouts)
        dropped = pipeline.processor.counters["dropped_queue_full"]
        assert 200 < dropped < 300
        assert len([r for r in caplog.records if "queue" in r.getMessage()]) == 1
        stalled.go.set()
        assert pipeline.processor.force_flush()
        assert len(stalled.exported) == 300 - dropped
        with trajectory(step=1):  # there is room again
            pass
        assert pipeline.processor.force_flush()
        assert len(stalled.exported) == 301 - dropped
        pipeline.close()

    def test_large_spans_of_others_count_by_their_size(self) -> None:
        stalled = Stalled()
        pipeline = Pipeline(stalled, max_queue_bytes=1_000_000)
        with trajectory(step=1):
            for _ in range(100):
                with pipeline.foreign.start_as_current_span("big") as span:
                    span.set_attribute("body", "x" * 100_000)
        assert pipeline.processor.counters["dropped_queue_full"] > 80
        stalled.go.set()
        pipeline.close()

    @pytest.mark.parametrize("result", [RuntimeError("no"), SpanExportResult.FAILURE])
    def test_an_exporter_that_fails_is_counted_and_keeps_none_from_others(
        self, result: Any
    ) -> None:
        pipeline = Pipeline(Failing(result))
        for number in range(3):
            with trajectory(sample_index=number):
                pass
        assert len(pipeline.spans()) == 3
        assert pipeline.processor.counters["failed_behind"] == 3
        pipeline.close()

    def test_a_processor_that_raises_keeps_none_from_others(self) -> None:
        class Raising(SpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                raise RuntimeError("start")

            def _on_ending(self, span: Any) -> None:
                raise RuntimeError("ending")

            def on_end(self, span: Any) -> None:
                raise RuntimeError("end")

            def shutdown(self) -> None:
                raise RuntimeError("shutdown")

            def force_flush(self, timeout_millis: int = 30000) -> bool:
                raise RuntimeError("flush")

        class Names(Keeping):
            def on_end(self, span: ReadableSpan) -> None:
                super().on_end(span)
                if span.name == "http":
                    raise RuntimeError("this one")

        names, last = Names(), Keeping()
        pipeline = Pipeline(Raising(), names, last)
        with trajectory(step=1):
            pipeline.foreign.start_span("http").end()
        pipeline.foreign.start_span("outside").end()
        assert pipeline.processor.force_flush() is False
        for behind in (names, last):
            assert len(behind.started) == 3
            assert {s.name for s in behind.ended} == {"rollout", "http", "outside"}
        pipeline.provider.shutdown()
        recording.use_tracer_provider(None)

    def test_many_threads(self, pipeline: Pipeline) -> None:
        def rollouts(thread: int) -> None:
            for number in range(50):
                with trajectory(sample_index=thread * 1000 + number):
                    generation([number] * 20, [thread])

        threads = [threading.Thread(target=rollouts, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spans = pipeline.spans()
        assert len(spans) == 1600
        assert len({span.context.span_id for span in spans}) == 1600
        assert pipeline.processor.counters["handed_on"] == 1600
        assert not pipeline.processor._open


class TestFinalizers:
    """A span may be ended by the garbage collector, in the middle of anything."""

    def test_spans_that_end_while_others_are_put_in(self, pipeline: Pipeline) -> None:
        made = 0

        class Holder:
            def __init__(self) -> None:
                self.span = pipeline.foreign.start_span("dropped")
                self.itself = self  # only the collector frees it

            def __del__(self) -> None:
                self.span.end()

        old = gc.get_threshold()
        gc.set_threshold(1, 1, 1)  # the collector runs at nearly every allocation
        try:
            with trajectory(step=1):
                for _ in range(300):
                    Holder()
                    made += 1
                    pipeline.foreign.start_span("live").end()
        finally:
            gc.set_threshold(*old)
        deadline = time.monotonic() + 10
        names: list[str] = []
        while names.count("dropped") < made and time.monotonic() < deadline:
            gc.collect()  # does nothing while another thread collects
            names = [span.name for span in pipeline.spans()]
        assert names.count("dropped") == names.count("live") == made

    def test_a_queue_with_no_lock_that_a_finalizer_could_wait_for(self) -> None:
        # The finalizer runs on a thread that is inside the queue's own methods.
        from collections import Counter

        from otel_rollout.processor.worker import Worker

        handled: list[int] = []
        worker: Worker[int] = Worker("w", handled.extend, int, 1 << 20, Counter())

        class Item:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                worker.put(2, 1)

        old = gc.get_threshold()
        gc.set_threshold(1, 1, 1)
        try:
            done = threading.Event()

            def put() -> None:
                for _ in range(500):
                    Item()
                    worker.put(1, 1)
                done.set()

            thread = threading.Thread(target=put, daemon=True)
            thread.start()
            assert done.wait(20)
        finally:
            gc.set_threshold(*old)
        deadline = time.monotonic() + 10
        while handled.count(2) < 500 and time.monotonic() < deadline:
            gc.collect()  # does nothing while another thread collects
            assert worker.wait_for_all(10)
        assert handled.count(1) == handled.count(2) == 500
        assert worker.waiting_bytes == 0


class TestFork:
    """A forked child exports its own spans and none of its parent's."""

    def test_the_child_exports_its_own(self) -> None:
        stalled = Stalled()
        stalled.go.set()
        pipeline = Pipeline(stalled)
        for number in range(50):
            with trajectory(sample_index=number):
                pass
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                stalled.exported.clear()
                pipeline.exporter.clear()
                with trajectory(step=1, agent="child"):
                    generation([1], [2])
                done = pipeline.processor.force_flush(5000)
                os.write(write, pickle.dumps((done, stalled.exported)))
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            done, exported = pickle.loads(file.read())
        os.waitpid(child, 0)
        assert done is True
        assert exported == ["text_completion m", "rollout child"]
        assert len(pipeline.spans()) == 50
        pipeline.close()

    def test_fork_while_the_worker_is_busy(self) -> None:
        stalled = Stalled()
        pipeline = Pipeline(stalled)
        with trajectory(step=1):
            pass
        time.sleep(0.05)  # the worker is inside the exporter now
        child = os.fork()
        if child == 0:
            code = 1
            try:
                stalled.go.set()
                with trajectory(step=2):
                    pass
                code = int(not pipeline.processor.force_flush(5000) or len(stalled.exported) != 1)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        stalled.go.set()
        pipeline.close()


class Sizes(SpanExporter):
    """Notes the size of each batch."""

    def __init__(self, bad: str = "") -> None:
        self.batches: list[list[ReadableSpan]] = []
        self.bad = bad

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append(list(spans))
        if any(span.name == self.bad for span in spans):
            raise RuntimeError("too large")
        return SpanExportResult.SUCCESS


class TestBatchBytes:
    """A batch to another exporter is bounded in bytes, however the exporter is put in."""

    @pytest.fixture(params=["bare", "batched"])
    def behind(self, request: pytest.FixtureRequest) -> Callable[[SpanExporter], Any]:
        return (lambda e: e) if request.param == "bare" else BatchSpanProcessor

    @pytest.mark.parametrize("body", ["x" * 10_000, "界" * 3334])
    def test_bound(self, behind: Callable[[SpanExporter], Any], body: str) -> None:
        sizes = Sizes()
        pipeline = Pipeline(behind(sizes), max_batch_bytes=30_000)
        with trajectory(step=1):
            for _ in range(20):
                with pipeline.foreign.start_as_current_span("big") as span:
                    span.set_attribute("body", body)
                    span.set_attribute("list", [body[:10]] * 10)
        assert pipeline.processor.force_flush()
        assert sum(map(len, sizes.batches)) == 21
        for batch in sizes.batches:
            size = sum(len(str(attributes(span).get("body", "")).encode()) for span in batch)
            assert size <= 30_000
        pipeline.close()

    def test_one_span_that_cannot_be_exported_loses_only_its_part(self) -> None:
        sizes = Sizes(bad="bad")
        bounded = ByteBoundedExporter(sizes, 1)
        memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(memory))
        tracer = provider.get_tracer("x")
        for name in ("a", "bad", "b"):
            tracer.start_span(name).end()
        result = bounded.export(memory.get_finished_spans())
        assert result is SpanExportResult.FAILURE
        assert [span.name for batch in sizes.batches for span in batch] == ["a", "bad", "b"]

    def test_the_estimate_covers_all_that_is_large(self) -> None:
        from opentelemetry.sdk.trace import Event

        big = "x" * 5000
        for span in (
            ReadableSpan("n", attributes={"a": big}),
            ReadableSpan("n", attributes={"a": [big, big]}),
            ReadableSpan("n", events=[Event("e", {"a": big})]),
            ReadableSpan("n", status=Status(StatusCode.ERROR, big)),
        ):
            assert estimated_size(span) >= 5000


class TestOnTheCallersThread:
    """Ending a span costs the caller no encoding, export or wait."""

    def test_nothing_is_encoded_there(self) -> None:
        threads: set[str] = set()

        class Recording(Memory):
            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                threads.add(threading.current_thread().name)
                return super().export(spans)

        exporter = Recording()
        processor = RolloutSpanProcessor(exporter, configuration=Settings())
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(processor)
        recording.use_tracer_provider(provider)
        with trajectory(step=1):
            generation(list(range(4096)), list(range(4096)))
        assert processor.force_flush()
        assert threads == {"otel-rollout"}
        provider.shutdown()

    def test_exporters_of_ours_are_not_traced(self) -> None:
        suppressed: list[bool] = []

        class Http(SpanExporter):
            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                suppressed.append(_suppressed())
                return SpanExportResult.SUCCESS

            def force_flush(self, timeout_millis: int = 30000) -> bool:
                suppressed.append(_suppressed())
                return True

        pipeline = Pipeline(Http())
        with trajectory(step=1):
            pass
        assert pipeline.processor.force_flush()
        assert suppressed == [True, True]
        pipeline.close()


def _suppressed() -> bool:
    from opentelemetry.instrumentation.utils import is_instrumentation_enabled

    return not is_instrumentation_enabled()

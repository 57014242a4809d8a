"""Attributes of our own spans travel with the payload where nobody looks at them before."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from otel_rollout import recording as recordings
from otel_rollout import semconv, trajectory
from otel_rollout.payload import may_come_late
from otel_rollout.processor.following import FollowingSampler
from otel_rollout.processor.late_attributes import asks_for_attributes, is_quiet
from otel_rollout.recording import Recording
from tests.unit.pipeline import Pipeline, attributes


class Looking(SpanProcessor):
    """Notes the attributes that a span has when it starts, and when it ends."""

    def __init__(self) -> None:
        self.at_start: list[dict[str, Any]] = []
        self.at_end: list[dict[str, Any]] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.at_start.append(dict(span.attributes or {}))

    def on_end(self, span: ReadableSpan) -> None:
        self.at_end.append(dict(span.attributes or {}))


class Asking(Sampler):
    """Notes the attributes that it is asked with."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        links: Any = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        self.asked.append(dict(attributes or {}))
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        return "Asking"


@pytest.fixture
def pipelines() -> Iterator[list[Pipeline]]:
    made: list[Pipeline] = []
    yield made
    for pipeline in made:
        pipeline.close()


def generation(**more: Any) -> Recording:
    """A span of ours, with attributes at its start and later."""
    recording = recordings.start(
        semconv.OP_TEXT_COMPLETION, "m", attributes={semconv.INPUT_TOKENS: 3}
    )
    with recordings.active(recording):
        recording.set_all({semconv.OUTPUT_TOKENS: 5, **more})
    return recording


def rollout(times: int = 2, **more: Any) -> Recording:
    """The second of two spans: the first tells that attributes may come late."""
    with trajectory(step=7, sample_index=1):
        for _ in range(times):
            last = generation(**more)
    return last


class TestWhoLooks:
    def test_nobody(self, pipelines: list[Pipeline]) -> None:
        exporter = InMemorySpanExporter()
        pipelines.append(Pipeline(BatchSpanProcessor(exporter), SimpleSpanProcessor(exporter)))
        recording = rollout()
        assert may_come_late(recording.span)
        assert not recording.span.attributes  # type: ignore[attr-defined]
        for span in pipelines[0].spans():
            assert attributes(span)[semconv.STEP] == 7

    def test_a_peer_that_joins_later(self, pipelines: list[Pipeline]) -> None:
        pipelines.append(Pipeline())
        rollout()
        looking = Looking()
        pipelines[0].provider.add_span_processor(looking)
        rollout(1)
        for seen in looking.at_end:
            assert seen[semconv.STEP] == 7
        assert looking.at_end[0][semconv.OUTPUT_TOKENS] == 5
        rollout(1)  # from then on at the start, too
        assert all(seen[semconv.STEP] == 7 for seen in looking.at_start[2:])

    def test_a_processor_behind_that_acts_at_the_start(self, pipelines: list[Pipeline]) -> None:
        looking = Looking()
        pipelines.append(Pipeline(looking))
        rollout()
        assert all(seen[semconv.STEP] == 7 for seen in looking.at_start)
        assert looking.at_start[-1][semconv.INPUT_TOKENS] == 3

    def test_a_sampler_of_the_users(self, pipelines: list[Pipeline]) -> None:
        asking = Asking()
        pipelines.append(Pipeline(sampler=FollowingSampler(asking)))
        rollout()
        assert all(seen[semconv.STEP] == 7 for seen in asking.asked)
        assert asking.asked[-1][semconv.INPUT_TOKENS] == 3

    def test_a_provider_without_our_processor(self, pipelines: list[Pipeline]) -> None:
        pipelines.append(Pipeline())
        rollout()
        exporter = InMemorySpanExporter()
        plain = TracerProvider(shutdown_on_exit=False)
        plain.add_span_processor(SimpleSpanProcessor(exporter))
        recordings.use_tracer_provider(plain)
        rollout()
        for span in exporter.get_finished_spans():
            assert attributes(span)[semconv.STEP] == 7
        assert attributes(exporter.get_finished_spans()[0])[semconv.OUTPUT_TOKENS] == 5


@pytest.mark.parametrize(
    "sampler",
    [
        ALWAYS_ON,
        ALWAYS_OFF,
        DEFAULT_ON,
        DEFAULT_OFF,
        TraceIdRatioBased(0.5),
        ParentBasedTraceIdRatio(0.5),
        FollowingSampler(ParentBased(ALWAYS_ON)),
    ],
)
def test_samplers_of_the_sdk_ask_for_no_attributes(sampler: Sampler) -> None:
    assert not asks_for_attributes(sampler)


@pytest.mark.parametrize(
    "sampler", [Asking(), ParentBased(Asking()), FollowingSampler(ParentBased(Asking())), None]
)
def test_any_other_sampler_may(sampler: Sampler | None) -> None:
    assert asks_for_attributes(sampler)


def test_a_processor_with_a_hook_of_its_own_is_not_quiet() -> None:
    class Ending(BatchSpanProcessor):
        def _on_ending(self, span: Span) -> None: ...

    assert not is_quiet(Looking())
    processor = Ending(InMemorySpanExporter())
    assert not is_quiet(processor)
    processor.shutdown()  # type: ignore[no-untyped-call]


def test_what_somebody_set_on_the_span_wins(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    rollout(1)
    with trajectory(step=7):
        recording = recordings.start(semconv.OP_TEXT_COMPLETION, "mine")
        with recordings.active(recording):
            trace.get_current_span().set_attribute(semconv.REQUEST_MODEL, "theirs")
            recording.set(semconv.REQUEST_MODEL, "ours")
    (span,) = [span for span in pipelines[0].spans() if span.name.endswith("mine")]
    assert attributes(span)[semconv.REQUEST_MODEL] == "theirs"


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if not key.endswith("_seconds")}


_values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.text(max_size=30),
    st.lists(st.text(max_size=5), max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
)
_not_attributes = st.one_of(st.just(object()), st.just([1, "mixed"]), st.just({"a": set()}))
_names = st.text("abc", min_size=1, max_size=2)


@given(
    st.lists(st.dictionaries(_names, _values, max_size=5)),
    st.dictionaries(_names, _not_attributes, max_size=2),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(12, 20)),
)
def test_late_or_at_once_makes_no_difference(
    given_attributes: Sequence[dict[str, Any]],
    wrong: dict[str, Any],
    length: int | None,
    count: int | None,
) -> None:
    limits = SpanLimits(max_span_attribute_length=length, max_span_attributes=count)

    def outcome(*peers: SpanProcessor) -> list[dict[str, Any]]:
        pipeline = Pipeline(peers=peers, limits=limits)
        try:
            rollout(1)
            with trajectory(step=7, sample_index=1):
                recording = recordings.start(semconv.OP_EXECUTE_TOOL, "t")
                assert may_come_late(recording.span) is not bool(peers)
                with recordings.active(recording):
                    for some in given_attributes:
                        recording.set_all({f"k.{key}": value for key, value in some.items()})
                    recording.set_all({f"wrong.{key}": value for key, value in wrong.items()})
            return [timeless(attributes(span)) for span in pipeline.spans()]
        finally:
            pipeline.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert outcome() == outcome(Looking())

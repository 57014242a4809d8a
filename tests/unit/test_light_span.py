"""A light span is to everybody what the SDK's span would have been in its place."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from otel_rollout import recording as recordings
from otel_rollout import semconv, trajectory
from otel_rollout.processor.following import FollowingSampler
from otel_rollout.processor.light_span import LightSpan, follows_its_parent, is_quiet
from otel_rollout.recording import Recording
from tests.unit.pipeline import Pipeline, attributes


class Silent(SpanProcessor):
    """A peer: with one beside ours, every span is the SDK's own."""


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


def start(name: str = "m", **more: Any) -> Recording:
    return recordings.start(semconv.OP_TEXT_COMPLETION, name, **more)


def is_light(recording: Recording) -> bool:
    return isinstance(recording.span, LightSpan)


# --- the same as the SDK's ------------------------------------------------------------------------

Step = Callable[[trace.Span], None]

_key = st.text("abc", min_size=1, max_size=2)
_value = st.one_of(st.integers(-9, 9), st.text(max_size=40), st.booleans(), st.lists(st.integers()))
_attributes = st.dictionaries(_key, _value, max_size=4)
_other = SpanContext(7, 8, is_remote=False)


def _steps() -> st.SearchStrategy[Step]:
    return st.one_of(
        st.builds(lambda k, v: lambda s: s.set_attribute(k, v), _key, _value),
        st.builds(lambda a: lambda s: s.set_attributes(a), _attributes),
        st.builds(lambda n, a, t: lambda s: s.add_event(n, a, t), _key, _attributes, st.just(5)),
        st.builds(lambda a: lambda s: s.add_link(_other, a), _attributes),
        st.builds(lambda n: lambda s: s.update_name(n), _key),
        st.builds(
            lambda c, d: lambda s: s.set_status(c, d), st.sampled_from(StatusCode), st.text()
        ),
        st.builds(
            lambda c: lambda s: s.set_status(Status(c, "x" if c is StatusCode.ERROR else None)),
            st.sampled_from(StatusCode),
        ),
        st.builds(lambda m: lambda s: s.record_exception(ValueError(m), timestamp=6), st.text()),
        st.builds(lambda: lambda s: s.end()),
        st.builds(lambda t: lambda s: s.end(t), st.integers(1, 9)),
    )


def told(span: ReadableSpan) -> dict[str, Any]:
    """Everything that a span says of itself, but its ids and the time."""
    return {
        "name": span.name,
        "kind": span.kind,
        "attributes": attributes(span),
        "events": [(e.name, dict(e.attributes or {}), e.timestamp) for e in span.events],
        "links": [(one.context, dict(one.attributes or {})) for one in span.links],
        "status": (span.status.status_code, span.status.description),
        "resource": span.resource,
        "scope": span.instrumentation_scope,
        "flags": span.context.trace_flags if span.context else None,
        "child": span.parent is not None,
    }


@given(st.lists(_steps(), max_size=6), st.booleans(), st.one_of(st.none(), st.integers(1, 30)))
def test_whatever_is_done_with_it_comes_out_as_from_the_sdk(
    steps: list[Step], raises: bool, length: int | None
) -> None:
    limits = SpanLimits(
        max_span_attributes=20,
        max_events=3,
        max_links=2,
        max_event_attributes=2,
        max_span_attribute_length=length,
    )

    def outcome(*peers: SpanProcessor) -> list[dict[str, Any]]:
        pipeline = Pipeline(peers=peers, limits=limits)
        try:
            with trajectory(step=7):
                start("first").end()
                recording = start(attributes={semconv.INPUT_TOKENS: 3}, kind=SpanKind.CLIENT)
                assert is_light(recording) is not bool(peers)
                try:
                    with recordings.active(recording), trace.use_span(recording.span):
                        for step in steps:
                            step(trace.get_current_span())
                        if raises:
                            raise KeyError("as it may happen")
                except KeyError:
                    pass
            return [told(span) for span in pipeline.spans() if not span.name.startswith("rollout")]
        finally:
            pipeline.close()

    logging.disable(logging.WARNING)
    try:
        light, full = outcome(), outcome(Silent())
    finally:
        logging.disable(logging.NOTSET)
    for one in (*light, *full):  # where in the file something was raised is not compared
        for _, said, _ in one["events"]:
            said.pop("exception.stacktrace", None)
    for one in (*light, *full):
        one["events"] = [(n, a, t if t in (5, 6) else None) for n, a, t in one["events"]]
    assert light == full


def test_it_can_be_read_while_it_is_open(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7):
        start("first").end()
        recording = start()
        span: Any = recording.span
        assert is_light(recording)
        assert span.is_recording()
        assert not span.attributes
        span.set_attribute("k", 1)
        span.add_event("e")
        span.set_status(StatusCode.ERROR, "no")
        span.update_name("renamed")
        assert span.attributes == {"k": 1}
        assert [event.name for event in span.events] == ["e"]
        assert (span.name, span.status.description) == ("renamed", "no")
        assert '"renamed"' in span.to_json()
        recording.end()
        assert not span.is_recording()
        assert span.end_time >= span.start_time


def test_as_a_context_manager_it_ends_with_what_was_raised(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7):
        start("first").end()
        with pytest.raises(KeyError), start("with").span:
            raise KeyError("gone")
    span = pipelines[0].named("text_completion with")
    assert span.status.description == "KeyError: 'gone'"
    assert [event.name for event in span.events] == ["exception"]


def test_what_is_set_after_its_end_is_refused_and_said(
    pipelines: list[Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7):
        start("first").end()
        recording = start("late")
        recording.end()
        recording.span.set_attribute("k", 1)
        recording.span.end()
    assert "k" not in attributes(pipelines[0].named("text_completion late"))
    assert [record.message for record in caplog.records] == [
        "Setting attribute on ended span.",
        "Calling end() on an ended span.",
    ]


def test_threads_that_set_attributes_at_once_lose_none(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    together = threading.Barrier(8)
    with trajectory(step=7):
        start("first").end()
        recording = start("shared")

        def work(number: int) -> None:
            together.wait(30)
            recording.span.set_attribute(f"k{number}", number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recording.end()
    found = attributes(pipelines[0].named("text_completion shared"))
    assert all(found[f"k{number}"] == number for number in range(8))


# --- where the SDK has to decide ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "follows"),
    [
        (ALWAYS_ON, True),
        (DEFAULT_ON, True),
        (FollowingSampler(DEFAULT_ON), True),
        (ParentBasedTraceIdRatio(0.5), True),
        (ALWAYS_OFF, False),
        (TraceIdRatioBased(1.0), False),
        (ParentBased(ALWAYS_ON, local_parent_sampled=TraceIdRatioBased(1.0)), False),
        (ParentBased(ALWAYS_ON, local_parent_sampled=ALWAYS_OFF), False),
        (None, False),
    ],
)
def test_samplers_that_take_every_child(sampler: Sampler | None, follows: bool) -> None:
    assert follows_its_parent(sampler) is follows


def test_a_sampler_that_looks_at_each_span_is_asked(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline(sampler=TraceIdRatioBased(1.0)))
    with trajectory(step=7):
        assert not is_light(start("first"))
        assert not is_light(start())


def test_a_sampler_that_is_put_in_later_is_asked(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7):
        start("first").end()
        assert is_light(start())
        recordings.tracer().sampler = ALWAYS_OFF  # type: ignore[attr-defined]
        assert not start().live


def remote(flags: int) -> Any:
    parent = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(flags))
    return trace.set_span_in_context(NonRecordingSpan(parent))


def test_only_below_a_sampled_span_of_this_process(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7) as handle:
        start("first").end()
        inside = handle.identity
        assert is_light(start())
        for flags in (0, 1):
            context = recordings.identities.into_context(inside, remote(flags))
            assert not is_light(start(context=context))
    assert not is_light(start())  # a root


def test_outside_a_trajectory_or_with_links_it_is_the_sdks(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7):
        start("first").end()
        assert not is_light(start(links=[Link(_other)]))
    with pipelines[0].foreign.start_as_current_span("outside"):
        assert not is_light(start())


def test_a_processor_that_joins_while_it_is_open_sees_its_end(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    joined = InMemorySpanExporter()
    with trajectory(step=7):
        start("first").end()
        recording = start("open")
        pipelines[0].provider.add_span_processor(SimpleSpanProcessor(joined))
        recording.end()
        assert not is_light(start("next"))
    assert "text_completion open" in [span.name for span in joined.get_finished_spans()]
    assert pipelines[0].named("text_completion open")


def test_a_tracer_that_is_switched_off_makes_none(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    tracer: Any = recordings.tracer()
    if not hasattr(tracer, "_is_enabled"):
        pytest.skip("this SDK cannot switch tracers off")
    with trajectory(step=7):
        start("first").end()
        assert is_light(start())
        if hasattr(tracer, "_tracer_config"):
            tracer._tracer_config.is_enabled = False
        else:  # SDK 1.40: it asks its provider each time
            from opentelemetry.sdk.trace import _disable_tracer_configurator

            provider = tracer._tracer_provider
            provider._set_tracer_configurator(tracer_configurator=_disable_tracer_configurator)
        assert not start().live


def test_a_meter_provider_that_comes_later_is_told_of_every_span(
    pipelines: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in SDK 1.40, whose tracers always have a counter, for nobody at first."""
    pipelines.append(Pipeline())
    counter: Any = SimpleNamespace(_real_instrument=None)
    metrics = SimpleNamespace(
        _started_spans=counter, start_span=lambda parent, decision: lambda: None
    )
    monkeypatch.setattr(recordings.tracer(), "_tracer_metrics", metrics, raising=False)
    with trajectory(step=7):
        start("first").end()
        assert is_light(start())
        counter._real_instrument = object()
        assert not is_light(start())


def test_spans_that_the_sdk_counts_are_its_own(
    pipelines: list[Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines.append(Pipeline())
    tracer: Any = recordings.tracer()
    started: list[Any] = []

    class Counting:
        def start_span(self, parent: Any, decision: Any) -> Callable[[], None]:
            started.append(parent)
            return lambda: None

    if not hasattr(tracer, "_tracer_metrics"):
        pytest.skip("this SDK counts no spans")
    monkeypatch.setattr(tracer, "_tracer_metrics", Counting())
    with trajectory(step=7):
        for _ in range(3):
            assert not is_light(start())
    assert len(started) == 4


def test_each_provider_has_its_own(pipelines: list[Pipeline]) -> None:
    pipelines.append(Pipeline())
    with trajectory(step=7):
        start("first").end()
        assert is_light(start())
    exporter = InMemorySpanExporter()
    other = TracerProvider(resource=Resource({"service.name": "other"}), shutdown_on_exit=False)
    other.add_span_processor(SimpleSpanProcessor(exporter))
    recordings.use_tracer_provider(other)
    with trajectory(step=7):
        start().end()
    assert {span.resource.attributes["service.name"] for span in exporter.get_finished_spans()} == {
        "other"
    }
    assert len(exporter.get_finished_spans()) == 2


# --- attributes that come with the payload --------------------------------------------------------


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
        assert is_light(recording)
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


_any_values = st.one_of(
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
    st.lists(st.dictionaries(_names, _any_values, max_size=5)),
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
                assert is_light(recording) is not bool(peers)
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

"""Spans of ours that cost their caller little, where the SDK's own would not be looked at.

The SDK's span is made for whatever may come: it asks the sampler, takes locks, and keeps lists and
attributes under limits, and that is half of what a traced call costs its caller. Below a sampled
span of this process, with a sampler that follows the parent and no processor but ours, all of that
is known beforehand. A :class:`LightSpan` notes what is its own, and becomes a span of the SDK as
soon as somebody asks it for more.
"""

from __future__ import annotations

import threading
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, StaticSampler
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_rollout import identity as identities
from otel_rollout import payload as payloads
from otel_rollout.processor.following import FollowingSampler

if TYPE_CHECKING:
    from otel_rollout.processor.processor import RolloutSpanProcessor

_SAMPLED: Final = (TraceFlags.SAMPLED, TraceFlags.SAMPLED | 0x02)
"""Without and with the flag that says that the trace's id is random; a child has its parent's."""
_QUIET: Final = (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
"""Their hooks of a span's start and of its ending do nothing."""
_becoming: Final = threading.RLock()


def is_alone(span: Any, processor: SpanProcessor) -> bool:
    """Return whether ``processor`` is the only one that the span is told to."""
    multi = getattr(span, "_span_processor", None)
    seen_by = getattr(multi, "_span_processors", None)
    return type(seen_by) is tuple and len(seen_by) == 1 and seen_by[0] is processor


def is_quiet(processor: SpanProcessor) -> bool:
    """Return whether a span processor does nothing before a span has ended."""
    return all(
        getattr(type(processor), hook, None) in [getattr(quiet, hook, None) for quiet in _QUIET]
        for hook in ("on_start", "_on_ending")
    )


def follows_its_parent(sampler: Sampler | None) -> bool:
    """Return whether a sampler takes every span below a sampled one of this process."""
    if isinstance(sampler, FollowingSampler):
        return follows_its_parent(sampler.inner)
    decides = getattr(type(sampler), "should_sample", None)
    if decides is ParentBased.should_sample:
        return follows_its_parent(getattr(sampler, "_local_parent_sampled", None))
    if decides is StaticSampler.should_sample:
        return getattr(sampler, "_decision", None) is Decision.RECORD_AND_SAMPLE
    return False


class Lane:
    """Starts light spans, for as long as everything is as it was when it was opened.

    Args:
        span: one of the SDK's, ours, whose attributes nobody looks at but ``processor``.
        processor: the only one of the span's provider.
    """

    def __init__(self, span: Span, processor: RolloutSpanProcessor) -> None:
        self.kind = type(span)
        self.resource = span.resource
        self.scope = span.instrumentation_scope
        self.limits = getattr(span, "_limits", None)
        self.told: Any = getattr(span, "_span_processor", None)
        self._only = getattr(self.told, "_span_processors", None)
        self._processor = processor
        self._sampler: Any = getattr(span, "_sampler", None)
        self._follows = follows_its_parent(self._sampler)
        self._tracer: Any = None
        self._is_enabled: Any = None
        self._counter: Any = None

    def is_of(self, span: Span) -> bool:
        """Return whether this would be the lane that is opened for ``span``."""
        return (
            getattr(span, "_sampler", None) is self._sampler
            and span.resource is self.resource
            and span.instrumentation_scope is self.scope
        )

    def serve(self, tracer: Any) -> bool:
        """Take the place of ``tracer``; False where its spans cannot be light ones."""
        real = getattr(tracer, "_tracer", tracer)  # of a tracer that was made before its provider
        metrics = getattr(real, "_tracer_metrics", None)
        counts = metrics is not None and type(metrics).__name__ != "NoOpTracerMetrics"
        if counts:
            # Those of SDK 1.40 are always there, and count once there is a meter provider.
            self._counter = getattr(metrics, "_started_spans", None)
            counts = getattr(self._counter, "_real_instrument", self) is not None
        if not self._follows or counts or not hasattr(real, "id_generator"):
            return False  # the SDK counts the spans that it starts itself
        self._is_enabled = getattr(real, "_is_enabled", None)
        self._tracer = real
        return True

    def start(
        self, name: str, context: Context, kind: SpanKind, attributes: dict[str, Any]
    ) -> LightSpan | None:
        """Return a span below the one of ``context``; ``None`` where the SDK has to decide."""
        tracer = self._tracer
        identity = identities.from_context(context)
        if (
            identity is None
            or not identity.sampled
            or self.told._span_processors is not self._only
            or tracer.sampler is not self._sampler
            or (self._is_enabled is not None and not self._is_enabled())
            or getattr(self._counter, "_real_instrument", None) is not None
        ):
            return None
        parent = trace.get_current_span(context).get_span_context()
        if parent.trace_flags not in _SAMPLED or parent.is_remote or not parent.is_valid:
            return None
        own = SpanContext(
            parent.trace_id,
            tracer.id_generator.generate_span_id(),
            False,
            parent.trace_flags,
            parent.trace_state,
        )
        span = LightSpan(self, name, own, parent, kind, attributes)
        self._processor.remember(span, identity)
        return span


class LightSpan(ReadableSpan, trace.Span):  # type: ignore[misc]
    """A recording span; what it does not do itself, a span of the SDK does in its place.

    The attributes of its start are not on it: they travel with its payload.
    """

    def __init__(
        self,
        lane: Lane,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        kind: SpanKind,
        given: dict[str, Any],
    ) -> None:
        super().__init__(
            name=name,
            context=context,
            parent=parent,
            resource=lane.resource,
            kind=kind,
            start_time=time_ns(),
            instrumentation_scope=lane.scope,
        )
        self._lane = lane
        self._given: dict[str, Any] | None = given
        self._full: Any = None

    def end(self, end_time: int | None = None) -> None:
        """End the span and tell the processors."""
        if self._end_time is not None:
            self._let_sdk("end")  # which logs that it has ended
            return
        self._end_time = time_ns() if end_time is None else end_time
        if self._full is not None:
            self._full.end(self._end_time)
        given, self._given = self._given, None
        assert self._context is not None  # it is made with one
        span_id = self._context.span_id
        if payloads.beside(self) is None:
            # Ended by somebody else than who recorded it: then this is all that comes with it.
            payloads.lay_beside(span_id, payloads.Payload(attributes=given))
        try:
            self._lane.told.on_end(self)
        finally:
            payloads.take_away(span_id)

    def is_recording(self) -> bool:
        """Return whether the span has not ended."""
        return self._end_time is None

    # --- what only a span of the SDK does ---------------------------------------------------------

    def _let_sdk(self, method: str, *given: Any) -> None:
        """Let a span of the SDK do it, and show what has come of it."""
        with _becoming:
            full = self._full
            if full is None:
                full = self._full = self._made_full()
            getattr(full, method)(*given)
            self._name, self._status = full._name, full._status

    def _made_full(self) -> Any:
        lane = self._lane
        make: Any = lane.kind
        full = make(
            name=self._name,
            context=self._context,
            parent=self._parent,
            resource=lane.resource,
            span_processor=SpanProcessor(),  # it is this span that processors are told of
            kind=self._kind,
            limits=lane.limits,
            instrumentation_scope=lane.scope,
        )
        full.start(start_time=self._start_time)
        if self._end_time is not None:
            full.end(self._end_time)
        self._attributes, self._events, self._links = full._attributes, full._events, full._links
        return full

    def set_attributes(self, attributes: Any) -> None:
        """Set attributes; see the SDK."""
        self._let_sdk("set_attributes", attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an attribute; see the SDK."""
        self._let_sdk("set_attribute", key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Add an event; see the SDK."""
        self._let_sdk("add_event", name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        """Add a link; see the SDK."""
        self._let_sdk("add_link", context, attributes)

    def update_name(self, name: str) -> None:
        """Rename the span; see the SDK."""
        self._let_sdk("update_name", name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; see the SDK."""
        self._let_sdk("set_status", status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an exception's event; see the SDK."""
        self._let_sdk("record_exception", exception, attributes, timestamp, escaped)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """End the span, with what was raised as its event and status, as the SDK's does."""
        if exc_val is not None and self.is_recording():
            self.record_exception(exc_val, escaped=True)
            self.set_status(Status(StatusCode.ERROR, f"{type(exc_val).__name__}: {exc_val}"))
        self.end()

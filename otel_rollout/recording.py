"""Starting and ending spans, without ever raising into or delaying the code that is recorded.

A :class:`Recording` is a span and the payload that will be put on it later, by the processor's
worker thread. What happens here is what the caller's thread pays for.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Mapping, Sequence
from traceback import TracebackException
from types import TracebackType
from typing import Any, Final, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    TraceState,
)

from otel_rollout import contexts, semconv, snapshot
from otel_rollout import identity as identities
from otel_rollout import payload as payloads
from otel_rollout import summary as summaries
from otel_rollout._version import __version__
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.payload import Payload

MAX_MESSAGE: Final = 4096
_MAX_FRAMES: Final = 100

_tracer: Tracer | None = None
_starter: payloads.Starter | None = None
"""What starts spans in the tracer's place, where a processor offered it on the last one."""


def tracer() -> Tracer:
    """Return the tracer of every span that we start; the global provider's by default."""
    global _tracer
    if _tracer is None:
        _tracer = trace.get_tracer(semconv.SCOPE, __version__)
    return _tracer


def use_tracer_provider(provider: TracerProvider | None) -> None:
    """Start spans with ``provider``; ``None`` returns to the global one."""
    global _tracer, _starter
    _tracer = provider.get_tracer(semconv.SCOPE, __version__) if provider is not None else None
    _starter = None


class Recording:
    """One span while it is open. Every method may be called at any time and never raises."""

    __slots__ = (
        "_context",
        "_ended",
        "_failed",
        "_noted",
        "_operation",
        "_started",
        "_summary",
        "_token",
        "live",
        "payload",
        "span",
    )

    def __init__(
        self,
        span: Span,
        context: Context,
        operation: str = "",
        late: dict[str, Any] | None = None,
    ) -> None:
        self.span = span
        self.payload = Payload(attributes=late)
        self.live = span.is_recording()
        """False when the span is not sampled: nothing needs to be copied for it."""
        self._context = context
        self._ended = False
        self._failed = False
        self._operation = operation
        self._summary = summaries.of_context(operation, context) if self.live else None
        self._noted: dict[str, Any] = {}
        self._token: object = None
        self._started = time.perf_counter()

    @property
    def context(self) -> Context:
        """The context in which this span is the current one."""
        return self.context_with()

    def context_with(
        self,
        baggage_entries: Mapping[str, str] | None = None,
        values: Mapping[str, object] | None = None,
    ) -> Context:
        """Return :attr:`context` with more entries in its baggage, and more values."""
        more = values or {}
        if self._operation in summaries.GENERATIONS:
            more = {**more, **summaries.INSIDE_GENERATION}
        return contexts.within(self._context, self.span, more, baggage_entries or {})

    @property
    def span_id(self) -> int:
        """The span's id, 64 bits."""
        return self.span.get_span_context().span_id

    @property
    def ended(self) -> bool:
        """Whether :meth:`end` was called."""
        return self._ended

    def set(self, key: str, value: Any) -> None:
        """Set a span attribute; ``None`` is ignored."""
        if value is not None:
            self.set_all({key: value})

    def set_all(self, attributes: Mapping[str, Any]) -> None:
        """Set span attributes, none of them ``None``: cheaper than one by one."""
        if self.live and not self._ended:
            try:
                late = self.payload.attributes
                if late is not None:
                    late.update(attributes)
                else:
                    self.span.set_attributes(attributes)
                if self._summary is not None:
                    for key in summaries.NOTED:
                        if key in attributes:
                            self._noted[key] = attributes[key]
            except Exception as error:
                report_internal_error("Recording.set_all", error)

    def keep(self, key: str, value: Any) -> None:
        """Keep a snapshot of ``value``; it becomes the attribute ``key``, as JSON."""
        if self.live and not self._ended:
            self.payload.values[key] = snapshot.take(value)

    def keep_text(self, key: str, value: Any) -> None:
        """Keep text; it becomes the attribute ``key`` as it stands."""
        if value is not None and self.live and not self._ended:
            self.payload.texts[key] = snapshot.text_of(value)

    def event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add a span event."""
        if self.live and not self._ended:
            try:
                self.span.add_event(name, attributes)
            except Exception as error:
                report_internal_error("Recording.event", error)

    def fail(self, error: BaseException) -> None:
        """Record that ``error`` ended or disturbed what this span stands for."""
        if not self.live or self._ended:
            return
        try:
            # Only the frames are noted here; reading source lines is left to the worker thread.
            said = TracebackException(
                type(error),
                error,
                error.__traceback__,
                limit=-_MAX_FRAMES,
                lookup_lines=False,
                compact=True,
            )
            self.payload.errors = (*self.payload.errors, (time.time_ns(), said))
            self.failed(type(error).__qualname__, snapshot.text_of(error)[:MAX_MESSAGE])
        except Exception as internal:
            report_internal_error("Recording.fail", internal)

    def failed(self, kind: str, message: str) -> None:
        """Set the status to ERROR, for what failed without an exception."""
        if self.live and not self._ended:
            self._failed = True
            try:
                self.span.set_attribute(semconv.ERROR_TYPE, kind)
                self.span.set_status(StatusCode.ERROR, message[:MAX_MESSAGE])
            except Exception as error:
                report_internal_error("Recording.failed", error)

    def enter(self, context: Context | None = None) -> None:
        """Make the span the current one, or ``context``, which is to be one with it."""
        self._token = attach(self.context if context is None else context)

    def leave(self, error: BaseException | None = None) -> None:
        """Undo :meth:`enter` and end the span, with what was raised inside."""
        if error is not None:
            self.fail(error)
        token, self._token = self._token, None
        detach(token)
        self.end()

    def end(self) -> None:
        """End the span and hand its payload on; later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        if not self.live:
            return
        try:
            if self._summary is not None:
                seconds = time.perf_counter() - self._started
                self._summary.add(self._operation, seconds, self._failed, self._noted)
            span_id = self.span_id
            payloads.lay_beside(span_id, self.payload)
            try:
                self.span.end()
            finally:
                payloads.take_away(span_id)
                self.payload = Payload()  # the handle may be kept, for what comes later
        except Exception as error:
            report_internal_error("Recording.end", error)


_R = TypeVar("_R", bound=Recording)


def start(
    operation: str,
    subject: str | None = None,
    *,
    attributes: Mapping[str, Any] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    context: Context | None = None,
    identity: identities.Identity | None = None,
    links: Sequence[Link] | None = None,
) -> Recording:
    """Start a span ``{operation} {subject}`` that carries the trajectory's attributes.

    ``context``: its parent (default: the current context). Attributes are there when the span
    starts, so that samplers see them, unless nobody looks. The span is not made current; see
    :func:`active`.
    """
    return start_as(
        Recording,
        operation,
        subject,
        attributes=attributes,
        kind=kind,
        context=context,
        identity=identity,
        links=links,
    )


def start_as(
    form: type[_R],
    operation: str,
    subject: str | None = None,
    *,
    attributes: Mapping[str, Any] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    context: Context | None = None,
    identity: identities.Identity | None = None,
    links: Sequence[Link] | None = None,
) -> _R:
    """:func:`start`, for a recording that knows more: ``form`` is its class."""
    if context is None:
        context = otel_context.get_current()
    try:
        if identity is None:
            identity = identities.from_context(context)
        if identity is not None and not (identity.sampled or identity.held):
            return form(_absent(context), context)
        name = semconv.span_name(operation, subject)
        given: dict[str, Any] = dict(identity.attributes) if identity is not None else {}
        given[semconv.OPERATION] = operation
        given[semconv.PROVIDER] = semconv.DEFAULT_PROVIDER
        if attributes:
            given.update(attributes)
        if _starter is not None and links is None:
            light = _starter.start(name, context, kind, given)
            if light is not None:
                return form(light, context, operation, given)
        return form(_started(name, context, kind, given, links), context, operation)
    except Exception as error:
        report_internal_error("start", error)
        return form(trace.INVALID_SPAN, context)


def _started(
    name: str,
    context: Context,
    kind: SpanKind,
    attributes: dict[str, Any],
    links: Sequence[Link] | None,
) -> Span:
    """Let the tracer start a span, and learn whether it has to start the next ones."""
    global _starter
    span = tracer().start_span(name, context=context, kind=kind, attributes=attributes, links=links)
    offered = payloads.starter(span)
    _starter = offered if offered is not None and offered.serve(tracer()) else None
    return span


def unsampled_span(
    trace_id: int, span_id: int, trace_state: TraceState | None = None
) -> NonRecordingSpan:
    """Return a span that records nothing; its flags 0 tell all below it to do the same."""
    return NonRecordingSpan(
        SpanContext(
            trace_id,
            span_id,
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.DEFAULT),
            trace_state=trace_state,
        )
    )


def _absent(context: Context) -> Span:
    """Stand in for a span of an unsampled trajectory; whatever the sampler, none is started.

    Its flags are 0 for what is called from here, and its id is that of the span around it.
    """
    around = trace.get_current_span(context).get_span_context()
    if not around.is_valid:
        return trace.INVALID_SPAN
    return unsampled_span(around.trace_id, around.span_id, around.trace_state)


class active:  # noqa: N801 - used like a function, as `contextlib.suppress` is
    """Make the span current, end it at the exit, and record what was raised.

    Whatever leaves the block, cancellation and ``GeneratorExit`` included, ends the span with
    status ERROR and goes on. ``context``: one to make current in place of the recording's own.
    """

    __slots__ = ("_context", "_recording")

    def __init__(self, recording: Recording, context: Context | None = None) -> None:
        self._recording = recording
        self._context = context

    def __enter__(self) -> Recording:
        self._recording.enter(self._context)
        return self._recording

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recording.leave(error)


def attach(context: Context) -> object:
    """Make ``context`` the current one; returns the token for :func:`detach`."""
    return otel_context.attach(context)


def detach(token: object) -> None:
    """Undo :func:`attach`; quiet where the block was left in another task or thread.

    ``opentelemetry.context.detach`` logs an error there, though nothing is wrong: the context
    ended with the task that it belonged to.
    """
    if isinstance(token, contextvars.Token):
        try:  # noqa: SIM105 - half the cost of `contextlib.suppress`
            token.var.reset(token)
        except (ValueError, RuntimeError):
            pass
    else:
        otel_context.detach(token)  # type: ignore[arg-type]

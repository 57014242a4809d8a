"""What stands behind the processor: other span processors, and exporters called directly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.exporters.bounded import ByteBoundedExporter
from otel_rollout.processor.items import LEVELS
from otel_rollout.processor.light_span import is_quiet
from otel_rollout.randomness import give_exporters_their_own


@runtime_checkable
class Withholding(Protocol):
    """An exporter that keeps spans safe which it may or may not have to export."""

    def withhold(
        self, span: ReadableSpan, *, is_root: bool, kept: str | None, keep_deaths: bool
    ) -> None:
        """Keep a span of a trajectory that may be dropped.

        ``kept``: on a root, the rule that keeps it, where that is known. ``keep_deaths``: whether
        to export the trajectory where this process dies before its root ends.
        """

    def settle(self, trace_id: int, kept: str | None) -> None:
        """Export what was withheld of a trajectory, or drop it where no rule keeps it."""


class Behind(Protocol):
    """One of the things that spans are handed to; ``level``: what of the payload it gets."""

    name: str
    level: str
    holds_back: bool
    """Whether it keeps spans back for a fuller batch, and needs a flush now and then."""
    sends_batches: bool
    """Whether each :meth:`emit` is a request to a server, and better made of many spans."""
    is_quiet: bool
    """Whether it does nothing before a span has ended."""
    withholding: Withholding | None
    """Where it keeps held spans itself; otherwise they wait in memory."""

    def on_start(self, span: Span, parent_context: Context | None) -> None:
        """A span has started; on the caller's thread."""

    def on_ending(self, span: Span) -> None:
        """A span is about to end; on the caller's thread."""

    def outside(self, span: ReadableSpan) -> bool:
        """A span of no trajectory has ended; False: hand it over from the worker thread."""

    def emit(self, spans: Sequence[ReadableSpan]) -> int:
        """Take rebuilt spans, on the worker thread; return how many of them it did not take."""

    def force_flush(self, timeout_millis: int) -> bool:
        """Export what is held back."""

    def shutdown(self) -> None:
        """Shut down."""


class ProcessorBehind:
    """A span processor: sees the start of a span at once, and its end from the worker thread."""

    holds_back = True
    sends_batches = False
    withholding: Withholding | None = None

    def __init__(self, processor: SpanProcessor, level: str) -> None:
        self.name = type(processor).__name__
        exporter = getattr(processor, "span_exporter", None)
        self.level = getattr(
            processor, "rollout_payload", getattr(exporter, "rollout_payload", level)
        )
        self.is_quiet = is_quiet(processor)
        self._processor = processor

    def on_start(self, span: Span, parent_context: Context | None) -> None:
        """Forward at once, on the caller's thread."""
        self._processor.on_start(span, parent_context)

    def on_ending(self, span: Span) -> None:
        """Forward at once, where the SDK knows this hook."""
        hook = getattr(self._processor, "_on_ending", None)
        if hook is not None:
            hook(span)

    def outside(self, span: ReadableSpan) -> bool:
        """Forward a span that belongs to no trajectory, unchanged and at once."""
        self._processor.on_end(span)
        return True

    def emit(self, spans: Sequence[ReadableSpan]) -> int:
        """Hand rebuilt spans over."""
        failed = 0
        for span in spans:
            try:
                self._processor.on_end(span)
            except Exception as error:
                failed += 1
                report_internal_error(f"on_end of {self.name}", error)
        return failed

    def force_flush(self, timeout_millis: int) -> bool:
        """Flush it."""
        return self._processor.force_flush(timeout_millis) is not False

    def shutdown(self) -> None:
        """Shut it down."""
        self._processor.shutdown()


class ExporterBehind:
    """A span exporter, called straight from the worker thread."""

    holds_back = False
    is_quiet = True

    def __init__(self, exporter: SpanExporter, level: str) -> None:
        self.name = type(exporter).__name__
        self.level = getattr(exporter, "rollout_payload", level)
        self.withholding: Withholding | None = (
            exporter if isinstance(exporter, Withholding) else None
        )
        self.sends_batches = isinstance(exporter, ByteBoundedExporter)  # no spool of ours
        self._exporter = exporter

    def on_start(self, span: Span, parent_context: Context | None) -> None:
        """Exporters do not see starts."""

    def on_ending(self, span: Span) -> None:
        """Exporters do not see starts."""

    def outside(self, span: ReadableSpan) -> bool:
        """Let the worker hand it over: nothing is exported on the caller's thread."""
        return False

    def emit(self, spans: Sequence[ReadableSpan]) -> int:
        """Export those that are sampled, as the SDK's own processors do."""
        sampled = [span for span in spans if span.context and span.context.trace_flags.sampled]
        if not sampled:
            return 0
        result = self._exporter.export(sampled)
        return len(sampled) if result is SpanExportResult.FAILURE else 0

    def force_flush(self, timeout_millis: int) -> bool:
        """Flush it."""
        return self._exporter.force_flush(timeout_millis) is not False

    def shutdown(self) -> None:
        """Shut it down."""
        self._exporter.shutdown()


def behind(thing: SpanProcessor | SpanExporter, level: str, max_batch_bytes: int) -> Behind:
    """Return ``thing`` as something that spans can be handed to.

    A stock ``BatchSpanProcessor`` around an exporter that spools by itself (Weave's) is taken
    apart: a second queue would only be something to lose. Around any other exporter it stays, and
    its batches are bounded in bytes, as are those that an exporter gets from the worker thread.
    """
    give_exporters_their_own()
    if isinstance(thing, SpanExporter):
        if getattr(thing, "rollout_payload", None) not in LEVELS:
            thing = ByteBoundedExporter(thing, max_batch_bytes)
        return ExporterBehind(thing, level)
    inner = getattr(thing, "span_exporter", None)
    if isinstance(thing, BatchSpanProcessor) and inner is not None:
        if getattr(inner, "rollout_payload", None) in LEVELS:
            if _replace_exporter(thing, _Discarding()):
                thing.shutdown()  # type: ignore[no-untyped-call]
            return ExporterBehind(inner, level)
        if not isinstance(inner, ByteBoundedExporter) and not _replace_exporter(
            thing, ByteBoundedExporter(inner, max_batch_bytes)
        ):
            say_once(
                "unbounded",
                "batches of %s are not bounded in bytes: this SDK keeps its exporter elsewhere",
                type(inner).__name__,
            )
    return ProcessorBehind(thing, level)


class _Discarding(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _replace_exporter(processor: BatchSpanProcessor, exporter: SpanExporter) -> bool:
    """Put another exporter into a batch processor; False where its private parts are unknown."""
    batch = getattr(processor, "_batch_processor", None)
    if batch is not None and hasattr(batch, "_exporter"):  # SDK 1.34 and newer
        batch._exporter = exporter
        return True
    if "span_exporter" in vars(processor):  # before
        vars(processor)["span_exporter"] = exporter
        return True
    return False


def within(timeout: float, call: Callable[[float], bool], what: str) -> bool:
    """Run ``call(seconds)`` for at most ``timeout`` seconds, even if it ignores its timeout."""
    result: list[bool] = []

    def run() -> None:
        try:
            with suppress_instrumentation():
                result.append(call(timeout))
        except Exception as error:
            report_internal_error(what, error)
            result.append(False)

    thread = threading.Thread(target=run, name=f"otel-rollout {what}", daemon=True)
    started = time.monotonic()
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down: no new threads
        run()
    else:
        thread.join(max(0.0, timeout - (time.monotonic() - started)))
    return bool(result) and result[0]

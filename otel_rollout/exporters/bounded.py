"""Batches bounded in bytes, for exporters that know only a number of spans.

A default batch of 512 spans of 4096 + 4096 tokens would be 70 MB, above the limit of every
collector.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_FIXED = 512


class ByteBoundedExporter(SpanExporter):
    """Passes a batch on to ``inner`` in parts of at most ``max_bytes`` each.

    A single span above the bound goes alone.
    """

    def __init__(self, inner: SpanExporter, max_bytes: int) -> None:
        self.inner = inner
        self.max_bytes = max_bytes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export all parts; FAILURE when one of them failed."""
        result = SpanExportResult.SUCCESS
        part: list[ReadableSpan] = []
        size = 0
        for span in spans:
            span_size = estimated_size(span)
            if part and size + span_size > self.max_bytes:
                result = self._pass_on(part, result)
                part, size = [], 0
            part.append(span)
            size += span_size
        if part:
            result = self._pass_on(part, result)
        return result

    def _pass_on(self, part: list[ReadableSpan], so_far: SpanExportResult) -> SpanExportResult:
        result = self.inner.export(part)
        return so_far if result is SpanExportResult.SUCCESS else result

    def shutdown(self) -> None:
        """Shut the inner exporter down."""
        self.inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush the inner exporter."""
        return self.inner.force_flush(timeout_millis)


def estimated_size(span: ReadableSpan) -> int:
    """Return roughly the bytes that the span takes on the wire."""
    size = _FIXED
    for key, value in (span.attributes or {}).items():
        size += len(key) + (len(value) if isinstance(value, (str, bytes)) else 16)
    for event in span.events:
        size += 64
        for key, value in (event.attributes or {}).items():
            size += len(key) + (len(value) if isinstance(value, (str, bytes)) else 16)
    return size

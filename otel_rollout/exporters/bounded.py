"""Batches bounded in bytes, for exporters that know only a number of spans.

A default batch of 512 spans of 4096 + 4096 tokens would be 70 MB, above the limit of every
collector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.diagnostics import report_internal_error

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
        try:
            result = self.inner.export(part)
        except Exception as error:  # the other parts are still to come
            report_internal_error(f"export of {type(self.inner).__name__}", error)
            return SpanExportResult.FAILURE
        return so_far if result is SpanExportResult.SUCCESS else result

    def shutdown(self) -> None:
        """Shut the inner exporter down."""
        self.inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Flush the inner exporter."""
        return self.inner.force_flush(timeout_millis)


def estimated_size(span: ReadableSpan) -> int:
    """Return roughly the bytes that the span takes on the wire."""
    size = _FIXED + len(span.name) + len(span.status.description or "")
    size += attributes_size(span.attributes or {})
    for event in span.events:
        size += 64 + attributes_size(event.attributes or {})
    for link in span.links:
        size += 64 + attributes_size(link.attributes or {})
    return size


def attributes_size(attributes: Mapping[str, Any]) -> int:
    """Return roughly the bytes that attributes take on the wire."""
    return sum(len(key) + 8 + _value_size(value) for key, value in attributes.items())


def _value_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, (tuple, list)):
        return sum(4 + _value_size(item) for item in value)
    return 8

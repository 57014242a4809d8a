"""A tracer provider with our processor and in-memory exporters of the SDK behind it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from otel_rollout import IdGenerator, RolloutSpanProcessor, payload, recording, semconv
from otel_rollout.processor.keeping import Callback
from otel_rollout.settings import Settings


class Memory(InMemorySpanExporter):
    """In-memory exporter that asks for one level of the payload."""

    def __init__(self, level: str = "full") -> None:
        super().__init__()
        self.rollout_payload = level


class Pipeline:
    """What a test drives: our tracer's provider, a foreign tracer, and what came out."""

    def __init__(
        self,
        *behind: SpanProcessor | SpanExporter,
        peers: Sequence[SpanProcessor] = (),
        sampler: Sampler | None = None,
        limits: SpanLimits | None = None,
        keep_function: Callback | None = None,
        **settings: Any,
    ) -> None:
        self.exporter = Memory()
        self.processor = RolloutSpanProcessor(
            self.exporter,
            *behind,
            configuration=dataclasses.replace(Settings(), **settings),
            keep=keep_function,
        )
        self.provider = TracerProvider(
            sampler=sampler,
            span_limits=limits,
            id_generator=IdGenerator(),
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(self.processor)
        for peer in peers:
            self.provider.add_span_processor(peer)
        recording.use_tracer_provider(self.provider)
        self.foreign = self.provider.get_tracer("someone.else")

    def spans(self) -> list[ReadableSpan]:
        """Everything exported, in order."""
        assert self.processor.force_flush(10_000)
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (span,) = [span for span in self.spans() if span.name == name]
        return span

    def close(self) -> None:
        """Shut everything down."""
        self.provider.shutdown()
        recording.use_tracer_provider(None)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Attributes as a dict."""
    return dict(span.attributes or {})


def loaded(span: ReadableSpan, key: str) -> Any:
    """A JSON attribute's objects."""
    value = attributes(span)[key]
    assert isinstance(value, str)
    return json.loads(value)


def text_of(span: ReadableSpan, key: str) -> str:
    """The text of all messages in an attribute."""
    return "".join(part["content"] for message in loaded(span, key) for part in message["parts"])


def generation(prompt: Any, response: Any, *, name: str = "m", **parts: Any) -> recording.Recording:
    """Record one generation that is over, as an instrumentor does."""
    made = recording.start(semconv.OP_TEXT_COMPLETION, name)
    with recording.active(made):
        made.payload.prompt_ids = payload.copy_ids(prompt)
        made.payload.response_ids = payload.copy_ids(response)
        for part, value in parts.items():
            setattr(made.payload, part, value)
    return made

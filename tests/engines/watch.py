"""What the engine tests look at: every span that began, every span that came out, the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from otel_rollout import payload, semconv
from tests.unit.pipeline import Pipeline, attributes

MODEL = Path(__file__).resolve().parents[2] / "examples" / "verl_calculator" / "policy"
MODEL_NAME = "policy"
GENERATION = f"text_completion {MODEL_NAME}"
#: Ids of the example model's vocabulary, a prompt long enough to be prefix-cached.
PROMPT = list(range(10, 74))


class Open(SpanProcessor):
    """Counts the spans that began and have not ended, and those that ended twice."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.begun = 0
        self.twice = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.begun += 1
        self.open.add(span.get_span_context().span_id)

    def on_end(self, span: ReadableSpan) -> None:
        assert span.context is not None
        if span.context.span_id not in self.open:
            self.twice += 1
        self.open.discard(span.context.span_id)


class Complaints(logging.Handler):
    """Keeps what OpenTelemetry's context and our own package log as errors."""

    NAMES = ("opentelemetry.context", "opentelemetry", "otel_rollout")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def listen(self) -> None:
        for name in self.NAMES:
            logging.getLogger(name).addHandler(self)

    def stop(self) -> None:
        for name in self.NAMES:
            logging.getLogger(name).removeHandler(self)


class Watch:
    """Our tracer's provider with all of that around it."""

    def __init__(self) -> None:
        self.spans_open = Open()
        self.pipeline = Pipeline(peers=[self.spans_open])
        self.complaints = Complaints()
        self.complaints.listen()

    def take(self) -> list[ReadableSpan]:
        """The engine's spans since the last time; nothing may be open and nothing complained."""
        spans = self.pipeline.spans()
        self.pipeline.exporter.clear()
        assert not self.spans_open.open
        assert self.spans_open.twice == 0
        assert self.complaints.lines == []
        return [span for span in spans if span.name == GENERATION]

    def take_one(self) -> dict[str, Any]:
        """The attributes of the only one."""
        (span,) = self.take()
        return attributes(span)

    def close(self) -> None:
        self.complaints.stop()
        self.pipeline.close()


def prompt_of(given: dict[str, Any]) -> list[int]:
    """The prompt's ids, of a span that refers to no other."""
    assert semconv.PROMPT_PREFIX_SPAN not in given
    return payload.decode_ids(given[semconv.PROMPT_IDS], given[semconv.IDS_ENCODING])


def answers_of(given: dict[str, Any]) -> list[list[int]]:
    """The ids of each answer."""
    texts = given.get(semconv.CHOICES_IDS) or [given[semconv.RESPONSE_IDS]]
    return [payload.decode_ids(text, given[semconv.IDS_ENCODING]) for text in texts]


def logprobs_of(given: dict[str, Any]) -> list[list[float]]:
    """The log-probabilities of each answer."""
    texts = given.get(semconv.CHOICES_LOGPROBS) or [given[semconv.RESPONSE_LOGPROBS]]
    return [payload.decode_floats(text) for text in texts]

"""What a trajectory's root says of all that was below it in its process: a row for a table.

A trajectory puts a :class:`Summary` into its context; every span of ours that ends in it adds
itself. A generation inside another one (an attempt of a client, an engine in the same process)
is the same generation and does not count again.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otel_rollout import semconv

GENERATIONS: Final = frozenset({semconv.OP_TEXT_COMPLETION, semconv.OP_CHAT})
_SUMMARY: Final = otel_context.create_key("otel-rollout-summary")
_INSIDE: Final = otel_context.create_key("otel-rollout-generation")
INSIDE_GENERATION: Final = {_INSIDE: True}
"""Value of the context of what a generation calls."""


class Summary:
    """Counts and seconds of one trajectory. Only its own event loop or thread adds to it."""

    __slots__ = (
        "finish_reason",
        "generate_seconds",
        "generations",
        "output_tokens",
        "preempted",
        "score_seconds",
        "tool_calls",
        "tool_errors",
        "tool_seconds",
        "weights",
    )

    def __init__(self) -> None:
        self.generations = 0
        self.tool_calls = 0
        self.tool_errors = 0
        self.output_tokens = 0
        self.preempted = 0
        self.generate_seconds = 0.0
        self.tool_seconds = 0.0
        self.score_seconds = 0.0
        self.finish_reason: str | None = None
        self.weights: tuple[int, int] | None = None

    def add(self, operation: str, seconds: float, failed: bool, noted: dict[str, Any]) -> None:
        """Add a span that has ended; ``noted``: those of :data:`NOTED` that were set on it."""
        if operation in GENERATIONS:
            self.generations += 1
            self.generate_seconds += seconds
            self.output_tokens += noted.get(semconv.OUTPUT_TOKENS, 0)
            self.preempted += noted.get(semconv.NUM_PREEMPTED, 0)
            reasons = noted.get(semconv.FINISH_REASONS)
            if reasons:
                self.finish_reason = reasons[-1]
            version = noted.get(semconv.WEIGHT_VERSION)
            if isinstance(version, int):
                low, high = self.weights or (version, version)
                self.weights = min(low, version), max(high, version)
        elif operation == semconv.OP_EXECUTE_TOOL:
            self.tool_calls += 1
            self.tool_errors += failed
            self.tool_seconds += seconds
        elif operation == semconv.OP_EVALUATE:
            self.score_seconds += seconds

    def attributes(self) -> dict[str, Any]:
        """Return what the root says; nothing of what did not happen."""
        found: dict[str, Any] = {}
        if self.generations:
            found[semconv.NUM_GENERATIONS] = self.generations
            found[semconv.OUTPUT_TOKENS] = self.output_tokens
            found[semconv.NUM_PREEMPTED] = self.preempted
            found[semconv.GENERATE_SECONDS] = round(self.generate_seconds, 6)
        if self.finish_reason is not None:
            found[semconv.FINISH_REASON] = self.finish_reason
        if self.weights is not None:
            found[semconv.WEIGHT_VERSION_MIN], found[semconv.WEIGHT_VERSION_MAX] = self.weights
        if self.tool_calls:
            found[semconv.NUM_TOOL_CALLS] = self.tool_calls
            found[semconv.NUM_TOOL_ERRORS] = self.tool_errors
            found[semconv.TOOL_SECONDS] = round(self.tool_seconds, 6)
        if self.score_seconds:
            found[semconv.SCORE_SECONDS] = round(self.score_seconds, 6)
        return found


NOTED: Final = frozenset(
    {
        semconv.OUTPUT_TOKENS,
        semconv.NUM_PREEMPTED,
        semconv.WEIGHT_VERSION,
        semconv.FINISH_REASONS,
    }
)
"""Attributes of a span that its trajectory's summary is made of."""


def values(summary: Summary) -> dict[str, object]:
    """Return what the context of a new trajectory has of its summary."""
    return {_INSIDE: False, _SUMMARY: summary}


def of_context(operation: str, context: Context) -> Summary | None:
    """Return the summary that a span of this operation adds to, if it is one that counts."""
    if operation in GENERATIONS and otel_context.get_value(_INSIDE, context):
        return None
    found = otel_context.get_value(_SUMMARY, context)
    return found if isinstance(found, Summary) else None

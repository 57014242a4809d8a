"""From ended spans to what exporters get: sampling, token2text, deltas, on a worker thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_rollout.processor.processor import RolloutSpanProcessor

__all__ = ["RolloutSpanProcessor"]


def __getattr__(name: str) -> Any:
    if name == "RolloutSpanProcessor":
        from otel_rollout.processor.processor import RolloutSpanProcessor

        return RolloutSpanProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

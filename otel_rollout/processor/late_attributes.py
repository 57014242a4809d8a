"""Whether anybody looks at the attributes of our own spans before the worker thread does.

Setting attributes on an SDK span is a third of what a traced call costs its caller: each value is
checked, and a lock taken. Where only a :class:`RolloutSpanProcessor` sees the provider's spans,
what is behind it does nothing at a span's start, and the sampler asks for no attributes, ours can
just as well travel with the payload. Whatever is not known to be so gets them at once.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, StaticSampler, TraceIdRatioBased

from otel_rollout.processor.following import FollowingSampler

_QUIET: Final = (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
"""Their hooks of a span's start and of its ending do nothing."""
_BRANCHES: Final = (
    "_root",
    "_remote_parent_sampled",
    "_remote_parent_not_sampled",
    "_local_parent_sampled",
    "_local_parent_not_sampled",
)


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


def asks_for_attributes(sampler: Sampler | None) -> bool:
    """Return whether a sampler may decide by attributes; True for one that is not known."""
    if isinstance(sampler, FollowingSampler):
        return asks_for_attributes(sampler.inner)
    decides = getattr(type(sampler), "should_sample", None)
    if decides is ParentBased.should_sample:
        return any(asks_for_attributes(getattr(sampler, name, None)) for name in _BRANCHES)
    return decides not in (StaticSampler.should_sample, TraceIdRatioBased.should_sample)

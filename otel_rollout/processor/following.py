"""The provider's sampler, made to follow the decision of a trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.util.types import Attributes

from otel_rollout import identity as identities


class FollowingSampler(Sampler):
    """Drops what is started in an unsampled trajectory, and leaves the rest to ``inner``.

    A parent-based sampler does so by itself. Any other would start spans there, which our processor
    drops, and tell what is called from them that they are sampled. Where the trajectory is held for
    its tail rules, spans of this process are recorded, and what is called from them is told the
    same: that they are not sampled.

    ``opentelemetry-instrument`` puts it in place; by hand, with tail rules, make the provider with
    ``sampler=FollowingSampler(ParentBased(ALWAYS_ON))`` or whatever you sample with.
    """

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
        **more: Any,
    ) -> SamplingResult:
        """Decide about one span; arguments and result are those of the SDK's samplers."""
        identity = identities.from_context(parent_context)
        if identity is not None and not identity.sampled:
            state = trace.get_current_span(parent_context).get_span_context().trace_state
            if identity.held:
                return SamplingResult(Decision.RECORD_ONLY, attributes, state)
            return SamplingResult(Decision.DROP, trace_state=state)
        result = self.inner.should_sample(
            parent_context, trace_id, name, kind, attributes, links, trace_state, **more
        )
        return _with(attributes, result) if identity is not None and attributes else result

    def get_description(self) -> str:
        """Return the description of the sampler within."""
        return f"FollowingSampler({self.inner.get_description()})"


def _with(attributes: Mapping[str, Any], result: SamplingResult) -> SamplingResult:
    """Return the result with the span's own attributes.

    The SDK takes only those that its sampler gives back, and some give back none, as the composite
    ones do that vendors' distros set up.
    """
    given: Mapping[str, Any] = result.attributes or {}
    if attributes.keys() <= given.keys():
        return result
    return SamplingResult(result.decision, {**attributes, **given}, result.trace_state)


def follow(tracer: Any) -> None:
    """Let the spans of a tracer follow, and those of tracers that are still to come.

    For a provider that was made by hand without :class:`FollowingSampler`: without it the spans of
    a held trajectory would be sampled or dropped.
    """
    real = getattr(tracer, "_tracer", tracer)  # of a tracer that was made before its provider
    provider = trace.get_tracer_provider()
    followers: list[Any] = [real, *([provider] if isinstance(provider, TracerProvider) else [])]
    for thing in followers:
        sampler = getattr(thing, "sampler", None)
        if isinstance(sampler, Sampler) and not isinstance(sampler, FollowingSampler):
            thing.sampler = FollowingSampler(sampler)


def take_back_sampled(span: Span) -> None:
    """Let a span that has just started tell what is called from it that it is not sampled.

    For tracers made by hand that do not follow: in a held trajectory their spans are sampled.
    """
    given = span.get_span_context()
    if given is not None and given.trace_flags.sampled and hasattr(span, "_context"):
        flags = TraceFlags(given.trace_flags & ~TraceFlags.SAMPLED)
        span._context = SpanContext(
            given.trace_id, given.span_id, given.is_remote, flags, given.trace_state
        )

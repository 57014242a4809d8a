"""The provider's sampler, made to follow the decision of a trajectory."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import get_current_span

from otel_rollout import identity as identities


class FollowingSampler(Sampler):
    """Drops what is started in an unsampled trajectory, and leaves the rest to ``inner``.

    A parent-based sampler does so by itself. Any other would start spans there, which our processor
    drops, and tell what is called from them that they are sampled.
    """

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner

    def should_sample(
        self, parent_context: Context | None, *args: Any, **kwargs: Any
    ) -> SamplingResult:
        """Decide about one span."""
        identity = identities.from_context(parent_context)
        if identity is not None and not identity.sampled:
            state = get_current_span(parent_context).get_span_context().trace_state
            return SamplingResult(Decision.DROP, trace_state=state)
        return self.inner.should_sample(parent_context, *args, **kwargs)

    def get_description(self) -> str:
        """Return the description of the sampler within."""
        return f"FollowingSampler({self.inner.get_description()})"

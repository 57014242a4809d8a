"""verl's rollout servers: they know the version of the weights that their engine serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_rollout.instrumentors.engine import serving_weights
from otel_rollout.instrumentors.patching import Patches


def patch_server(actor_class: type, patches: Patches) -> None:
    """Let the engine's spans tell the server's ``global_steps`` as the weights' version."""
    patches.actor_method(actor_class, "generate", _generate)


def _generate(method: Callable[..., Any]) -> Callable[..., Any]:
    async def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = serving_weights.set(lambda: getattr(self, "global_steps", None))
        try:
            return await method(self, *args, **kwargs)
        finally:
            serving_weights.reset(token)

    return generate

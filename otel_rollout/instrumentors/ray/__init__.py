"""Ray: start-up in every worker, and the trajectory's context across ``.remote()``."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_rollout import startup
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.ray import actors, context, workers
from otel_rollout.instrumentors.ray.actors import patch_actor_class

__all__ = ["RayInstrumentor", "patch_actor_class"]

_HOOKS = {
    "ray": workers.patch_init,
    "ray.actor": context.patch_calls,
    "ray.remote_function": context.patch_tasks,
    "ray.util.tracing.tracing_helper": context.patch_receiver,
    "ray._private.function_manager": actors.patch_loader,
}


class RayInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments Ray 2.43 and newer; Ray's own services are left as they are."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing is required: hooks wait for the import, whatever way the library came."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        patches = self._patches = Patches()
        if startup.is_ray_service():
            return
        for module, hook in _HOOKS.items():
            patches.when_imported(module, functools.partial(hook, patches))

    def _uninstrument(self, **kwargs: Any) -> None:
        self._patches.undo()

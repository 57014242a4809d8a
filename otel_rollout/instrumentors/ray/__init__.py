"""Ray: start-up in every worker, and the trajectory's context across ``.remote()``."""

from __future__ import annotations

from otel_rollout.instrumentors.hooking import HookingInstrumentor
from otel_rollout.instrumentors.ray import actors, context, workers
from otel_rollout.instrumentors.ray.actors import patch_actor_class

__all__ = ["RayInstrumentor", "patch_actor_class"]


class RayInstrumentor(HookingInstrumentor):
    """Instruments Ray 2.43 and newer."""

    hooks = {
        "ray": (workers.patch_init,),
        "ray.actor": (context.patch_calls,),
        "ray.remote_function": (context.patch_tasks,),
        "ray.util.tracing.tracing_helper": (context.patch_receiver,),
        "ray._private.function_manager": (actors.patch_loader,),
    }

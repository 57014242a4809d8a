"""Ray: start-up in every worker, and the trajectory's context across ``.remote()``."""

from __future__ import annotations

from otel_rollout.instrumentors.hooking import HookingInstrumentor


class RayInstrumentor(HookingInstrumentor):
    """Instruments Ray 2.43 and newer."""

    library = "ray"
    hooks = {
        "ray": ("ray.workers:patch_init",),
        "ray.actor": ("ray.context:patch_calls",),
        "ray.remote_function": ("ray.context:patch_tasks",),
        "ray.util.tracing.tracing_helper": ("ray.context:patch_receiver",),
        "ray._private.function_manager": ("ray.actors:patch_loader",),
    }

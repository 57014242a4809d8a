"""verl: agent loops, generation, tools and scoring of a rollout, on the classic and the V1 path."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_rollout import startup
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.ray import patch_actor_class
from otel_rollout.instrumentors.verl import (
    agents,
    decorated,
    generation,
    scoring,
    servers,
    tools,
    trajectories,
)

_HOOKS = {
    "verl.utils.rollout_trace": (trajectories.patch_rollout_trace, decorated.patch_rollout_trace),
    "verl.experimental.agent_loop.agent_loop": (
        agents.patch_agent_loop,
        generation.patch_agent_loop,
    ),
    "verl.experimental.agent_loop.tool_agent_loop": (tools.patch_tool_agent_loop,),
    "verl.experimental.agent_loop.tool_parser": (agents.patch_tool_parser,),
    "verl.tools.base_tool": (tools.patch_base_tool,),
    "verl.tools.function_tool": (tools.patch_function_tool,),
    "verl.workers.rollout.llm_server": (generation.patch_llm_server,),
}


class VerlInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments verl's asynchronous rollouts; a synchronous rollout is left as it is."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing is required: verl is as often a checkout on the path as a distribution."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        patches = self._patches = Patches()
        if startup.is_ray_service():
            return
        for module, hooks in _HOOKS.items():
            for hook in hooks:
                patches.when_imported(module, functools.partial(hook, patches))
        for module, name in (
            ("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker"),
            ("verl.trainer.ppo.v1.agent_loop_tq", "AgentLoopWorkerTQ"),
        ):
            patch_actor_class(module, name, _patch_agent_loop_worker)
        for module, name in servers.SERVERS:
            patch_actor_class(module, name, servers.patch_server)

    def _uninstrument(self, **kwargs: Any) -> None:
        self._patches.undo()


def _patch_agent_loop_worker(actor_class: type, patches: Patches) -> None:
    trajectories.patch_worker(actor_class, patches)
    scoring.patch_worker(actor_class, patches)

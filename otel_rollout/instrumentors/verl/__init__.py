"""verl: agent loops, generation, tools and scoring of a rollout, on the classic and the V1 path."""

from __future__ import annotations

from typing import Any

from otel_rollout.instrumentors.hooking import HookingInstrumentor
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


class VerlInstrumentor(HookingInstrumentor):
    """Instruments verl's asynchronous rollouts; a synchronous rollout is left as it is."""

    hooks = {
        "verl.utils.rollout_trace": (
            trajectories.patch_rollout_trace,
            decorated.patch_rollout_trace,
        ),
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

    def _instrument(self, **kwargs: Any) -> None:
        super()._instrument(**kwargs)
        for module, name in (
            ("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker"),
            ("verl.trainer.ppo.v1.agent_loop_tq", "AgentLoopWorkerTQ"),
        ):
            patch_actor_class(module, name, _patch_agent_loop_worker)
        for module, name in servers.SERVERS:
            patch_actor_class(module, name, servers.patch_server)


def _patch_agent_loop_worker(actor_class: type, patches: Patches) -> None:
    trajectories.patch_worker(actor_class, patches)
    scoring.patch_worker(actor_class, patches)

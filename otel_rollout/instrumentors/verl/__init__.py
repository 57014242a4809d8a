"""verl: agent loops, generation, tools and scoring of a rollout, on the classic and the V1 path."""

from __future__ import annotations

from otel_rollout.instrumentors.hooking import HookingInstrumentor

_WORKER = (
    "verl.trajectories:patch_worker",
    "verl.scoring:patch_worker",
    "verl.colocated:patch_worker",
)
_SERVER = ("verl.servers:patch_server",)
_VLLM = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_SGLANG = "verl.workers.rollout.sglang_rollout.async_sglang_server"


class VerlInstrumentor(HookingInstrumentor):
    """Instruments verl's asynchronous rollouts; a synchronous rollout is left as it is."""

    library = "verl"
    hooks = {
        "verl.utils.rollout_trace": (
            "verl.trajectories:patch_rollout_trace",
            "verl.decorated:patch_rollout_trace",
        ),
        "verl.experimental.agent_loop.agent_loop": (
            "verl.agents:patch_agent_loop",
            "verl.generation:patch_agent_loop",
            "verl.colocated:patch_manager",
        ),
        "verl.experimental.reward_loop.reward_loop": ("verl.colocated:patch_reward_loop",),
        "verl.trainer.ppo.v1.trainer_base": ("verl.colocated:patch_trainer",),
        "verl.experimental.agent_loop.tool_agent_loop": ("verl.tools:patch_tool_agent_loop",),
        "verl.experimental.agent_loop.tool_parser": ("verl.agents:patch_tool_parser",),
        "verl.tools.base_tool": ("verl.tools:patch_base_tool",),
        "verl.tools.function_tool": ("verl.tools:patch_function_tool",),
        "verl.workers.rollout.llm_server": ("verl.generation:patch_llm_server",),
    }
    actors = {
        ("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker"): _WORKER,
        ("verl.trainer.ppo.v1.agent_loop_tq", "AgentLoopWorkerTQ"): _WORKER,
        # The bases are verl's before 0.7.1.
        (_VLLM, "vLLMHttpServer"): _SERVER,
        (_VLLM, "vLLMHttpServerBase"): _SERVER,
        (_SGLANG, "SGLangHttpServer"): _SERVER,
        (_SGLANG, "SGLangHttpServerBase"): _SERVER,
    }

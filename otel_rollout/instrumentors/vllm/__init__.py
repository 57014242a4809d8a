"""vLLM: its asynchronous engines."""

from __future__ import annotations

from otel_rollout.instrumentors.hooking import HookingInstrumentor


class VllmInstrumentor(HookingInstrumentor):
    """Instruments vLLM's asynchronous engines, 0.8.5 and newer."""

    library = "vllm"
    hooks = {
        "vllm.v1.engine.async_llm": ("vllm.calls:patch_v1",),
        # Its own class up to 0.11, an alias of AsyncLLM since.
        "vllm.engine.async_llm_engine": ("vllm.calls:patch_v0",),
    }

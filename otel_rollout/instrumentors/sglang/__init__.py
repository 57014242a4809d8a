"""SGLang: its engine and server."""

from __future__ import annotations

from otel_rollout.instrumentors.hooking import HookingInstrumentor


class SglangInstrumentor(HookingInstrumentor):
    """Instruments SGLang's engine and server, 0.4.6 and newer."""

    library = "sglang"
    hooks = {"sglang.srt.managers.tokenizer_manager": ("sglang.calls:patch",)}

"""Each engine's tests run in its own environment; elsewhere they are not collected."""

from __future__ import annotations

import importlib.util


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


collect_ignore = [
    folder
    for folder, module in (("vllm", "vllm.v1"), ("sglang", "sglang.srt"))
    if not _found(module)
]

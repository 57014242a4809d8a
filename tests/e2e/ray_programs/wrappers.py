"""Imports verl and Ray as a training run does, and tells what of ours is in them. `wrappers.py`."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from typing import Any

MODULES = (
    "ray",
    "ray.actor",
    "ray.remote_function",
    "verl.utils.rollout_trace",
    "verl.experimental.agent_loop.agent_loop",
    "verl.experimental.agent_loop.tool_agent_loop",
    "verl.experimental.agent_loop.single_turn_agent_loop",
    "verl.workers.rollout.llm_server",
    "verl.tools.base_tool",
)


def members(module: Any) -> list[tuple[str, Any]]:
    """What a module holds, and what its classes hold."""
    found = []
    for name, value in list(vars(module).items()):
        found.append((name, value))
        if inspect.isclass(value):
            found += [(f"{name}.{inner}", held) for inner, held in list(vars(value).items())]
    return found


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    from otel_rollout.instrumentors.patching import is_ours

    wrapped = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("ray", "verl") and module is not None:
            for member, value in members(module):
                if callable(value) and is_ours(value):
                    wrapped.add(f"{name}.{member}")
    print(json.dumps(sorted(wrapped)))


if __name__ == "__main__":
    main()

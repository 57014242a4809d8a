"""Every actor class of verl pickles when verl is instrumented, and is the same class again."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

FIND = """
import importlib, inspect, pkgutil, warnings
warnings.simplefilter("ignore")
import verl, ray
for info in pkgutil.walk_packages(verl.__path__, "verl.", onerror=lambda name: None):
    try:
        module = importlib.import_module(info.name)
    except BaseException:
        continue
    for name, value in vars(module).items():
        if isinstance(value, ray.actor.ActorClass) and value.__module__ == info.name:
            print("FOUND", info.name, name)
"""
PLAIN_ACTORS = [
    ("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker"),
    ("verl.experimental.reward_loop.reward_loop", "RewardLoopWorker"),
    ("verl.workers.rollout.router", "GlobalRequestLoadBalancer"),
    ("verl.experimental.agent_loop.tool_agent_loop", "ToolAgentLoop"),
    ("verl.experimental.agent_loop.single_turn_agent_loop", "SingleTurnAgentLoop"),
    ("verl.workers.rollout.llm_server", "LLMServerClient"),
    ("verl.workers.rollout.llm_server", "FullyAsyncLLMServerClient"),
    ("verl.tools.base_tool", "BaseTool"),
]


def decorated_actors() -> list[tuple[str, str]]:
    """All classes in verl that `@ray.remote` has made actors, found in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FIND], capture_output=True, text=True, timeout=300, check=False
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return [(module, name) for _, module, name in lines]


def round_trip(value: Any) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(value))


@pytest.mark.parametrize(("module", "name"), PLAIN_ACTORS)
def test_classes_that_become_actors_pickle(module: str, name: str) -> None:
    import ray

    value = getattr(importlib.import_module(module), name)
    remote = ray.remote(value)
    again = round_trip(remote.__ray_metadata__.modified_class)
    assert again.__name__ == name
    assert callable(again)


def test_decorated_actor_classes_pickle() -> None:
    found = decorated_actors()
    assert ("verl.trainer.ppo.v1.agent_loop_tq", "AgentLoopWorkerTQ") in found
    for module, name in found:
        actor = getattr(importlib.import_module(module), name)
        again = round_trip(actor.__ray_metadata__.modified_class)
        assert again.__name__ == actor.__ray_metadata__.modified_class.__name__


def test_classes_that_are_pickled_by_value_pickle() -> None:
    """A class of the user's own script goes to the workers with everything that it refers to."""
    import ray
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.tools.base_tool import BaseTool
    from verl.utils.rollout_trace import rollout_trace_op
    from verl.workers.rollout.llm_server import LLMServerClient

    class Tool(BaseTool):
        async def execute(self, instance_id: str, parameters: Any, **kwargs: Any) -> Any:
            return None, 0.0, {}

    class Loop(ToolAgentLoop):
        async def run(self, sampling_params: Any, **kwargs: Any) -> Any:
            return await super().run(sampling_params, **kwargs)

        async def _call_tool(self, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
            return None

    class Client(LLMServerClient):
        async def generate(self, request_id: Any, **kwargs: Any) -> Any:
            return None

    class Parser(ToolParser):
        async def extract_tool_calls(self, responses_ids: Any, tools: Any = None) -> Any:
            return "", []

    class Helper:
        @rollout_trace_op
        async def search(self, query: str) -> str:
            return query

    for value in (Tool, Loop, Client, Parser):
        assert round_trip(value).__name__ == value.__name__
        round_trip(ray.remote(value).__ray_metadata__.modified_class)
    plain = Helper.search.__wrapped__  # what verl's own decorator makes cannot be pickled by value
    with pytest.raises(TypeError, match="ContextVar"):
        round_trip(plain)


def test_wrapped_functions_pickle_by_name() -> None:
    module = importlib.import_module("verl.utils.rollout_trace")
    for name in ("rollout_trace_attr", "rollout_trace_op"):
        assert round_trip(getattr(module, name)) is getattr(module, name)


def test_every_module_that_imported_a_wrapped_function_has_the_wrapped_one() -> None:
    module = importlib.import_module("verl.utils.rollout_trace")
    loop = importlib.import_module("verl.experimental.agent_loop.agent_loop")
    assert loop.rollout_trace_attr is module.rollout_trace_attr

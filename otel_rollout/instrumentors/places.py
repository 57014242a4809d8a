"""The places in other libraries that we patch, and in which versions of them each is.

What an instrumentor finds missing is judged by this table: a place that no version of that age has
is no news, one that was in all of them is (see :mod:`.fit`). `otel-rollout doctor` reads it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final


@dataclass(frozen=True)
class Place:
    """A function or class that we patch, by its names in the versions that we know.

    ``gives``: what would be missing from a trace without it. ``names``: ``module:Class.method``,
    each in some versions. ``since``: the first version that is known to have it; ``until``: the
    first that is known to have it no more. Empty: no such limit. ``inherited``: a method may come
    from a base, since it is put on the class that Ray has loaded.
    """

    gives: str
    names: tuple[str, ...]
    since: str = ""
    until: str = ""
    inherited: bool = False

    def expected_in(self, version: str | None) -> bool:
        """Return whether a version has to have it; one that cannot be told counts as the newest."""
        numbers = release(version)
        if not numbers:
            return not self.until
        return numbers >= release(self.since) and not (
            self.until and numbers >= release(self.until)
        )


def release(version: str | None) -> tuple[int, ...]:
    """Return the numbers that a version begins with; those of "0.9.1.dev2+cu12" are 0, 9, 1."""
    start = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(number) for number in start[1].split(".")) if start else ()


def installed_version(library: str) -> str | None:
    """Return the version of a library's distribution, or of its build for CPUs."""
    for distribution in (library, f"{library}-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


_LOOP: Final = "verl.experimental.agent_loop.agent_loop"
_VLLM: Final = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_SGLANG: Final = "verl.workers.rollout.sglang_rollout.async_sglang_server"


def _worker(method: str) -> tuple[str, str]:
    return f"{_LOOP}:AgentLoopWorker.{method}", f"{_LOOP}:AgentLoopWorkerBase.{method}"


PLACES: Final[Mapping[str, Sequence[Place]]] = {
    "verl": (
        Place("trajectories", ("verl.utils.rollout_trace:rollout_trace_attr",)),
        Place("verl's trace settings", ("verl.utils.rollout_trace:RolloutTraceConfig.init",)),
        Place("rollout_trace_op functions", ("verl.utils.rollout_trace:rollout_trace_op",)),
        Place("agent loops", (f"{_LOOP}:AgentLoopBase.run",)),
        Place(
            "generations",
            (
                "verl.workers.rollout.llm_server:LLMServerClient.generate",
                f"{_LOOP}:AsyncLLMServerManager.generate",
            ),
        ),
        Place(
            "tool calls",
            ("verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop._call_tool",),
        ),
        Place(
            "tool calls as parsed",
            ("verl.experimental.agent_loop.tool_parser:ToolParser.extract_tool_calls",),
        ),
        Place("tools", ("verl.tools.base_tool:BaseTool.execute",)),
        Place("function tools", ("verl.tools.function_tool:FunctionTool.call",), since="0.8.0"),
        Place("tokenizers", _worker("__init__"), inherited=True),
        Place("whole groups in a sample", _worker("generate_sequences"), inherited=True),
        Place("groups", _worker("_run_agent_loop"), inherited=True),
        Place("scores", _worker("_compute_score"), since="0.7.1", inherited=True),
        Place(
            "groups on the V1 path",
            ("verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ",),
            since="0.9.1",
        ),
        Place(
            "scores of a colocated reward model",
            ("verl.experimental.reward_loop.reward_loop:RewardLoopManager.compute_rm_score",),
            since="0.7.1",
        ),
        Place(
            "rows of a colocated reward model",
            _worker("_postprocess"),
            since="0.7.1",
            inherited=True,
        ),
        Place(
            "batches of a colocated reward model",
            (f"{_LOOP}:AgentLoopManager._performance_metrics",),
            since="0.7.1",
        ),
        Place(
            "colocated scores on the V1 path",
            ("verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_reward_colocate",),
            since="0.9.1",
        ),
        Place(
            "weight versions with vLLM",
            (f"{_VLLM}:vLLMHttpServer.generate", f"{_VLLM}:vLLMHttpServerBase.generate"),
            since="0.6.1",
        ),
        Place(
            "weight versions with SGLang",
            (f"{_SGLANG}:SGLangHttpServer.generate", f"{_SGLANG}:SGLangHttpServerBase.generate"),
            since="0.6.1",
        ),
    ),
    "ray": (
        Place("start-up of workers", ("ray._private.worker:init",)),
        Place("the end of workers", ("ray._private.worker:shutdown",)),
        Place("context into actors", ("ray.actor:ActorHandle._actor_method_call",)),
        Place("context into tasks", ("ray.remote_function:RemoteFunction._remote",)),
        Place("context inside tasks", ("ray.remote_function:_inject_tracing_into_function",)),
        Place("context inside actors", ("ray.util.tracing.tracing_helper:_is_tracing_enabled",)),
        Place(
            "actor classes",
            ("ray._private.function_manager:FunctionActorManager._load_actor_class_from_gcs",),
        ),
    ),
    "vllm": (
        Place(
            "the engine's spans",
            (
                "vllm.v1.engine.async_llm:AsyncLLM.generate",
                "vllm.engine.async_llm_engine:AsyncLLMEngine.generate",
            ),
            since="0.8.5",
        ),
    ),
    "sglang": (
        Place(
            "the engine's spans",
            ("sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",),
            since="0.4.6",
        ),
    ),
}

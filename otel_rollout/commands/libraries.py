"""Which libraries are installed, and which of the places that we patch are in them.

Nothing is imported (torch alone would take seconds): versions are those of the distributions, and
places are looked for in the libraries' source files.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from otel_rollout.commands.findings import WARNING, Finding

OURS: Final = "otel-rollout"
_ALSO: Final = (
    "opentelemetry-api",
    "opentelemetry-sdk",
    "opentelemetry-instrumentation",
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-exporter-otlp-proto-grpc",
    "opentelemetry-distro",
    "wrapt",
    "weave",
    "wandb",
    "transformers",
    "torch",
)


@dataclass(frozen=True)
class Place:
    """A function or class that we patch, by its names in the versions that we know.

    ``gives``: what would be missing from a trace without it. ``needed``: False where versions of
    the library are in use that never had it.
    """

    gives: str
    names: tuple[str, ...]
    needed: bool = True


PLACES: Final[Mapping[str, Sequence[Place]]] = {
    "verl": (
        Place("trajectories", ("verl.utils.rollout_trace:rollout_trace_attr",)),
        Place("agent loops", ("verl.experimental.agent_loop.agent_loop:AgentLoopBase.run",)),
        Place(
            "generations",
            (
                "verl.workers.rollout.llm_server:LLMServerClient.generate",
                "verl.experimental.agent_loop.agent_loop:AsyncLLMServerManager.generate",
            ),
        ),
        Place(
            "tool calls",
            ("verl.experimental.agent_loop.tool_agent_loop:ToolAgentLoop._call_tool",),
        ),
        Place("tools", ("verl.tools.base_tool:BaseTool.execute",)),
        Place("function tools", ("verl.tools.function_tool:FunctionTool.call",), needed=False),
        Place(
            "identity on the classic path",
            (
                "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop",
                "verl.experimental.agent_loop.agent_loop:AgentLoopWorkerBase._run_agent_loop",
            ),
        ),
        Place(
            "identity on the V1 path",
            ("verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ",),
            needed=False,
        ),
        Place(
            "scores of a colocated reward model",
            ("verl.experimental.reward_loop.reward_loop:RewardLoopManager.compute_rm_score",),
            needed=False,
        ),
    ),
    "ray": (
        Place("start-up of workers", ("ray._private.worker:init",)),
        Place("context into actors", ("ray.actor:ActorHandle._actor_method_call",)),
        Place("context into tasks", ("ray.remote_function:RemoteFunction._remote",)),
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
        ),
    ),
    "sglang": (
        Place(
            "the engine's spans",
            ("sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request",),
        ),
    ),
}


@dataclass
class Library:
    """A library that is there; ``found``: what each place gives, to where it is."""

    name: str
    version: str | None
    found: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"version": self.version, "found": self.found, "missing": self.missing}

    def lines(self) -> Iterator[str]:
        """Yield it as lines to read."""
        version = self.version or "a checkout, without a version"
        hooked = ", ".join(self.found) or "nothing"
        yield f"{self.name:<13} {version}: {hooked}"


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def packages() -> dict[str, str]:
    """Return the versions of what matters to us and is installed."""
    versions = {name: version_of(name) for name in (OURS, *_ALSO)}
    return {name: version for name, version in versions.items() if version is not None}


def libraries() -> list[Library]:
    """Return the instrumented libraries that are installed."""
    result = []
    for name, places in PLACES.items():
        roots = _folders(name)
        if not roots:
            continue
        library = Library(name, version_of(name) or version_of(f"{name}-cpu"))
        for place in places:
            where = next((one for one in place.names if _is_there(one, roots)), None)
            if where is not None:
                library.found[place.gives] = where
            elif place.needed:
                library.missing.append(place.gives)
        result.append(library)
    return result


def findings(found: Sequence[Library]) -> Iterator[Finding]:
    """Yield what is missing from libraries."""
    for library in found:
        if library.missing:
            yield Finding(
                WARNING,
                f"hooks:{library.name}",
                f"{library.name} {library.version or ''} has no place known to us for: "
                f"{', '.join(library.missing)}; these will be missing from traces",
                "see the versions that are tested (docs), or mark functions with rollout_op",
            )


def _folders(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [Path(one) for one in (spec and spec.submodule_search_locations) or ()]


def _is_there(name: str, roots: Sequence[Path]) -> bool:
    module, _, qualified = name.partition(":")
    tree = _source(module, roots)
    return tree is not None and _defines(tree, qualified.split("."))


def _source(module: str, roots: Sequence[Path]) -> ast.Module | None:
    parts = module.split(".")[1:]
    for root in roots:
        path = root.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            try:
                return ast.parse(file.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue
    return None


def _defines(tree: ast.AST, names: Sequence[str]) -> bool:
    """Return whether ``Class.method`` or a function is defined, under an ``if`` or ``try`` too."""
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name == names[0]:
            return len(names) == 1 or _defines(node, names[1:])
    return False

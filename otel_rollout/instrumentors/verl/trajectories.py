"""verl's trajectories: where they begin and end, and which of them are traced."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from otel_rollout import identity as identities
from otel_rollout import semconv, snapshot
from otel_rollout.diagnostics import logger, report_internal_error, say_once
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.verl import colocated
from otel_rollout.processor import sampling
from otel_rollout.processor.token2text import register_tokenizer
from otel_rollout.settings import settings
from otel_rollout.trajectory import Trajectory, trajectory

PROVIDER: Final = "verl"


@dataclass(frozen=True, slots=True)
class Facts:
    """What ``_run_agent_loop`` knows of a trajectory and ``rollout_trace_attr`` is not told."""

    agent_name: str | None = None
    group_id: Any = None
    session_id: Any = None
    raw_prompt: Any = None
    opened: list[Trajectory] | None = None
    """The trajectory, once it is open."""


facts: ContextVar[Facts] = ContextVar("otel_rollout_verl_facts", default=Facts())  # noqa: B039


def trace_config() -> Any:
    """Return verl's ``RolloutTraceConfig`` singleton, or ``None`` before verl is imported."""
    module = sys.modules.get("verl.utils.rollout_trace")
    return module.RolloutTraceConfig.get_instance() if module is not None else None


# --- rollout_trace_attr and its configuration ----------------------------------------------------


def patch_rollout_trace(patches: Patches, module: ModuleType) -> None:
    """Open a trajectory wherever verl enters ``rollout_trace_attr``; heed its ``trace.*``."""
    patches.function(module, "rollout_trace_attr", _rollout_trace_attr)
    patches.method(getattr(module, "RolloutTraceConfig", None), "init", _init)


_signature: Final = functools.lru_cache(maxsize=8)(inspect.signature)


def _rollout_trace_attr(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    theirs = wrapped(*args, **kwargs)
    try:
        bound = _signature(wrapped).bind(*args, **kwargs)
        bound.apply_defaults()
        ours = _trajectory(bound.arguments)
    except Exception as error:
        report_internal_error("rollout_trace_attr", error)
        return theirs
    return _both(ours, theirs)


@contextlib.contextmanager
def _both(ours: trajectory, theirs: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    with ours as handle, theirs:
        opened = facts.get().opened
        if opened is not None:
            opened.append(handle)
        yield


def _trajectory(given: Mapping[str, Any]) -> trajectory:
    # verl's own `trace` is left aside: on its default path it is False for every sample, and on
    # the other it is a choice drawn for verl's own back end.
    known = facts.get()
    config = trace_config()
    rollout_n = known.session_id if known.session_id is not None else given.get("rollout_n")
    index = identities.plain(given.get("sample_index"))
    shared = (_scope(given.get("step"), given.get("validate")), index) in _shared_indices
    return trajectory(
        step=given.get("step"),
        sample_index=given.get("sample_index"),
        rollout_n=rollout_n,
        validate=bool(given.get("validate", False)),
        experiment_name=getattr(config, "experiment_name", None),
        group_id=known.group_id,
        project=settings().weave_project or getattr(config, "project_name", None),
        agent=known.agent_name,
    ).told_by(PROVIDER, _prompt_hash(known.raw_prompt) if shared else None)


def _init(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    def init(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(cls, *args, **kwargs)
            _heed(bound.arguments)
        except Exception as error:
            report_internal_error("RolloutTraceConfig.init", error)
            return method(cls, *args, **kwargs)
        return method(*bound.args, **bound.kwargs)

    return init


def _heed(given: dict[str, Any]) -> None:
    """Take verl's settings over, and its Weave back end where our exporter feeds Weave.

    Its draw for ``max_samples`` stays in place, so that a traced run equals an untraced one.
    """
    quota = given.get("max_samples_per_step_per_worker")
    if quota is not None and settings().max_samples_per_step is None:
        sampling.sampler().quota = int(quota)
    if given.get("backend") == "weave":
        from otel_rollout.exporters.weave import exporter

        if exporter.active_exporters:
            given["backend"] = None
            logger.info("trace.backend=weave is served by otel-rollout's exporter")
        else:
            say_once(
                "backend-weave",
                "trace.backend=weave stays verl's own: OTEL_TRACES_EXPORTER does not name weave",
            )


# --- the worker ----------------------------------------------------------------------------------


def patch_worker(actor_class: type, patches: Patches) -> None:
    """Learn what the agent-loop worker knows: tokenizer, batch, and the facts of each rollout."""
    patches.actor_method(actor_class, "__init__", _created)
    patches.actor_method(actor_class, "generate_sequences", _generate_sequences)
    patches.actor_method(actor_class, "_run_agent_loop", _run_agent_loop)


def _created(method: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        method(self, *args, **kwargs)
        tokenizer = getattr(self, "tokenizer", None)
        if tokenizer is not None and settings().token2text:
            register_tokenizer(tokenizer)

    return __init__


def _generate_sequences(method: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_sequences(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if not sampling.sampler().keeps_all:
            try:
                plan(batch)
            except Exception as error:
                report_internal_error("planning a batch", error)
        with colocated.batch():
            return await method(self, batch, *args, **kwargs)

    return generate_sequences


def _run_agent_loop(method: Callable[..., Any]) -> Callable[..., Any]:
    async def run_agent_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        opened: list[Trajectory] = []
        token = facts.set(
            Facts(
                agent_name=kwargs.get("agent_name"),
                group_id=kwargs.get("uid"),
                session_id=kwargs.get("session_id"),
                raw_prompt=kwargs.get("raw_prompt"),
                opened=opened,
            )
        )
        later = colocated.begin(self)
        try:
            output = await method(self, *args, **kwargs)
            colocated.note_output(output, opened)
            return output
        finally:
            colocated.end(later)
            facts.reset(token)

    return run_agent_loop


# --- sampling ------------------------------------------------------------------------------------

_shared_indices: set[tuple[sampling.Scope, Any]] = set()
"""Indices that stand for several samples of one step: datasets without one give 0 to every row."""
_SHARED_KEPT: Final = 100_000


def _scope(step: Any, validate: Any) -> sampling.Scope:
    experiment = getattr(trace_config(), "experiment_name", None)
    return (identities.plain(experiment), identities.plain(step), bool(validate))


def plan(batch: Any) -> None:
    """Choose the samples of a batch that will be traced (see :mod:`..processor.sampling`)."""
    rows = _rows(batch)
    scope = _scope(rows.step, rows.validate)
    groups: dict[Any, set[Any]] = {}
    for index, uid in zip(rows.indices, rows.uids, strict=True):
        groups.setdefault(index, set()).add(uid)
    if len(_shared_indices) > _SHARED_KEPT:
        _shared_indices.clear()
    _shared_indices.update((scope, index) for index, uids in groups.items() if len(uids) > 1)
    values = {
        semconv.EXPERIMENT_NAME: scope[0],
        semconv.STEP: scope[1],
        semconv.VALIDATE: scope[2],
    }
    keys = []
    for index, prompt in zip(rows.indices, rows.prompts, strict=True):
        shared = (scope, index) in _shared_indices
        keys.append(
            sampling.sample_key(
                {**values, semconv.SAMPLE_INDEX: index}, _prompt_hash(prompt) if shared else None
            )
        )
    sampling.sampler().plan(scope, keys)


@dataclass(frozen=True, slots=True)
class _Rows:
    step: Any
    validate: bool
    indices: Sequence[Any]
    uids: Sequence[Any]
    prompts: Sequence[Any]


def _rows(batch: Any) -> _Rows:
    """Read a ``DataProto`` (classic) or a ``TensorDict`` (V1)."""
    size = len(batch)
    columns = getattr(batch, "non_tensor_batch", None)
    if columns is not None:
        step = batch.meta_info.get("global_steps", -1)
        validate = batch.meta_info.get("validate", False)
    else:
        columns = batch
        step = batch["global_steps"]
        validate = batch.get("validate", False)

    def column(name: str, default: Callable[[int], Any]) -> list[Any]:
        if name not in columns:
            return [default(i) for i in range(size)]
        values = columns[name]
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        return values if len(values) == size else [values[0]] * size

    indices = [identities.plain(index) for index in column("index", lambda i: i)]
    uids = column("uid", lambda i: indices[i])
    return _Rows(
        _scalar(step), bool(_scalar(validate)), indices, uids, column("raw_prompt", lambda i: None)
    )


def _scalar(value: Any) -> Any:
    value = getattr(value, "data", value) if type(value).__name__ == "NonTensorData" else value
    return value[0] if isinstance(value, (list, tuple)) and value else value


def _prompt_hash(prompt: Any) -> str:
    text = json.dumps(snapshot.take(prompt), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

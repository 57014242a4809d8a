"""verl's agent loops: one span for each run, with what the loop gives back."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.verl.trajectories import PROVIDER, facts
from otel_rollout.payload import copy_floats, copy_ids
from otel_rollout.recording import Recording
from otel_rollout.trajectory import current_trajectory

_running: ContextVar[tuple[Any, Recording] | None] = ContextVar(
    "otel_rollout_verl_agent", default=None
)


def patch_agent_loop(patches: Patches, module: ModuleType) -> None:
    """Record ``run`` of every agent loop, the user's own subclasses too."""
    patches.every_subclass(getattr(module, "AgentLoopBase", None), "run", _run)


def patch_tool_parser(patches: Patches, module: ModuleType) -> None:
    """Note on the agent's span which tool calls were read from an answer."""
    parser = getattr(module, "ToolParser", None)
    patches.every_subclass(parser, "extract_tool_calls", _extract_tool_calls)


def _run(method: Callable[..., Any]) -> Callable[..., Any]:
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await _recorded_run(method, self, args, kwargs)

    return run


async def _recorded_run(
    method: Callable[..., Any], loop: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    inside = _running.get()
    if inside is not None and inside[0] is loop:  # an override that calls super().run()
        return await method(loop, *args, **kwargs)
    name = facts.get().agent_name or type(loop).__name__
    recording = recordings.start(
        semconv.OP_INVOKE_AGENT,
        name,
        attributes={semconv.AGENT_NAME: name, semconv.PROVIDER: PROVIDER},
    )
    if recording.live and kwargs.get("raw_prompt") is not None:
        recording.keep(semconv.INPUT_MESSAGES, list(kwargs["raw_prompt"]))
    token = _running.set((loop, recording))
    try:
        with recordings.active(recording):
            output = await method(loop, *args, **kwargs)
            if recording.live:
                _note_output(recording, output)
            return output
    finally:
        _running.reset(token)


def _note_output(recording: Recording, output: Any) -> None:
    """Note an ``AgentLoopOutput``, or the last of a list of them, on agent and trajectory."""
    try:
        outputs = output if isinstance(output, list) else [output]
        if not outputs:
            return
        final = outputs[-1]
        handle = current_trajectory()
        on = [recording] if handle is None else [recording, handle.recording]
        for target in on:
            target.set(semconv.NUM_TURNS, getattr(final, "num_turns", None))
            target.set(semconv.INPUT_TOKENS, len(final.prompt_ids))
            target.set(semconv.OUTPUT_TOKENS, len(final.response_ids))
            preempted = getattr(getattr(final, "metrics", None), "num_preempted", None)
            if isinstance(preempted, int) and preempted >= 0:
                target.set(semconv.NUM_PREEMPTED, preempted)
            if len(outputs) > 1:
                target.set(semconv.NUM_OUTPUTS, len(outputs))
        if handle is not None:
            payload = handle.recording.payload
            payload.prompt_ids = copy_ids(final.prompt_ids)
            payload.response_ids = copy_ids(final.response_ids)
            payload.mask = copy_ids(getattr(final, "response_mask", None))
            payload.logprobs = copy_floats(getattr(final, "response_logprobs", None))
    except Exception as error:
        report_internal_error("AgentLoopOutput", error)


def _extract_tool_calls(method: Callable[..., Any]) -> Callable[..., Any]:
    async def extract_tool_calls(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await _noted_parsing(method, self, args, kwargs)

    return extract_tool_calls


async def _noted_parsing(
    method: Callable[..., Any], parser: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    inside = _running.get()
    try:
        result = await method(parser, *args, **kwargs)
    except Exception as error:
        if inside is not None:
            inside[1].event(
                semconv.TOOL_CALLS_EVENT,
                {semconv.ERROR_TYPE: type(error).__qualname__, "count": 0},
            )
        raise
    if inside is not None and inside[1].live:
        try:
            names = [str(call.name) for call in result[1]]
            inside[1].event(semconv.TOOL_CALLS_EVENT, {"count": len(names), "names": names})
        except Exception as error:
            report_internal_error("extract_tool_calls", error)
    return result

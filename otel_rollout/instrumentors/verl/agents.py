"""verl's agent loops: one span for each run, with what the loop gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from opentelemetry import context as otel_context

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.verl.trajectories import PROVIDER, facts
from otel_rollout.payload import copy_floats, copy_ids
from otel_rollout.recording import Recording
from otel_rollout.trajectory import current_trajectory


class Run(Recording):
    """The run of an agent loop while it is under way; ``loop``: verl's."""

    __slots__ = ("loop",)

    loop: Any


_RUN: Final = otel_context.create_key("otel-rollout-verl-run")
"""Where the context of what an agent loop calls has its :class:`Run`."""


def patch_agent_loop(patches: Patches, module: ModuleType) -> None:
    """Record ``run`` of every agent loop, the user's own subclasses too."""
    patches.every_subclass(getattr(module, "AgentLoopBase", None), "run", _run)


def patch_tool_parser(patches: Patches, module: ModuleType) -> None:
    """Note on the agent's span which tool calls were read from an answer."""
    parser = getattr(module, "ToolParser", None)
    patches.every_subclass(parser, "extract_tool_calls", _extract_tool_calls)


def _run(method: Callable[..., Any]) -> Callable[..., Any]:
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = _begin(self, kwargs)
        if recording is None:
            return await method(self, *args, **kwargs)
        try:
            output = await method(self, *args, **kwargs)
        except BaseException as error:
            recording.leave(error)
            raise
        _end(recording, output)
        return output

    return run


def _running() -> Run | None:
    found = otel_context.get_value(_RUN)
    return found if isinstance(found, Run) else None


def _begin(loop: Any, given: Mapping[str, Any]) -> Run | None:
    """Start the span of a run; ``None`` for an override that calls ``super().run()``."""
    around = _running()
    if around is not None and around.loop is loop and not around.ended:
        return None
    name = facts.get().agent_name or type(loop).__name__
    recording = recordings.start_as(
        Run,
        semconv.OP_INVOKE_AGENT,
        name,
        attributes={semconv.AGENT_NAME: name, semconv.PROVIDER: PROVIDER},
    )
    recording.loop = loop
    if recording.live and given.get("raw_prompt") is not None:
        try:
            recording.keep(semconv.INPUT_MESSAGES, list(given["raw_prompt"]))
        except Exception as error:
            report_internal_error("raw_prompt", error)
    recording.enter(recording.context_with(values={_RUN: recording}))
    return recording


def _end(recording: Run, output: Any) -> None:
    if recording.live:
        _note_output(recording, output)
    recording.leave()


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
    inside = _running()
    try:
        result = await method(parser, *args, **kwargs)
    except Exception as error:
        if inside is not None:
            inside.event(
                semconv.TOOL_CALLS_EVENT,
                {semconv.ERROR_TYPE: type(error).__qualname__, "count": 0},
            )
        raise
    if inside is not None and inside.live:
        try:
            names = [str(call.name) for call in result[1]]
            inside.event(semconv.TOOL_CALLS_EVENT, {"count": len(names), "names": names})
        except Exception as error:
            report_internal_error("extract_tool_calls", error)
    return result

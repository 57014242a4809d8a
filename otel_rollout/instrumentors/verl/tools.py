"""verl's tool calls: one span for each call, with the error that verl would swallow."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.verl.trajectories import PROVIDER
from otel_rollout.recording import Recording


@dataclass(slots=True)
class _Call:
    """A tool call that is under way."""

    tool_call: Any
    recording: Recording
    entered: bool = False
    failed: bool = False


_current: ContextVar[_Call | None] = ContextVar("otel_rollout_verl_tool", default=None)


def patch_tool_agent_loop(patches: Patches, module: ModuleType) -> None:
    """Record each ``_call_tool``."""
    patches.every_subclass(getattr(module, "ToolAgentLoop", None), "_call_tool", _call_tool)


def patch_base_tool(patches: Patches, module: ModuleType) -> None:
    """Add what ``execute`` of a tool knows; outside an agent loop it is a span of its own."""
    patches.every_subclass(getattr(module, "BaseTool", None), "execute", _execute)


def patch_function_tool(patches: Patches, module: ModuleType) -> None:
    """The same for tools that are functions."""
    patches.every_subclass(getattr(module, "FunctionTool", None), "call", _call)


def _start(name: str, call_id: Any = None) -> Recording:
    attributes = {semconv.TOOL_NAME: name, semconv.PROVIDER: PROVIDER}
    if call_id is not None:
        attributes[semconv.TOOL_CALL_ID] = str(call_id)
    return recordings.start(semconv.OP_EXECUTE_TOOL, name, attributes=attributes)


def _call_tool(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call_tool(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        return await _recorded_call(method, self, tool_call, args, kwargs)

    return call_tool


async def _recorded_call(
    method: Callable[..., Any],
    loop: Any,
    tool_call: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    outer = _current.get()
    if outer is not None and outer.tool_call is tool_call:  # an override that calls super()
        return await method(loop, tool_call, *args, **kwargs)
    name = str(getattr(tool_call, "name", "?"))
    recording = _start(name, getattr(tool_call, "tool_call_id", None))
    recording.keep_text(semconv.TOOL_ARGUMENTS, getattr(tool_call, "arguments", None))
    call = _Call(tool_call, recording)
    token = _current.set(call)
    try:
        with recordings.active(recording):
            result = await method(loop, tool_call, *args, **kwargs)
            if recording.live:
                _note_result(recording, result)
                _note_refusal(loop, call, args, kwargs)
            return result
    finally:
        _current.reset(token)


def _note_refusal(loop: Any, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say why a call never reached its tool: verl answers the model with a text and goes on."""
    try:
        if call.entered or call.failed:
            return
        name = str(call.tool_call.name)
        agent_data = kwargs.get("agent_data", args[1] if len(args) > 1 else None)
        tools = getattr(agent_data, "_active_tools", None) or getattr(loop, "tools", {})
        if name not in tools:
            call.recording.failed("UnknownTool", f"no tool {name!r}; there are {sorted(tools)}")
            return
        problem = _not_an_object(call.tool_call.arguments)
        if problem is not None:
            call.recording.failed("InvalidArguments", problem)
        else:
            call.recording.failed("ToolError", "the tool could not be started")
    except Exception as error:
        report_internal_error("tool refusal", error)


def _not_an_object(arguments: Any) -> str | None:
    try:
        value = json.loads(arguments)
    except (ValueError, TypeError) as error:
        return f"the arguments are no JSON: {error}"
    if not isinstance(value, dict):
        return f"the arguments are a JSON {type(value).__name__}, not an object"
    return None


def _note_result(recording: Recording, result: Any) -> None:
    try:
        response, reward, metrics = _parts(result)
        text = getattr(response, "text", None)
        if isinstance(response, str):
            text = response
        if text is not None:
            recording.keep_text(semconv.TOOL_RESULT, text)
        elif response is not None:
            recording.keep(semconv.TOOL_RESULT, response)
        if isinstance(reward, (int, float)):
            recording.set(semconv.TOOL_REWARD, float(reward))
        if metrics:
            recording.keep(semconv.TOOL_METRICS, metrics)
    except Exception as error:
        report_internal_error("tool result", error)


def _parts(result: Any) -> tuple[Any, Any, Any]:
    if isinstance(result, tuple) and len(result) == 3:
        return result
    if isinstance(result, dict) and "content" in result:  # a chat message, verl 0.5
        return str(result["content"]), None, None
    return result, None, None


def _execute(method: Callable[..., Any]) -> Callable[..., Any]:
    async def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = kwargs.get("parameters", args[1] if len(args) > 1 else None)
        return await _inside(self, parameters, lambda: method(self, *args, **kwargs))

    return execute


def _call(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = kwargs.get("parameters", args[0] if args else None)
        return await _inside(self, parameters, lambda: method(self, *args, **kwargs))

    return call


_executing: ContextVar[Any] = ContextVar("otel_rollout_verl_executing", default=None)


async def _inside(tool: Any, parameters: Any, run: Callable[[], Any]) -> Any:
    """Run a tool inside the call that is under way, or as a span of its own."""
    if _executing.get() is tool:  # an override that calls super().execute()
        return await run()
    call = _current.get()
    token = _executing.set(tool)
    try:
        if call is None or call.entered:
            return await _alone(tool, parameters, run)
        call.entered = True
        if call.recording.live and not isinstance(parameters, dict):
            call.failed = True
            call.recording.failed(
                "InvalidArguments",
                f"the arguments are a JSON {type(parameters).__name__}, not an object",
            )
        try:
            return await run()
        except BaseException as error:
            call.failed = True
            call.recording.fail(error)
            raise
    finally:
        _executing.reset(token)


async def _alone(tool: Any, parameters: Any, run: Callable[[], Any]) -> Any:
    recording = _start(str(getattr(tool, "name", type(tool).__name__)))
    if parameters is not None:
        recording.keep(semconv.TOOL_ARGUMENTS, parameters)
    with recordings.active(recording):
        result = await run()
        if recording.live:
            _note_result(recording, result)
        return result

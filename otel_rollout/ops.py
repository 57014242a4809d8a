"""``rollout_op``: a span around any function of a rollout, with its inputs and its output."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, Final, TypeVar, overload

from opentelemetry import context as otel_context

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.recording import Recording

_F = TypeVar("_F", bound=Callable[..., Any])

_OPERATIONS: Final[Mapping[str | None, tuple[str | None, str | None]]] = {
    # kind: operation, attribute that names the subject
    "agent": (semconv.OP_INVOKE_AGENT, semconv.AGENT_NAME),
    "llm": (semconv.OP_CHAT, semconv.REQUEST_MODEL),
    "tool": (semconv.OP_EXECUTE_TOOL, semconv.TOOL_NAME),
    None: (None, None),
}


@overload
def rollout_op(function: _F, /) -> _F: ...


@overload
def rollout_op(
    *, name: str | None = None, kind: str | None = None, capture: bool = True
) -> Callable[[_F], _F]: ...


def rollout_op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    kind: str | None = None,
    capture: bool = True,
) -> Any:
    """Record every call of a function as a span; counterpart of verl's ``rollout_trace_op``.

    For functions, methods, coroutines, generators and async generators; as ``@rollout_op`` or with
    arguments. What the function returns or raises is unchanged.

    Args:
        function: what is decorated.
        name: of the span (default: the function's qualified name); with a ``kind``, its subject.
        kind: ``"agent"`` gives ``invoke_agent NAME``, ``"llm"`` ``chat NAME``, ``"tool"``
            ``execute_tool NAME``; ``None`` a span called NAME. A tool's result with ``isError`` or
            ``is_error`` that is True is an error, as an exception is.
        capture: record arguments (``self`` left out) and result as JSON. A generator's result is
            how many items it gave.
    """
    if kind not in _OPERATIONS:
        say_once(
            f"op-kind:{kind}",
            "rollout_op(kind=%r) is not known; allowed are 'agent', 'llm', 'tool' and None",
            kind,
        )
        kind = None

    def decorate(target: Callable[..., Any]) -> Any:
        if isinstance(target, (classmethod, staticmethod)):
            return type(target)(decorate(target.__func__))
        return _wrapped(_Op(target, name, kind, capture))

    return decorate if function is None else decorate(function)


class _Op:
    """What is known of a decorated function before it is called."""

    def __init__(
        self, function: Callable[..., Any], name: str | None, kind: str | None, capture: bool
    ) -> None:
        self.function = function
        self.capture = capture
        self.name = name or _name_of(function)
        self.operation, self.subject_key = _OPERATIONS[kind]
        self.is_tool = kind == "tool"
        try:
            self.signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self.signature = None

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recording:
        attributes = {self.subject_key: self.name} if self.subject_key is not None else None
        operation: str = self.operation if self.operation is not None else self.name
        subject = self.name if self.operation is not None else None
        recording = recordings.start(operation, subject, attributes=attributes)
        if self.capture and recording.live:
            try:
                key = semconv.TOOL_ARGUMENTS if self.is_tool else semconv.INPUT
                recording.keep(key, self._inputs(args, kwargs))
            except Exception as error:
                report_internal_error("rollout_op inputs", error)
        return recording

    def _inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self.signature is None:
            return {"args": list(args), **kwargs}
        first = next(iter(self.signature.parameters), None)
        is_method = first in ("self", "cls")
        try:
            inputs = dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError:  # the call itself will say so
            return {"args": list(args[1:] if is_method else args), **kwargs}
        if is_method:
            inputs.pop(str(first), None)
        return inputs

    def result(self, recording: Recording, value: Any) -> None:
        if not recording.live:
            return
        try:
            if self.is_tool and _is_error(value):
                recording.failed("ToolError", "the tool's result says that it is an error")
            if self.capture:
                recording.keep(semconv.TOOL_RESULT if self.is_tool else semconv.OUTPUT, value)
        except Exception as error:
            report_internal_error("rollout_op output", error)


def _is_error(result: Any) -> bool:
    """Return whether a tool's result says that the call failed, as MCP's and Anthropic's do."""
    for name in ("isError", "is_error"):
        found = result.get(name) if isinstance(result, dict) else getattr(result, name, None)
        if found is True:
            return True
    return False


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _wrapped(op: _Op) -> Callable[..., Any]:
    function = op.function
    # a callable object's own method; a class is called to make an object
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    if inspect.isasyncgenfunction(function) or inspect.isasyncgenfunction(call):
        wrapper: Callable[..., Any] = _async_generator(op)
    elif inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call):
        wrapper = _generator(op)
    elif inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        wrapper = _coroutine(op)
    else:
        wrapper = _plain(op)
    if hasattr(function, "__name__"):
        functools.update_wrapper(wrapper, function)
    return wrapper


def _plain(op: _Op) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with recordings.active(op.start(args, kwargs)) as recording:
            value = op.function(*args, **kwargs)
            op.result(recording, value)
            return value

    return wrapper


def _coroutine(op: _Op) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with recordings.active(op.start(args, kwargs)) as recording:
            value = await op.function(*args, **kwargs)
            op.result(recording, value)
            return value

    return wrapper


class _Inside:
    """Makes current what is current inside a generator, while its code runs and never longer.

    That is its span, or what the generator's own code had made current when it yielded.
    """

    def __init__(self, recording: Recording) -> None:
        self._context = recording.context
        self._token: object = None

    def __enter__(self) -> None:
        self._token = recordings.attach(self._context)

    def __exit__(self, *raised: object) -> None:
        self._context = otel_context.get_current()
        recordings.detach(self._token)


def _generator(op: _Op) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        recording = op.start(args, kwargs)
        inside = _Inside(recording)
        count = 0
        given: Any = None
        try:
            inner = op.function(*args, **kwargs)
            resume: Callable[[Any], Any] = inner.send
            while True:
                try:
                    with inside:
                        item = resume(given)
                except StopIteration as stop:
                    op.result(recording, {"items": count, "returned": stop.value})
                    return stop.value
                count += 1
                try:
                    resume, given = inner.send, (yield item)
                except GeneratorExit:
                    op.result(recording, {"items": count, "closed": True})
                    with inside:
                        inner.close()
                    raise
                except BaseException as error:
                    resume, given = inner.throw, error
        except GeneratorExit:
            raise
        except BaseException as error:
            recording.fail(error)
            raise
        finally:
            given = None  # an exception that was thrown in holds this frame
            recording.end()

    return wrapper


def _async_generator(op: _Op) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        recording = op.start(args, kwargs)
        inside = _Inside(recording)
        count = 0
        given: Any = None
        try:
            inner = op.function(*args, **kwargs)
            resume: Callable[[Any], Any] = inner.asend
            while True:
                try:
                    with inside:
                        item = await resume(given)
                except StopAsyncIteration:
                    op.result(recording, {"items": count})
                    return
                count += 1
                try:
                    resume, given = inner.asend, (yield item)
                except GeneratorExit:
                    op.result(recording, {"items": count, "closed": True})
                    with inside:
                        await inner.aclose()
                    raise
                except BaseException as error:
                    resume, given = inner.athrow, error
        except GeneratorExit:
            raise
        except BaseException as error:
            recording.fail(error)
            raise
        finally:
            given = None  # an exception that was thrown in holds this frame
            recording.end()

    return wrapper

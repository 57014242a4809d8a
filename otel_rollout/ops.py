"""``rollout_op``: a span around any function of a rollout, with its inputs and its output."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, TypeVar, overload

from opentelemetry import context as otel_context

from otel_rollout import completions, semconv
from otel_rollout import recording as recordings
from otel_rollout.capture import Capture
from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.recording import Recording

_F = TypeVar("_F", bound=Callable[..., Any])

_OF_A_CACHE: Final = ("cache_info", "cache_clear", "cache_parameters")
"""What callers of a function with ``functools.lru_cache`` may use of it."""

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
    *,
    name: str | None = None,
    kind: str | None = None,
    capture: bool | str | Collection[str] = True,
) -> Callable[[_F], _F]: ...


def rollout_op(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    kind: str | None = None,
    capture: bool | str | Collection[str] = True,
) -> Any:
    """Record every call of a function as a span; counterpart of verl's ``rollout_trace_op``.

    For functions, methods, coroutines, generators and async generators; as ``@rollout_op`` or with
    arguments. What the function returns or raises is unchanged. The span lasts until the work is
    done: where a plain function returns a coroutine, a generator or a future (asyncio's or
    ``concurrent.futures``'), until that has ended; any other awaitable is handed on as it is.

    Args:
        function: what is decorated.
        name: of the span (default: the function's qualified name); with a ``kind``, its subject.
        kind: ``"agent"`` gives ``invoke_agent NAME``, ``"llm"`` ``chat NAME``, ``"tool"``
            ``execute_tool NAME``; ``None`` a span called NAME. Of an ``"llm"``, arguments called
            ``messages`` or ``prompt_ids``, and a result in the form of OpenAI's completions or
            with ``token_ids``, become messages, token ids, log-probabilities and usage. A tool's
            result with ``isError`` or ``is_error`` that is True is an error, as an exception is.
        capture: record arguments (``self`` left out) and result as JSON: ``True`` both, ``False``
            neither, ``"inputs"`` or ``"output"`` one of them; several names, such as
            ``("query", "limit")``: these arguments, and the result. A generator's result is how
            many items it gave.
    """
    if kind not in _OPERATIONS:
        say_once(
            f"op-kind:{kind}",
            "rollout_op(kind=%r) is not known; allowed are 'agent', 'llm', 'tool' and None",
            kind,
        )
        kind = None
    captured = Capture.of(capture)

    def decorate(target: Any) -> Any:
        if isinstance(target, (classmethod, staticmethod)):
            return type(target)(decorate(target.__func__))
        if isinstance(target, property):
            getter = decorate(target.fget) if target.fget is not None else None
            return property(getter, target.fset, target.fdel, target.__doc__)
        if isinstance(target, functools.cached_property):
            return functools.cached_property(decorate(target.func))
        if isinstance(target, functools.partialmethod):
            return functools.partialmethod(decorate(target.func), *target.args, **target.keywords)
        if not callable(target):
            say_once(
                "op-target", "rollout_op(%r): this cannot be called; it stays as it is", target
            )
            return target
        return _wrapped(_Op(target, name, kind, captured))

    return decorate if function is None else decorate(function)


class _Op:
    """What is known of a decorated function before it is called."""

    def __init__(
        self, function: Callable[..., Any], name: str | None, kind: str | None, capture: Capture
    ) -> None:
        self.function = function
        self.capture = capture
        self.name = name or _name_of(function)
        self.operation, self.subject_key = _OPERATIONS[kind]
        self.is_tool = kind == "tool"
        self.is_llm = kind == "llm"
        try:
            self.signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self.signature = None
        capture.check(self.name, self.signature)

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recording:
        attributes = {self.subject_key: self.name} if self.subject_key is not None else None
        operation: str = self.operation if self.operation is not None else self.name
        subject = self.name if self.operation is not None else None
        recording = recordings.start(operation, subject, attributes=attributes)
        if self.capture.inputs and recording.live:
            try:
                inputs = self.capture.arguments(self.signature, args, kwargs)
                if self.is_llm:
                    inputs = completions.note_inputs(recording, inputs)
                if inputs or not self.is_llm:
                    recording.keep(
                        semconv.TOOL_ARGUMENTS if self.is_tool else semconv.INPUT, inputs
                    )
            except Exception as error:
                report_internal_error("rollout_op inputs", error)
        return recording

    def result(self, recording: Recording, value: Any) -> None:
        if not recording.live:
            return
        try:
            if self.is_tool and _is_error(value):
                recording.failed("ToolError", "the tool's result says that it is an error")
            if not self.capture.output:
                return
            if self.is_llm and completions.note_output(recording, value):
                return
            recording.keep(semconv.TOOL_RESULT if self.is_tool else semconv.OUTPUT, value)
        except Exception as error:
            report_internal_error("rollout_op output", error)


def _is_error(result: Any) -> bool:
    """Return whether a tool's result says that the call failed, as MCP's and Anthropic's do."""
    try:
        for name in ("isError", "is_error"):
            found = result.get(name) if isinstance(result, dict) else getattr(result, name, None)
            if found is True:
                return True
    except Exception:  # an object that cannot be asked
        return False
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
    for extra in _OF_A_CACHE:
        if hasattr(function, extra):
            setattr(wrapper, extra, getattr(function, extra))
    return wrapper


def _plain(op: _Op) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        recording = op.start(args, kwargs)
        token = recordings.attach(recording.context)
        try:
            value = op.function(*args, **kwargs)
        except BaseException as error:
            recording.fail(error)
            recording.end()
            raise
        finally:
            recordings.detach(token)
        if not recording.live:
            return value
        return _when_done(op, recording, value)

    return wrapper


class _Begun(_Op):
    """An op that has been called: its span is open, and its result has yet to be gone through."""

    def __init__(self, op: _Op, recording: Recording, value: Any) -> None:
        self.function = lambda: value
        self.capture = op.capture
        self.is_tool = op.is_tool
        self.is_llm = op.is_llm
        self._recording = recording

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recording:
        return self._recording


def _when_done(op: _Op, recording: Recording, value: Any) -> Any:
    """End the span of a plain call once what it returned has ended; return that.

    Coroutines and generators are as good as their twins. What else can be awaited stays what it
    is: others may look at its type or its identity, or enter it (``async with``).
    """
    follow = _FOLLOWED.get(type(value))
    if follow is not None and not _is_old_coroutine(value):
        twin = follow(_Begun(op, recording, value))()
        twin.__name__, twin.__qualname__ = value.__name__, value.__qualname__
        weakref.finalize(twin, recording.end)  # dropped before it began
        return twin
    if _is_future(value):
        try:
            _end_with(value, op, recording)
        except Exception as error:
            report_internal_error("rollout_op future", error)
            recording.end()
        return value
    op.result(recording, value)
    recording.end()
    return value


def _is_future(value: Any) -> bool:
    try:
        return isinstance(value, concurrent.futures.Future) or asyncio.isfuture(value)
    except Exception:  # an object that cannot be asked, such as a dead weak proxy
        return False


def _is_old_coroutine(value: Any) -> bool:
    """Return whether a generator is one that can be awaited (``types.coroutine``)."""
    code = getattr(value, "gi_code", None)
    return code is not None and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _end_with(future: Any, op: _Op, recording: Recording) -> None:
    def done(ended: Any) -> None:
        try:
            if ended.cancelled():
                recording.failed("CancelledError", "")
            elif (error := _error_of(ended)) is not None:
                recording.fail(error)
            else:
                op.result(recording, ended.result())
        except Exception as error:
            report_internal_error("rollout_op future", error)
        recording.end()

    weakref.finalize(future, recording.end)  # dropped before it ended
    future.add_done_callback(done)


def _error_of(future: Any) -> BaseException | None:
    # Asked for it, asyncio's future would not tell the user any more that nobody has seen it.
    error: BaseException | None = (
        future._exception if hasattr(future, "_exception") else future.exception()
    )
    return error


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


_FOLLOWED: Final[Mapping[type, Callable[[_Op], Callable[..., Any]]]] = {
    CoroutineType: _coroutine,
    GeneratorType: _generator,
    AsyncGeneratorType: _async_generator,
}

"""The trajectory's context across ``.remote()``: to actors' methods and to tasks.

Ray's actors and tasks already know a ``_ray_trace_ctx``, which its own tracing fills. We fill it
with trace context and baggage and let the receiver attach it, without Ray's extra spans. Where
Ray's own tracing is on, it does the job.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace

from otel_rollout import recording as recordings
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.ray.workers import called_actors

_PARAMETER = "_ray_trace_ctx"


def patch_calls(patches: Patches, actor: ModuleType) -> None:
    """Send the context along with calls of actors' methods."""
    patches.method(getattr(actor, "ActorHandle", None), "_actor_method_call", _sending)


def _sending(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        self: Any,
        method_name: str,
        args: Any = None,
        kwargs: Any = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        try:
            kwargs = _with_context(self, method_name, kwargs)
        except Exception as error:
            report_internal_error("ray .remote()", error)
        return method(self, method_name, args, kwargs, *more, **options)

    return call


def _with_context(handle: Any, method_name: str, kwargs: Any) -> Any:
    """Return the call's keywords with the current context, where the receiver takes it.

    Static, class and generator methods do not, and neither do actors of other languages.
    """
    called_actors.set()
    if kwargs and _PARAMETER in kwargs:  # Ray's own tracing is on
        return kwargs
    signature = getattr(handle, "_ray_method_signatures", {}).get(method_name) or ()
    if not any(getattr(parameter, "name", None) == _PARAMETER for parameter in signature):
        return kwargs
    carrier = _carrier()
    return {**(kwargs or {}), _PARAMETER: carrier} if carrier else kwargs


def _carrier() -> dict[str, str]:
    carrier: dict[str, str] = {}
    if otel_context.get_current():
        propagate.inject(carrier)
    return carrier


class _NoSpans:
    """Stands for ``opentelemetry.trace`` in Ray's tracing helper: context passes, no spans."""

    SpanKind = trace.SpanKind

    @staticmethod
    def get_tracer(*args: Any, **kwargs: Any) -> trace.Tracer:
        return trace.NoOpTracer()


class _OpenTelemetryForRay:
    """What Ray's tracing helper asks for, while Ray's own tracing is off."""

    trace = _NoSpans
    context = otel_context
    propagate = propagate
    Context = otel_context.Context


def patch_receiver(patches: Patches, helper: ModuleType) -> None:
    """Let a method that was sent a context run in it, though Ray's own tracing is off."""
    patches.function(helper, "_is_tracing_enabled", _enabled)
    if not patches.function(helper, "_get_opentelemetry", _get_opentelemetry):
        patches.variable(helper, "_opentelemetry", _OpenTelemetryForRay)  # before Ray had that


def _enabled(
    wrapped: Callable[..., bool], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    # Only the receiver asks on our behalf; everything else keeps Ray's own answer.
    return wrapped() or sys._getframe(1).f_code.co_name == "_resume_span"


def _get_opentelemetry(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return wrapped() or _OpenTelemetryForRay


# --- tasks ---------------------------------------------------------------------------------------


def patch_tasks(patches: Patches, module: ModuleType) -> None:
    """Send the context along with tasks; those that are generators go without."""
    patches.function(module, "_inject_tracing_into_function", _inject)
    patches.method(getattr(module, "RemoteFunction", None), "_remote", _submitting)


def _inject(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    function = wrapped(*args, **kwargs)
    try:
        if function is args[0] and not _is_generator(function):  # Ray's own tracing is off
            return _receiving(function)
    except Exception as error:
        report_internal_error("ray task", error)
    return function


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _receiving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with the keyword that carries a context; pickles by value."""

    @functools.wraps(function)
    def task(*args: Any, _ray_trace_ctx: dict[str, str] | None = None, **kwargs: Any) -> Any:
        return run_task(function, _ray_trace_ctx, args, kwargs)

    signature = inspect.signature(function)
    parameter = inspect.Parameter(_PARAMETER, inspect.Parameter.KEYWORD_ONLY, default=None)
    given = list(signature.parameters.values())
    last = len(given) - (bool(given) and given[-1].kind is inspect.Parameter.VAR_KEYWORD)
    parameters = [*given[:last], parameter, *given[last:]]
    task.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return task


def run_task(
    function: Callable[..., Any],
    carrier: Mapping[str, str] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a task, in the worker, in the context that was sent with it."""
    if not carrier:
        return function(*args, **kwargs)
    token = recordings.attach(propagate.extract(carrier))
    try:
        return function(*args, **kwargs)
    finally:
        recordings.detach(token)


def _submitting(method: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        carrier = None
        try:
            carrier = _carrier() if _takes_context(self, kwargs) else None
        except Exception as error:
            report_internal_error("ray task", error)
        if not carrier:
            return method(self, args, kwargs, *more, **options)
        # Below the decorator of Ray's tracing, which refuses the keyword while tracing is off.
        return inspect.unwrap(method)(
            self, args, {**(kwargs or {}), _PARAMETER: carrier}, *more, **options
        )

    return submit


def _takes_context(remote_function: Any, kwargs: Any) -> bool:
    from ray.util.tracing import tracing_helper

    called_actors.set()
    if tracing_helper._is_tracing_enabled() or _PARAMETER in (kwargs or ()):
        return False
    signature = remote_function._function_signature
    if signature is None:  # it is made when the task is first submitted, with our keyword
        return not (remote_function._is_cross_language or remote_function._is_generator)
    return any(getattr(parameter, "name", None) == _PARAMETER for parameter in signature)

"""Ray: start-up in every worker, and the trajectory's context across ``.remote()``.

*Workers*: ``ray.init`` gets a ``worker_process_setup_hook`` and the environment variables that
tracing needs; a user's own hook and runtime_env are kept. *Context*: Ray's actors already take a
``_ray_trace_ctx``, which its own tracing fills; we fill it with trace context and baggage and let
the receiver attach it, without Ray's extra spans. *Actor classes* are copied by value, so what
runs in an actor is patched in the worker, after Ray has loaded the class.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_rollout import environment_variables, startup
from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.instrumentors.patching import Patches, is_ours
from otel_rollout.settings import settings

WORKER_HOOK: Final = "otel_rollout.startup.ray_worker"

_OURS: Final = frozenset(name for name in vars(environment_variables) if name.startswith("OTEL_"))
_ALSO_PASSED: Final = frozenset(
    {"WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL", "WF_TRACE_SERVER_URL"}
)
_SECRETS: Final = ("WANDB_API_KEY",)
_SECRET_PARTS: Final = ("HEADERS", "KEY", "TOKEN", "PASSWORD", "SECRET", "CERTIFICATE")

ClassPatch = Callable[[type, Patches], None]
_class_patches: dict[tuple[str, str], ClassPatch] = {}


def patch_actor_class(module: str, name: str, patch: ClassPatch) -> None:
    """Call ``patch(class, patches)`` whenever Ray loads an actor class that is or derives from it.

    For instrumentors of libraries whose classes run as actors; called in the worker only.
    """
    _class_patches[module, name] = patch


def worker_environment(environ: Mapping[str, str], secrets: bool) -> dict[str, str]:
    """Return the variables that workers need: ``OTEL_*`` and our own, keys only if asked."""
    passed = {}
    for name, value in environ.items():
        if name in _SECRETS or (
            name.startswith("OTEL_") and any(part in name for part in _SECRET_PARTS)
        ):
            if secrets:
                passed[name] = value
        elif name.startswith("OTEL_") or name in _ALSO_PASSED:
            passed[name] = value
    if environment_variables.OTEL_ROLLOUT_DIR in passed:
        passed[environment_variables.OTEL_ROLLOUT_DIR] = str(settings().directory)
    return passed


class RayInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments Ray 2.43 and newer."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing is required: hooks wait for the import, whatever way the library came."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        if startup.is_ray_service():
            self._patches = Patches()
            return
        patches = self._patches = Patches()
        patches.when_imported("ray", functools.partial(_patch_init, patches))
        patches.when_imported("ray.actor", functools.partial(_patch_calls, patches))
        patches.when_imported(
            "ray.util.tracing.tracing_helper", functools.partial(_patch_receiver, patches)
        )
        patches.when_imported(
            "ray._private.function_manager", functools.partial(_patch_loader, patches)
        )

    def _uninstrument(self, **kwargs: Any) -> None:
        self._patches.undo()


# --- workers -------------------------------------------------------------------------------------


def _patch_init(patches: Patches, ray: ModuleType) -> None:
    worker = sys.modules.get("ray._private.worker")
    if worker is not None:
        patches.function(worker, "init", _init)
        patches.function(worker, "shutdown", _shutdown)
    for name, wrapper in (("init", _init), ("shutdown", _shutdown)):
        if not is_ours(getattr(ray, name, None)):
            patches.function(ray, name, wrapper)


def _init(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        kwargs = {**kwargs, "runtime_env": _with_tracing(kwargs.get("runtime_env"))}
        atexit.unregister(_give_workers_time)
        atexit.register(_give_workers_time)  # runs before Ray's own handler, registered earlier
        address = kwargs.get("address") or (args[0] if args else None)
        existing = address or os.environ.get("RAY_ADDRESS")
        if existing and existing != "local":
            _warn_of_missing_secrets()
    except Exception as error:
        report_internal_error("ray.init", error)
    return wrapped(*args, **kwargs)


def _warn_of_missing_secrets() -> None:
    if settings().ray_secrets:
        return
    missing = sorted(
        set(worker_environment(os.environ, secrets=True))
        - set(worker_environment(os.environ, secrets=False))
    )
    if missing:
        say_once(
            "ray-secrets",
            "%s is not handed to the workers of this cluster: where they do not have it, spans "
            "stay there until pushed; OTEL_ROLLOUT_RAY_SECRETS=1 passes it through the runtime_env",
            ", ".join(missing),
        )


def _with_tracing(given: Any) -> dict[str, Any]:
    """Return the user's runtime_env with our hook and variables; what the user set wins."""
    runtime_env = dict(given or {})
    job = _job_runtime_env()
    taken = {**(job.get("env_vars") or {}), **(runtime_env.get("env_vars") or {})}
    ours = worker_environment(os.environ, settings().ray_secrets)
    added = {name: value for name, value in ours.items() if name not in taken}
    hook = runtime_env.get("worker_process_setup_hook")
    if hook is not None and hook != WORKER_HOOK:
        runtime_env["worker_process_setup_hook"] = _chained(hook)
    elif "worker_process_setup_hook" in job:
        say_once(
            "ray-job-hook",
            "this Ray job has a worker_process_setup_hook already: call %s() from it to have the "
            "workers traced",
            WORKER_HOOK,
        )
    else:
        runtime_env["worker_process_setup_hook"] = WORKER_HOOK
    if added:
        runtime_env["env_vars"] = {**added, **(runtime_env.get("env_vars") or {})}
    return runtime_env


def _job_runtime_env() -> dict[str, Any]:
    """Return the runtime_env that `ray job submit` gave; fields that differ from it are refused."""
    try:
        config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    except ValueError:
        return {}
    found = config.get("runtime_env") if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _chained(hook: Any) -> Callable[[], None]:
    """Return a hook that sets up tracing and then does what the user's own hook does."""

    def traced_setup_hook() -> None:
        from otel_rollout.startup import imported, ray_worker

        ray_worker()
        (imported(hook) if isinstance(hook, str) else hook)()

    return traced_setup_hook


def _shutdown(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    _give_workers_time()
    return wrapped(*args, **kwargs)


def _give_workers_time() -> None:
    """Let workers hand on their last spans: Ray ends them without running anything of theirs."""
    try:
        import ray

        if ray.is_initialized() and _called_actors.is_set():
            _called_actors.clear()
            time.sleep(SETTLE_S)
    except Exception as error:
        report_internal_error("ray.shutdown", error)


_called_actors = threading.Event()
"""Whether this process has called any actor; without one there is nothing to wait for."""

SETTLE_S: Final = 0.5
"""Longer than the quiet time after which a worker flushes (0.05 s) and one export takes."""


# --- context -------------------------------------------------------------------------------------


def _patch_calls(patches: Patches, actor: ModuleType) -> None:
    patches.method(actor.ActorHandle, "_actor_method_call", _sending)


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
    _called_actors.set()
    if kwargs and "_ray_trace_ctx" in kwargs:  # Ray's own tracing is on
        return kwargs
    signature = getattr(handle, "_ray_method_signatures", {}).get(method_name) or ()
    if not any(getattr(parameter, "name", None) == "_ray_trace_ctx" for parameter in signature):
        return kwargs
    if not otel_context.get_current():
        return kwargs
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {**(kwargs or {}), "_ray_trace_ctx": carrier} if carrier else kwargs


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


def _patch_receiver(patches: Patches, helper: ModuleType) -> None:
    """Let a method that was sent a context run in it, though Ray's own tracing is off."""
    patches.function(helper, "_is_tracing_enabled", _enabled)
    patches.function(helper, "_get_opentelemetry", _get_opentelemetry)


def _enabled(
    wrapped: Callable[..., bool], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    # Only the receiver asks on our behalf; everything else keeps Ray's own answer.
    return wrapped() or sys._getframe(1).f_code.co_name == "_resume_span"


def _get_opentelemetry(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return wrapped() or _OpenTelemetryForRay


# --- actor classes -------------------------------------------------------------------------------


def _patch_loader(patches: Patches, manager: ModuleType) -> None:
    def loading(method: Callable[..., Any]) -> Callable[..., Any]:
        def load(self: Any, *args: Any, **kwargs: Any) -> Any:
            actor_class = method(self, *args, **kwargs)
            try:
                _patch_class(actor_class, patches)
            except Exception as error:
                report_internal_error("loading an actor class", error)
            return actor_class

        return load

    patches.method(manager.FunctionActorManager, "_load_actor_class_from_gcs", loading)


def _patch_class(actor_class: Any, patches: Patches) -> None:
    for owner in reversed(getattr(actor_class, "__mro__", ())):
        patch = _class_patches.get((owner.__module__, owner.__name__))
        if patch is not None:
            # On the class that Ray will instantiate: its methods hide those of its bases.
            patch(actor_class, patches)

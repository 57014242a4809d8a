"""Start-up in every worker: ``ray.init`` hands it on, and a user's own hook and runtime_env stay.

``ray.init`` gets a ``worker_process_setup_hook`` and the environment variables that tracing needs.
At the end of the driver the workers get a moment: Ray ends them without running anything of theirs.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from otel_rollout import environment_variables
from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.instrumentors.patching import Patches, is_ours
from otel_rollout.settings import VARIABLES, settings

WORKER_HOOK: Final = "otel_rollout.startup.ray_worker"

_ALSO_PASSED: Final = frozenset(
    {"WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL", "WF_TRACE_SERVER_URL"}
)
_OURS: Final = frozenset(variable.name for variable in VARIABLES)
"""None of them is a secret, ``OTEL_ROLLOUT_TOKEN2TEXT`` included."""
_SECRETS: Final = ("WANDB_API_KEY",)
_SECRET_PARTS: Final = ("HEADERS", "KEY", "TOKEN", "PASSWORD", "SECRET", "CERTIFICATE")


def worker_environment(environ: Mapping[str, str], secrets: bool) -> dict[str, str]:
    """Return the variables that workers need: ``OTEL_*`` and our own, keys only if asked."""
    passed = {}
    for name, value in environ.items():
        if name in _SECRETS or (
            name.startswith("OTEL_")
            and name not in _OURS
            and any(part in name for part in _SECRET_PARTS)
        ):
            if secrets:
                passed[name] = value
        elif name.startswith("OTEL_") or name in _ALSO_PASSED:
            passed[name] = value
    if environment_variables.OTEL_ROLLOUT_DIR in passed:
        passed[environment_variables.OTEL_ROLLOUT_DIR] = str(settings().directory)
    return passed


def patch_init(patches: Patches, ray: ModuleType) -> None:
    """Wrap ``ray.init`` and ``ray.shutdown``, and what Ray calls by itself."""
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

        if ray.is_initialized() and called_actors.is_set():
            called_actors.clear()
            time.sleep(SETTLE_S)
    except Exception as error:
        report_internal_error("ray.shutdown", error)


called_actors = threading.Event()
"""Whether this process has called any actor; without one there is nothing to wait for."""

SETTLE_S: Final = 0.5
"""Longer than the quiet time after which a worker flushes (0.05 s) and one export takes."""

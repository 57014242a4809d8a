"""Thread pools: what is submitted inside a trajectory runs inside it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout import identity as identities
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.hooking import HookingInstrumentor
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.threads import in_context


def patch(patches: Patches, module: ModuleType) -> None:
    """Take the trajectory along with what is submitted."""
    patches.method(module.ThreadPoolExecutor, "submit", _submit)


def _submit(method: Callable[..., Any]) -> Callable[..., Any]:
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return method(self, _taken_along(fn), *args, **kwargs)

    return submit


def _taken_along(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        if callable(function) and identities.from_context() is not None:
            return in_context(function)
    except Exception as error:
        report_internal_error("ThreadPoolExecutor.submit", error)
    return function


class ThreadPoolInstrumentor(HookingInstrumentor):
    """Instruments ``ThreadPoolExecutor``, and so ``loop.run_in_executor`` and ``map``.

    What is submitted outside any trajectory is left as it is.
    """

    hooks = {"concurrent.futures.thread": ("threads:patch",)}

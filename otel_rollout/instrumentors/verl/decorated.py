"""Functions that users decorated with verl's ``rollout_trace_op``."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches, records_itself
from otel_rollout.ops import rollout_op


def patch_rollout_trace(patches: Patches, module: ModuleType) -> None:
    """Let functions that are decorated from now on record themselves.

    verl's own methods carry the decorator too; they have instrumentors that know more of them.
    """
    patches.function(module, "rollout_trace_op", _rollout_trace_op)


def _rollout_trace_op(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    theirs = wrapped(*args, **kwargs)
    try:
        function = args[0] if args else kwargs["func"]
        if str(getattr(function, "__module__", "")).partition(".")[0] == "verl":
            return theirs
        ours = rollout_op(name=function.__qualname__)(theirs)
        records_itself(ours, theirs)
    except Exception as error:
        report_internal_error("rollout_trace_op", error)
        return theirs
    return ours

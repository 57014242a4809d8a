"""Actor classes: they are copied by value, so what runs in an actor is patched where it runs.

In the worker, after Ray has loaded the class. Patched in the driver as well, the wrapper would be
lost or be there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.hooking import actor_classes
from otel_rollout.instrumentors.patching import Patches


def patch_loader(patches: Patches, manager: ModuleType) -> None:
    """Patch actor classes as Ray loads them."""

    def loading(method: Callable[..., Any]) -> Callable[..., Any]:
        def load(self: Any, *args: Any, **kwargs: Any) -> Any:
            actor_class = method(self, *args, **kwargs)
            try:
                _patch_class(actor_class, patches)
            except Exception as error:
                report_internal_error("loading an actor class", error)
            return actor_class

        return load

    owner = getattr(manager, "FunctionActorManager", None)
    patches.method(owner, "_load_actor_class_from_gcs", loading)


def _patch_class(actor_class: Any, patches: Patches) -> None:
    for owner in reversed(getattr(actor_class, "__mro__", ())):
        for patch in actor_classes.get((owner.__module__, owner.__name__), ()):
            # On the class that Ray will instantiate: its methods hide those of its bases.
            try:
                patch(actor_class, patches)
            except Exception as error:
                report_internal_error(f"actor class {owner.__name__}", error)
    while patches.failures:
        where, failure = patches.failures.popitem()
        report_internal_error(f"actor class {actor_class.__name__} ({where})", failure)

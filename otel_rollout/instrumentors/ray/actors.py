"""Actor classes: they are copied by value, so what runs in an actor is patched where it runs.

In the worker, after Ray has loaded the class. Patched in the driver as well, the wrapper would be
lost or be there twice.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches

ClassPatch = Callable[[type, Patches], None]
_class_patches: dict[tuple[str, str], ClassPatch] = {}


def patch_actor_class(module: str, name: str, patch: ClassPatch) -> None:
    """Call ``patch(class, patches)`` whenever Ray loads an actor class that is or derives from it.

    For instrumentors of libraries whose classes run as actors; called in the worker only.
    """
    _class_patches[module, name] = patch


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

    patches.method(manager.FunctionActorManager, "_load_actor_class_from_gcs", loading)


def _patch_class(actor_class: Any, patches: Patches) -> None:
    for owner in reversed(getattr(actor_class, "__mro__", ())):
        patch = _class_patches.get((owner.__module__, owner.__name__))
        if patch is not None:
            # On the class that Ray will instantiate: its methods hide those of its bases.
            patch(actor_class, patches)

"""What every instrumentor is: functions that patch modules, called when those are imported.

They are named, not imported: what knows a library is loaded when the library is, so that start-up
costs next to nothing in the many processes that never see it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Final

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_rollout import startup
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches

_PACKAGE: Final = "otel_rollout.instrumentors"

ActorPatch = Callable[[type, Patches], None]
actor_classes: dict[tuple[str, str], list[ActorPatch]] = {}
"""Actor classes, by module and name, to what patches them and what derives from them; they are
copied by value, so that is done in the worker, when Ray has loaded one."""


def named(name: str) -> Callable[..., None]:
    """Return a function that imports the one of this name (``module:function``) and calls it."""
    module, _, function = name.partition(":")

    def patch(*args: Any) -> None:
        getattr(importlib.import_module(f"{_PACKAGE}.{module}"), function)(*args)

    return patch


def _patch_module(patches: Patches, hooks: Sequence[str], library: str, module: ModuleType) -> None:
    """Patch a module that has been imported; what raises must not reach who imports it."""
    for hook in hooks:
        try:
            named(hook)(patches, module)
        except Exception as error:
            patches.failures.setdefault(f"{module.__name__}, by {hook}", error)
    if library:
        named("fit:check_module")(patches, module)
        if module.__name__ == library:
            named("fit:check_package")(patches, module)
    else:
        for where, failure in patches.failures.items():
            report_internal_error(where, failure)


class HookingInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Patches modules and actor classes of one library, by what is named (see :func:`named`).

    ``hooks``: name of a module to what is called with the patches and the module when it has been
    imported. ``actors``: module and name of a class to what is called with it and the patches.
    ``library``: the package that they are of, whose places :mod:`.fit` looks for.

    Nothing is imported and no distribution is asked for: hooks wait for the import, whatever way
    the library came (a wheel, a fork of another name, a checkout on the path). Ray's own services
    are left as they are, and so is everything where tracing is switched off by a variable.
    """

    library: ClassVar[str] = ""
    hooks: ClassVar[Mapping[str, Sequence[str]]]
    actors: ClassVar[Mapping[tuple[str, str], Sequence[str]]] = {}

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: see above."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        self._patches = Patches()
        if startup.switched_off or startup.is_ray_service():
            return
        modules = {**self.hooks}
        if self.library:
            for module in (self.library, *(module for module, _ in self.actors)):
                modules.setdefault(module, ())
        for module, hooks in modules.items():
            self._patches.when_imported(
                module, functools.partial(_patch_module, self._patches, hooks, self.library)
            )
        for actor_class, hooks in self.actors.items():
            actor_classes[actor_class] = [named(hook) for hook in hooks]

    def _uninstrument(self, **kwargs: Any) -> None:
        self._patches.undo()

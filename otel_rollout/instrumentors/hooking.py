"""What every instrumentor is: functions that patch modules, called when those are imported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_rollout import startup
from otel_rollout.instrumentors.patching import Patches

Hook = Callable[[Patches, ModuleType], None]


class HookingInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Patches modules of one library, by ``hooks``: name of a module to what patches it.

    Nothing is imported and no distribution is asked for: hooks wait for the import, whatever way
    the library came (a wheel, a fork of another name, a checkout on the path). Ray's own services
    are left as they are.
    """

    hooks: ClassVar[Mapping[str, Sequence[Hook]]]

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return nothing: see above."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        self._patches = Patches()
        if startup.is_ray_service():
            return
        for module, hooks in self.hooks.items():
            for hook in hooks:
                self._patches.when_imported(module, functools.partial(hook, self._patches))

    def _uninstrument(self, **kwargs: Any) -> None:
        self._patches.undo()

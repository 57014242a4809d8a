"""Runs the hooks of an instrumentor over modules as they are now, and reads what is then said."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from otel_rollout import diagnostics
from otel_rollout.instrumentors import hooking, patching
from otel_rollout.instrumentors.places import PLACES, Place


class Lines(logging.Handler):
    """The warnings and errors that people would read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@contextmanager
def lines() -> Iterator[Lines]:
    handler = Lines()
    diagnostics.forget_said()
    diagnostics.logger.addHandler(handler)
    try:
        yield handler
    finally:
        diagnostics.logger.removeHandler(handler)
        diagnostics.forget_said()


def patch(
    kind: type[hooking.HookingInstrumentor],
    modules: Sequence[ModuleType],
    patches: patching.Patches,
) -> None:
    """Do what happens when the modules are imported, the library's own package last."""
    for module in sorted(modules, key=lambda module: module.__name__ == kind.library):
        actors = {name for name, _ in kind.actors}
        if module.__name__ in {kind.library, *kind.hooks, *actors}:
            hooks = kind.hooks.get(module.__name__, ())
            hooking._patch_module(patches, hooks, kind.library, module)
    for (module_name, class_name), actor_hooks in kind.actors.items():
        for module in modules:
            actor_class = vars(module).get(class_name)
            if module.__name__ == module_name and isinstance(actor_class, type):
                for hook in actor_hooks:  # as a worker does when Ray has loaded the class
                    hooking.named(hook)(actor_class, patches)


def target(modules: Iterable[ModuleType], name: str) -> Any:
    """Return what is at ``module:Class.method`` in these modules, or ``None``."""
    module_name, _, qualified = name.partition(":")
    found: Any = {module.__name__: module for module in modules}.get(module_name)
    for part in qualified.split("."):
        found = None if found is None else getattr(found, part, None)
    return None if found is object.__init__ else found


def drop(modules: Iterable[ModuleType], name: str, whole: bool) -> None:
    """Take a place away, as a newer version may: the method or, where ``whole``, its class."""
    module_name, _, qualified = name.partition(":")
    owner: Any = {module.__name__: module for module in modules}[module_name]
    *owners, last = qualified.split(".")
    if owners and whole:
        vars(owner).pop(owners[0], None)
        return
    for part in owners:
        owner = vars(owner).get(part)
    if owner is not None and last in vars(owner):
        delattr(owner, last)


def named_in(library: str, text: str) -> set[str]:
    """Return which of a library's places a text names, by what they give."""
    return {
        place.gives
        for place in PLACES[library]
        if any(re.search(re.escape(name) + r"(?![\w.])", text) for name in place.names)
    }


def absent(library: str, modules: Sequence[ModuleType]) -> list[Place]:
    return [
        place
        for place in PLACES[library]
        if all(target(modules, name) is None for name in place.names)
    ]

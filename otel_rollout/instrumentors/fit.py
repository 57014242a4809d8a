"""Whether a library is as we know it: what of it was not instrumented, said in one line.

Looked at when the library, or a module of it that we patch, has been imported. Where everything is
in its place that is a few look-ups; only where something is missing is the rest of the library
looked through, so that the one line tells all of it.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from otel_rollout.diagnostics import contained, logger, say_once
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.places import PLACES, Place, installed_version


@contained("looking for what is instrumented", None)
def check_module(patches: Patches, module: ModuleType) -> None:
    """Look at the places of one module, after it has been patched."""
    if patches.told:
        return
    library = module.__name__.partition(".")[0]
    version = version_of(library)
    start = f"{module.__name__}:"
    for place in PLACES[library]:
        if any(name.startswith(start) for name in place.names) and not _fits(place, version):
            break
    else:
        if not patches.failures:
            return
    _say(library, version, patches)


@contained("looking for what is instrumented", None)
def check_package(patches: Patches, package: ModuleType) -> None:
    """Look whether the modules with our places are there at all; none is imported."""
    if patches.told:
        return
    library = package.__name__
    version = version_of(library)
    for place in PLACES[library]:
        if place.expected_in(version) and not _may_be_there(place):
            _say(library, version, patches)
            return


def version_of(library: str) -> str | None:
    """Return the version of a library that is imported, by its own word or its distribution's."""
    own = getattr(sys.modules.get(library), "__version__", None)
    return own if isinstance(own, str) and own else installed_version(library)


def _say(library: str, version: str | None, patches: Patches) -> None:
    places = PLACES[library]
    failed = patches.failures
    missing = [
        place
        for place in places
        if not _fits(place, version) or any(name in failed for name in place.names)
    ]
    there = [place.gives for place in places if place not in missing and _has(place)]
    known = {name for place in places for name in place.names}
    lost = [f"{place.gives} ({_why(place, failed)})" for place in missing]
    lost += [f"{name} ({_of(error)})" for name, error in failed.items() if name not in known]
    if not lost:
        return
    patches.told = True
    # A package that has nothing of it, not even a version, only bears the library's name.
    level = logging.WARNING if there or version else logging.DEBUG
    say_once(
        f"fit:{library}",
        "otel-rollout: %s %s: not instrumented, and so missing from traces: %s; still instrumented:"
        " %s; use a version of %s or of otel-rollout that fit each other (docs/matrix.md), or "
        "decorate functions of yours with otel_rollout.rollout_op",
        library,
        version or "(no version)",
        ", ".join(lost),
        ", ".join(there) or "nothing",
        library,
        level=level,
    )
    for name, error in failed.items():
        logger.debug("otel-rollout: %s could not be patched", name, exc_info=error)


def _why(place: Place, failed: dict[str, Exception]) -> str:
    for name in place.names:
        if name in failed:
            return f"{name}: {_of(failed[name])}"
    return f"no {' or '.join(place.names)}"


def _of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _fits(place: Place, version: str | None) -> bool:
    return not place.expected_in(version) or _has(place)


def _has(place: Place) -> bool:
    # What is loaded first: it need not be read.
    names = sorted(place.names, key=lambda name: _loaded(name.partition(":")[0]) is None)
    return any(_is_there(name, place.inherited) for name in names)


def _may_be_there(place: Place) -> bool:
    """Return whether it is there as far as modules are loaded; the others are not read for it."""
    for name in place.names:
        module = name.partition(":")[0]
        if _loaded(module) is None:
            if _module_is_there(module):
                return True
        elif _is_there(name, place.inherited):
            return True
    return False


def _loaded(module: str) -> ModuleType | None:
    found = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else found


def _is_there(name: str, inherited: bool) -> bool:
    """Return whether it is there to be patched: as it is in a loaded module, else by its source."""
    module, _, qualified = name.partition(":")
    loaded = _loaded(module)
    if loaded is None:
        from otel_rollout.instrumentors.sources import is_there

        return is_there(name, _folders(module.partition(".")[0]))
    *owners, last = qualified.split(".")
    if not owners:
        return callable(getattr(loaded, last, None))
    owner: Any = loaded
    for part in owners:
        owner = getattr(owner, part, None)
        # Decorated by Ray: the class is inside.
        owner = getattr(getattr(owner, "__ray_metadata__", None), "modified_class", owner)
    if not isinstance(owner, type):
        return False
    if inherited:
        return inspect.isfunction(getattr(owner, last, None))
    return isinstance(vars(owner).get(last), FunctionType | classmethod)


def _folders(library: str) -> Sequence[Path]:
    return [Path(one) for one in getattr(sys.modules.get(library), "__path__", ())]


def _module_is_there(module: str) -> bool:
    if module in sys.modules:
        return True
    name, *parts = module.split(".")
    path: Any = getattr(sys.modules.get(name), "__path__", None)
    for part in parts:
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True

"""The real modules of the installed verl and Ray: nothing is said of them as they are, and where
places of theirs are gone, as in a newer version, one line names exactly those.

What is taken away is taken from copies of their modules and classes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_rollout.instrumentors import fit, patching
from otel_rollout.instrumentors.hooking import HookingInstrumentor
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.places import PLACES
from otel_rollout.instrumentors.ray import RayInstrumentor
from otel_rollout.instrumentors.verl import VerlInstrumentor
from tests import fitting

KINDS: dict[str, type[HookingInstrumentor]] = {"verl": VerlInstrumentor, "ray": RayInstrumentor}


@pytest.fixture(scope="module", autouse=True)
def as_they_are(instrumented: None) -> Iterator[None]:
    """Take what other tests need off, so that copies are of verl's own functions."""
    for kind in KINDS.values():
        kind().uninstrument()
    yield
    for kind in KINDS.values():
        kind().instrument()


def importable(library: str) -> list[ModuleType]:
    """The modules with places that can be imported here: without engines not all can."""
    importlib.import_module(library)
    names = {name.partition(":")[0] for place in PLACES[library] for name in place.names}
    found = {sys.modules[library]}
    for name in sorted(names | set(KINDS[library].hooks)):
        try:
            found.add(importlib.import_module(name))
        except (ImportError, ValueError):
            continue
    return sorted(found, key=lambda module: module.__name__)


def copied(modules: list[ModuleType]) -> list[ModuleType]:
    """Copies of modules, and of the classes in them that have places of ours."""
    owners = {
        name.rpartition(".")[0]
        for places in PLACES.values()
        for place in places
        for name in place.names
        if "." in name.partition(":")[2]
    }
    copies = []
    for module in modules:
        copy = ModuleType(module.__name__)
        vars(copy).update(vars(module))
        for name, value in vars(module).items():
            kind = getattr(getattr(value, "__ray_metadata__", None), "modified_class", value)
            if f"{module.__name__}:{name}" in owners and isinstance(kind, type):
                own = {
                    key: one
                    for key, one in vars(kind).items()
                    if key not in ("__dict__", "__weakref__")
                }
                setattr(copy, name, type(kind)(name, kind.__bases__, own))
        copies.append(copy)
    return copies


def run(library: str, modules: list[ModuleType], patches: Patches) -> list[str]:
    with pytest.MonkeyPatch.context() as context, fitting.lines() as lines:
        for module in modules:
            context.setitem(sys.modules, module.__name__, module)
        fitting.patch(KINDS[library], modules, patches)
        return lines.texts()


@pytest.mark.parametrize("library", sorted(KINDS))
def test_nothing_is_said_of_a_version_that_we_know(library: str) -> None:
    patches = Patches()
    assert run(library, copied(importable(library)), patches) == []
    assert not patches.failures


@pytest.mark.parametrize("library", sorted(KINDS))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), whole=st.booleans())
def test_whatever_is_missing_the_rest_is_instrumented_and_one_line_names_exactly_what_is_not(
    library: str, data: Any, whole: bool
) -> None:
    modules = copied(importable(library))
    version = fit.version_of(library)
    expected = [place for place in PLACES[library] if place.expected_in(version)]
    there = [
        place
        for place in expected
        if any(fitting.target(modules, name) is not None for name in place.names)
        and not place.gives.endswith("V1 path")
    ]
    # What cannot be imported here is read from its source, and is there: nothing is said of it.
    before = {place.gives for place in fitting.absent(library, modules)}
    for place in data.draw(st.lists(st.sampled_from(there), unique_by=lambda one: one.gives)):
        for name in place.names:
            if fitting.target(modules, name) is not None:
                fitting.drop(modules, name, whole and not place.inherited)
    missing = {
        place.gives
        for place in expected
        if place.gives not in before
        and not any(_own(modules, name, place.inherited) for name in place.names)
    }
    said = run(library, modules, Patches())
    for place in there:
        for name in place.names:
            found = fitting.target(modules, name)
            if place.gives not in missing and not place.inherited and callable(found):
                abstract = getattr(found, "__isabstractmethod__", False)
                assert abstract or patching.is_ours(found), name
    if not missing:
        assert said == []
        return
    (line,) = said
    assert fitting.named_in(library, line) == missing
    assert f"{library} {version}" in line


def _own(modules: list[ModuleType], name: str, inherited: bool) -> bool:
    found = fitting.target(modules, name)
    if inherited or "." not in name.partition(":")[2]:
        return callable(found) and found is not object.__init__
    return name.rpartition(".")[2] in vars(
        fitting.target(modules, name.rpartition(".")[0]) or object
    )

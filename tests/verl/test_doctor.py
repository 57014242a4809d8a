"""`otel-rollout doctor` finds what it looks for in the real verl and the real Ray."""

from __future__ import annotations

import pytest

from otel_rollout.commands import libraries
from otel_rollout.instrumentors.patching import resolve

NAMES = [
    name
    for library in ("verl", "ray")
    for place in libraries.PLACES[library]
    for name in place.names[:1]
]


def test_nothing_is_missing() -> None:
    found = {library.name: library for library in libraries.libraries()}
    for name in ("verl", "ray"):
        assert found[name].missing == []
        assert len(found[name].found) == len(libraries.PLACES[name])
        assert found[name].version is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_is_looked_for_is_what_an_import_finds(name: str) -> None:
    assert callable(resolve(*name.split(":")))

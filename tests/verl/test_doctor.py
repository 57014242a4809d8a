"""`otel-rollout doctor` finds what it looks for in the real verl and the real Ray."""

from __future__ import annotations

import pytest

from otel_rollout.commands import libraries
from otel_rollout.instrumentors.patching import resolve

#: They import their engine, which is not there: the engines' environments have it.
SERVERS = ("verl.workers.rollout.vllm_rollout.", "verl.workers.rollout.sglang_rollout.")
NAMES = [
    name
    for library in ("verl", "ray")
    for place in libraries.PLACES[library]
    for name in place.names[:1]
    if not name.startswith(SERVERS)
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

"""`otel-rollout doctor` finds in the real engine what the instrumentor patches."""

from __future__ import annotations

from otel_rollout.commands import libraries


def test_nothing_is_missing() -> None:
    (found,) = [one for one in libraries.libraries() if one.name == "vllm"]
    assert found.missing == []
    assert list(found.found) == ["the engine's spans"]

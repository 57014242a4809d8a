"""A score that comes after its trajectory's end, in W&B's server code."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import (
    IdGenerator,
    RolloutSpanProcessor,
    WeaveSpanExporter,
    ended_trajectory,
    recording,
    trajectory,
)
from otel_rollout.settings import load
from tests.servers.weave_process import WeaveServer


def test_it_is_feedback_on_the_root(
    weave_server: WeaveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in weave_server.environ().items():
        monkeypatch.setenv(name, value)
    settings = load(
        {
            **weave_server.environ(),
            "OTEL_ROLLOUT_DIR": str(tmp_path),
            "OTEL_EXPORTER_WEAVE_PROJECT": "local/afterwards",
        }
    )
    provider = TracerProvider(id_generator=IdGenerator(), shutdown_on_exit=False)
    provider.add_span_processor(
        RolloutSpanProcessor(WeaveSpanExporter(settings), configuration=settings)
    )
    recording.use_tracer_provider(provider)
    try:
        for number in range(4):
            with trajectory(step=1, group_id="scored afterwards", rollout_n=number):
                pass
        for number in range(4):  # the whole batch has been rolled out, and is scored
            found = ended_trajectory(group_id="scored afterwards", rollout_n=number)
            assert found is not None
            found.record_reward(number / 4)
            found.record_reward(number - 1.5, name="advantage")
        assert provider.force_flush()
    finally:
        recording.use_tracer_provider(None)
        provider.shutdown()

    client = weave_server.client("afterwards")
    roots = {
        f"weave:///local/afterwards/call/{root.id}": root.attributes["rollout_n"]
        for root in client.get_calls(filter={"trace_roots_only": True})
    }
    assert sorted(roots.values()) == [0, 1, 2, 3]
    assert len(list(client.get_calls())) == 4  # a fact is no call of its own
    given = {
        (roots[one["weave_ref"]], one["payload"]["name"]): one["payload"]["value"]
        for one in weave_server.feedback("afterwards")
    }
    assert given == {
        **{(number, "reward"): number / 4 for number in range(4)},
        **{(number, "advantage"): number - 1.5 for number in range(4)},
    }

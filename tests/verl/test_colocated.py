"""What an agent-loop worker sends along with a batch changes nothing of what verl made."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rollout import trajectory
from otel_rollout.instrumentors.verl import colocated
from tests.verl.conftest import Spans


def batch(rows: int) -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
    from verl.protocol import DataProto

    metrics = [AgentLoopMetrics(generate_sequences=number).model_dump() for number in range(rows)]
    return DataProto(meta_info={"metrics": metrics})


def roll_out(worker: Any, outputs: list[Any]) -> Any:
    """What verl's worker does with a batch, as far as the scores are concerned."""
    with colocated.batch():
        for output in outputs:
            token = colocated.begin(worker)
            with trajectory(step=1) as handle:
                pass
            colocated.note_output(output, [handle])
            colocated.end(token)
        result = batch(len(outputs))
        colocated._send_along(result, outputs)
    return result


def test_metrics_are_equal_to_verl_s_own_and_keep_their_headers(spans: Spans) -> None:
    worker = SimpleNamespace(reward_loop_worker_handles=None)
    result = roll_out(worker, [object(), object()])
    plain = batch(2).meta_info["metrics"]
    sent = pickle.loads(pickle.dumps(result)).meta_info["metrics"]
    assert sent == plain
    assert [list(row.items()) for row in sent] == [list(row.items()) for row in plain]
    roots: list[Any] = spans.named("rollout")
    for row, root in zip(sent, roots, strict=True):
        assert f"{root.context.span_id:016x}" in row.headers["traceparent"]


@pytest.mark.parametrize("worker", [SimpleNamespace(reward_loop_worker_handles=[1]), object()])
def test_without_a_colocated_model_nothing_is_sent(spans: Spans, worker: Any) -> None:
    result = roll_out(worker, [object()])
    assert [type(row) for row in result.meta_info["metrics"]] == [dict]

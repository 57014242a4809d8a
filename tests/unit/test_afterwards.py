"""Facts that come after a trajectory's end are spans of their own, and the last one counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import otel_rollout.local
from otel_rollout import afterwards, ended_trajectory, semconv, trajectory
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.weave.calls import call_of, feedback_of
from otel_rollout.processor import sampling
from otel_rollout.processor.sampling import Sampler
from tests.unit.pipeline import Pipeline, attributes


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    afterwards._latest.clear()
    afterwards._by_value.clear()
    made = Pipeline()
    yield made
    made.close()


class TestSpans:
    def test_it_is_below_the_ended_root_and_carries_its_identity(self, pipeline: Pipeline) -> None:
        with trajectory(step=3, group_id="g", rollout_n=1) as handle:
            pass
        handle.record_reward({"score": 0.5, "format": 1.0}, name="judge")
        root, late = pipeline.named("rollout"), pipeline.named("evaluate judge")
        assert root.context is not None
        assert late.context is not None
        assert late.parent is not None
        assert late.parent.span_id == root.context.span_id
        assert late.context.trace_id == root.context.trace_id
        given = attributes(late)
        assert given[semconv.STEP] == 3
        assert given[semconv.AFTERWARDS] is True
        assert given[semconv.EVALUATION_SCORE] == 0.5
        (event,) = late.events
        assert (event.attributes or {})[f"{semconv.REWARD_DETAIL}.format"] == 1.0

    def test_the_current_trajectory_is_another_one(self, pipeline: Pipeline) -> None:
        with trajectory(step=1, group_id="a"):
            pass
        with trajectory(step=2, group_id="b"):
            found = ended_trajectory(group_id="a")
            assert found is not None
            found.record_reward(1.0)
        assert attributes(pipeline.named("evaluate reward"))[semconv.STEP] == 1
        (root,) = [s for s in pipeline.spans() if attributes(s).get(semconv.STEP) == 2]
        assert semconv.REWARD not in attributes(root)

    def test_of_an_unsampled_one_there_is_none(self, pipeline: Pipeline) -> None:
        sampling.use_sampler(Sampler(rate=0.0))
        with trajectory(step=1, group_id="a") as handle:
            pass
        sampling.use_sampler(None)
        handle.record_reward(1.0)
        assert ended_trajectory(group_id="a") is None
        assert pipeline.spans() == []

    def test_in_weave_it_is_feedback_on_the_roots_call(self, pipeline: Pipeline) -> None:
        with trajectory(step=1) as handle:
            pass
        handle.record_reward(0.25)
        root, late = pipeline.named("rollout"), pipeline.named("evaluate reward")
        (feedback,) = feedback_of(late)
        assert feedback["call_id"] == call_of(root)["id"]
        assert feedback["payload"] == {"name": "reward", "value": 0.25}
        assert feedback == feedback_of(late)[0]


class TestFinding:
    def test_by_group_and_place(self, pipeline: Pipeline) -> None:
        for number in range(4):
            with trajectory(step=1, sample_index=7, group_id="g", rollout_n=number):
                pass
        for number in range(4):
            found = ended_trajectory(group_id="g", rollout_n=number)
            assert found is not None
            assert found.identity.get(semconv.ROLLOUT_N) == number
        assert ended_trajectory(group_id="g", rollout_n=4) is None
        assert ended_trajectory(group_id="h") is None

    def test_several_are_said_once(
        self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(2):
            with trajectory(sample_index=7, rollout_n=number):
                pass
        assert ended_trajectory(sample_index=7) is None
        assert ended_trajectory(sample_index=7) is None
        (line,) = caplog.records
        assert "2 trajectories have these values" in line.getMessage()

    def test_by_nothing_is_said(self, pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
        assert ended_trajectory(step=1) is None
        assert "group_id or sample_index" in caplog.text

    def test_the_oldest_are_forgotten(
        self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(afterwards, "REMEMBERED", 10)
        for number in range(25):
            with trajectory(group_id=f"g{number}", sample_index=number % 3):
                pass
        assert [n for n in range(25) if ended_trajectory(group_id=f"g{n}")] == list(range(15, 25))
        assert len(afterwards._latest) == 10
        assert sum(map(len, afterwards._by_value.values())) == 20

    def test_a_handle_that_is_kept_holds_no_tokens(self, pipeline: Pipeline) -> None:
        with trajectory(step=1) as handle:
            handle.recording.payload.response_ids = [1] * 1000
        assert handle.recording.payload.response_ids is None


_facts = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["reward", "advantage", "judge"]),
        st.floats(-5, 5, width=16),
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(facts=_facts, seed=st.integers(0, 1000))
def test_readers_let_the_last_one_count(
    tmp_path_factory: pytest.TempPathFactory, facts: list[tuple[int, str, float]], seed: int
) -> None:
    """However the records lie in the segments of several processes."""
    store: Path = tmp_path_factory.mktemp("store")
    pipeline = Pipeline()
    handles = []
    for number in range(3):
        with trajectory(step=1, sample_index=number, experiment_name="e", project="p") as handle:
            handle.record_reward(float(number))
        handles.append(handle)
    expected: dict[tuple[int, str], float] = {(n, "reward"): float(n) for n in range(3)}
    for number, name, value in facts:
        handles[number].record_reward(value, name=name)
        expected[number, name] = float(value)
    spans = pipeline.spans()
    pipeline.close()

    calls: list[tuple[dict[str, Any], Any]] = []
    late: list[tuple[dict[str, Any], Any]] = []
    for span in spans:
        call = call_of(span)
        meta = {"kind": "call", "id": call["id"], "trace": call["trace_id"], "project": "p"}
        calls.append((meta, call))
        for one in feedback_of(span):
            late.append(({**meta, "kind": "feedback", "id": one["id"]}, one))
    random.Random(seed).shuffle(calls)  # feedback stays in its order, calls lie anywhere
    writer = SegmentWriter(store / "spool")
    for position, (meta, body) in enumerate([*calls[: seed % 4], *late, *calls[seed % 4 :]]):
        if position % 3 == seed % 3:
            writer.close()
        writer.append(meta, orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS))
    writer.close()

    with otel_rollout.local.open(store) as opened:
        found = {one["sample_index"]: one for one in opened.trajectories()}
    for number in range(3):
        assert found[number]["reward"] == expected[number, "reward"]

"""Facts that come after a trajectory's end: across processes, held, redacted, and in the store."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from otel_rollout import (
    EndedTrajectory,
    WeaveSpanExporter,
    ended_trajectory,
    record_reward,
    semconv,
    trajectory,
)
from otel_rollout.exporters import spool
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.local import store
from otel_rollout.local.index import Index
from otel_rollout.local.trajectory import load
from otel_rollout.processor import keeping, sampling
from otel_rollout.processor.following import FollowingSampler
from otel_rollout.processor.redaction import REPLACEMENT
from otel_rollout.processor.sampling import Sampler
from otel_rollout.settings import Settings
from otel_rollout.testing import captured
from tests.unit.pipeline import Pipeline, attributes


@pytest.fixture(autouse=True)
def nobody_holds_afterwards() -> Iterator[None]:
    yield
    for user in list(keeping._users):
        keeping.use_no_longer(user)


def facts(pipeline: Pipeline) -> list[ReadableSpan]:
    """The facts that came afterwards, as exported."""
    return [span for span in pipeline.spans() if semconv.AFTERWARDS in attributes(span)]


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


class TestAcrossProcesses:
    """Headers are all that another process needs."""

    def test_a_fact_of_another_process(self, pipeline: Pipeline) -> None:
        with trajectory(step=1, sample_index=2, experiment_name="ü, =1", group_id="7") as handle:
            pass
        code = (
            "import json, sys\n"
            "from tests.unit.pipeline import Pipeline\n"
            "from otel_rollout import EndedTrajectory\n"
            "pipeline = Pipeline()\n"
            "EndedTrajectory.from_headers(json.loads(sys.argv[1])).record_reward(0.25)\n"
            "print(*(span.to_json(indent=None) for span in pipeline.spans()))"
        )
        command = [sys.executable, "-c", code, json.dumps(handle.headers())]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        fact = json.loads(ran.stdout)
        assert fact["parent_id"] == f"0x{id_of(pipeline.named('rollout'))}"
        assert fact["attributes"][semconv.EXPERIMENT_NAME] == "ü, =1"
        assert fact["attributes"][semconv.GROUP_ID] == "7"
        assert fact["attributes"][semconv.EVALUATION_SCORE] == 0.25

    def test_of_an_unsampled_one_nothing_comes(self, pipeline: Pipeline) -> None:
        sampling.use_sampler(Sampler(rate=0))
        with trajectory(step=1, group_id="g") as handle:
            pass
        found = EndedTrajectory.from_headers(handle.headers())
        assert found is not None
        found.record_reward(1)
        assert pipeline.spans() == []

    @pytest.mark.parametrize("given_headers", [{}, {"traceparent": "x"}, None, 5])
    def test_what_is_no_headers_is_said(
        self, given_headers: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert EndedTrajectory.from_headers(given_headers) is None
        assert EndedTrajectory.from_headers(given_headers) is None
        assert len(caplog.records) == 1


def test_one_inside_another_is_not_in_the_way(pipeline: Pipeline) -> None:
    with trajectory(step=1, group_id="g", agent="a"), trajectory(part="x", agent="b") as inner:
        pass
    found = ended_trajectory(group_id="g")
    assert found is not None
    found.record_reward(1)
    inner.record_reward(2)
    parents = {attributes(f)[semconv.REWARD]: f.parent.span_id for f in facts(pipeline) if f.parent}
    assert f"{parents[1.0]:016x}" == id_of(pipeline.named("rollout a"))
    assert f"{parents[2.0]:016x}" == id_of(pipeline.named("rollout b"))


@pytest.mark.parametrize(("reward", "comes_out"), [(0.0, True), (1.0, False)])
def test_a_held_one_follows_the_verdict(reward: float, comes_out: bool) -> None:
    sampling.use_sampler(Sampler(rate=0))
    held = Pipeline(sampler=FollowingSampler(ParentBased(ALWAYS_ON)), keep="reward<0.5")
    with trajectory(step=1, group_id=f"held {reward}") as handle:
        record_reward(reward)
    found = ended_trajectory(group_id=f"held {reward}")
    assert found is not None
    found.record_reward(0.25, name="early")
    held.spans()
    handle.record_reward(0.75, "after")
    named = sorted(span.name for span in held.spans())
    assert named == ["evaluate after", "evaluate early", "rollout"] * comes_out
    held.close()


class TestContent:
    """Detail is content: redacted, and left out where there is none."""

    def test_redacted(self) -> None:
        made = Pipeline(redact="hunter2")
        with trajectory(step=1) as handle:
            pass
        handle.record_reward(1, detail={"why": "said hunter2", "parts": {"x": ["hunter2"]}})
        (fact,) = facts(made)
        assert "hunter2" not in fact.to_json()
        assert REPLACEMENT in fact.to_json()
        made.close()

    def test_no_content(self) -> None:
        made = Pipeline(capture_content=False)
        with trajectory(step=1) as handle:
            pass
        handle.record_reward({"score": 1, "why": "secret"})
        (fact,) = facts(made)
        assert "secret" not in fact.to_json()
        assert attributes(fact)[semconv.EVALUATION_SCORE] == 1.0
        made.close()


class TestInTheStore:
    """In the spool a fact is feedback of the root's call, and no call of its own."""

    def test_the_last_one_counts(self, tmp_path: Path) -> None:
        made = Pipeline(WeaveSpanExporter(Settings(directory=tmp_path)))
        with trajectory(step=1, sample_index=0) as handle:
            record_reward(0.5)
        handle.record_reward(0.25)
        handle.record_reward(-1, "advantage")
        handle.record_reward(2.5)
        root = id_of(made.named("rollout"))
        made.close()
        (node,) = store.read(tmp_path).roots
        told = [(one["payload"]["name"], one["payload"]["value"]) for one in node.feedback]
        assert node.call["id"] == root
        assert node.children == []
        assert told == [("reward", 0.5), ("reward", 0.25), ("advantage", -1.0), ("reward", 2.5)]
        assert node.call["output"] == {"reward": 0.5}
        index = Index(tmp_path)
        index.update()
        (row,) = index.query("SELECT * FROM trajectories WHERE reward > 2 AND advantage < 0")
        assert (row["reward"], row["advantage"], row["calls"]) == (2.5, -1.0, 1)
        assert row["duration"] == index.query("SELECT ended - started FROM calls")[0][0]
        index.close()

    def test_in_a_test_of_the_users(self) -> None:
        with captured() as rollouts:
            with trajectory(step=1) as handle:
                record_reward(0.5)
            handle.record_reward(1)
            handle.record_reward(2, name="advantage")
        one = rollouts.only(step=1)
        assert one.rewards == {"reward": 1.0, "advantage": 2.0}
        one.assert_reward(1.0)


NAMES = ("reward", "advantage", "format")


@st.composite
def stores(draw: st.DrawFn) -> tuple[list[tuple[str, dict[str, Any]]], list[int], list[int]]:
    """Records of some trajectories, the order in which they come, and in which segment each is."""
    records: list[tuple[str, dict[str, Any]]] = []
    moments = itertools.count()
    for number in range(draw(st.integers(1, 3))):
        attributes = {"step": 1, "sample_index": 0, "group_id": "g", "rollout_n": number}
        reward = draw(st.none() | st.just(0.125))
        root = {
            "id": f"root{number}",
            "trace_id": f"trace{number}",
            "parent_id": None,
            "started_at": "2026-01-01T00:00:00+00:00",
            "ended_at": "2026-01-01T00:00:09+00:00",
            "attributes": attributes,
            "output": None if reward is None else {"reward": reward},
        }
        records.append((spool.CALL, root))
        for name, value in draw(
            st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.integers(-3, 3)), max_size=6)
        ):
            moment = next(moments)
            fact = {
                "id": f"fact{moment}",
                "call_id": root["id"],
                "feedback_type": "reward",
                "payload": {"name": name, "value": value},
                "created_at": f"2026-01-01T00:01:00.{moment:06d}+00:00",
            }
            records.append((spool.FEEDBACK, fact))
    order = draw(st.permutations(range(len(records))))
    segments = draw(st.lists(st.integers(0, 3), min_size=len(records), max_size=len(records)))
    return records, list(order), segments


def expected(records: list[tuple[str, dict[str, Any]]]) -> dict[str, tuple[Any, Any]]:
    """What counts in the end, worked out from the facts in the order in which they were made."""
    found: dict[str, tuple[Any, Any]] = {}
    for kind, call in records:
        if kind == spool.CALL:
            last: dict[str, Any] = {}
            for other, fact in records:
                if other == spool.FEEDBACK and fact["call_id"] == call["id"]:
                    payload = fact["payload"]
                    if payload["value"] is not None:
                        last[payload["name"]] = payload["value"]
            reward = last.get("reward", (call["output"] or {}).get("reward"))
            found[call["trace_id"]] = (reward, last.get("advantage"))
    return found


@given(stores(), st.integers(1, 4))
def test_facts_and_roots_in_any_order_and_segment_give_the_same_table(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[list[tuple[str, dict[str, Any]]], list[int], list[int]],
    every: int,
) -> None:
    records, order, segments = made
    directory = tmp_path_factory.mktemp("store")
    writers = [SegmentWriter(directory / "spool") for _ in range(4)]
    index = Index(directory)
    for number, place in enumerate(order):
        kind, body = records[place]
        writers[segments[place]].append({"kind": kind, "id": body["id"]}, orjson.dumps(body))
        if number % every == 0:
            index.update()
    index.update()
    rows = index.query("SELECT * FROM trajectories")
    seen = {row["trace"]: (row["reward"], row["given_advantage"]) for row in rows}
    assert seen == expected(records)
    for row in rows:
        times = [one["created_at"] for one in load(index, row).feedback]
        assert times == sorted(times)

    gone = [w.path for w in writers[:2] if w.path is not None]
    for writer in writers:
        writer.close()
    for path in gone:  # as retention does
        path.unlink()
    index.update()
    left = [r for r, segment in zip(records, segments, strict=True) if segment >= 2]
    rows = index.query("SELECT * FROM trajectories")
    seen = {row["trace"]: (row["reward"], row["given_advantage"]) for row in rows}
    index.close()
    assert seen == expected(left)

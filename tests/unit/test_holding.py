"""Held trajectories: exactly those that a rule names come out, whole, in every exporter."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from opentelemetry import propagate
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from otel_rollout import WeaveSpanExporter, record_reward, recording, semconv, trajectory
from otel_rollout.diagnostics import forget_said
from otel_rollout.exporters import spool
from otel_rollout.local import store
from otel_rollout.processor import holding as holding_module
from otel_rollout.processor import keeping, sampling
from otel_rollout.processor.following import FollowingSampler
from otel_rollout.processor.keeping import TrajectoryFacts
from otel_rollout.settings import Settings
from tests.unit.held import Spec, generation, roll_out_all
from tests.unit.pipeline import Pipeline, attributes

SPECS = st.builds(
    Spec,
    turns=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=4).map(tuple),
    reward=st.none() | st.sampled_from([0.0, 0.05, 0.1, 0.5, 1.0]),
    tool_fails=st.booleans(),
    raises=st.sampled_from([False, False, True]),
    foreign=st.integers(0, 2),
    nested=st.booleans(),
)
RULES = st.lists(
    st.sampled_from(
        ["error", "reward<0.1", "reward>=1", "reward==0.5", "turns>2", "turns!=1", "tokens>60"]
    ),
    min_size=1,
    max_size=3,
    unique=True,
)


def held(keep: Any, *behind: Any, sampler: Sampler = ALWAYS_ON, **more: Any) -> Pipeline:
    """A pipeline in which every trajectory is left out by head sampling, and rules decide."""
    sampling.use_sampler(sampling.Sampler(rate=0))
    return Pipeline(*behind, sampler=FollowingSampler(ParentBased(sampler)), keep=keep, **more)


def by_sample(spans: list[ReadableSpan]) -> dict[Any, list[ReadableSpan]]:
    found: dict[Any, list[ReadableSpan]] = defaultdict(list)
    for span in spans:
        found[attributes(span)["rollout.sample_index"]].append(span)
    return dict(found)


def root(index: int = 0, **more: Any) -> None:
    """A trajectory with nothing but a root."""
    with trajectory(step=1, sample_index=index, **more):
        pass


@pytest.fixture(autouse=True)
def nobody_holds_afterwards() -> Iterator[None]:
    yield
    for user in list(keeping._users):
        keeping.use_no_longer(user)


class TestExactlyWhatTheRulesName:
    """Through the real processor, into an exporter in memory and into Weave's spool."""

    @given(st.lists(SPECS, min_size=1, max_size=30), RULES)
    @hypothesis_settings(suppress_health_check=[HealthCheck.too_slow])
    def test_any_trajectories_and_rules(self, specs: list[Spec], rules: list[str]) -> None:
        pipeline = held(",".join(rules))
        asyncio.run(roll_out_all(specs, pipeline.foreign))

        kept = by_sample(pipeline.spans())
        pipeline.close()

        named = {n for n, spec in enumerate(specs) if any(map(spec.matches, rules))}
        assert kept.keys() == named
        assert {n: len(spans) for n, spans in kept.items()} == {n: specs[n].spans for n in named}
        counters = pipeline.processor.counters
        assert counters["kept"] == counters["handed_on"] == sum(map(len, kept.values()))
        assert counters["seen"] == counters["kept"] + counters["sampled_out"]
        assert counters["dropped_held"] == 0

    def test_a_thousand_in_weaves_spool_and_another_exporter(self, tmp_path: Path) -> None:
        draw = random.Random(7)
        specs = [
            Spec(
                turns=tuple(
                    (draw.randrange(50), draw.randrange(50)) for _ in range(draw.randrange(5))
                ),
                reward=draw.choice([None, 0.0, 0.3, 1.0]),
                tool_fails=draw.random() < 0.1,
                raises=draw.random() < 0.05,
                foreign=draw.randrange(3),
                nested=draw.random() < 0.2,
            )
            for _ in range(1000)
        ]
        rules = ["error", "reward<0.1", "turns>3"]
        exporter = WeaveSpanExporter(Settings(directory=tmp_path))
        pipeline = held(",".join(rules), exporter)
        asyncio.run(roll_out_all(specs, pipeline.foreign))
        kept = by_sample(pipeline.spans())
        pipeline.close()

        named = {n for n, spec in enumerate(specs) if any(map(spec.matches, rules))}
        assert 100 < len(named) < 900
        assert {n: len(spans) for n, spans in kept.items()} == {n: specs[n].spans for n in named}
        records = [
            record
            for path in spool.segments(tmp_path / "spool")
            for record in spool.read(path)
            if record.kind == spool.CALL
        ]
        assert Counter(record.id for record in records).most_common(1)[0][1] == 1
        spans = {f"{s.context.span_id:016x}" for those in kept.values() for s in those}  # type: ignore[union-attr]
        assert {record.id for record in records} == spans
        assert not store.read(tmp_path).orphans
        assert spool.pending(tmp_path / "spool") == []
        assert exporter.counters["dropped_held"] == 0

    def test_a_kept_span_is_the_one_that_sampling_would_have_given(self) -> None:
        found = []
        for rate in (0, 1):
            pipeline = held("error")
            sampling.use_sampler(sampling.Sampler(rate=rate))
            forget_said()
            with trajectory(step=1, sample_index=3, group_id="g"):
                generation(5, 7)
                generation(12, 3)
                recording.start(semconv.OP_EXECUTE_TOOL, "t").failed("E", "no")
                one = recording.start(semconv.OP_EXECUTE_TOOL, "t")
                one.failed("E", "no")
                one.end()
                record_reward(0.5, detail="d")
            found.append(pipeline.spans())
            pipeline.close()

        def shown(span: ReadableSpan) -> Any:
            given = attributes(span)
            for key in (semconv.SAMPLED, semconv.KEPT, semconv.TURNS, semconv.GENERATE_SECONDS):
                given.pop(key, None)
            given.pop(semconv.TOOL_SECONDS, None)
            given.pop(semconv.PROMPT_PREFIX_SPAN, None)
            events = [(event.name, dict(event.attributes or {})) for event in span.events]
            assert span.context is not None
            return span.name, given, events, span.context.trace_flags.sampled

        kept, sampled = ([shown(span) for span in spans] for spans in found)
        assert kept == sampled

    def test_sampled_or_kept(self) -> None:
        pipeline = held("reward>=1")
        sampling.use_sampler(sampling.Sampler(quota=1))
        for index in range(4):
            with trajectory(step=1, sample_index=index):
                record_reward(float(index == 2))

        roots = [attributes(span) for span in pipeline.spans()]
        pipeline.close()

        assert [
            (r["rollout.sample_index"], r["rollout.sampled"], r.get("rollout.kept")) for r in roots
        ] == [(0, True, None), (2, False, "reward>=1")]

    def test_a_function_decides_by_the_facts(self) -> None:
        seen: list[TrajectoryFacts] = []

        def keep(facts: TrajectoryFacts) -> bool:
            seen.append(facts)
            return facts.identity["rollout.sample_index"] == 1

        sampling.use_sampler(sampling.Sampler(rate=0))
        pipeline = Pipeline(keep_function=keep)
        for index in range(3):
            with trajectory(step=1, sample_index=index, agent="a") as handle:
                handle.set("color", "red")

        (span,) = pipeline.spans()
        pipeline.close()
        assert len(seen) == 3
        assert seen[1].attributes["color"] == "red"
        assert span.end_time is not None
        assert span.start_time is not None
        assert seen[1].duration == (span.end_time - span.start_time) / 1e9
        assert attributes(span)["rollout.kept"].endswith("keep")


class TestWhatOthersAreTold:
    """A held trajectory is recorded here, and unsampled for everybody else."""

    @pytest.mark.parametrize("foreign", [False, True])
    def test_the_headers_say_unsampled(self, foreign: bool) -> None:
        pipeline = held("error")
        carriers: list[dict[str, str]] = []

        def call() -> None:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            carriers.append(carrier)

        with pytest.raises(ValueError), trajectory(step=1, sample_index=1):  # noqa: PT011, PT012
            call()
            if foreign:
                with pipeline.foreign.start_as_current_span("x") as span:
                    assert span.is_recording()
                    call()
            else:
                with recording.active(recording.start(semconv.OP_EXECUTE_TOOL, "t")):
                    call()
            raise ValueError

        assert len(pipeline.spans()) == 2
        pipeline.close()
        for carrier in carriers:
            assert int(carrier["traceparent"][-2:], 16) & 1 == 0
            assert "rollout.sampled=false" in carrier["baggage"]

    def test_a_carried_context_records_nothing(self) -> None:
        pipeline = held("error")
        carrier: dict[str, str] = {}
        with trajectory(step=1, sample_index=1):
            propagate.inject(carrier)
        context = propagate.extract(carrier)

        there = recording.start(semconv.OP_CHAT, "m", context=context)
        foreign = pipeline.foreign.start_span("x", context)

        assert not there.live
        assert not foreign.is_recording()
        pipeline.close()

    def test_peers_see_no_sampled_span(self) -> None:
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor

        from tests.unit.pipeline import Memory

        peer = Memory()
        pipeline = held("error", peers=[SimpleSpanProcessor(peer)])
        root()
        pipeline.spans()
        pipeline.close()
        assert peer.get_finished_spans() == ()

    def test_without_rules_an_unsampled_trajectory_records_nothing(self) -> None:
        pipeline = held(None)
        with trajectory(step=1, sample_index=1) as handle:
            assert not handle.recording.live
            assert not recording.start(semconv.OP_CHAT, "m").live
        assert pipeline.spans() == []
        assert pipeline.processor.counters["seen"] == 0
        pipeline.close()

    def test_a_provider_made_by_hand_without_our_sampler(self) -> None:
        sampling.use_sampler(sampling.Sampler(rate=0))
        pipeline = Pipeline(keep="turns>0", sampler=ALWAYS_ON)
        with trajectory(step=1, sample_index=1):
            generation(1, 1)
            with pipeline.foreign.start_as_current_span("x") as span:
                assert not span.get_span_context().trace_flags.sampled
        assert len(pipeline.spans()) == 3
        pipeline.close()

    def test_what_the_users_sampler_leaves_out_is_held_too(self) -> None:
        pipeline = held("turns>0", sampler=ALWAYS_OFF)
        sampling.use_sampler(sampling.Sampler(rate=1))
        root(0)
        with trajectory(step=1, sample_index=1):
            generation(1, 1)
        assert by_sample(pipeline.spans()).keys() == {1}
        pipeline.close()

    def test_rules_without_effect_are_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        pipeline = held("error")
        sampling.use_sampler(None)
        with caplog.at_level(logging.WARNING):
            root(0)
            root(1)
        assert len(pipeline.spans()) == 2
        pipeline.close()
        (line,) = caplog.messages
        assert "OTEL_ROLLOUT_SAMPLE_RATE" in line

    def test_a_forked_child_records_nothing_of_what_its_parent_holds(self) -> None:
        pipeline = held("turns>0")
        with trajectory(step=1, sample_index=1):
            generation(1, 1)
            child = os.fork()
            if child == 0:
                live = recording.start(semconv.OP_CHAT, "m").live
                os._exit(int(live))
            assert os.waitpid(child, 0)[1] == 0
        assert len(pipeline.spans()) == 2
        pipeline.close()


class TestLateSpans:
    """What ends after the root shares the verdict."""

    @pytest.mark.parametrize("kept", [True, False])
    def test_they_follow_the_verdict(self, kept: bool, tmp_path: Path) -> None:
        exporter = WeaveSpanExporter(Settings(directory=tmp_path))
        pipeline = held("reward>0", exporter)
        with trajectory(step=1, sample_index=1):
            late = recording.start(semconv.OP_EXECUTE_TOOL, "t")
            record_reward(float(kept))
        first = pipeline.spans()
        late.end()

        assert len(pipeline.spans()) == len(first) + kept == 2 * kept
        pipeline.close()
        calls = [node.call for root in store.read(tmp_path).roots for node in root.walk()]
        assert len(calls) == 2 * kept


class TestGroups:
    """`group`: one that is kept keeps the others of its group in this process."""

    def rewards(self, pipeline: Pipeline, group: Any, *rewards: float, **more: Any) -> None:
        for n, reward in enumerate(rewards):
            with trajectory(step=1, sample_index=group, rollout_n=n, **more):
                generation(1, 1)
                record_reward(reward)

    def kept(self, pipeline: Pipeline) -> list[tuple[Any, Any, Any]]:
        return [
            (found["rollout.sample_index"], found["rollout.rollout_n"], found["rollout.kept"])
            for found in map(attributes, pipeline.spans())
            if "rollout.kept" in found
        ]

    def test_before_and_after(self, tmp_path: Path) -> None:
        exporter = WeaveSpanExporter(Settings(directory=tmp_path))
        pipeline = held("reward>=1,group", exporter)
        self.rewards(pipeline, 1, 0, 0)
        self.rewards(pipeline, 2, 0, 1, 0, 1)

        assert sorted(self.kept(pipeline)) == [
            (2, 0, "group"),
            (2, 1, "reward>=1"),
            (2, 2, "group"),
            (2, 3, "reward>=1"),
        ]
        assert len(pipeline.spans()) == 8
        pipeline.close()
        assert pipeline.processor.counters["sampled_out"] == 4
        roots = store.read(tmp_path).roots
        assert sorted(r.call["attributes"]["rollout"]["kept"] for r in roots) == [
            *("group", "group", "reward>=1", "reward>=1"),
        ]
        assert [len(list(r.walk())) for r in roots] == [2] * 4

    def test_by_group_id_where_there_is_one(self) -> None:
        pipeline = held("reward>=1,group")
        self.rewards(pipeline, 1, 0, group_id="a")
        self.rewards(pipeline, 2, 1, group_id="a")
        self.rewards(pipeline, 2, 0, group_id="b")

        assert sorted(self.kept(pipeline)) == [(1, 0, "group"), (2, 0, "reward>=1")]
        pipeline.close()

    def test_not_over_steps(self) -> None:
        pipeline = held("reward>=1,group")
        for step in (1, 2):
            with trajectory(step=step, sample_index=1, rollout_n=0):
                record_reward(step - 1)
        assert [attributes(s)["rollout.step"] for s in pipeline.spans()] == [2]
        pipeline.close()

    @given(
        st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=40),
    )
    def test_any_order(self, members: list[tuple[int, bool]]) -> None:
        pipeline = held("reward>=1,group")
        for n, (group, good) in enumerate(members):
            with trajectory(step=1, sample_index=group, rollout_n=n):
                record_reward(float(good))
        kept = {n for _, n, _ in self.kept(pipeline)}
        assert len(pipeline.spans()) == len(kept)
        pipeline.close()
        good_groups = {group for group, good in members if good}
        assert kept == {n for n, (group, _) in enumerate(members) if group in good_groups}

    def test_those_that_wait_are_let_go_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipeline = held("reward>=1,group")
        now = [100.0]
        assert pipeline.processor._holding is not None
        monkeypatch.setattr(pipeline.processor._holding, "_clock", lambda: now[0])
        self.rewards(pipeline, 1, 0)
        pipeline.spans()
        now[0] += holding_module.GROUP_S + 1
        self.rewards(pipeline, 2, 0)
        pipeline.spans()
        self.rewards(pipeline, 1, 1)
        assert self.kept(pipeline) == [(1, 0, "reward>=1")]
        assert pipeline.processor._holding.trajectories == 1
        pipeline.close()


class TestBounds:
    """What is held is bounded in bytes and time; what exceeds goes whole, and is counted."""

    def test_in_bytes_the_oldest_go_whole(self, caplog: pytest.LogCaptureFixture) -> None:
        pipeline = held("turns>0", max_queue_bytes=200_000)
        holding = pipeline.processor._holding
        assert holding is not None

        def begin(index: int) -> trajectory:
            opened = trajectory(step=1, sample_index=index)
            opened.__enter__()
            generation(30, 30)
            with pipeline.foreign.start_as_current_span("x", attributes={"text": "x" * 5000}):
                pass
            return opened

        opened = []
        for index in range(60):  # all of them open at the same time
            context = contextvars.copy_context()
            opened.append((context, context.run(begin, index)))
            pipeline.processor.force_flush()
            assert holding.waiting_bytes <= 200_000
        for context, one in reversed(opened):
            context.run(one.__exit__, None, None, None)

        kept = by_sample(pipeline.spans())
        pipeline.close()
        counters = pipeline.processor.counters
        assert 5 < len(kept) < 60
        assert min(kept) == 60 - len(kept)  # the newest
        assert {len(spans) for spans in kept.values()} == {3}
        assert counters["dropped_held"] == 3 * (60 - len(kept))
        assert counters["dropped_queue_full"] == 0
        assert holding.waiting_bytes == 0
        assert "more than 200000 bytes wait" in caplog.text

    def test_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipeline = held("turns>0")
        now = [100.0]
        holding = pipeline.processor._holding
        assert holding is not None
        monkeypatch.setattr(holding, "_clock", lambda: now[0])
        with trajectory(step=1, sample_index=1):
            generation(1, 1)
            pipeline.processor.force_flush()
            now[0] += holding_module.OPEN_S + 1
            contextvars.Context().run(root, 2)
            pipeline.processor.force_flush()
            assert holding.trajectories == 0
        assert pipeline.spans() == []
        pipeline.close()
        assert pipeline.processor.counters["dropped_held"] == 1

    def test_memory_of_verdicts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(holding_module, "_VERDICTS", 10)
        monkeypatch.setattr(holding_module, "_GROUPS", 10)
        pipeline = held("reward>0,group")
        for index in range(50):
            root(index)
        pipeline.spans()
        holding = pipeline.processor._holding
        assert holding is not None
        assert len(holding._verdicts) <= 10
        assert len(holding._groups) <= 10
        pipeline.close()


class TestShutdown:
    """An open root at the end is a death; one that has ended gets its verdict."""

    @pytest.mark.parametrize("keep", ["error", "turns>0"])
    def test_an_open_root(self, keep: str, tmp_path: Path) -> None:
        exporter = WeaveSpanExporter(Settings(directory=tmp_path))
        pipeline = held(keep, exporter)
        opened = trajectory(step=1, sample_index=1)
        opened.__enter__()
        generation(1, 1)
        exported = pipeline.exporter
        pipeline.provider.shutdown()
        opened.__exit__(None, None, None)

        kept = keep == "error"
        assert len(exported.get_finished_spans()) == kept
        assert len(store.read(tmp_path).orphans) == kept
        assert pipeline.processor.counters["dropped_held"] == (not kept)
        assert pipeline.processor.counters["sampled_out"] == 0
        assert spool.pending(tmp_path / "spool") == []
        assert not keeping.in_use()
        pipeline.close()

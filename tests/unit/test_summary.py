"""The root says in numbers what was below it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from otel_rollout import recording, rollout_op, semconv, trajectory
from tests.unit.pipeline import Pipeline


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    yield Pipeline()
    recording.use_tracer_provider(None)


def generate(tokens: int, version: object = None, reason: str = "stop", preempted: int = 0) -> None:
    with recording.active(recording.start("text_completion", "policy")) as span:
        span.set(semconv.OUTPUT_TOKENS, tokens)
        span.set(semconv.WEIGHT_VERSION, version)
        span.set(semconv.FINISH_REASONS, [reason])
        span.set(semconv.NUM_PREEMPTED, preempted)


@rollout_op(kind="tool", name="search")
def search(fails: bool = False) -> None:
    if fails:
        raise LookupError


def test_counts_tokens_errors_weights_and_seconds(pipeline: Pipeline) -> None:
    with trajectory(step=1):
        generate(10, version=4)
        search()
        with pytest.raises(LookupError):
            search(fails=True)
        generate(5, version=6, reason="length", preempted=2)
    root = dict(pipeline.named("rollout").attributes or {})
    assert root["rollout.num_generations"] == 2
    assert root["gen_ai.usage.output_tokens"] == 15
    assert root["rollout.num_preempted"] == 2
    assert (root["rollout.num_tool_calls"], root["rollout.num_tool_errors"]) == (2, 1)
    assert (root["rollout.weight_version.min"], root["rollout.weight_version.max"]) == (4, 6)
    assert root["rollout.finish_reason"] == "length"
    assert root["rollout.generate_seconds"] > 0
    assert root["rollout.tool_seconds"] > 0
    assert "rollout.score_seconds" not in root


def test_what_did_not_happen_is_not_said(pipeline: Pipeline) -> None:
    with trajectory(step=1):
        pass
    root = dict(pipeline.named("rollout").attributes or {})
    assert not {key for key in root if "num_" in key or "seconds" in key}


def test_a_generation_inside_a_generation_is_the_same_one(pipeline: Pipeline) -> None:
    with trajectory(step=1), recording.active(recording.start("chat", "policy")) as outer:
        generate(7)
        generate(8)
        outer.set(semconv.OUTPUT_TOKENS, 15)
    root = dict(pipeline.named("rollout").attributes or {})
    assert root["rollout.num_generations"] == 1
    assert root["gen_ai.usage.output_tokens"] == 15


async def test_trajectories_at_once_count_for_themselves(pipeline: Pipeline) -> None:
    async def one(index: int) -> None:
        async with trajectory(step=1, sample_index=index):
            for _ in range(index):
                await asyncio.sleep(0)
                generate(index)

    await asyncio.gather(*(one(index) for index in range(1, 20)))
    for root in (span for span in pipeline.spans() if span.name == "rollout"):
        attributes = dict(root.attributes or {})
        index = attributes["rollout.sample_index"]
        assert attributes["rollout.num_generations"] == index
        assert attributes["gen_ai.usage.output_tokens"] == index * index


def test_a_nested_trajectory_has_a_summary_of_its_own(pipeline: Pipeline) -> None:
    with trajectory(step=1, agent="outer"):
        generate(1)
        with trajectory(step=1, agent="inner"):
            generate(2)
    outer = dict(pipeline.named("rollout outer").attributes or {})
    inner = dict(pipeline.named("rollout inner").attributes or {})
    assert (outer["gen_ai.usage.output_tokens"], inner["gen_ai.usage.output_tokens"]) == (1, 2)

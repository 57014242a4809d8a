"""``otel_rollout.testing``: what a test of somebody's own loop can rely on."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import RolloutSpanProcessor, record_reward, recording, rollout_op, trajectory
from otel_rollout import settings as settings_module
from otel_rollout.processor import sampling
from otel_rollout.settings import Settings
from otel_rollout.testing import Captured, InMemoryExporter, ToolCall, captured
from tests.unit.pipeline import generation


@rollout_op(kind="tool", name="search")
async def search(query: str, limit: int = 3) -> list[str]:
    if not query:
        raise ValueError("nothing to search for")
    return [query] * limit


async def rollout(index: int = 7, query: str = "tea") -> None:
    """Two turns, a tool between them, a reward."""
    async with trajectory(
        step=3, sample_index=index, validate=False, lane="fast", agent="librarian"
    ):
        first = generation([1, 2, 3], [4, 5], logprobs=[-0.5, -1.5])
        assert first.ended
        try:
            found = await search(query)
        except ValueError:
            found = []
        generation([1, 2, 3, 4, 5, 6], [7])
        record_reward(0.25, name="style")
        record_reward(len(found) / 3, why="found")


class TestWhatIsCaptured:
    """A trajectory as the local store would give it, without a store."""

    def test_everything_of_one_trajectory(self) -> None:
        with captured() as rollouts:
            asyncio.run(rollout())
        (one,) = rollouts.trajectories
        assert one.finished
        assert one.identity == {"step": 3, "sample_index": 7, "validate": False, "lane": "fast"}
        assert [turn.prompt_ids for turn in one.generations] == [[1, 2, 3], [1, 2, 3, 4, 5, 6]]
        assert [turn.response_ids for turn in one.generations] == [[4, 5], [7]]
        tokens = one.tokens()
        assert tokens.ids == [4, 5, 6, 7]
        assert tokens.mask == [1, 1, 0, 1]
        assert tokens.logprobs[:2] == [-0.5, -1.5]
        assert math.isnan(tokens.logprobs[3])
        assert one.tool_calls == [ToolCall("search", {"query": "tea"}, ["tea"] * 3)]
        assert one.rewards == {"style": 0.25, "reward": 1.0}
        assert one.reward == 1.0
        assert one.errors == []
        assert [span.name for span in one.spans_of("text_completion")] == ["text_completion m"] * 2
        assert one.root is not None
        assert one.attributes["gen_ai.agent.name"] == "librarian"

    def test_a_failed_tool(self) -> None:
        with captured() as rollouts:
            asyncio.run(rollout(query=""))
        (one,) = rollouts.trajectories
        (call,) = one.tool_calls
        assert call.error == ("ValueError", "nothing to search for")
        assert one.errors == [("execute_tool search", "ValueError", "nothing to search for")]
        with pytest.raises(AssertionError, match="ValueError"):
            one.assert_no_errors()

    def test_several_are_in_the_order_of_their_start(self) -> None:
        with captured() as rollouts:
            for index in range(3):
                asyncio.run(rollout(index))
            assert [one.identity["sample_index"] for one in rollouts.trajectories] == [0, 1, 2]
            rollouts.clear()
            assert rollouts.trajectories == []

    def test_an_open_trajectory_is_not_finished(self) -> None:
        with captured() as rollouts, trajectory(step=1):
            generation([1], [2])
            (one,) = rollouts.trajectories
            assert not one.finished
            assert one.identity == {"step": 1}
            assert one.attributes == {}

    def test_spans_of_others_and_outside(self) -> None:
        with captured() as rollouts:
            tracer = rollouts.tracer_provider.get_tracer("somebody.else")
            tracer.start_span("outside").end()
            with trajectory(step=1):
                tracer.start_span("inside").end()
        assert [span.name for span in rollouts.spans] == ["outside", "inside", "rollout"]
        assert [span.name for span in rollouts.only(step=1).spans] == ["rollout", "inside"]
        assert len(rollouts.only(step=1).spans_of("inside")) == 1

    def test_behind_a_processor_of_ones_own(self) -> None:
        exporter = InMemoryExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(RolloutSpanProcessor(exporter))
        recording.use_tracer_provider(provider)
        asyncio.run(rollout())
        provider.shutdown()
        (one,) = exporter.trajectories()
        one.assert_tools("search")


class TestSettings:
    """Those of the block hold in it, and nothing is left of them."""

    def test_the_environment_is_not_read(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("OTEL_ROLLOUT_SAMPLE_RATE", "0")
        monkeypatch.setenv("OTEL_ROLLOUT_DIR", str(tmp_path))
        settings_module.configure(None)
        with captured() as rollouts:
            asyncio.run(rollout())
        rollouts.only()
        assert settings_module.settings().sample_rate == 0
        assert sampling.sampler().rate == 0
        assert list(tmp_path.iterdir()) == []

    def test_settings_to_try(self) -> None:
        with captured(Settings(sample_rate=0.0)) as rollouts:
            asyncio.run(rollout())
            rollouts.tracer_provider.get_tracer("x").start_span("outside").end()
            assert rollouts.trajectories == []
        assert [span.name for span in rollouts.spans] == ["outside"]

    def test_tail_rules(self) -> None:
        with captured(Settings(sample_rate=0.0, keep="error")) as rollouts:
            asyncio.run(rollout(1))
            asyncio.run(rollout(2, query=""))
        one = rollouts.only()
        assert one.identity["sample_index"] == 2
        assert [turn.response_ids for turn in one.generations] == [[4, 5], [7]]
        assert one.attributes["rollout.kept"] == "error"

    def test_one_within_another(self) -> None:
        with captured() as outer:
            with captured() as inner:
                asyncio.run(rollout(1))
            asyncio.run(rollout(2))
        inner.only(sample_index=1)
        outer.only(sample_index=2)

    def test_after_an_error_all_is_as_before(self) -> None:
        with pytest.raises(KeyError), captured():
            raise KeyError
        with captured() as rollouts:
            asyncio.run(rollout())
        assert len(rollouts.trajectories) == 1


class TestAssertions:
    """Each says what was expected, what was found, and shows the trajectory."""

    @pytest.fixture
    def rollouts(self) -> Captured:
        with captured() as found:
            asyncio.run(rollout())
        return found

    def test_what_holds(self, rollouts: Captured) -> None:
        one = rollouts.only(step=3, lane="fast")
        one.assert_identity(step=3, sample_index=7, validate=False)
        one.assert_tools("search")
        one.assert_reward(1)
        one.assert_reward(0.25, name="style")
        one.assert_reward(0.9, within=0.2)
        one.assert_no_errors()
        assert one.assert_tool_called("search", query="tea").result == ["tea"] * 3
        one.assert_tool_called("search")

    @pytest.mark.parametrize(
        ("assertion", "given", "said"),
        [
            ("assert_identity", {"step": 4}, "expected {'step': 4}, found {'step': 3}"),
            ("assert_identity", {"validate": 0}, "expected {'validate': 0}, found"),
            ("assert_identity", {"nope": 1}, "found {'nope': None}"),
            ("assert_reward", {"expected": 0.5}, "reward: expected 0.5, found 1.0"),
            ("assert_reward", {"expected": 0, "name": "x"}, "x: expected 0, found None"),
            ("assert_tools", {}, "expected (), found ('search',)"),
            ("assert_tool_called", {"name": "search", "query": "x"}, "found [{'query': 'tea'}]"),
            ("assert_tool_called", {"name": "nope"}, "found []"),
        ],
    )
    def test_what_does_not(
        self, rollouts: Captured, assertion: str, given: dict[str, object], said: str
    ) -> None:
        one = rollouts.only()
        with pytest.raises(AssertionError) as raised:
            getattr(one, assertion)(**given)
        message = str(raised.value)
        assert said in message
        assert "execute_tool search" in message
        assert "step=3 sample_index=7" in message

    def test_no_trajectory_or_several(self, rollouts: Captured) -> None:
        with pytest.raises(AssertionError, match=r"found 0 among:\n  \{'step': 3"):
            rollouts.only(step=9)
        with captured() as found:
            with pytest.raises(AssertionError, match="none at all"):
                found.only()
            asyncio.run(rollout(1))
            asyncio.run(rollout(2))
            with pytest.raises(AssertionError, match="found 2 among"):
                found.only(step=3)


def test_no_test_framework_is_imported() -> None:
    import subprocess

    code = "import sys, otel_rollout.testing; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

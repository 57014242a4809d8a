"""Synthetic trajectories for tests of tail rules, and what a rule makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.trace import Tracer

from otel_rollout import record_reward, recording, semconv, trajectory
from otel_rollout.recording import Recording


@dataclass(frozen=True)
class Spec:
    """One trajectory: tokens in and out of each turn, and what became of it."""

    turns: tuple[tuple[int, int], ...] = ()
    reward: float | None = None
    tool_fails: bool = False
    raises: bool = False
    foreign: int = 0
    nested: bool = False

    @property
    def error(self) -> bool:
        return self.tool_fails or self.raises

    @property
    def tokens(self) -> int:
        return max((given + made for given, made in self.turns), default=0)

    @property
    def spans(self) -> int:
        return 1 + len(self.turns) + self.tool_fails + self.foreign + 2 * self.nested

    def matches(self, rule: str) -> bool:
        """Whether a rule names it, worked out from what was asked for."""
        if rule == "error":
            return self.error
        name = rule.rstrip("0123456789.<>=!")
        value = {"reward": self.reward, "turns": len(self.turns), "tokens": self.tokens}[name]
        return value is not None and bool(eval(f"{value!r}{rule[len(name) :]}"))


def generation(given: int, made: int) -> Recording:
    counts = {semconv.INPUT_TOKENS: given, semconv.OUTPUT_TOKENS: made}
    started = recording.start(semconv.OP_TEXT_COMPLETION, "m", attributes=counts)
    with recording.active(started):
        started.payload.prompt_ids = list(range(min(given, 30)))
        started.payload.response_ids = list(range(min(made, 30)))
    return started


async def roll_out(spec: Spec, sample: int, foreign: Tracer, n: int = 0, **more: object) -> None:
    """One trajectory; others get their turn between its spans."""
    try:
        async with trajectory(step=1, sample_index=sample, rollout_n=n, **more):
            for given, made in spec.turns:
                generation(given, made)
                await asyncio.sleep(0)
            for _ in range(spec.foreign):
                with foreign.start_as_current_span("foreign"):
                    await asyncio.sleep(0)
            if spec.nested:
                with trajectory(sample_index=sample, part="inner"):
                    recording.start(semconv.OP_EVALUATE, "x").end()
            if spec.tool_fails:
                tool = recording.start(semconv.OP_EXECUTE_TOOL, "t")
                tool.failed("ToolError", "it did not work")
                tool.end()
            if spec.reward is not None:
                record_reward(spec.reward)
            if spec.raises:
                raise RuntimeError("as asked")
    except RuntimeError:
        assert spec.raises


async def roll_out_all(specs: Sequence[Spec], foreign: Tracer, at_once: int = 50) -> None:
    """Trajectories by their place in ``specs``, many of them at a time."""
    slots = asyncio.Semaphore(at_once)

    async def one(sample: int, spec: Spec) -> None:
        async with slots:
            await roll_out(spec, sample, foreign)

    await asyncio.gather(*(one(sample, spec) for sample, spec in enumerate(specs)))

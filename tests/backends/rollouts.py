"""Two groups of three rollouts; in each group one fails at its tool and gets no reward."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from otel_rollout import record_reward, rollout_op, trajectory


@rollout_op(kind="llm", name="policy")
async def answer(messages: list[dict[str, str]]) -> dict[str, Any]:
    return {"role": "assistant", "content": "calculator(8, 2)"}


@rollout_op(kind="tool", name="calculator")
async def calculator(a: float, b: float) -> float:
    return a / b


async def rollout(sample: int, number: int) -> None:
    identity = {"step": 1, "sample_index": sample, "rollout_n": number, "validate": False}
    with trajectory(**identity, experiment_name="backends", agent="calculator"):
        await answer([{"role": "user", "content": "What is 8 / 2?"}])
        with contextlib.suppress(ZeroDivisionError):
            await calculator(8, 2 if number else 0)
        record_reward(1.0 if number else 0.0)


async def main() -> None:
    await asyncio.gather(*(rollout(sample, number) for sample in range(2) for number in range(3)))


asyncio.run(main())

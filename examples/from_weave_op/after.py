"""The loop of `before.py` with otel-rollout: run it with `opentelemetry-instrument`."""

from __future__ import annotations

import asyncio
from typing import Any

from otel_rollout import record_reward, rollout_op, trajectory

CAPITALS = {"France": "Paris", "Peru": "Lima"}


@rollout_op(kind="tool", name="lookup")
async def lookup(country: str) -> str:
    return CAPITALS[country]


@rollout_op(kind="llm", name="policy")
async def answer(messages: list[dict[str, str]]) -> dict[str, Any]:
    """Stands for the policy: it asks the tool, then repeats what it said."""
    last = messages[-1]
    content = "lookup" if last["role"] == "user" else last["content"]
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


async def rollout(country: str) -> float:
    messages = [{"role": "user", "content": f"Capital of {country}?"}]
    while (said := (await answer(messages))["choices"][0]["message"])["content"] == "lookup":
        try:
            found = await lookup(country)
        except KeyError:
            found = "unknown"
        messages = [*messages, said, {"role": "tool", "content": found}]
    return float(said["content"] == CAPITALS.get(country))


async def one(step: int, index: int, number: int, country: str) -> float:
    place = {"step": step, "sample_index": index, "rollout_n": number}
    async with trajectory(
        **place, validate=False, experiment_name="capitals", project="capitals", agent="capitals"
    ):
        reward = await rollout(country)
        record_reward(reward)
    return reward


async def main() -> None:
    countries = ["France", "Peru", "Atlantis"]
    rewards = await asyncio.gather(
        *(one(1, index, n, name) for index, name in enumerate(countries) for n in range(2))
    )
    print(f"mean reward {sum(rewards) / len(rewards):.3f}")


if __name__ == "__main__":
    asyncio.run(main())

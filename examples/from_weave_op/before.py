"""A loop traced with `@weave.op`: what `after.py` does with otel-rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import weave

CAPITALS = {"France": "Paris", "Peru": "Lima"}


@weave.op
async def lookup(country: str) -> str:
    return CAPITALS[country]


@weave.op
async def answer(messages: list[dict[str, str]]) -> dict[str, Any]:
    """Stands for the policy: it asks the tool, then repeats what it said."""
    last = messages[-1]
    content = "lookup" if last["role"] == "user" else last["content"]
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


@weave.op
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
    with weave.attributes({**place, "validate": False, "experiment_name": "capitals"}):
        reward, call = await rollout.call(country)
    call.feedback.add("reward", {"name": "reward", "value": reward})
    return reward


async def main() -> None:
    weave.init("capitals")
    countries = ["France", "Peru", "Atlantis"]
    rewards = await asyncio.gather(
        *(one(1, index, n, name) for index, name in enumerate(countries) for n in range(2))
    )
    print(f"mean reward {sum(rewards) / len(rewards):.3f}")


if __name__ == "__main__":
    asyncio.run(main())

"""A user's program: `make dist` runs it on what was built and checks its types from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import assert_type

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import otel_rollout.local
from otel_rollout import (
    IdGenerator,
    RolloutSpanProcessor,
    Trajectory,
    WeaveSpanExporter,
    current_trajectory,
    in_context,
    record_reward,
    register_tokenizer,
    rollout_op,
    trajectory,
)
from otel_rollout.testing import Captured, CapturedTrajectory, ToolCall, Turn, captured


class Tokenizer:
    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@rollout_op
def plain(x: int, y: str = "") -> float:
    return float(x)


@rollout_op(kind="tool", name="search", capture=("query",))
async def search(query: str, limit: int) -> list[str]:
    return [query] * limit


@rollout_op(kind="llm", name="policy")
def generate(prompt_ids: list[int]) -> dict[str, list[int]]:
    return {"token_ids": [len(prompt_ids)]}


@rollout_op(capture=False)
def items(n: int) -> Iterator[int]:
    yield from range(n)


@rollout_op(capture="output")
async def stream(n: int) -> AsyncIterator[int]:
    for item in range(n):
        yield item


class Environment:
    @rollout_op(kind="tool")
    def step(self, action: str) -> bool:
        return action == "left"

    @classmethod
    @rollout_op
    def make(cls) -> Environment:
        return cls()


async def rollout(index: int) -> float:
    async with trajectory(step=1, sample_index=index, rollout_n=0, lane="fast") as handle:
        assert_type(handle, Trajectory)
        assert_type(current_trajectory(), Trajectory | None)
        assert_type(plain(1, "a"), float)
        assert_type(await search("tea", limit=2), list[str])
        generate([1, 2, 3])
        assert_type(list(items(3)), list[int])
        assert_type([item async for item in stream(2)], list[int])
        assert_type(Environment.make().step("left"), bool)
        with ThreadPoolExecutor() as pool:
            future = pool.submit(in_context(plain), 2)
            assert_type(future, Future[float])
            future.result()
        thread = threading.Thread(target=in_context(items), args=(1,))
        thread.start()
        thread.join()
        record_reward(1.0, style="good")
        return 1.0


def by_hand() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(id_generator=IdGenerator())
    provider.add_span_processor(RolloutSpanProcessor(memory, WeaveSpanExporter()))
    provider.shutdown()


def wrong() -> None:
    """What a type checker has to refuse; never called."""
    plain("one")  # type: ignore[arg-type]
    record_reward()  # type: ignore[call-arg]
    RolloutSpanProcessor("weave")  # type: ignore[arg-type]
    in_context(plain)(1, 2)  # type: ignore[arg-type]
    with trajectory(1):  # type: ignore[call-arg]
        pass


def test() -> None:
    with captured() as rollouts:
        assert_type(rollouts, Captured)
        asyncio.run(rollout(0))
    one = rollouts.only(sample_index=0)
    assert_type(one, CapturedTrajectory)
    assert_type(one.assert_tool_called("search", query="tea"), ToolCall)
    assert_type(one.generations, list[Turn])
    one.assert_reward(1.0)
    one.assert_no_errors()


def main() -> None:
    register_tokenizer(Tokenizer())
    asyncio.run(rollout(7))
    by_hand()
    test()
    with otel_rollout.local.open() as store:
        for found in store.trajectories("reward == 1"):
            print(found["sample_index"], found["response_ids"])


if __name__ == "__main__":
    main()

"""Many trajectories on one event loop: how many calls a second, and how late the loop is."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from typing import Any

from benchmarks import rollouts
from benchmarks.rollouts import MultiTurn, client_of, output_of
from benchmarks.tracers import Tracer
from benchmarks.vocabulary import Ids

TURNS = 4
TICK_S = 0.005
WARM_UP_S = 2.0
_OUTPUTS = 128


class Work:
    """Real work of an event loop, in pieces of about the same CPU time."""

    def __init__(self, seconds: float) -> None:
        self._payload = [{"index": n, "text": f"word {n}", "score": n / 7} for n in range(100)]
        self._rounds = 1
        begun = time.thread_time()
        while time.thread_time() - begun < 0.2:
            self._once()
            self._rounds += 1
        self._rounds = max(1, round(seconds * self._rounds / 0.2))

    def _once(self) -> None:
        json.loads(json.dumps(self._payload))

    def __call__(self) -> None:
        for _ in range(self._rounds):
            self._once()


class Collections:
    """For how long Python's garbage collector has stopped this process, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
        else:
            self.seconds += now - self._begun


async def run(
    tracer: Tracer,
    tokenizer: Any,
    ids: Ids,
    trajectories: int,
    seconds: float,
    new: int,
    work: float,
) -> dict[str, Any]:
    """Keep so many trajectories under way, and count what is done in the time after a warm-up."""
    chance = random.Random(7)
    outputs = [output_of(ids, new) for _ in range(_OUTPUTS)]
    lags: list[float] = []
    calls = 0
    over = False
    measuring = False

    async def engine() -> Any:
        nonlocal calls
        await asyncio.sleep(chance.uniform(0.3, 1.0))
        calls += measuring
        return chance.choice(outputs)

    loop = MultiTurn(tracer.client(client_of(engine, tokenizer)), tokenizer, ids)
    loop.work = Work(work)
    prompts = [ids.take(new) for _ in range(trajectories)]

    async def slot(number: int) -> None:
        await asyncio.sleep(chance.uniform(0, 1))
        while not over:
            await rollouts.trajectory(loop, number, prompts[number], TURNS)

    async def ticker() -> None:
        while not over:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            if measuring:
                lags.append(time.perf_counter() - due)

    tasks = [asyncio.create_task(slot(number)) for number in range(trajectories)]
    tasks.append(asyncio.create_task(ticker()))
    await asyncio.sleep(WARM_UP_S)
    collections = Collections()
    gc.callbacks.append(collections)
    measuring = True
    begun, cpu = time.perf_counter(), time.thread_time()
    process = time.process_time()
    await asyncio.sleep(seconds)
    measuring = False
    wall, cpu = time.perf_counter() - begun, time.thread_time() - cpu
    process = time.process_time() - process
    gc.callbacks.remove(collections)
    over = True
    await asyncio.gather(*tasks)
    begun = time.perf_counter()
    tracer.flush()
    lags.sort()
    return {
        "throughput": calls / wall,
        "lag_p50": lags[len(lags) // 2],
        "lag_p99": lags[int(len(lags) * 0.99)],
        "loop_busy": cpu / wall,
        "process_cpu": process / wall,
        "collecting": collections.seconds / wall,
        "drain": time.perf_counter() - begun,
    }

"""Workers that seed alike and roll out: `seeded_workers.py OUT WORKERS`.

Each worker seeds every generator as a careful training script does, traces some trajectories, and
tells its ids and what state its generators are in at the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import numpy
import ray
import torch
from opentelemetry import baggage, trace

from otel_rollout import record_reward, rollout_op, trajectory

TRAJECTORIES = 25


def span_ids() -> tuple[str, str]:
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def states() -> dict[str, str]:
    """Digests of the states that this process's generators are in."""
    found = {
        "random": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state().tolist(),
    }
    return {
        name: hashlib.blake2b(pickle.dumps(state), digest_size=16).hexdigest()
        for name, state in found.items()
    }


@rollout_op(kind="tool", name="draw")
async def draw(seen: list[tuple[str, str]]) -> float:
    """Draw from every generator, as sampling and data augmentation do."""
    seen.append(span_ids())
    await asyncio.sleep(0)
    return random.random() + float(numpy.random.rand()) + float(torch.rand(1))


@ray.remote(num_cpus=0.1)
class Inner:
    def seen(self) -> tuple[str, str]:
        return str(baggage.get_baggage("rollout.sample_index")), span_ids()[0]


@ray.remote(num_cpus=0.1)
class Worker:
    async def roll_out(self, number: int) -> dict[str, Any]:
        random.seed(1234)
        numpy.random.seed(1234)
        torch.manual_seed(1234)
        ids: list[tuple[str, str]] = []
        drawn = []
        for index in range(TRAJECTORIES):
            async with trajectory(step=1, sample_index=index, rollout_n=number):
                ids.append(span_ids())
                drawn.append(await draw(ids))
                record_reward(drawn[-1])
        return {"ids": ids, "drawn": drawn, "states": states()}

    async def nested(self) -> tuple[Any, Any]:
        """What an actor that this one starts sees, and what it is in itself."""
        async with trajectory(step=1, sample_index=77):
            return await Inner.remote().seen.remote(), span_ids()[0]


def main() -> None:
    out, workers = Path(sys.argv[1]), int(sys.argv[2])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    actors = [Worker.remote() for _ in range(workers)]
    rolled = ray.get([actor.roll_out.remote(number) for number, actor in enumerate(actors)])
    nested = ray.get(actors[0].nested.remote())
    ray.shutdown()
    out.write_text(json.dumps({"workers": rolled, "nested": nested}))


if __name__ == "__main__":
    main()

"""Runs the calculator example with every worker's random generators seeded, and tells all.

A program of its own, for the verl environment: `seeded.py OUT [train.py's options]`. It writes the
trajectories, and what state every process's generators are in at the end, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "verl_calculator"


def seed(_: Any = None) -> None:
    """Seed every generator of this process, as a careful training script does."""
    import random

    import numpy
    import torch

    random.seed(1234)
    numpy.random.seed(1234)
    torch.manual_seed(1234)


def states(_: Any = None) -> dict[str, str]:
    """Digests of the states that this process's generators are in."""
    import hashlib
    import pickle
    import random

    import numpy
    import torch

    found = {
        "random": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state().tolist(),
    }
    return {
        name: hashlib.blake2b(pickle.dumps(state), digest_size=16).hexdigest()
        for name, state in found.items()
    }


def main() -> None:
    sys.path.insert(0, str(EXAMPLE))
    import ray

    train = importlib.import_module("train")
    out, *options = sys.argv[1:]
    args = train.parse_args(options)
    setup = train.setup(args)
    actors = {
        **{f"agent {i}": a for i, a in enumerate(setup.manager.agent_loop_workers)},
        **{f"reward {i}": a for i, a in enumerate(setup.reward_workers)},
        **{f"server {i}": a for i, a in enumerate(setup.servers.values())},
    }
    ray.get([actor.__ray_call__.remote(seed) for actor in actors.values()])
    trajectories: list[dict[str, Any]] = []
    for step in range(1, args.steps + 1):
        seed()
        trajectories += train.rollout(setup, step)
    ends = {name: ray.get(actor.__ray_call__.remote(states)) for name, actor in actors.items()}
    ends["driver"] = states()
    train.teardown(setup)
    Path(out).write_text(json.dumps({"trajectories": trajectories, "states": ends}))


if __name__ == "__main__":
    main()

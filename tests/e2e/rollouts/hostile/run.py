"""The seeded run with hostile parts: see `hostile_parts.py`. `run.py OUT [train.py's options]`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROLLOUT = "actor_rollout_ref.rollout."

if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    import seeded

    folders = [str(HERE), str(HERE.parent), str(seeded.EXAMPLE)]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    train = importlib.import_module("train")
    train.PolicyServer = importlib.import_module("hostile_parts").HostileServer
    sys.argv += [
        f"{ROLLOUT}agent.agent_loop_config_path={HERE / 'agent_loops.yaml'}",
        f"{ROLLOUT}multi_turn.tool_config_path={HERE / 'tools.yaml'}",
    ]
    seeded.main()

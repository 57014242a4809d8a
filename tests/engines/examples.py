"""An engine's example, run as its README says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import otel_rollout.local
from tests.unit import documents

ROOT = Path(__file__).resolve().parents[2]


def rollouts_of(
    example: str, store: Path, environ: Mapping[str, str], *options: str
) -> list[dict[str, Any]]:
    """The trajectories that `examples/{example}/loop.py` leaves in a store.

    It is run by the line of its README, with more options behind it.
    """
    line = line_of(example, "opentelemetry-instrument python")
    done = subprocess.run(
        ["bash", "-c", f"{line} {shlex.join(options)}"],
        cwd=ROOT if "examples/" in line else ROOT / "examples" / example,
        env={
            **os.environ,
            **environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OTEL_ROLLOUT_DIR": str(store),
            "WANDB_API_KEY": "",
            "NETRC": os.devnull,
        },
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "mean reward" in done.stdout
    with otel_rollout.local.open(store) as opened:
        return list(opened.trajectories())


def line_of(example: str, part: str) -> str:
    """The command line of an example's README that has this in it."""
    page = ROOT / "examples" / example / "README.md"
    (found,) = [line for line in documents.block_commands(page) if part in line]
    return found


def check(found: list[dict[str, Any]], prompts: int, n: int) -> None:
    """Each rollout of a step is there with its tokens, texts and reward."""
    places = sorted((one["sample_index"], one["rollout_n"]) for one in found)
    assert places == [(index, number) for index in range(prompts) for number in range(n)]
    for one in found:
        assert one["finished"]
        assert one["reward"] is not None
        assert one["turns"] >= 1
        assert one["prompt_ids"]
        assert sum(one["response_mask"]) > 0
        assert one["response_text"]

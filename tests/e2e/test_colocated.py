"""verl with a colocated reward model: scores of a batch find the roots of its trajectories.

verl, its workers and batches are real; the reward model is a stub (see `rollouts/colocated.py`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.local import open as open_store
from tests.e2e.rollouts import runs
from tests.faults.scenario import push
from tests.servers.weave_process import WeaveServer

PROGRAM = Path(runs.__file__).with_name("colocated.py")
PROMPTS, N, STEPS = 4, 2, 2
OPTIONS = ("--steps", str(STEPS), "--prompts", str(PROMPTS), "--n", str(N), "--workers", "2")


def by_place(trajectories: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(one["uid"], one["rollout_n"]): one for one in trajectories}


@pytest.mark.parametrize("path", ["classic", "v1"])
def test_each_score_is_on_its_own_root(
    path: str, verl_python: Path, weave_server: WeaveServer, tmp_path: Path
) -> None:
    project = f"colocated-{path}"
    options = (*OPTIONS, "--path", path, "--project", project)
    results, output = runs.start(
        verl_python, tmp_path, *options, program=PROGRAM, OTEL_TRACES_EXPORTER="weave"
    )
    made = by_place(results["trajectories"])
    assert len(made) == PROMPTS * N * STEPS
    expected = {place: one["reward"] for place, one in made.items()}
    assert len(set(expected.values())) > 4  # else they could be mixed up unseen
    for one in made.values():
        assert one["reward"] == pytest.approx(sum(one["response_ids"]) / 7)

    with open_store(tmp_path / "store") as opened:
        rows = opened.index.query("SELECT group_id, rollout_n, reward, calls FROM trajectories")
    told = {(row["group_id"], row["rollout_n"]): row["reward"] for row in rows}
    assert told == pytest.approx(expected)

    environ = {**os.environ, **weave_server.environ(), "WANDB_ENTITY": "local"}
    pushed = push(environ, str(tmp_path / "store"))
    assert pushed.returncode == 0, pushed.stderr
    client = weave_server.client(project)
    arrived = {}
    for root in client.get_calls(filter={"trace_roots_only": True}, include_feedback=True):
        call = runs.Call.of(root)
        (reward,) = call.rewards
        place = call.attributes["group_id"], call.attributes["rollout_n"]
        arrived[place] = reward["value"]
        assert reward["length"] == len(made[place]["response_ids"])
    assert arrived == pytest.approx(expected)

    assert "Traceback" not in output
    plain, _ = runs.start(verl_python, tmp_path / "plain", *options, traced=False, program=PROGRAM)
    untraced = by_place(plain["trajectories"])
    assert untraced.keys() == made.keys()
    for place, one in made.items():  # what is trained on has nothing of ours
        assert one["columns"] == untraced[place]["columns"]
        assert one["meta"] == untraced[place]["meta"]

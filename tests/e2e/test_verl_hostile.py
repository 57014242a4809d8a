"""What goes wrong in a rollout is said on its span, and changes nothing in the rollout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from otel_rollout import payload
from tests.e2e.rollouts import runs
from tests.e2e.rollouts.runs import Run
from tests.servers.weave_process import WeaveServer

PROGRAM = runs.PROGRAM.parent / "hostile" / "run.py"
OUTSIDE = 100_000
PROMPTS, N = 4, 2
OPTIONS = ("--path", "v1", "--steps", "1", "--prompts", str(PROMPTS), "--n", str(N))


@pytest.fixture(scope="module")
def hostile(
    verl_python: Path, weave_server: WeaveServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, dict[str, Any]]:
    """A traced run, and the results of an untraced one."""
    folder = tmp_path_factory.mktemp("hostile")
    untraced, _ = runs.start(verl_python, folder / "plain", *OPTIONS, traced=False, program=PROGRAM)
    results, output = runs.start(
        verl_python,
        folder / "traced",
        *OPTIONS,
        *("--project", "hostile"),
        program=PROGRAM,
        **runs.weave_environment(weave_server),
    )
    runs.wait_for_calls(weave_server, "hostile", PROMPTS * N)
    return Run("hostile", results, folder, output, weave_server), untraced


def completions(run: Run) -> list[Any]:
    return [c for c in run.calls if c.op_name.startswith("text_completion") and not c.exception]


def test_the_rollout_s_result_is_unchanged(hostile: tuple[Run, dict[str, Any]]) -> None:
    run, untraced = hostile
    assert run.results == untraced
    assert len(run.roots) == PROMPTS * N


def test_an_id_outside_the_vocabulary_is_kept_and_said(
    hostile: tuple[Run, dict[str, Any]],
) -> None:
    run, _ = hostile
    found = 0
    for call in completions(run):
        rollout = call.attributes["rollout"]
        ids = payload.decode_ids(rollout["response"]["token_ids"])
        if OUTSIDE in ids:
            found += 1
            assert "outside the vocabulary" in rollout["token2text"]["error"]
            said = call.output["choices"][0]["message"]["content"]
            assert said.endswith(f"<|id:{OUTSIDE}|>")
    assert found >= PROMPTS * N - 2
    assert any(OUTSIDE in t["response_ids"] for t in run.trajectories)


def test_a_tool_s_unserialisable_values_are_described(
    hostile: tuple[Run, dict[str, Any]],
) -> None:
    run, _ = hostile
    tools = [c for c in run.calls if c.op_name == "execute_tool calculator" and not c.exception]
    assert tools
    for call in tools:
        metrics = json.loads(call.attributes["rollout"]["tool"]["metrics"])
        assert metrics["unreadable"] == "<Unreadable: cannot be shown (RuntimeError)>"
        assert metrics["cycle"]["itself"] == "<dict: contains itself>"
        assert metrics["cycle"]["big"] == str(2**70)
        assert (metrics["bytes"]["type"], metrics["bytes"]["size"]) == ("bytes", 1)


def test_a_cancelled_generation_is_an_error_of_its_own_kind(
    hostile: tuple[Run, dict[str, Any]],
) -> None:
    run, _ = hostile
    cancelled = [c for c in run.calls if c.exception and "CancelledError" in c.exception]
    assert len(cancelled) == PROMPTS * N
    for call in cancelled:
        assert call.op_name.startswith("text_completion")
        assert call.attributes["error"]["type"] == "CancelledError"
    parents = {call.parent_id for call in cancelled}
    agents = {c.id for c in run.calls if c.op_name.startswith("invoke_agent")}
    assert parents == agents


def test_nothing_is_raised_or_left_open(hostile: tuple[Run, dict[str, Any]]) -> None:
    run, _ = hostile
    assert not re.search("otel-rollout: internal error|Traceback|Failed to detach", run.output)

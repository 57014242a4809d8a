"""The examples that need no engine, run as their README says, against W&B's own trace server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.weave_process import WeaveServer
from tests.unit import documents

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDER = EXAMPLES / "from_weave_op"
PROJECT = "capitals"


def ran(server: WeaveServer, line: str, store: Path) -> str:
    """Run a line to its end, in the example's folder; return what it printed."""
    done = subprocess.run(
        ["bash", "-euc", line],
        env={
            **os.environ,
            **server.environ(),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OTEL_ROLLOUT_DIR": str(store),
        },
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def calls(
    weave_server: WeaveServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """The calls of both programs."""
    store = tmp_path_factory.mktemp("store")
    first, second = documents.block_commands(FOLDER / "README.md")
    ran(weave_server, first, store)
    client = weave_server.client(PROJECT)
    before = list(client.get_calls())
    ran(weave_server, second, store)
    known = {call.id for call in before}
    after = [call for call in client.get_calls() if call.id not in known]
    return {"before": before, "after": after}


def roots(calls: list[Any]) -> list[Any]:
    return [call for call in calls if call.parent_id is None]


def test_both_write_a_root_for_each_rollout(calls: dict[str, list[Any]]) -> None:
    assert len(roots(calls["before"])) == len(roots(calls["after"])) == 6


def test_a_saved_filter_finds_both(calls: dict[str, list[Any]]) -> None:
    def places(found: list[Any]) -> list[Any]:
        names = ("step", "sample_index", "rollout_n", "validate", "experiment_name")
        return sorted([call.attributes[name] for name in names] for call in roots(found))

    assert places(calls["before"]) == places(calls["after"])
    assert places(calls["after"])[0] == [1, 0, 0, False, "capitals"]


def test_what_happened_is_the_same(calls: dict[str, list[Any]]) -> None:
    def tools(found: list[Any], name: str) -> list[Any]:
        of_it = [call for call in found if name in call.op_name]
        return sorted(
            (call.inputs["country"], call.output, call.exception is not None) for call in of_it
        )

    def asked(found: list[Any], name: str) -> list[Any]:
        of_it = [call for call in found if name in call.op_name]
        return sorted(
            (
                [message["content"] for message in call.inputs["messages"]],
                call.output["choices"][0]["message"]["content"],
            )
            for call in of_it
        )

    def plain(value: Any) -> str:
        return repr(value)

    before, after = calls["before"], calls["after"]
    assert plain(tools(before, "/lookup")) == plain(tools(after, "execute_tool lookup"))
    assert plain(asked(before, "/answer")) == plain(asked(after, "chat policy"))
    assert len(tools(after, "execute_tool lookup")) == 6


def test_rewards(calls: dict[str, list[Any]], weave_server: WeaveServer) -> None:
    found = weave_server.feedback(PROJECT)
    by_call = {one["weave_ref"].rpartition("/")[2]: one["payload"]["value"] for one in found}
    before = sorted(by_call[call.id] for call in roots(calls["before"]))
    after = sorted(by_call[call.id] for call in roots(calls["after"]))
    assert before == after == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0]

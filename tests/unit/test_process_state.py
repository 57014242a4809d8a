"""What belongs to the user's process stays as it is: handlers, filters, levels, names, contexts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers.otlp_receiver import OtlpReceiver

PROGRAM = Path(__file__).with_name("process_state.py")
ROOT = PROGRAM.parents[2]


def run(store: Path, *command: str, **variables: str) -> dict[str, Any]:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OTEL_ROLLOUT_DIR": str(store),
        **variables,
    }
    done = subprocess.run(
        [*command, sys.executable, str(PROGRAM)],
        env=environ,
        cwd=store.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Failed to detach" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("process")
    found = run(folder / "store")
    assert not (folder / "store").exists()
    return found


@pytest.fixture(scope="module", params=["weave", "weave,otlp"])
def traced(
    request: pytest.FixtureRequest,
    plain: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    folder = Path(plain["before"]["folder"])
    store = folder / request.param / "store"
    instrument = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    with OtlpReceiver() as receiver:
        found = run(
            folder / "store",
            instrument,
            OTEL_TRACES_EXPORTER=request.param,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        )
        assert request.param == "weave" or len(receiver.spans) == 4 * 3 + 1
    assert list((folder / "store" / "spool").glob("*.spool"))
    assert not store.exists()
    return found


def test_start_up_changes_nothing(plain: dict[str, Any], traced: dict[str, Any]) -> None:
    for name, value in plain["before"].items():
        assert traced["before"][name] == value, name


def test_traced_rollouts_change_nothing(plain: dict[str, Any], traced: dict[str, Any]) -> None:
    for name, value in plain["after"].items():
        assert traced["after"][name] == value, name
    assert traced["same"] is True


def test_an_exception_keeps_its_context_cause_notes_and_itself(
    plain: dict[str, Any], traced: dict[str, Any]
) -> None:
    assert traced["seen"] == plain["seen"]
    assert traced["seen"][0]["context"] == "KeyError('first')"
    assert traced["seen"][0]["same"] is True
    assert traced["failed"] == plain["failed"]


def test_a_user_s_context_variables_are_as_without_tracing(traced: dict[str, Any]) -> None:
    assert [one["mine"] for one in traced["seen"]] == ["set inside"] * 4


def test_threads_of_ours_have_names_of_ours(traced: dict[str, Any]) -> None:
    assert [name for name in traced["threads"] if "otel" not in name.lower()] == []

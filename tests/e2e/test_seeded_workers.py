"""Eight Ray workers with equal seeds: different ids, and the same draws as without tracing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rollouts import runs

PROGRAM = Path(__file__).parent / "ray_programs" / "seeded_workers.py"
WORKERS = 8


def run(python: Path, folder: Path, *, traced: bool) -> dict[str, Any]:
    out = folder / "seen.json"
    command = [str(python), str(PROGRAM), str(out), str(WORKERS)]
    if traced:
        command.insert(0, str(python.with_name("opentelemetry-instrument")))
    exporter = {"OTEL_TRACES_EXPORTER": "weave"} if traced else {}
    done = subprocess.run(
        command,
        env=runs.environment(python, folder / "store", **exporter),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def traced(verl_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(verl_python, tmp_path_factory.mktemp("traced"), traced=True)


@pytest.fixture(scope="module")
def untraced(verl_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("untraced")
    found = run(verl_python, folder, traced=False)
    assert not (folder / "store").exists()
    return found


def test_no_two_ids_are_equal(traced: dict[str, Any]) -> None:
    ids = [tuple(pair) for worker in traced["workers"] for pair in worker["ids"]]
    traces, spans = [trace for trace, _ in ids], [span for _, span in ids]
    assert len(spans) == len(set(spans)) == WORKERS * 25 * 2
    assert len(set(traces)) == WORKERS * 25
    assert "0" * 16 not in spans


def test_every_worker_drew_the_same(traced: dict[str, Any]) -> None:
    first, *others = traced["workers"]
    assert all(worker["drawn"] == first["drawn"] for worker in others)


def test_generators_end_as_in_an_untraced_run(
    traced: dict[str, Any], untraced: dict[str, Any]
) -> None:
    for with_tracing, without in zip(traced["workers"], untraced["workers"], strict=True):
        assert with_tracing["drawn"] == without["drawn"]
        assert with_tracing["states"] == without["states"]
        assert set(with_tracing["states"]) == {"random", "numpy", "torch"}


def test_nested_actors_are_in_the_caller_s_trajectory(traced: dict[str, Any]) -> None:
    (sample_index, trace), own_trace = traced["nested"]
    assert sample_index == "77"
    assert trace == own_trace

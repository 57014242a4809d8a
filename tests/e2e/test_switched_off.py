"""Switched off by a variable, tracing leaves verl and Ray as they are: no wrapper is in place."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.rollouts import runs

PROGRAM = Path(__file__).parent / "ray_programs" / "wrappers.py"
OURS = ("otel_rollout_ray", "otel_rollout_sglang", "otel_rollout_verl", "otel_rollout_vllm")


def wrapped(python: Path, folder: Path, **variables: str) -> list[str]:
    """Names of what is wrapped in verl and Ray under `opentelemetry-instrument`."""
    environ = runs.environment(
        python, folder / "store", **{"OTEL_TRACES_EXPORTER": "weave", **variables}
    )
    command = [python.with_name("opentelemetry-instrument"), python, PROGRAM]
    done = subprocess.run(
        [str(part) for part in command],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_switched_on_they_are_there(verl_python: Path, tmp_path: Path) -> None:
    found = wrapped(verl_python, tmp_path)
    assert "ray.init" in found
    assert any("rollout_trace_attr" in name for name in found)
    assert any(name.endswith("ToolAgentLoop._call_tool") for name in found)


@pytest.mark.parametrize(
    "switch",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": ",".join(OURS)},
    ],
    ids=lambda switch: next(iter(switch)),
)
def test_switched_off_there_is_none(
    verl_python: Path, tmp_path: Path, switch: dict[str, str]
) -> None:
    assert wrapped(verl_python, tmp_path, **switch) == []
    assert not (tmp_path / "store").exists()

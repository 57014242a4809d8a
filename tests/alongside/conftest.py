"""Programs run as users run them, beside OpenTelemetry packages of others (.venv-alongside)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.alongside.http_server import HttpServer

if importlib.util.find_spec("openai") is None:  # another environment's pytest
    collect_ignore_glob = ["test_*.py"]


#: OpenTelemetry says so because each distro here brings a configurator of that name.
TWO_DISTROS = "Configuration of configurator not loaded, configurator already loaded"


@dataclass
class Ran:
    """What a program printed, and the trajectories that it left."""

    out: str
    err: str
    store: Path

    def trajectories(self) -> list[dict[str, Any]]:
        import otel_rollout.local

        if not self.store.is_dir():
            return []
        with otel_rollout.local.open(self.store) as store:
            return list(store.trajectories())

    def calls(self) -> list[dict[str, Any]]:
        """Every stored call, as it would go to Weave."""
        from otel_rollout.local import store

        return [node.call for root in store.read(self.store).roots for node in root.walk()]


Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run code under `opentelemetry-instrument` (`instrument=False`: without), to a good end."""

    def ran(code: str, *, instrument: bool = True, **environ: str | None) -> Ran:
        store = tmp_path / "store"
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(code))
        command = [sys.executable, str(program)]
        if instrument:
            command.insert(0, str(Path(sys.executable).with_name("opentelemetry-instrument")))
        given = {
            **os.environ,
            "OTEL_ROLLOUT_DIR": str(store),
            "OTEL_TRACES_EXPORTER": "weave",
            # The distros here turn on both.
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "WANDB_API_KEY": "",
            "NO_PROXY": "127.0.0.1",
            **environ,
        }
        done = subprocess.run(
            command,
            env={name: value for name, value in given.items() if value is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        said = [line for line in done.stderr.splitlines() if line != TWO_DISTROS]
        return Ran(done.stdout, "\n".join(said), store)

    return ran


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    with HttpServer() as server:
        yield server

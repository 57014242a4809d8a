"""Real verl rollouts for the tests: started as a user would, and read where they arrived."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.servers.otlp_receiver import Span
from tests.servers.weave_process import API_KEY, WeaveServer

PROGRAM = Path(__file__).with_name("seeded.py")
TIMEOUT_S = 400


@dataclass
class Run:
    """What one run gave back, and what of it arrived."""

    project: str
    results: dict[str, Any]
    store: Path
    output: str
    server: WeaveServer | None = None
    spans: list[Span] = field(default_factory=list)

    @property
    def trajectories(self) -> list[dict[str, Any]]:
        """The batch, a dict for each trajectory."""
        found: list[dict[str, Any]] = self.results["trajectories"]
        return found

    @cached_property
    def calls(self) -> list[Any]:
        """All calls, read by the real Weave client."""
        assert self.server is not None
        return list(self.server.client(self.project).get_calls(include_feedback=True))

    @property
    def roots(self) -> list[Any]:
        """The calls without a parent."""
        return [call for call in self.calls if call.parent_id is None]

    def below(self, call: Any) -> list[Any]:
        """The calls right below one, in the order of their start."""
        children = [other for other in self.calls if other.parent_id == call.id]
        return sorted(children, key=lambda c: c.started_at)


def environment(python: Path, store: Path, **variables: str) -> dict[str, str]:
    """A user's environment: the verl environment active, nothing of the test's own telemetry."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTEL_", "WANDB_", "WEAVE_", "WF_", "RAY_"))
    }
    return {
        **kept,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "disabled",
        "NETRC": os.devnull,
        "OTEL_ROLLOUT_DIR": str(store),
        **variables,
    }


def weave_environment(server: WeaveServer) -> dict[str, str]:
    """The variables that send calls to the test's Weave server."""
    return {
        "OTEL_TRACES_EXPORTER": "weave",
        "WANDB_API_KEY": API_KEY,
        "WANDB_BASE_URL": server.url,
        "WF_TRACE_SERVER_URL": server.url,
    }


def start(
    python: Path,
    folder: Path,
    *options: str,
    traced: bool = True,
    program: Path = PROGRAM,
    **variables: str,
) -> tuple[dict[str, Any], str]:
    """Run the program with `opentelemetry-instrument`, or plain; returns results and output."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "results.json"
    command = [str(python), str(program), str(out), *options]
    if traced:
        command.insert(0, str(python.with_name("opentelemetry-instrument")))
    done = subprocess.run(
        command,
        env=environment(python, folder / "store", **variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return json.loads(out.read_text()), done.stdout


def wait_for_calls(server: WeaveServer, project: str, roots: int, timeout: float = 60) -> None:
    """Wait until the server has so many roots; what is short then is for the test to say."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        calls = server.client(project).get_calls(filter={"trace_roots_only": True})
        if len(list(calls)) >= roots:
            return
        time.sleep(0.5)

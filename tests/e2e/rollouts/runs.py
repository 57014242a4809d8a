"""Real verl rollouts for the tests: started as a user would, and read where they arrived."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.servers.otlp_receiver import OtlpReceiver, Span
from tests.servers.weave_process import API_KEY, WeaveServer

PROGRAM = Path(__file__).with_name("seeded.py")
TIMEOUT_S = 400


@dataclass(frozen=True)
class Call:
    """A call as the client gave it, as plain objects: reading the client's own ones is slow."""

    id: str
    trace_id: str
    parent_id: str | None
    op_name: str
    started_at: datetime
    attributes: dict[str, Any]
    inputs: dict[str, Any]
    output: Any
    exception: str | None
    summary: dict[str, Any]
    rewards: list[dict[str, Any]]

    @staticmethod
    def of(call: Any) -> Call:
        return Call(
            id=call.id,
            trace_id=call.trace_id,
            parent_id=call.parent_id,
            op_name=call.op_name,
            started_at=call.started_at,
            attributes=plain(call.attributes),
            inputs=plain(call.inputs),
            output=plain(call.output),
            exception=call.exception,
            summary=plain(call.summary),
            rewards=[one["payload"] for one in plain(call.summary)["weave"].get("feedback", [])],
        )


def plain(value: Any) -> Any:
    """The client's traced containers and boxed numbers as Python's own."""
    from weave.trace.box import unbox

    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return unbox(value)


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
    def calls(self) -> list[Call]:
        """All calls, read by the real Weave client, in the order of their start."""
        assert self.server is not None
        found = self.server.client(self.project).get_calls(include_feedback=True)
        return sorted((Call.of(call) for call in found), key=lambda call: call.started_at)

    @cached_property
    def roots(self) -> list[Call]:
        """The calls without a parent."""
        return [call for call in self.calls if call.parent_id is None]

    @cached_property
    def _children(self) -> dict[str | None, list[Call]]:
        children: dict[str | None, list[Call]] = {}
        for call in self.calls:
            children.setdefault(call.parent_id, []).append(call)
        return children

    def below(self, call: Call) -> list[Call]:
        """The calls right below one, in the order of their start."""
        return self._children.get(call.id, [])


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
        # Ray gives up on its own start after 30 s, which a busy machine may take.
        "RAY_raylet_start_wait_time_s": "120",
        "NETRC": os.devnull,
        # Nothing listens there: no test, whatever its key, speaks to W&B.
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WF_TRACE_SERVER_URL": "http://127.0.0.1:9",
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


def both_environments(server: WeaveServer, receiver: OtlpReceiver) -> dict[str, str]:
    """The variables that send the same spans to Weave and to an OTLP receiver."""
    return {
        **weave_environment(server),
        "OTEL_TRACES_EXPORTER": "weave,otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
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

"""`otel-rollout view` as a command: its link, its token, and a run elsewhere that sends to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_rollout.local import open as open_store

COMMAND = [str(Path(sys.executable).with_name("otel-rollout")), "view"]
TRAINING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
import otel_rollout as rollouts

provider = TracerProvider(id_generator=rollouts.IdGenerator())
exporter = rollouts.WeaveSpanExporter()
provider.add_span_processor(rollouts.RolloutSpanProcessor(exporter))
trace.set_tracer_provider(provider)
for number in range(3):
    with rollouts.trajectory(step=number, experiment_name="elsewhere"):
        rollouts.record_reward(number / 2)
assert provider.force_flush()
provider.shutdown()
"""
READING = """
import weave
client = weave.init("local/sent")
calls = client.get_calls(filter={"trace_roots_only": True}, include_feedback=True)
print(sorted((c.attributes["step"], c.output["reward"], len(list(c.feedback))) for c in calls))
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """The command at an address that is not loopback, and the lines that it prints."""
    store = tmp_path / "store"
    command = [*COMMAND, str(store), "--host", "0.0.0.0", "--port", "0", "--no-browser"]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        yield store, [process.stdout.readline(), process.stdout.readline()]
        process.terminate()
        process.wait(20)
        assert process.returncode in (0, -15)


def run(program: str, **environ: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "WANDB"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_one_server_for_others(served: tuple[Path, list[str]], tmp_path: Path) -> None:
    store, (link, variables) = served
    found = re.search(r"http://[^/]+:(\d+)/\?token=(\w{40})", link)
    assert found is not None, link
    port, token = found.groups()
    address = f"http://127.0.0.1:{port}"
    given = dict(re.findall(r"([A-Z_]+)=(\S+)", variables))
    assert set(given) == {"WF_TRACE_SERVER_URL", "WANDB_BASE_URL", "WANDB_API_KEY"}
    assert given["WANDB_API_KEY"] == token
    environ = {**given, "WF_TRACE_SERVER_URL": address, "WANDB_BASE_URL": address}

    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(f"{address}/?token={token}") as page:
        assert b"Runs" in page.read()
    run(
        TRAINING,
        OTEL_EXPORTER_WEAVE_PROJECT="sent",
        OTEL_ROLLOUT_DIR=str(tmp_path / "own"),
        **environ,
    )
    printed = run(READING, WEAVE_PRINT_CALL_LINK="false", **environ)

    assert printed.splitlines()[-1] == "[(0, 0.0, 1), (1, 0.5, 1), (2, 1.0, 1)]"
    with open_store(store) as opened:
        kept = [(one["step"], one["reward"]) for one in opened.trajectories(sort="step")]
    assert kept == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert token not in "".join(p.read_text("latin-1") for p in store.rglob("*.spool"))


def test_a_port_that_is_taken_is_said(served: tuple[Path, list[str]], tmp_path: Path) -> None:
    port = re.findall(r":(\d+)/", served[1][0])[0]
    done = subprocess.run(
        [*COMMAND, str(tmp_path), "--host", "0.0.0.0", "--port", port, "--no-browser"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert "--port 0" in done.stderr

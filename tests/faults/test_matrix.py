"""Every end of a process in every state of the server, real Ray, bounds: `make faults`.

What it has seen goes to `docs/fault-matrix.md`, see `report.py`. `OTEL_ROLLOUT_FAULT_RUNS` is the
number of processes for each abrupt end and state (7: 56 for each abrupt end).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults import report
from tests.faults.scenario import (
    ABRUPT,
    ENDS,
    ROOT,
    WITHIN_S,
    WORKLOAD,
    Bench,
    Outcome,
    lateness,
    longest_stall,
    push,
    read_journal,
    secrets_in,
)
from tests.faults.workload import CONCURRENT
from tests.servers import fault_proxy
from tests.servers.fault_proxy import FaultProxy
from tests.servers.weave_process import WeaveServer

RUNS: Final = int(os.environ.get("OTEL_ROLLOUT_FAULT_RUNS", "7"))
RAY_ENDS: Final = ("exit", "shutdown", "kill", "driver_killed")
BUSY_S: Final = 60.0
MAX_EXIT_S: Final = 2.0
PYTHON_ENV: Final = {"OTEL_TRACES_EXPORTER": "weave", "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def proxy(weave_server: WeaveServer) -> Iterator[FaultProxy]:
    with FaultProxy(weave_server.url) as proxy:
        yield proxy


@pytest.fixture
def bench(weave_server: WeaveServer, proxy: FaultProxy, tmp_path: Path) -> Bench:
    proxy.set(fault_proxy.UP)
    return Bench(weave_server, proxy, tmp_path, seed=random.randrange(1 << 30))


def check(outcome: Outcome) -> None:
    assert outcome.lost == 0, outcome
    assert outcome.unknown <= CONCURRENT * outcome.processes * (not outcome.exit_s), outcome
    assert outcome.changed == 0, outcome
    assert outcome.push_status == 0, outcome
    assert outcome.secrets == [], outcome


@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("state", fault_proxy.STATES)
def test_end(bench: Bench, state: str, end: str) -> None:
    slow = state == fault_proxy.SLOW
    outcome = bench.run(
        state,
        end,
        processes=RUNS if end in ABRUPT else 3,
        seconds=0.5 if slow else 1.5,
        state_lasts=BUSY_S if state == fault_proxy.BUSY and end == "SIGKILL" else 3.0,
    )
    report.add(end, state, outcome)
    check(outcome)
    assert all(seconds <= MAX_EXIT_S for seconds in outcome.exit_s), outcome


@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", RAY_ENDS)
@pytest.mark.parametrize("state", fault_proxy.STATES)
def test_ray(bench: Bench, verl_python: Path, state: str, end: str) -> None:
    outcome = run_ray(bench, verl_python, state, end)
    report.add(f"Ray: {end}", state, outcome)
    check(outcome)


def run_ray(bench: Bench, python: Path, state: str, end: str) -> Outcome:
    """The same for Ray's own ways to end actors."""
    project = f"ray-{os.getpid()}-{random.randrange(1 << 30)}"
    folder = bench.folder / project
    folder.mkdir()
    environ = bench.environ(folder / "store", project, **PYTHON_ENV)
    environ["PATH"] = f"{python.parent}{os.pathsep}{environ['PATH']}"
    before = bench.server.counts()
    bench.proxy.set(state)
    program = str(WORKLOAD.with_name("ray_program.py"))
    seconds = random.random()
    command = [python.with_name("opentelemetry-instrument"), python, program, folder, end, seconds]
    for _ in range(3):  # on a busy machine Ray itself may not start in its time
        with (folder / "log").open("wb") as log:
            subprocess.run(
                [str(part) for part in command],
                env=environ,
                stdout=log,
                stderr=log,
                timeout=240,
                check=False,
            )
        if (folder / "driver").exists():
            break
    _wait_for_the_end_of(folder / "log")
    outcome = Outcome(processes=2)
    _, marks = read_journal(folder / "driver")
    due: set[str] = set()
    every: set[str] = set()
    for number in range(2):
        journal = folder / f"journal-{number}"
        stall = longest_stall(journal, marks["death"])
        outcome.longest_stall_s = max(outcome.longest_stall_s, stall)
        for span, ended in read_journal(journal)[0]:
            every.add(span)
            if ended < marks["death"] - WITHIN_S - lateness(stall):
                due.add(span)
    bench.push(state, environ, outcome, project, 3.0)
    found = bench.ids(project)
    after = bench.server.counts()
    outcome.ended = len(every)
    outcome.lost = len(due - found)
    outcome.last_moment = len(every - due - found)
    outcome.unknown = len(found - every)
    outcome.duplicated = after["duplicates"] - before["duplicates"]
    outcome.changed = after["changed"] - before["changed"]
    outcome.secrets = [one for one in secrets_in(folder) if "/store/" in one]
    return outcome


def _wait_for_the_end_of(log: Path) -> None:
    """Wait for the actors of a driver that was killed."""
    (line,) = (one for one in log.read_text().splitlines() if one.startswith("actors "))
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in line.split()[1:]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.timeout(900)
def test_throughput_in_every_state(bench: Bench, tmp_path: Path) -> None:
    """Trajectories per second with telemetry, as a share of those without."""

    def rate(state: str, telemetry: str, name: str) -> float:
        bench.proxy.set(state)
        environ = bench.environ(tmp_path / name, name, OTEL_ROLLOUT_TEST_TELEMETRY=telemetry)
        journal = tmp_path / f"{name}.journal"
        command = [sys.executable, str(WORKLOAD), str(journal), "normal", "5"]
        subprocess.run(command, env=environ, check=True, capture_output=True, timeout=120)
        marks = [line.split()[0] for line in journal.read_text().splitlines()]
        return float(next(m for m in marks if m.startswith("rate:")).removeprefix("rate:"))

    # Whatever else the machine does only slows: the best of three counts, taken in turns.
    best: dict[tuple[str, str], float] = {}
    for turn in range(3):
        for number, state in enumerate(fault_proxy.STATES):
            for telemetry in "01":
                name = f"rate-{number}-{telemetry}-{turn}"
                found = rate(state, telemetry, name)
                best[state, telemetry] = max(best.get((state, telemetry), 0.0), found)
    shares = {state: best[state, "1"] / best[state, "0"] for state in fault_proxy.STATES}
    report.throughput(shares)
    assert min(shares.values()) >= 0.98, shares


_MANY = """
import json, os, time
from opentelemetry.sdk.trace import TracerProvider
from otel_rollout import IdGenerator, RolloutSpanProcessor, WeaveSpanExporter
from tests.faults.rollouts import roll_out
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
exporter = WeaveSpanExporter()
processor = RolloutSpanProcessor(exporter)
provider = TracerProvider(id_generator=IdGenerator())
provider.add_span_processor(processor)
roll_out(provider, 1000)
before, most = rss(), 0
began = time.monotonic()
for _ in range(99):
    roll_out(provider, 1000, "x" * 500)
    most = max(most, rss())
    time.sleep(0.05)
took = time.monotonic() - began
provider.force_flush(1)
time.sleep(1)
most = max(most, rss())
provider.shutdown()
print(json.dumps([before, most, took, dict(exporter.counters), dict(processor.counters)]))
"""


@pytest.mark.timeout(1800)
def test_a_hundred_thousand_spans(bench: Bench, tmp_path: Path) -> None:
    bench.proxy.set(fault_proxy.DOWN)
    environ = bench.environ(tmp_path / "store", "many")
    command = [sys.executable, "-c", _MANY]
    done = subprocess.run(
        command, env=environ, check=True, capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    before, most, took, counters, of_processor = json.loads(done.stdout.splitlines()[-1])
    bench.proxy.set(fault_proxy.UP)
    started = time.monotonic()
    pushed = push(environ)
    seconds = time.monotonic() - started
    facts: dict[str, Any] = {
        "grown_mb": (most - before) / 1e6,
        "traced_s": took,
        "push_s": seconds,
        "delivered": len(bench.ids("many")),
    }
    report.many(facts)
    assert counters["spooled"] == 100_000, (counters, of_processor)
    assert facts["grown_mb"] <= 100
    assert pushed.returncode == 0, pushed.stderr
    assert facts["delivered"] == 100_000

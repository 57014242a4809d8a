"""Nothing lost: processes that end in every way, a server that fails in every way.

A telling slice of what `make faults` runs in full (tests/faults).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import IdGenerator, RolloutSpanProcessor, WeaveSpanExporter, settings
from otel_rollout.delivery_state import delivery_state
from otel_rollout.diagnostics import forget_said
from otel_rollout.exporters import spool
from otel_rollout.exporters.weave import dead_letters
from otel_rollout.settings import Settings
from tests.faults.rollouts import roll_out
from tests.faults.scenario import Bench, Outcome, push, secrets_in
from tests.faults.workload import CONCURRENT
from tests.servers import fault_proxy
from tests.servers.fault_proxy import FaultProxy
from tests.servers.weave_process import WeaveServer

_projects = (f"delivery-{number}" for number in itertools.count(1))


@pytest.fixture
def proxy(weave_server: WeaveServer) -> Iterator[FaultProxy]:
    with FaultProxy(weave_server.url) as proxy:
        yield proxy


@pytest.fixture
def bench(weave_server: WeaveServer, proxy: FaultProxy, tmp_path: Path) -> Bench:
    return Bench(weave_server, proxy, tmp_path)


@pytest.fixture
def project() -> str:
    return next(_projects)


@pytest.fixture
def environ(bench: Bench, project: str, tmp_path: Path) -> dict[str, str]:
    return bench.environ(tmp_path / "store", project)


class Process:
    """A provider with our processor and exporter, in this process."""

    def __init__(self, **changes: Any) -> None:
        loaded = settings.load()
        values = {field: getattr(loaded, field) for field in vars(loaded)}
        self.settings = Settings(**{**values, **changes})
        self.exporter = WeaveSpanExporter(self.settings)
        self.provider = TracerProvider(id_generator=IdGenerator())
        self.provider.add_span_processor(RolloutSpanProcessor(self.exporter))

    def roll_out(self, count: int = 1, output: Any = "done", **more: Any) -> list[str]:
        return roll_out(self.provider, count, output, **more)


@pytest.fixture
def process(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes processes whose calls go through the proxy."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    forget_said()
    made: list[Process] = []

    def make(**changes: Any) -> Process:
        made.append(Process(**changes))
        return made[-1]

    yield make
    for one in made:
        one.provider.shutdown()


def assert_nothing_lost(outcome: Outcome) -> None:
    assert outcome.lost == 0, outcome
    assert outcome.unknown <= CONCURRENT * outcome.processes * (not outcome.exit_s), outcome
    assert outcome.changed == 0, outcome
    assert outcome.push_status == 0, outcome
    assert outcome.secrets == [], outcome


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (fault_proxy.UP, "normal"),
        (fault_proxy.UP, "SIGKILL"),
        (fault_proxy.DOWN, "SIGTERM"),
        (fault_proxy.BUSY, "os_exit"),
        (fault_proxy.LIMITED, "fork"),
        (fault_proxy.RESET, "exception"),
        (fault_proxy.ANSWER_LOST, "SIGKILL"),
    ],
)
def test_ends_and_states(bench: Bench, state: str, end: str) -> None:
    outcome = bench.run(state, end, processes=3, seconds=1.0, state_lasts=1.5)

    assert_nothing_lost(outcome)
    assert outcome.duplicated == 0, outcome
    assert outcome.ended > 50
    assert all(seconds < 4 for seconds in outcome.exit_s), outcome


def test_a_slow_line_at_exit(bench: Bench) -> None:
    outcome = bench.run(fault_proxy.SLOW, "normal", processes=1, seconds=0.3)

    assert_nothing_lost(outcome)
    assert all(seconds < 4 for seconds in outcome.exit_s), outcome


def test_retry_after_is_honoured(process: Any, proxy: FaultProxy) -> None:
    proxy.retry_after = 2.0
    proxy.set(fault_proxy.LIMITED)
    one = process()
    one.roll_out()
    time.sleep(1.5)
    proxy.set(fault_proxy.UP)

    assert one.provider.force_flush(20_000)

    refused, *later = [seen.time for seen in proxy.seen]
    assert later[0] - refused >= 1.9


def test_a_large_output_never_takes_its_neighbours_along(
    process: Any, weave_server: WeaveServer, proxy: FaultProxy, project: str
) -> None:
    """11 MB go as a file, though the server takes nothing above 1 MiB."""
    one = process()
    for state in (fault_proxy.UP, fault_proxy.TOO_LARGE):
        proxy.set(state)
        output = json.dumps("x" * 11_000_000 + state)
        before = one.roll_out(3)
        (large,) = one.roll_out(1, output)
        after = one.roll_out(3)
        assert one.provider.force_flush(60_000)
        calls = {call.id: call for call in weave_server.client(project).get_calls()}
        assert {*before, large, *after} <= set(calls)
        parts = calls[large].output
        parts = parts if isinstance(parts, list) else [parts]
        assert "".join(part.data.decode() for part in parts) == "x" * 11_000_000 + state
    assert one.exporter.counters["dead_letters"] == 0


def test_what_is_refused_for_good_is_put_aside(
    process: Any, weave_server: WeaveServer, environ: dict[str, str], project: str
) -> None:
    one = process(keep_local=True)
    good = one.roll_out(2)
    assert one.provider.force_flush(20_000)
    weave_server.fail_next(f"/local/{project}/calls/complete", 422, times=100)
    bad = one.roll_out(1)
    assert one.provider.force_flush(20_000)
    weave_server.request("/debug/failures", [])
    good += one.roll_out(2)
    assert one.provider.force_flush(20_000)
    ids = {call.id for call in weave_server.client(project).get_calls()}

    assert ids == set(good)
    assert one.exporter.counters["dead_letters"] == len(bad) == 1
    (file,) = dead_letters.files(one.settings.spool)
    (letter,) = dead_letters.read(file)
    assert letter["status"] == 422
    assert letter["reason"].startswith("422")
    assert letter["body"]["id"] == bad[0]
    one.provider.shutdown()

    weave_server.fail_next(f"/local/{project}/calls/complete", 422, times=100)
    still = push(environ)
    weave_server.request("/debug/failures", [])
    assert still.returncode == 1
    assert "1 records are refused for good" in still.stderr
    done = push(environ)
    assert done.returncode == 0, done.stderr
    assert dead_letters.files(one.settings.spool) == []
    assert bad[0] in {call.id for call in weave_server.client(project).get_calls()}


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_one_line_and_the_data_stays(
    process: Any,
    weave_server: WeaveServer,
    environ: dict[str, str],
    project: str,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    weave_server.fail_next(f"/local/{project}/", status, times=1000)
    one = process()
    ids = one.roll_out(3)
    assert not one.provider.force_flush(1_000)
    one.provider.shutdown()
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len([text for text in said if "credentials" in text]) == 1
    assert environ["WANDB_API_KEY"] not in caplog.text
    refused = push(environ)
    assert refused.returncode == 1
    weave_server.request("/debug/failures", [])

    assert push(environ).returncode == 0
    assert {call.id for call in weave_server.client(project).get_calls()} == set(ids)


def test_push_works_on_a_copy_resumes_and_counts(
    process: Any,
    weave_server: WeaveServer,
    proxy: FaultProxy,
    environ: dict[str, str],
    project: str,
    tmp_path: Path,
) -> None:
    proxy.set(fault_proxy.DOWN)
    one = process()
    ids = one.roll_out(40)
    one.provider.shutdown()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy)
    before = weave_server.counts()

    failed = push(environ, str(copy), "--patience", "0")
    proxy.set(fault_proxy.UP)
    done = push(environ, str(copy))
    again = push(environ, str(copy / "spool"))

    assert (failed.returncode, done.returncode, again.returncode) == (1, 0, 0)
    assert "40 records" not in failed.stdout
    assert "80 records confirmed by the server, 40 calls sent, 40 feedbacks sent" in done.stdout
    assert "80 records confirmed by the server\n" in again.stdout
    assert {call.id for call in weave_server.client(project).get_calls()} == set(ids)
    # What the copy's origin delivers later is recognised.
    assert push(environ).returncode == 0
    assert weave_server.counts()["duplicates"] == before["duplicates"]


def test_delivered_segments_are_forgotten_or_kept(process: Any, tmp_path: Path) -> None:
    for keep in (False, True):
        one = process(keep_local=keep, directory=tmp_path / str(keep))
        one.roll_out(5)
        assert one.provider.force_flush(20_000)
        one.provider.shutdown()
        assert len(spool.segments(one.settings.spool)) == keep


def test_records_of_a_later_version_are_not_removed(
    process: Any, bench: Bench, project: str, proxy: FaultProxy
) -> None:
    proxy.set(fault_proxy.DOWN)
    one = process()
    ids = one.roll_out(2)
    one.provider.shutdown()
    (segment,) = spool.segments(one.settings.spool)
    with segment.open("ab") as file:
        file.write(spool.encode_record({"kind": "verdict", "id": "v"}, b"{}"))
    proxy.set(fault_proxy.UP)
    for _ in range(2):
        process().provider.shutdown()

    assert bench.ids(project) == set(ids)
    assert spool.segments(one.settings.spool) == [segment]


def test_what_the_server_has_lost_is_sent_again(
    process: Any, weave_server: WeaveServer, bench: Bench, project: str, environ: dict[str, str]
) -> None:
    one = process(keep_local=True)
    ids = one.roll_out(5)
    assert one.provider.force_flush(20_000)
    one.provider.shutdown()
    before = weave_server.counts()
    gone = {"project_id": f"local/{project}", "call_ids": ids[1:3]}
    weave_server.request("/calls/delete", gone)

    done = push(environ)

    assert done.returncode == 0, done.stderr
    assert bench.ids(project) == set(ids)
    assert weave_server.counts()["duplicates"] - before["duplicates"] == 2


def test_orphans_are_taken_over_by_a_live_process(
    process: Any, weave_server: WeaveServer, proxy: FaultProxy, bench: Bench, project: str
) -> None:
    """The way of a Ray driver: it has traced nothing itself, and delivers at its exit."""
    proxy.set(fault_proxy.DOWN)
    one = process()
    ids = one.roll_out(20)
    one.provider.shutdown()
    proxy.set(fault_proxy.UP)
    driver = process()
    driver.provider.shutdown()

    assert bench.ids(project) == set(ids)
    assert spool.segments(driver.settings.spool) == []
    assert driver.exporter.counters["taken_over"] == 1


def test_unwritable_spool(
    process: Any,
    weave_server: WeaveServer,
    project: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Calls go to the server from memory; when the folder can be written they are spooled."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    one = process(directory=blocked)
    ids = one.roll_out(10)
    assert one.provider.force_flush(20_000)
    assert {call.id for call in weave_server.client(project).get_calls()} == set(ids)
    assert one.exporter.counters["spooled"] == 0
    warnings = [r for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(warnings) == 1

    blocked.unlink()
    time.sleep(1.1)
    ids += one.roll_out(10)
    assert one.provider.force_flush(20_000)
    assert {call.id for call in weave_server.client(project).get_calls()} == set(ids)
    assert one.exporter.counters["spooled"] == 10
    assert one.exporter.counters["dropped_unwritable"] == 0


_FULL_DISK = """
import json, os, sys, time
from opentelemetry.sdk.trace import TracerProvider
from otel_rollout import IdGenerator, RolloutSpanProcessor, WeaveSpanExporter
from tests.faults.rollouts import roll_out
exporter = WeaveSpanExporter()
provider = TracerProvider(id_generator=IdGenerator())
provider.add_span_processor(RolloutSpanProcessor(exporter))
store = os.environ["OTEL_ROLLOUT_DIR"]
filler = os.path.join(store, "filler")
ids = roll_out(provider, 5); provider.force_flush()
with open(filler, "wb", buffering=0) as file:
    try:
        while True: file.write(b"x" * 4096)
    except OSError: pass
began = time.monotonic()
ids += roll_out(provider, 50, "x" * 3000); provider.force_flush()
took = time.monotonic() - began
full = dict(exporter.counters)
os.unlink(filler)
time.sleep(1.1)
ids += roll_out(provider, 5); provider.force_flush()
provider.shutdown()
print(json.dumps([ids, took, full, dict(exporter.counters)]))
"""


def test_full_disk(environ: dict[str, str], tmp_path: Path) -> None:
    """A file system of 1 MiB fills up, and has room again; without credentials."""
    store = tmp_path / "small"
    store.mkdir()
    script = tmp_path / "script.py"
    script.write_text(_FULL_DISK)
    keep = tmp_path / "kept"
    mounted = (
        f"mount -t tmpfs -o size=1m tmpfs {store} && {sys.executable} {script} && "
        f"cp -r {store} {keep}"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*command, f"mount -t tmpfs tmpfs {store}"], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system of their own")
    environ = {**environ, "OTEL_ROLLOUT_DIR": str(store), "WANDB_API_KEY": "", "NETRC": os.devnull}
    done = subprocess.run(
        [*command, mounted], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ids, took, full, counters = json.loads(done.stdout)

    assert took < 10
    assert done.stderr.count("cannot be written") == 1
    assert "Traceback" not in done.stderr
    assert full["spooled"] < 60
    assert counters["spooled"] == len(ids) == 60
    found = [r for path in spool.segments(keep / "spool") for r in spool.read(path)]
    assert sorted(r.id for r in found if r.kind == spool.CALL) == sorted(ids)


def test_metrics_and_doctor(process: Any, proxy: FaultProxy) -> None:
    reader = InMemoryMetricReader()
    from opentelemetry import metrics

    metrics.set_meter_provider(MeterProvider([reader]))
    one = process()
    one.roll_out(4)
    assert one.provider.force_flush(20_000)
    proxy.set(fault_proxy.DOWN)
    one.roll_out(3)
    one.provider.force_flush(500)

    found: dict[str, float] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            if "error.type" not in (point.attributes or {}):
                found[metric.name] = getattr(point, "value", 0)  # the last component is ours
    state = delivery_state(one.settings)

    assert found["otel.sdk.exporter.span.exported"] == 4
    assert found["otel.sdk.exporter.span.inflight"] == 3
    assert found["otel_rollout.exporter.span.spooled"] == 7
    assert found["otel_rollout.exporter.lag"] > 0
    assert (state.segments, state.being_written, state.waiting_calls) == (1, 1, 3)
    assert state.waiting_feedback == 3
    assert state.lost == 0


def test_secrets_stand_nowhere(process: Any, proxy: FaultProxy, tmp_path: Path) -> None:
    one = process()
    for state in fault_proxy.STATES:
        proxy.set(state)
        one.roll_out(2)
        one.provider.force_flush(300)
    one.provider.shutdown()

    assert list(tmp_path.rglob("*.spool"))
    assert secrets_in(tmp_path) == []


def test_the_wandb_run_of_the_same_project(
    process: Any, weave_server: WeaveServer, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Run:
        entity, id, step = "local", "run1", 7

    Run.project = project  # type: ignore[attr-defined]
    wandb = type(sys)("wandb")
    wandb.run = Run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    one = process()
    (same,) = one.roll_out()
    assert one.provider.force_flush(20_000)  # the run is looked at on the worker thread
    Run.project = "other"  # type: ignore[attr-defined]
    (other,) = one.roll_out()
    assert one.provider.force_flush(20_000)

    assert weave_server.posted(same)[0]["wb_run_id"] == f"local/{project}/run1"
    assert weave_server.posted(same)[0]["wb_run_step"] == 7
    assert "wb_run_id" not in weave_server.posted(other)[0]

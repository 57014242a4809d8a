"""Pending segments: at whatever point a process dies, what is left tells what is still to do."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.delivery_state import delivery_state
from otel_rollout.exporters import retention, spool
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.weave import pending as pending_module
from otel_rollout.exporters.weave.pending import KEPT, ROOT, Pending
from otel_rollout.exporters.weave.settling import settle
from otel_rollout.settings import Settings

GiB = 1 << 30


def call(trace: str, number: int, size: int = 10, **more: Any) -> tuple[dict[str, Any], bytes]:
    meta = {"kind": spool.CALL, "id": f"{trace}.{number}", "trace": trace, "project": "p", **more}
    body = {"id": meta["id"], "trace_id": trace, "attributes": {}, "output": "x" * size}
    return meta, orjson.dumps(body)


def feedback(trace: str) -> tuple[dict[str, Any], bytes]:
    meta = {"kind": spool.FEEDBACK, "id": f"{trace}.f", "trace": trace}
    return meta, b'{"id":"%s.f","call_id":"%s.0"}' % (trace.encode(), trace.encode())


def spooled(directory: Path) -> dict[str, bytes]:
    """What is in the spool, by id; the same record twice is the same to the byte."""
    found: dict[str, bytes] = {}
    for path in spool.segments(directory):
        for record in spool.read(path):
            if record.kind in (spool.CALL, spool.FEEDBACK):
                assert ROOT not in record.meta
                assert KEPT not in record.meta
                assert found.setdefault(record.id, record.body) == record.body
    return found


class Process:
    """A process that holds: its pending segments, and the spool that it writes."""

    def __init__(self, directory: Path, *, keep_deaths: bool = False, max_disk: int = GiB) -> None:
        self.counters: Counter[str] = Counter()
        self.directory = directory
        self.spool = SegmentWriter(directory)
        self.pending = Pending(directory, max_disk, keep_deaths=keep_deaths, counters=self.counters)

    def write(self, meta: dict[str, Any], body: bytes) -> None:
        self.spool.append(meta, body)

    def settle(self, trace: str, kept: str | None) -> None:
        self.pending.settle(trace, kept, self.write)

    def died(self, folder: Path) -> Path:
        """A store as it would be if the process died now: its files, and nobody's locks."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.directory, folder)
        return folder


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.sampled_from(["span", "span", "span", "keep", "drop", "wait"]),
        st.integers(0, 900),
    ),
    max_size=40,
)


@given(ACTIONS, st.booleans())
def test_a_death_at_any_point(actions: list[tuple[str, str, int]], keep_deaths: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_module, "_SEGMENT_BYTES", 2000)
        patch.setattr(pending_module, "_WORTH_REMOVING", 1000)
        (Path(folder) / "live").mkdir()
        one = Process(Path(folder) / "live", keep_deaths=keep_deaths)
        ended: set[str] = set()  # whose root has ended without a verdict
        held: dict[str, set[str]] = {}
        kept: set[str] = set()
        done: set[str] = set()
        for number, (trace, action, size) in enumerate(actions):
            if trace in done or (action == "wait" and trace in ended):
                continue
            added = call(trace, number, size)
            if action == "span":
                one.pending.add(trace, [added])
            elif action == "wait":
                one.pending.add(trace, [({**added[0], ROOT: True}, added[1])])
                ended.add(trace)
            elif action == "keep":
                one.pending.add(trace, [({**added[0], ROOT: True, KEPT: "r"}, added[1])])
                at_the_verdict = one.died(Path(folder) / "verdict")
                one.settle(trace, "r")
                settle(at_the_verdict, Counter(), everywhere=True)
                assert {*held.get(trace, ()), added[0]["id"]} <= spooled(at_the_verdict).keys()
            else:
                one.settle(trace, None)
            if action != "drop":
                held.setdefault(trace, set()).add(added[0]["id"])
            if action in ("keep", "drop"):
                done.add(trace)
                names = held.pop(trace, set())
                kept |= names if action == "keep" else set()

            dead = one.died(Path(folder) / "dead")
            settle(dead, Counter(), everywhere=True)
            expected = set(kept)
            for other, names in held.items():
                if keep_deaths and other not in ended:
                    expected |= names
            assert spooled(dead).keys() == expected
            assert spool.pending(dead) == []
        one.pending.close()
        if not held:
            assert spool.pending(one.directory) == []
        assert one.counters["dropped_held"] == 0


def test_the_root_says_which_rule_kept_it(tmp_path: Path) -> None:
    one = Process(tmp_path)
    meta, body = call("a", 0)
    one.pending.add("a", [call("a", 1), ({**meta, ROOT: True}, body), feedback("a")])
    one.settle("a", "reward<0.1")

    found = spooled(tmp_path)
    assert orjson.loads(found["a.0"])["attributes"] == {"rollout": {"kept": "reward<0.1"}}
    assert orjson.loads(found["a.1"])["attributes"] == {}
    assert "a.f" in found


def test_settled_twice_is_settled_once(tmp_path: Path) -> None:
    one = Process(tmp_path / "live", keep_deaths=True)
    one.pending.add("a", [call("a", 0), call("a", 1)])
    dead = one.died(tmp_path / "dead")
    again = one.died(tmp_path / "again")
    assert settle(dead, Counter(), everywhere=True) == 1
    # Whoever settled died before it removed the pending segment.
    for path in spool.pending(again):
        shutil.copy(path, dead)
    counters: Counter[str] = Counter()
    settle(dead, counters, everywhere=True)

    assert spooled(dead).keys() == {"a.0", "a.1"}
    assert settle(dead, counters, everywhere=True) == 0


def test_a_live_process_is_left_alone(tmp_path: Path) -> None:
    one = Process(tmp_path, keep_deaths=True)
    one.pending.add("a", [call("a", 0)])
    settle_elsewhere = (
        "import sys; from collections import Counter; from pathlib import Path;"
        "from otel_rollout.exporters.weave.settling import settle;"
        "print(settle(Path(sys.argv[1]), Counter(), everywhere=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", settle_elsewhere, str(tmp_path)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.strip() == "0"
    one.settle("a", "r")
    assert spooled(tmp_path).keys() == {"a.0"}


def test_what_is_dropped_for_its_death_is_counted(tmp_path: Path) -> None:
    one = Process(tmp_path / "live")
    one.pending.add("a", [call("a", 0), call("a", 1), feedback("a")])
    dead = one.died(tmp_path / "dead")
    counters: Counter[str] = Counter()
    settle(dead, counters, everywhere=True)

    assert counters["dropped_held"] == 2
    assert spooled(dead) == {}


def test_the_share_of_the_disk_is_kept(tmp_path: Path) -> None:
    one = Process(tmp_path, max_disk=4_000_000)
    for number in range(40):
        trace = f"t{number:02}"
        one.pending.add(trace, [call(trace, n, size=20_000) for n in range(5)])
    assert retention.used(tmp_path) < 2_000_000
    for number in range(40):
        one.settle(f"t{number:02}", "r")

    kept = {name.split(".")[0] for name in spooled(tmp_path)}
    assert 5 < len(kept) < 12
    assert min(kept) == f"t{40 - len(kept)}"
    assert len(spooled(tmp_path)) == 5 * len(kept)  # whole
    assert one.counters["dropped_held"] == 5 * (40 - len(kept))


def test_one_that_stays_open_does_not_keep_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "_SEGMENT_BYTES", 100_000)
    one = Process(tmp_path)
    one.pending.add("open", [call("open", 0)])
    for number in range(200):
        one.pending.add(f"t{number}", [call(f"t{number}", 0, size=20_000)])
        one.settle(f"t{number}", None)

    assert retention.used(tmp_path) < 700_000
    one.settle("open", "r")
    assert spooled(tmp_path).keys() == {"open.0"}


def test_a_full_disk_keeps_them_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Process(tmp_path)
    one.pending.add("a", [call("a", 0)])
    with monkeypatch.context() as patch:

        def full(descriptor: int, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "write", full)
        one.pending.add("a", [call("a", 1)])
        one.pending.add("b", [call("b", 0)])
    one.settle("a", "r")
    one.settle("b", "r")

    assert spooled(tmp_path).keys() == {"a.0", "a.1", "b.0"}


def test_doctor_tells_of_them(tmp_path: Path) -> None:
    one = Process(tmp_path / "spool")
    one.pending.add("a", [call("a", 0)])

    state = delivery_state(Settings(directory=tmp_path))

    assert state.held_bytes == retention.used(tmp_path / "spool") > 0
    assert state.segments == 0
    assert any(line.startswith("held ") for line in state.lines())


def test_pending_segments_are_no_segments(tmp_path: Path) -> None:
    one = Process(tmp_path)
    one.pending.add("a", [call("a", 0)])
    (path,) = spool.pending(tmp_path)

    assert spool.segments(tmp_path) == []
    assert spool.writer_of(path) == (spool.host_name(), os.getpid())
    assert spool.is_being_written(path)
    assert retention.used(tmp_path) == path.stat().st_size

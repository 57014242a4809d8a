"""One end of a process in one state of the server: run for real, then everything is counted."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_rollout.exporters import spool
from tests.servers import fault_proxy
from tests.servers.fault_proxy import FaultProxy
from tests.servers.weave_process import API_KEY, WeaveServer

ROOT: Final = Path(__file__).resolve().parents[2]
WORKLOAD: Final = Path(__file__).with_name("workload.py")
ABRUPT: Final = ("SIGKILL", "SIGTERM", "os_exit")
ORDERLY: Final = ("normal", "exception", "sys_exit", "fork")
ENDS: Final = (*ORDERLY, *ABRUPT)
WITHIN_S: Final = 0.1
"""What ended longer than this before an abrupt death must be there."""
#: States that would never let a push through: they pass while it tries.
PASSING: Final = frozenset(
    {fault_proxy.DOWN, fault_proxy.BUSY, fault_proxy.LIMITED, fault_proxy.RESET}
)


_numbers = itertools.count(1)


@dataclass
class Outcome:
    """What became of the spans of some processes."""

    processes: int = 0
    ended: int = 0
    lost: int = 0
    """Not on the server, though they ended long enough before the death."""
    last_moment: int = 0
    """Not on the server, and ended in the last 100 ms before an abrupt death."""
    duplicated: int = 0
    """Sent twice, and merged by the server."""
    changed: int = 0
    """Sent twice with other content, which no server could merge."""
    unknown: int = 0
    """On the server, but not in a journal: killed between a span's end and the note of it."""
    longest_stall_s: float = 0.0
    """Longest that a process got no turn in the second before its death."""
    before_push: int = 0
    """On the server before the push."""
    exit_s: list[float] = field(default_factory=list)
    """From the end of the rollout to behind the provider's shutdown."""
    push_status: int = -1
    push_s: float = 0.0
    push_said: str = ""
    secrets: list[str] = field(default_factory=list)


class Bench:
    """Processes, a proxy and W&B's server code, for one scenario after the other."""

    def __init__(self, server: WeaveServer, proxy: FaultProxy, folder: Path, seed: int = 0) -> None:
        self.server = server
        self.proxy = proxy
        self.folder = folder
        self._random = random.Random(seed)

    def environ(self, store: Path, project: str, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "WANDB_"))}
        return {
            **kept,
            **self.server.environ(),
            "WANDB_BASE_URL": self.proxy.url,
            "WF_TRACE_SERVER_URL": self.proxy.url,
            "OTEL_ROLLOUT_DIR": str(store),
            "OTEL_EXPORTER_WEAVE_PROJECT": f"local/{project}",
            "PYTHONPATH": str(ROOT),
            **more,
        }

    def run(
        self,
        state: str,
        end: str,
        *,
        processes: int,
        seconds: float = 1.5,
        state_lasts: float = 3.0,
        size: int = 300,
    ) -> Outcome:
        """Let processes roll out and end in `state`, push, and count."""
        project = f"faults-{os.getpid()}-{next(_numbers)}"
        folder = self.folder / project
        folder.mkdir()
        store = folder / "store"
        before = self.server.counts()
        self.proxy.set(state)
        environ = self.environ(store, project, OTEL_ROLLOUT_TEST_SIZE=str(size))
        outcome = Outcome(processes=processes)
        due: set[str] = set()
        late: set[str] = set()
        for spans, death in self._end_all(folder, end, processes, seconds, environ, outcome):
            for span, ended in spans:
                (due if death is None or ended < death - WITHIN_S else late).add(span)
        self.push(state, environ, outcome, project, state_lasts)
        found = self.ids(project)
        outcome.ended = len(due | late)
        outcome.lost = len(due - found)
        outcome.last_moment = len(late - found)
        outcome.unknown = len(found - due - late)
        after = self.server.counts()
        outcome.duplicated = after["duplicates"] - before["duplicates"]
        outcome.changed = after["changed"] - before["changed"]
        outcome.secrets = secrets_in(folder)
        return outcome

    def ids(self, project: str) -> set[str]:
        """The ids of all calls that the server has."""
        query = {"project_id": f"local/{project}", "columns": ["id"]}
        url = f"{self.server.url}/calls/stream_query"
        import base64
        import json
        import urllib.request

        token = base64.b64encode(f"api:{API_KEY}".encode()).decode()
        request = urllib.request.Request(
            url, json.dumps(query).encode(), {"Authorization": f"Basic {token}"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return {json.loads(line)["id"] for line in answer if line.strip()}

    def _end_all(
        self,
        folder: Path,
        end: str,
        count: int,
        seconds: float,
        environ: dict[str, str],
        outcome: Outcome,
    ) -> Iterator[tuple[list[tuple[str, float]], float | None]]:
        children = []
        for number in range(count):
            journal = folder / f"journal-{number}"
            journal.touch()
            how = "wait" if end.startswith("SIG") else end
            length = seconds * (0.3 + self._random.random() * 0.7)
            command = [sys.executable, str(WORKLOAD), str(journal), how, f"{length:.3f}"]
            log = (folder / f"log-{number}").open("wb")
            child = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
            log.close()
            children.append((journal, child, length))
        waiting = [threading.Thread(target=self._end, args=(end, *child)) for child in children]
        deaths: dict[Path, float] = {}
        self._deaths = deaths
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        for journal, child, _ in children:
            spans, marks = read_journal(journal)
            if "gone" in marks and "exit" in marks:
                outcome.exit_s.append(marks["gone"] - marks["exit"])
            assert spans, (folder, end, child.returncode)
            death = deaths.get(journal) if end.startswith("SIG") else marks.get("death")
            if death is not None:
                # A process that gets no turn cannot write: that time does not count.
                stall = longest_stall(journal, death)
                outcome.longest_stall_s = max(outcome.longest_stall_s, stall)
                death -= lateness(stall)
            yield spans, death

    def _end(self, end: str, journal: Path, child: subprocess.Popen[bytes], length: float) -> None:
        if end.startswith("SIG"):
            while not read_journal(journal)[0] and child.poll() is None:
                time.sleep(0.02)
            time.sleep(length)
            self._deaths[journal] = time.monotonic()
            child.send_signal(getattr(signal, end))
            child.wait(60)
        else:
            child.wait(180)
            self._deaths[journal] = time.monotonic()

    def push(
        self,
        state: str,
        environ: dict[str, str],
        outcome: Outcome,
        project: str,
        state_lasts: float,
    ) -> None:
        """Push in the state, or until it passes."""
        outcome.before_push = len(self.ids(project))
        with self._passing(state, state_lasts):
            started = time.monotonic()
            done = push(environ)
            outcome.push_s = time.monotonic() - started
        outcome.push_status = done.returncode
        outcome.push_said = done.stdout + done.stderr

    @contextmanager
    def _passing(self, state: str, seconds: float) -> Iterator[None]:
        """Let a state that stops everything pass after some seconds."""
        if state not in PASSING:
            yield
            return
        timer = threading.Timer(seconds, self.proxy.set, (fault_proxy.UP,))
        timer.start()
        yield
        timer.join()


def push(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own."""
    program = "from otel_rollout.cli import main; main()"
    command = [sys.executable, "-c", program, "push", "--patience", "120", *arguments]
    return subprocess.run(
        command, env=environ, check=False, capture_output=True, text=True, timeout=600
    )


def read_journal(path: Path) -> tuple[list[tuple[str, float]], dict[str, float]]:
    """The ended spans with their times, and the other marks."""
    spans = []
    marks = {}
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0] == "span":
            spans.append((parts[1], float(parts[2])))
        elif len(parts) == 2:
            marks[parts[0]] = float(parts[1])
    return spans, marks


def longest_stall(path: Path, death: float) -> float:
    """How long, in seconds, a thread that wanted to got no turn in a process's last seconds.

    More than the 20 ms between two beats, that is; the time from the last beat to the death counts.
    """
    beats = [
        float(at)
        for what, _, at in (line.rpartition(" ") for line in path.read_text().splitlines())
        if what == "beat" and death - 5 <= float(at) <= death
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise([*beats, death])]
    return max([0.0, *(gap - 0.02 for gap in gaps)])


def lateness(stall: float) -> float:
    """What a stall excuses beyond the 100 ms: the writer needs a turn to wake and one to write."""
    return 2 * stall if stall > 0.05 else 0.0


def secrets_in(folder: Path) -> list[str]:
    """Files below a folder that hold the API key, plain or as it stands in the header."""
    import base64

    wanted = [API_KEY.encode(), base64.b64encode(f"api:{API_KEY}".encode()), b"Authorization"]
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(secret in path.read_bytes() for secret in wanted)
    ]


def left(store: Path) -> list[Path]:
    """Segments that are still in a store."""
    return spool.segments(store / "spool")

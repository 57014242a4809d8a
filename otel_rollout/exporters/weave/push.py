"""Delivering a whole spool, one's own or one that was copied from elsewhere, and checking that.

It resumes where it, or a process before it, stopped. Segments of live processes are delivered as
far as they are written.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from otel_rollout.exporters import spool
from otel_rollout.exporters.claims import Claim, claim
from otel_rollout.exporters.spool import DroppedTrajectories, Record
from otel_rollout.exporters.weave import dead_letters, settling
from otel_rollout.exporters.weave.client import Client, Destination, ServerError
from otel_rollout.exporters.weave.projects import DEFAULT_PROJECT, Projects
from otel_rollout.exporters.weave.segment_delivery import SegmentDelivery
from otel_rollout.exporters.weave.sender import Sender

_ASKED_AT_ONCE: Final = 500
_LONGEST_PAUSE_S: Final = 30.0

_Result = TypeVar("_Result")


@dataclass
class Pushed:
    """What came of a push: numbers of calls and feedbacks, except where it says otherwise."""

    counters: Counter[str] = field(default_factory=Counter)
    projects: list[str] = field(default_factory=list)
    """Where it all belongs, as ``entity/project``."""
    segments: int = 0
    """Segments that were looked at."""
    confirmed: int = 0
    """What the server says it has."""
    missing: int = 0
    """What it should have, and has not."""
    busy: int = 0
    """Segments that live processes are delivering themselves."""
    dead_letters: int = 0
    unsettled: str | None = None
    """Why what dead processes had held for tail rules could not be settled."""
    stopped_by: str | None = None
    """Why the push ended early."""

    @property
    def complete(self) -> bool:
        """Whether everything is delivered."""
        return not (
            self.missing or self.busy or self.dead_letters or self.unsettled or self.stopped_by
        )


def spool_of(directory: Path) -> Path:
    """Return the folder of segments in a store, or ``directory`` itself where it is that."""
    inner = directory / "spool"
    return inner if inner.is_dir() else directory


class Push:
    """One push of one folder of segments.

    Args:
        directory: the segments.
        where: the destination.
        patience: seconds without any progress after which a server that fails is given up.
        fallback_project: for records that name none.
    """

    def __init__(
        self,
        directory: Path,
        where: Destination,
        *,
        patience: float,
        fallback_project: str | None = None,
    ) -> None:
        self.result = Pushed()
        self.on_progress: Callable[[Path, int], None] = lambda path, offset: None
        """Told of each segment how far it is delivered, in bytes."""
        self.on_wait: Callable[[str], None] = lambda text: None
        """Told, in words, what has to be waited for."""
        self._directory = directory
        self._client = Client(where)
        self._projects = Projects(self._client, fallback_project or DEFAULT_PROJECT)
        self._sender = Sender(self._client, self._projects, _nowhere, self.result.counters)
        self._dropped = DroppedTrajectories(directory)
        self._patience = patience
        self._random = random.Random(os.urandom(16))
        self._last_progress = time.monotonic()

    def run(self, *, forget: bool = False) -> Pushed:
        """Deliver, then ask the server for everything; with ``forget``, remove what it has."""
        try:
            self._settle()
            for dead in dead_letters.files(self._directory):
                self._resend(dead)
            for path in spool.segments(self._directory):
                self._push_segment(path, forget)
        except ServerError as error:
            self.result.stopped_by = str(error)
        self.result.projects = self._projects.found
        self.result.dead_letters = dead_letters.count(self._directory)
        self._client.close()
        return self.result

    def _settle(self) -> None:
        """Settle what dead processes had held, so that it is among what is delivered."""
        try:
            settling.settle(self._directory, self.result.counters, everywhere=True)
        except OSError as error:
            self.result.unsettled = str(error)

    def _push_segment(self, path: Path, forget: bool) -> None:
        self.result.segments += 1
        closed = not spool.is_being_written(path)
        ours = claim(path)
        if ours is None:
            self.result.busy += path.exists()
            return
        try:
            self._deliver(ours, closed=closed)
            missing = self._verify(ours)
            if missing:  # noted as delivered, and yet not there: once more
                ours.note(0)
                self._deliver(ours, closed=closed, asking=True)
                missing = self._verify(ours)
            self.result.missing += missing
            if forget and closed and not missing:
                ours.forget()
        finally:
            ours.release()

    def _deliver(self, ours: Claim, *, closed: bool, asking: bool = False) -> None:
        # In doubt from the start: somebody may have delivered from it, or from its original.
        ours.taken_up = True
        delivery = SegmentDelivery(ours, self._sender, self._dropped, self.result.counters)
        try:
            delivery.asks_always = asking
            while self._patiently(delivery.step):
                self.on_progress(ours.path, ours.offset)
            if closed:
                delivery.mark_done()
            self.on_progress(ours.path, ours.offset)
        finally:
            delivery.close()

    def _verify(self, ours: Claim) -> int:
        """Return how many of the segment's delivered records the server does not have."""
        aside = {
            letter["meta"].get("id")
            for letter in dead_letters.read(spool.beside(ours.path, spool.DEAD_SUFFIX))
        }
        missing = 0
        for records in self._delivered(ours, aside):
            gone = self._patiently(functools.partial(self._count_missing, records))
            missing += gone
            self.result.confirmed += len(records) - gone
        return missing

    def _count_missing(self, records: list[Record]) -> int:
        return len(self._sender.missing(records))

    def _delivered(self, ours: Claim, aside: set[str]) -> Iterator[list[Record]]:
        self._dropped.refresh()
        some: list[Record] = []
        for record in spool.read(ours.path):
            if record.end > ours.offset:
                break
            if record.kind not in (spool.CALL, spool.FEEDBACK):
                continue
            if record.trace in self._dropped or record.id in aside:
                continue
            some.append(Record(record.meta, b"", record.end))
            if len(some) >= _ASKED_AT_ONCE:
                yield some
                some = []
        if some:
            yield some

    def _resend(self, dead: Path) -> None:
        """Try dead letters once more; those that are refused again are put aside again."""
        segment = dead_letters.segment_of(dead)
        records = dead_letters.take_all(dead)

        def put_aside(record: Record, project_id: str, status: int, reason: str) -> None:
            dead_letters.put_aside(segment, record, project_id, status, reason)

        self._sender.put_aside = put_aside
        try:
            self._patiently(lambda: self._sender.ask(records))
            self._patiently(lambda: self._sender.send(records))
        except BaseException:
            if not dead.exists():
                dead_letters.tried(dead).rename(dead)
            raise
        dead_letters.tried(dead).unlink()

    def _patiently(self, attempt: Callable[[], _Result]) -> _Result:
        """Try until it works, with growing pauses; raises when nothing has worked for long."""
        pause = 0.25
        while True:
            try:
                result = attempt()
            except ServerError as error:
                since = time.monotonic() - self._last_progress
                wait = error.retry_after
                if wait is None:
                    wait = pause * (0.75 + self._random.random() / 2)
                if error.refuses_credentials or since + wait > self._patience:
                    raise
                left = self._patience - since
                self.on_wait(f"{error}: trying again in {wait:.1f} s, for {left:.0f} s more")
                time.sleep(wait)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            else:
                self._last_progress = time.monotonic()
                return result


def _nowhere(record: Record, project_id: str, status: int, reason: str) -> None:
    raise OSError(f"no place for {record.id} of {project_id}: {status} {reason}")

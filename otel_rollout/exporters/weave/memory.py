"""Calls that could not be written to the spool: kept in memory, bounded, and sent from there.

When the disk takes records again they go to the spool like all others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from otel_rollout.diagnostics import logger, say_once
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.spool import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Record

if TYPE_CHECKING:  # what talks to the server is loaded when there is something to say
    from otel_rollout.exporters.weave.sender import Sender

MAX_BYTES: Final = 64 << 20
_TRY_AGAIN_S: Final = 1.0


class Memory:
    """Records in memory, in order; ``dropped_unwritable`` counts what found no room."""

    def __init__(self, counters: Counter[str], max_bytes: int = MAX_BYTES) -> None:
        self._counters = counters
        self._max_bytes = max_bytes
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._next_try = 0.0
        self._in_doubt = False

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_waiting(self) -> bool:
        """Whether it is too early to try the disk again."""
        return bool(self._records) and time.monotonic() < self._next_try

    def put(self, meta: dict[str, Any], body: bytes) -> None:
        """Keep a record, or drop and count it where there is no room."""
        self._next_try = time.monotonic() + _TRY_AGAIN_S
        with self._lock:
            if self._bytes + len(body) > self._max_bytes:
                self._counters["dropped_unwritable"] += 1
                return
            self._records.append(Record(meta, body, 0))
            self._bytes += len(body)

    def write(self, writer: SegmentWriter) -> bool:
        """Move everything to the spool; raises ``OSError`` where it still takes nothing."""
        if not self._records:
            return False
        self._next_try = time.monotonic() + _TRY_AGAIN_S
        while self._records:
            with self._lock:
                if not self._records:
                    break
                record = self._records[0]
                writer.append(record.meta, record.body)
                self._records.popleft()
                self._bytes -= len(record.body)
            self._counters["spooled"] += record.kind == "call"
        say_once("writable-again", "the spool %s takes calls again", writer.directory)
        return True

    def send(self, sender: Sender) -> None:
        """Send everything; raises :class:`ServerError` when that has to wait."""
        from otel_rollout.exporters.weave.client import ServerError

        while self._records:
            batch = self._take()
            sender.put_aside = self.put_aside
            sender.in_doubt = False
            try:
                if self._in_doubt:
                    sender.ask(batch)
                    self._in_doubt = False
                sender.send(batch)
            except BaseException as error:
                if isinstance(error, ServerError):
                    self._in_doubt = self._in_doubt or sender.in_doubt
                with self._lock:
                    self._records.extendleft(reversed(batch))
                    self._bytes += sum(len(record.body) for record in batch)
                raise

    def _take(self) -> list[Record]:
        batch: list[Record] = []
        size = 0
        with self._lock:
            while self._records and len(batch) < MAX_BATCH_RECORDS:
                size += len(self._records[0].body)
                if batch and size > MAX_BATCH_BYTES:
                    break
                batch.append(self._records.popleft())
                self._bytes -= len(batch[-1].body)
        return batch

    def put_aside(self, record: Record, project_id: str, status: int, reason: str) -> None:
        """There is no file to put it aside in: it is counted as dropped."""
        raise OSError(f"{record.kind} {record.id} of {project_id}: {reason}")

    def give_up(self) -> None:
        """Count what is left as dropped: the process ends."""
        with self._lock:
            lost = len(self._records)
            self._records.clear()
            self._bytes = 0
        if lost:
            self._counters["dropped_unwritable"] += lost
            logger.warning("%d calls could be neither written nor sent: they are lost", lost)

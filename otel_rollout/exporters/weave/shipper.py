"""The shipper: sends this process's segments as they grow, and those that dead processes left.

It holds nothing but an offset: what is not delivered when the process dies is in the spool. An
unreachable server is one warning, and tried again with growing pauses for as long as it takes.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_rollout import delivery_state, self_metrics
from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.exporters import retention, spool
from otel_rollout.exporters.claims import claim
from otel_rollout.exporters.spool import DroppedTrajectories
from otel_rollout.exporters.weave import settling
from otel_rollout.exporters.weave.client import Client, Destination, ServerError
from otel_rollout.exporters.weave.memory import Memory
from otel_rollout.exporters.weave.projects import DEFAULT_PROJECT, Projects
from otel_rollout.exporters.weave.segment_delivery import SegmentDelivery
from otel_rollout.exporters.weave.sender import Sender
from otel_rollout.settings import Settings

GATHER_S: Final = 0.1
"""How long calls are gathered into a batch: an actor may have half a second left to live."""
ORPHANS_S: Final = 30.0
"""How often segments of dead processes are looked for."""
_FIRST_ORPHANS_S: Final = 3.0
_ROOM_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_LONGEST_RETRY_AFTER_S: Final = 3600.0
_REFUSED_PAUSE_S: Final = 120.0


class Shipper:
    """One daemon thread that delivers what :meth:`follow` names, then what is orphaned here.

    Args:
        where: the destination; ``None`` without credentials: then it only keeps the disk limit.
        settings: of this process.
        memory: calls that could not be written to the spool.
        counters: what is sent, damaged and dropped is counted here.
    """

    def __init__(
        self,
        where: Destination | None,
        settings: Settings,
        memory: Memory,
        counters: Counter[str],
    ) -> None:
        self._where = where
        self._settings = settings
        self._directory = settings.spool
        self._memory = memory
        self._counters = counters
        self._own: list[Path] = []
        self._size = 0  # of the last of them
        self._offset = 0  # up to which the first of them is delivered
        self._deliveries: dict[Path, SegmentDelivery] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._stop_by = math.inf
        self._closed = False  # whether the last segment will grow no more
        self._asked_to_wait = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._dropped = DroppedTrajectories(self._directory)
        self._next_orphans = time.monotonic() + _FIRST_ORPHANS_S
        self._next_room = 0.0
        self._next_settling = self._next_orphans
        self._noted: Counter[str] = Counter()
        # Jitter has a generator of its own: the training's is neither read nor moved.
        self._random = random.Random(os.urandom(16))

    # --- on other threads ------------------------------------------------------------------------

    def follow(self, segment: Path | None, size: int) -> None:
        """Deliver what is in ``segment`` up to ``size``, after the segments named before.

        Without a segment there is something in the memory only.
        """
        with self._changed:
            if segment is not None:
                if not self._own or self._own[-1] != segment:
                    self._own.append(segment)
                self._size = size
            self._changed.notify_all()
        self.start()

    def start(self) -> None:
        """Start the thread, where it does not run yet."""
        if self._thread is not None or self._stopping:
            return
        thread = threading.Thread(target=self._run, name="otel-rollout-shipper", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down; `push` delivers
            return
        self._thread = thread

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until everything spooled is delivered; False after ``timeout`` seconds."""
        if self._where is None:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self._ended or not self._is_behind(), timeout)

    def stop(self, timeout: float) -> None:
        """Deliver for at most ``timeout`` seconds more, then leave the rest in the spool.

        The segments are closed by then. Those of dead processes on this host are taken along; a
        server that fails is not waited for.
        """
        with self._changed:
            self._next_orphans = self._next_room = self._next_settling = 0.0
            self._stop_by = time.monotonic() + timeout
            self._closed = True
            self._stopping = True
            self._changed.notify_all()
            if self._thread is not None:
                self._changed.wait_for(lambda: self._ended, timeout)

    @property
    def lag_bytes(self) -> int:
        """Bytes of the segments of this process that are not delivered."""
        with self._changed:
            return self._lag()

    def _lag(self) -> int:
        lag = self._size if self._own else 0
        for segment in self._own[:-1]:
            with contextlib.suppress(OSError):
                lag += segment.stat().st_size
        return max(0, lag - self._offset)

    def _is_behind(self) -> bool:
        if len(self._own) > 1 or len(self._memory):
            return True
        return bool(self._own) and self._offset < self._size

    # --- on the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        # The exporter's own HTTP must not be traced, or every batch makes the next one.
        with suppress_instrumentation():
            try:
                self._loop()
            except Exception as error:
                report_internal_error("shipper", error)
            finally:
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()

    def _loop(self) -> None:
        client = Client(self._where) if self._where is not None else None
        sender = (
            Sender(
                client,
                Projects(client, self._settings.weave_project or DEFAULT_PROJECT),
                self._memory.put_aside,
                self._counters,
            )
            if client is not None
            else None
        )
        delivery_state.forget_old(self._settings.directory)
        pause = 0.0
        while True:
            last = self._wait(pause)
            if last and self._asked_to_wait:
                break
            try:
                self._keep_limit()
                self._settle()
                if sender is not None:
                    self._deliver_own(sender)
                    self._take_orphans(sender)
                pause = 0.0
                self._asked_to_wait = False
            except ServerError as error:
                pause = self._next_pause(pause, error)
            except Exception as error:
                report_internal_error("shipper", error)
                pause = self._next_pause(pause, None)
            if last:
                break
        for delivery in self._deliveries.values():
            delivery.close()
            delivery.claim.release()
        if client is not None:
            client.close()

    def _wait(self, pause: float) -> bool:
        """Wait for work, or ``pause`` seconds after a failure; True for the last round."""
        if pause:
            self._rest(time.monotonic() + pause)
        else:
            with self._changed:
                self._changed.wait_for(self._has_work, self._until_next_look())
        if not self._stopping and not pause:
            time.sleep(GATHER_S)
        return self._stopping

    def _rest(self, until: float) -> None:
        """Do nothing but keep the disk limit."""
        while not self._stopping and (left := until - time.monotonic()) > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, min(left, _ROOM_S))
            if left > _ROOM_S:
                self._keep_limit()

    def _has_work(self) -> bool:
        if self._stopping:
            return True
        return self._where is not None and self._is_behind()

    def _until_next_look(self) -> float:
        next_look = min(self._next_room, self._next_settling)
        if self._where is not None:
            next_look = min(next_look, self._next_orphans)
        return max(0.05, next_look - time.monotonic())

    def _next_pause(self, pause: float, error: ServerError | None) -> float:
        self._asked_to_wait = error is not None and error.retry_after is not None
        longer = min(max(pause * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        jitter = 0.75 + self._random.random() / 2
        if error is not None:
            self._counters["failed_requests"] += 1
            self._say(error)
            if error.retry_after is not None:
                return min(max(error.retry_after, 0.1), _LONGEST_RETRY_AFTER_S)
            if error.refuses_credentials:
                return _REFUSED_PAUSE_S * jitter
        return longer * jitter

    def _say(self, error: ServerError) -> None:
        assert self._where is not None
        if error.refuses_credentials:
            say_once(
                "refused",
                "Weave at %s refuses the credentials (%d): calls stay in the local store; deliver "
                "them with `otel-rollout push`",
                self._where.shown,
                error.status,
            )
        else:
            say_once(
                "unreachable",
                "Weave at %s does not take calls at present (%s): they are kept in the local store "
                "and tried again",
                self._where.shown,
                error,
            )

    def _keep_limit(self) -> None:
        if time.monotonic() >= self._next_room:
            self._next_room = time.monotonic() + _ROOM_S
            retention.make_room(self._directory, self._settings.max_disk, self._counters)
            self._note_counters()

    def _settle(self) -> None:
        """Settle what dead processes on this host had held for their tail rules."""
        if time.monotonic() < self._next_settling:
            return
        self._next_settling = time.monotonic() + ORPHANS_S * (0.75 + self._random.random() / 2)
        try:
            if settling.settle(self._directory, self._counters):
                self._next_orphans = 0.0
        except OSError as error:
            report_internal_error("settling held trajectories", error)

    def _note_counters(self) -> None:
        found = self_metrics.counts()
        if found != self._noted:
            self._noted = found
            with contextlib.suppress(OSError):  # a full disk: the spool says so
                delivery_state.note_counters(self._settings.directory, found)

    def _deliver_own(self, sender: Sender) -> None:
        if len(self._memory):
            self._memory.send(sender)
            with self._changed:
                self._changed.notify_all()
        while self._own:
            with self._changed:
                segment, is_last = self._own[0], len(self._own) == 1
                size = self._size
            closed = self._closed or not is_last
            offset = self._deliver(segment, sender, closed=closed)
            if offset is None and segment.exists():  # another process is at it: later
                return
            with self._changed:
                self._offset = max(offset or 0, size) if is_last else 0
                if closed:
                    self._own.pop(0)
                self._changed.notify_all()
            if is_last:
                return

    def _deliver(self, segment: Path, sender: Sender, *, closed: bool) -> int | None:
        """Deliver a segment to its present end; returns the offset, ``None`` if it cannot be.

        One that is ``closed`` is done with then: removed, or kept where the user wants that.
        """
        delivery = self._deliveries.get(segment)
        if delivery is None:
            ours = claim(segment)
            if ours is None:
                return None
            try:
                delivery = SegmentDelivery(ours, sender, self._dropped, self._counters)
            except OSError:
                ours.release()
                return None
            self._deliveries[segment] = delivery
        while delivery.step():
            if self._stopping and time.monotonic() > self._stop_by:
                return None
            if segment not in self._own and self._is_behind():
                self._next_orphans = 0.0  # what is new comes first; then on with this one
                return None
        offset = delivery.claim.offset
        if closed:
            del self._deliveries[segment]
            delivery.finish(keep=self._settings.keep_local)
        return offset

    def _take_orphans(self, sender: Sender) -> None:
        """Deliver what dead processes on this host have left."""
        if time.monotonic() < self._next_orphans:
            return
        jitter = 0.75 + self._random.random() / 2
        self._next_orphans = time.monotonic() + ORPHANS_S * jitter
        for segment in spool.segments(self._directory):
            if segment in self._own or not spool.is_of_this_host(segment):
                continue
            if self._is_delivered(segment) and self._settings.keep_local:
                continue
            if not spool.is_being_written(segment):
                taken = self._deliver(segment, sender, closed=True)
                self._counters["taken_over"] += taken is not None
                if self._next_orphans == 0.0:
                    break

    @staticmethod
    def _is_delivered(segment: Path) -> bool:
        try:
            return spool.sent_offset(segment) >= segment.stat().st_size
        except OSError:
            return True

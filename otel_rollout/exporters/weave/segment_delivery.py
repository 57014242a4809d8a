"""Delivering one segment: from what is noted as delivered to its present end."""

from __future__ import annotations

from collections import Counter
from typing import Final

from otel_rollout.exporters import spool
from otel_rollout.exporters.claims import Claim
from otel_rollout.exporters.spool import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    DroppedTrajectories,
    Record,
    SegmentReader,
)
from otel_rollout.exporters.weave import dead_letters
from otel_rollout.exporters.weave.client import ServerError
from otel_rollout.exporters.weave.sender import Sender

_KINDS: Final = frozenset({spool.HEADER, spool.CALL, spool.FEEDBACK})


class SegmentDelivery:
    """Delivers a claimed segment window by window, noting how far it is.

    Raises ``OSError`` where the segment cannot be opened.

    Args:
        claim: the right to deliver it.
        sender: with which it is sent.
        dropped: trajectories that are not to be sent.
        counters: ``damaged`` and ``dropped_disk_limit`` are counted here.
    """

    def __init__(
        self, claim: Claim, sender: Sender, dropped: DroppedTrajectories, counters: Counter[str]
    ) -> None:
        self.claim = claim
        self.asks_always = False
        """Whether to ask before every window, and send only what the server does not have."""
        self._complete = True
        self._sender = sender
        self._dropped = dropped
        self._counters = counters
        self._reader = SegmentReader(claim.path, claim.offset)
        self._damaged = 0
        self._window: list[Record] = []
        self._in_doubt = claim.taken_up

    def step(self) -> bool:
        """Deliver one window; False when the segment has nothing more at present.

        Raises :class:`~otel_rollout.exporters.weave.client.ServerError` when that has to wait; the
        next step tries the same window again.
        """
        if not self._window:
            self._window = self._next_window()
        if not self._window:
            return False
        if self._in_doubt or self.asks_always:
            # As much as any batch may have held that somebody sent and did not live to note.
            with SegmentReader(self.claim.path, self.claim.offset) as ahead:
                self._sender.ask(_window(ahead, MAX_BATCH_BYTES))
            self._in_doubt = False
        self._dropped.refresh()
        self._sender.put_aside = self._put_aside
        self._sender.in_doubt = False
        try:
            self._sender.send([r for r in self._window if self._is_wanted(r)])
        except ServerError:
            self._in_doubt = self._sender.in_doubt
            raise
        self.claim.note(self._window[-1].end)
        self._window = []
        return True

    def mark_done(self) -> bool:
        """Note that the segment is delivered: it does not grow, and its end is read.

        Returns False where it is to stay: with records that this version does not know.
        """
        self._counters["damaged"] += self._reader.torn > 0
        try:
            self.claim.note(self.claim.path.stat().st_size)
            if not self._complete:
                spool.beside(self.claim.path, spool.KEEP_SUFFIX).touch(mode=0o600)
        except OSError:
            return False
        return self._complete

    def finish(self, *, keep: bool) -> None:
        """Be done with the delivered segment, and remove it unless ``keep``."""
        self.close()
        if self.mark_done() and not keep:
            self.claim.forget()
        else:
            self.claim.release()

    def close(self) -> None:
        """Close the segment; the claim stays."""
        self._reader.close()

    def _next_window(self) -> list[Record]:
        window = _window(self._reader, self._sender.batch_bytes)
        self._counters["damaged"] += self._reader.damaged - self._damaged
        self._damaged = self._reader.damaged
        return window

    def _is_wanted(self, record: Record) -> bool:
        if record.kind not in _KINDS:
            self._complete = False
            return False
        if record.trace in self._dropped:
            self._counters["dropped_disk_limit"] += record.kind == spool.CALL
            return False
        return True

    def _put_aside(self, record: Record, project_id: str, status: int, reason: str) -> None:
        dead_letters.put_aside(self.claim.path, record, project_id, status, reason)


def _window(reader: SegmentReader, max_bytes: int) -> list[Record]:
    """Take records up to the size of a batch, but at least one."""
    window: list[Record] = []
    size = 0
    while (record := reader.peek()) is not None and len(window) < MAX_BATCH_RECORDS:
        size += len(record.body)
        if window and size > max_bytes:
            break
        window.append(record)
        reader.next()
    return window

"""Calls of held trajectories: on disk like all others, in segments that nobody sends.

When the rules have decided, the calls of a kept trajectory are copied into the spool, and a record
says so; of the others a record says that they are dropped. So whatever dies when, the segments
tell what is still to be done (:mod:`otel_rollout.exporters.weave.settling` does it). A segment goes
when all trajectories in it are decided; those in the way of that are written once more.

What finds no room on a full disk waits in memory, within bounds.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.diagnostics import say_once
from otel_rollout.exporters import retention, spool
from otel_rollout.exporters.segments import SegmentWriter

ROOT: Final = "root"
KEPT: Final = "kept"
_SEGMENT_BYTES: Final = 8 << 20
_WORTH_REMOVING: Final = 1 << 20
_MEMORY_BYTES: Final = 64 << 20
_SHARE_OF_DISK: Final = 4
"""Of the disk limit, one part in so many is for pending segments of all processes."""
_LOOK_S: Final = 2.0
_LOST: Final = 65_536

Write = Callable[[dict[str, Any], bytes], None]
"""Writes a record to the spool; never raises."""
Records = Sequence[tuple[dict[str, Any], bytes]]


class _Segment:
    def __init__(self, writer: SegmentWriter) -> None:
        self.writer = writer
        self.undecided: set[str] = set()


class _Place:
    """Where a record is: in a segment, or in memory."""

    __slots__ = ("offset", "record", "segment", "size")

    def __init__(
        self, segment: _Segment | None, offset: int, size: int, record: spool.Record | None = None
    ) -> None:
        self.segment = segment
        self.offset = offset
        self.size = size
        self.record = record

    def read(self) -> spool.Record:
        """Return the record; raises ``OSError`` where it has gone."""
        if self.record is not None:
            return self.record
        assert self.segment is not None
        path = self.segment.writer.path
        if path is None:
            raise FileNotFoundError("no segment")
        with path.open("rb") as file:
            data = os.pread(file.fileno(), self.size, self.offset)
        record = spool.decode_record(data)
        if record is None:
            raise OSError(f"{path} is damaged at {self.offset}")
        return record


class Pending:
    """The pending segments of this process. Not for several threads at once.

    Args:
        directory: of the spool.
        max_disk: the limit of the spool, in bytes.
        keep_deaths: whether a trajectory is kept whose process dies before its root ends.
        counters: ``dropped_held`` counts calls that find no room.
    """

    def __init__(
        self, directory: Path, max_disk: int, *, keep_deaths: bool, counters: Counter[str]
    ) -> None:
        self._directory = directory
        self._share = max_disk // _SHARE_OF_DISK
        self._segment_bytes = min(_SEGMENT_BYTES, retention.segment_bytes(max_disk))
        # Segments are those of one writer: process ids are used again.
        self._header = {"writer": uuid.uuid4().hex, "keep_deaths": keep_deaths}
        self._counters = counters
        self._segments: list[_Segment] = []
        self._places: OrderedDict[str, list[_Place]] = OrderedDict()
        self._lost: OrderedDict[str, None] = OrderedDict()
        self._on_disk = 0  # bytes of undecided records
        self._in_memory = 0
        self._limit = self._share
        self._next_look = 0.0

    def add(self, trace: str, records: Records) -> None:
        """Keep records of a trajectory without a verdict."""
        for meta, body in records:
            if trace in self._lost:
                self._counters["dropped_held"] += meta["kind"] == spool.CALL
                continue
            place = self._written(meta, body)
            if place is None:
                self._counters["dropped_held"] += meta["kind"] == spool.CALL
                self._lose(trace)
                continue
            self._places.setdefault(trace, []).append(place)
            if place.segment is not None:
                place.segment.undecided.add(trace)
                self._on_disk += place.size
            else:
                self._in_memory += place.size
        self._keep_limit()

    def settle(self, trace: str, kept: str | None, write: Write) -> None:
        """Copy a trajectory into the spool with ``write``, or drop it where no rule keeps it."""
        self._lost.pop(trace, None)
        places = self._places.get(trace)
        if places is None:
            return
        if kept is None:
            self._note({"kind": spool.VERDICT, "trace": trace, KEPT: None})
            self._decided(trace)
            return
        try:
            records = [place.read() for place in places]
        except OSError as error:
            say_once("pending", "held calls cannot be read (%s): they are lost", error)
            self._lose(trace)
            return
        self._note({"kind": spool.VERDICT, "trace": trace, KEPT: kept})
        for record in records:
            write(*as_kept(record, kept))
        self._note({"kind": spool.MOVED, "trace": trace})
        self._decided(trace)

    def close(self) -> None:
        """Write no more; what is undecided stays for whoever settles it."""
        self._remove_decided(closing=True)
        for segment in self._segments:
            segment.writer.close()
        self._segments.clear()

    # --- writing ---------------------------------------------------------------------------------

    def _written(self, meta: dict[str, Any], body: bytes) -> _Place | None:
        """Write a record, or keep it in memory where that fails; ``None`` without room there."""
        try:
            segment = self._current()
            size = segment.writer.append(meta, body)
            return _Place(segment, segment.writer.size - size, size)
        except OSError as error:
            say_once(
                "pending-unwritable",
                "the spool %s cannot be written (%s): held calls are kept in memory, within bounds",
                self._directory,
                error,
            )
        if self._in_memory + len(body) > _MEMORY_BYTES:
            return None
        return _Place(None, 0, len(body), spool.Record(meta, body, 0))

    def _current(self) -> _Segment:
        if not self._segments or self._segments[-1].writer.size >= self._segment_bytes:
            # Those before stay open, and locked: while one of them is, this process lives.
            writer = SegmentWriter(
                self._directory, 1 << 62, suffix=spool.PENDING_SUFFIX, header=self._header
            )
            self._segments.append(_Segment(writer))
        return self._segments[-1]

    def _note(self, meta: dict[str, Any]) -> None:
        if self._segments:
            with contextlib.suppress(OSError):
                self._segments[-1].writer.append(meta, b"null")

    # --- forgetting ------------------------------------------------------------------------------

    def _decided(self, trace: str) -> None:
        for place in self._places.pop(trace, ()):
            if place.segment is not None:
                place.segment.undecided.discard(trace)
                self._on_disk -= place.size
            else:
                self._in_memory -= place.size
        self._remove_decided()

    def _lose(self, trace: str) -> None:
        """Drop a trajectory, whole, and count its calls."""
        places = self._places.get(trace, [])
        with contextlib.suppress(OSError):
            self._counters["dropped_held"] += sum(p.read().kind == spool.CALL for p in places)
        self._note({"kind": spool.VERDICT, "trace": trace, KEPT: None})
        self._decided(trace)
        self._lost[trace] = None
        if len(self._lost) > _LOST:
            self._lost.popitem(last=False)

    def _remove_decided(self, *, closing: bool = False) -> None:
        """Remove segments from the oldest on: a later one may tell what became of an earlier."""
        while self._segments and not self._segments[0].undecided:
            first = self._segments[0]
            is_last = len(self._segments) == 1
            if is_last and not closing and first.writer.size < _WORTH_REMOVING:
                return
            self._remove(self._segments.pop(0))
        if len(self._segments) > 1 and not closing:
            self._make_compact()

    @staticmethod
    def _remove(segment: _Segment) -> None:
        if segment.writer.path is not None:
            with contextlib.suppress(OSError):
                segment.writer.path.unlink()
        segment.writer.close()

    def _make_compact(self) -> None:
        """Write once more what keeps the oldest segment, where most of all is decided."""
        whole = sum(segment.writer.size for segment in self._segments)
        if whole < 4 * self._on_disk + 4 * self._segment_bytes:
            return
        first = self._segments[0]
        for trace in sorted(first.undecided):
            places = self._places[trace]
            for number, place in enumerate(places):
                if place.segment is not first:
                    continue
                try:
                    record = place.read()
                    segment = self._current()
                    size = segment.writer.append(record.meta, record.body)
                except OSError:
                    return  # all is still where it was
                places[number] = _Place(segment, segment.writer.size - size, size)
                segment.undecided.add(trace)
            first.undecided.discard(trace)
        self._remove(self._segments.pop(0))

    def _keep_limit(self) -> None:
        """Drop the oldest trajectories where the share of the disk is used up."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            writers = {spool.writer_of(path) for path in spool.pending(self._directory)}
            self._limit = self._share // max(1, len(writers))
        while self._on_disk > self._limit and self._places:
            say_once(
                "pending-limit",
                "trajectories held for tail rules take more than their share of "
                "OTEL_ROLLOUT_MAX_DISK: the oldest are dropped, whole, and counted",
            )
            self._lose(next(iter(self._places)))


def as_kept(record: spool.Record, kept: str) -> tuple[dict[str, Any], bytes]:
    """Return the record as it belongs into the spool; the root says which rule kept it."""
    meta = {key: value for key, value in record.meta.items() if key not in (ROOT, KEPT)}
    if not record.meta.get(ROOT) or record.kind != spool.CALL:
        return meta, record.body
    call = record.parsed()
    ours = call["attributes"].setdefault("rollout", {})
    if isinstance(ours, dict):
        ours["kept"] = kept
    return meta, orjson.dumps(call, option=orjson.OPT_NON_STR_KEYS)

"""Keeping the spool within its disk limit: delivered segments go first, then whole trajectories.

A trajectory lies in the segments of several processes. When room is needed, the oldest segment
goes with all trajectories that have undelivered records in it; their ids are noted, so that what
of them lies elsewhere, or comes later, is neither delivered nor counted as waiting. A trajectory
that is delivered in part already is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Final

from otel_rollout.diagnostics import say_once
from otel_rollout.exporters import locks, spool
from otel_rollout.exporters.claims import Claim, claim
from otel_rollout.exporters.locks import Locked
from otel_rollout.exporters.segments import SEGMENT_BYTES
from otel_rollout.exporters.spool import DroppedTrajectories, SegmentReader

_LOCK_NAME: Final = ".retention.lock"
_ROOM: Final = 0.9
"""Share of the limit that is used after room was made."""
_SMALLEST_SEGMENT: Final = 256 << 10


def segment_bytes(max_disk: int) -> int:
    """Return the size of segments: only what is closed can be dropped."""
    return max(_SMALLEST_SEGMENT, min(SEGMENT_BYTES, max_disk // 64))


def used(directory: Path) -> int:
    """Return the bytes that a spool takes."""
    total = 0
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat().st_size
    except OSError:
        pass
    return total


def make_room(directory: Path, max_bytes: int, counters: Counter[str]) -> None:
    """Bring the spool under ``max_bytes`` where it is above; one process at a time does that.

    Segments that are being written stay: the limit can be exceeded by one for each live process.
    ``dropped_disk_limit`` counts the calls that are given up.
    """
    if used(directory) <= max_bytes:
        return
    try:
        lock = os.open(directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    locks.hold(lock)
    try:
        if locks.try_lock(lock) is not Locked.NO:
            _make_room(directory, used(directory) - int(max_bytes * _ROOM), counters)
    finally:
        locks.close(lock)


def _make_room(directory: Path, needed: int, counters: Counter[str]) -> None:
    closed = [path for path in spool.segments(directory) if not spool.is_being_written(path)]
    for delivered in (True, False):
        for path in closed:
            if needed <= 0:
                return
            size = _size(path)
            if size is None or (spool.sent_offset(path) >= size) is not delivered:
                continue
            ours = claim(path)
            if ours is None:  # it is being delivered
                continue
            try:
                needed -= _give_up(ours, directory, size, delivered, counters)
            except OSError:
                continue
            finally:
                ours.release()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _give_up(
    ours: Claim, directory: Path, size: int, delivered: bool, counters: Counter[str]
) -> int:
    """Drop a segment, or what of it can go; returns the bytes gained."""
    if delivered:
        ours.forget()
        return size
    begun = _begun(directory, ours.path)
    waiting: dict[str, int] = {}
    kept: list[bytes] = []
    with SegmentReader(ours.path) as reader:
        for record in reader:
            if record.end <= ours.offset or not record.trace:
                if record.kind == spool.HEADER:
                    kept.append(spool.encode_record(record.meta, record.body))
                if record.end <= ours.offset:
                    begun.add(record.trace)
            elif record.trace in begun:
                kept.append(spool.encode_record(record.meta, record.body))
            else:
                is_call = record.kind == spool.CALL
                waiting[record.trace] = waiting.get(record.trace, 0) + is_call
    DroppedTrajectories(directory).add(set(waiting))
    counters["dropped_disk_limit"] += sum(waiting.values())
    if waiting:
        say_once(
            "disk-limit",
            "the spool %s is at its limit (OTEL_ROLLOUT_MAX_DISK): the oldest trajectories that "
            "are not delivered are dropped and counted",
            directory,
        )
    if len(kept) <= 1:
        ours.forget()
        return size
    return size - _rewrite(ours, kept)


def _begun(directory: Path, apart_from: Path) -> set[str]:
    """Return the trajectories that are delivered in part, as other segments show."""
    traces: set[str] = set()
    for path in spool.segments(directory):
        offset = spool.sent_offset(path)
        if path == apart_from or offset == 0:
            continue
        try:
            with SegmentReader(path) as reader:
                for record in reader:
                    if record.end > offset:
                        break
                    traces.add(record.trace)
        except OSError:
            continue
    return traces


def _rewrite(ours: Claim, kept: list[bytes]) -> int:
    """Put the records that stay in the segment's place; returns their bytes."""
    hidden = ours.path.with_name(f".{ours.path.name}.new")
    content = b"".join(kept)
    hidden.write_bytes(content)
    ours.note(0)
    hidden.replace(ours.path)
    return len(content)

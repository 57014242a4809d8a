"""The spool's format: append-only segments, one writer each, that survive every kind of death.

A segment is a sequence of records::

    RS crc32(8 hex) TAB meta-json TAB body-json LF

RS is the byte 0x1E, which JSON never contains, so that reading finds the next record after any
damage. The checksum covers everything between it and the LF. ``meta`` says what the body is; the
first record of a segment is its header. Beside ``NAME.spool`` lie ``NAME.spool.sent`` (the offset
up to which it is delivered, see :mod:`otel_rollout.exporters.claims`) and ``NAME.spool.dead``
(calls that the server will never take).

Names are ``TIME-HOST-PID-NUMBER.spool``: in the order of their names, segments are in the order of
their beginning. The writer is in :mod:`otel_rollout.exporters.segments`.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.exporters import locks
from otel_rollout.exporters.locks import Locked

FORMAT: Final = 1
SUFFIX: Final = ".spool"
PENDING_SUFFIX: Final = ".pending"
"""Of segments whose records wait for a verdict: nobody reads them but who settles them."""
SENT_SUFFIX: Final = ".sent"
DEAD_SUFFIX: Final = ".dead"
KEEP_SUFFIX: Final = ".keep"
"""Marks a segment with records of a later version, which is to deliver them: it is not removed."""
DROPPED_NAME: Final = "dropped-trajectories"
"""Trace ids, one a line, whose calls were dropped to keep within the disk limit."""
CALL: Final = "call"
FEEDBACK: Final = "feedback"
HEADER: Final = "header"
VERDICT: Final = "verdict"
"""In a pending segment: what became of a trajectory, ``kept`` by a rule or not (``null``)."""
MOVED: Final = "moved"
"""In a pending segment: a kept trajectory's records are in the spool."""

MAX_BATCH_BYTES: Final = 4 << 20
MAX_BATCH_RECORDS: Final = 200
"""Bounds of what is read, sent and then noted as delivered together."""
_RS: Final = b"\x1e"
_CHECKSUM: Final = 8
"""Hexadecimal digits of it."""
_NAME: Final = re.compile(r"(\d{19})-(.+)-(\d+)-(\d+)\.(?:spool|pending)\Z")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One record: ``meta`` parsed, ``body`` as bytes of JSON; ``end``: offset just behind it."""

    meta: dict[str, Any]
    body: bytes
    end: int

    @property
    def kind(self) -> str:
        """What the body is: ``header``, ``call``, ``feedback``, or what a later version adds."""
        return str(self.meta.get("kind"))

    @property
    def id(self) -> str:
        """The call's or feedback's id."""
        return str(self.meta.get("id") or self.parsed()["id"])

    @property
    def trace(self) -> str:
        """The trace id of the trajectory that the record belongs to."""
        return str(self.meta.get("trace", ""))

    def parsed(self) -> Any:
        """Return the body as objects."""
        return orjson.loads(self.body)


def encode_record(meta: dict[str, Any], body: bytes) -> bytes:
    """Return the bytes of a record; ``body`` is JSON without line breaks, as orjson writes it."""
    head = b"\t" + orjson.dumps(meta) + b"\t"
    checksum = zlib.crc32(body, zlib.crc32(head))
    return b"".join((_RS, b"%08x" % checksum, head, body, b"\n"))


class SegmentReader:
    """Reads the whole records of a segment, which may still grow; what is damaged is skipped.

    Keeps the file open: reading on costs what is new. For one thread.

    Args:
        path: of the segment; raises ``OSError`` where it cannot be opened.
        start: offset of the first byte to read, 0 or the ``end`` of a record.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path = path
        self.damaged = 0
        """Stretches that are no whole record."""
        self._file = path.open("rb", buffering=0)
        self._file.seek(start)
        self._offset = start  # of the first byte of `_pending`
        self._pending = b""
        self._ready: deque[Record] = deque()

    def peek(self) -> Record | None:
        """Return the next record without taking it; ``None`` at the present end.

        A record that is still being written is returned by a later call.
        """
        while not self._ready:
            chunk = self._file.read(_CHUNK)
            if not chunk:
                self._take_last()
                break
            self._take(chunk)
        return self._ready[0] if self._ready else None

    def next(self) -> Record | None:
        """Take the next record; ``None`` at the present end."""
        record = self.peek()
        if record is not None:
            self._ready.popleft()
        return record

    def __iter__(self) -> Iterator[Record]:
        while (record := self.next()) is not None:
            yield record

    def _take(self, chunk: bytes) -> None:
        *whole, rest = (self._pending + chunk).split(_RS)
        for piece in whole:
            record = _parse(piece, self._offset)
            if record is not None:
                self._ready.append(record)
            elif piece:
                self.damaged += 1
            self._offset += len(piece) + 1
        self._pending = rest

    def _take_last(self) -> None:
        record = _parse(self._pending, self._offset)
        if record is not None:
            self._ready.append(record)
            self._pending = self._pending[record.end - self._offset :]
            self._offset = record.end

    @property
    def torn(self) -> int:
        """Bytes at the present end that are no whole record."""
        return len(self._pending)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decode_record(data: bytes) -> Record | None:
    """Return the record that these bytes are, as :func:`encode_record` made them."""
    return _parse(data[1:], 1) if data[:1] == _RS else None


def _parse(piece: bytes, offset: int) -> Record | None:
    # Searched for by hand: a body has 100 KB and more, and a regular expression takes its time.
    head = piece.find(b"\t", _CHECKSUM + 1)
    end = piece.find(b"\n")
    if piece[_CHECKSUM : _CHECKSUM + 1] != b"\t" or not 0 <= head < end:
        return None
    try:
        if zlib.crc32(memoryview(piece)[_CHECKSUM:end]) != int(piece[:_CHECKSUM], 16):
            return None
        meta = orjson.loads(piece[_CHECKSUM + 1 : head])
    except ValueError:
        return None
    if not isinstance(meta, dict):
        return None
    return Record(meta, piece[head + 1 : end], offset + end + 1)


def read(path: Path, start: int = 0) -> Iterator[Record]:
    """Yield every whole record of a segment from offset ``start`` on; damage is skipped."""
    with SegmentReader(path, start) as reader:
        yield from reader


def segments(directory: Path) -> list[Path]:
    """Return the segments in ``directory``, oldest first."""
    return _named(directory, SUFFIX)


def pending(directory: Path) -> list[Path]:
    """Return the segments of held trajectories in ``directory``, oldest first."""
    return _named(directory, PENDING_SUFFIX)


def _named(directory: Path, suffix: str) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(suffix)]
    except OSError:
        return []
    return [directory / name for name in sorted(names) if not name.startswith(".")]


def host_name() -> str:
    """Return this host's name as it stands in the names of segments."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64] or "localhost"


def writer_of(path: Path) -> tuple[str, int] | None:
    """Return host and process id of a segment's writer, from its name."""
    match = _NAME.match(path.name)
    return (match[2], int(match[3])) if match is not None else None


def begun_at(path: Path) -> float:
    """Return when a segment was begun, in seconds since the epoch, by its name; 0 without one."""
    stamp = path.name.partition("-")[0]
    return int(stamp) / 1e9 if stamp.isdecimal() else 0.0


def is_of_this_host(path: Path) -> bool:
    """Return whether a segment was begun on this host."""
    writer = writer_of(path)
    return writer is not None and writer[0] == host_name()


def is_being_written(path: Path) -> bool:
    """Return whether a live process holds the segment open for writing.

    Where the file system has no locks, a process of the writer's id on this host counts as it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        locked = locks.try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)
    if locked is Locked.UNKNOWN:
        writer = writer_of(path)
        return writer is not None and writer[0] == host_name() and locks.process_exists(writer[1])
    return locked is Locked.NO


def beside(path: Path, suffix: str) -> Path:
    """Return the path of a file that belongs to a segment."""
    return path.with_name(path.name + suffix)


def sent_offset(path: Path) -> int:
    """Return the offset up to which the segment is delivered, 0 when nothing is noted."""
    try:
        return int(beside(path, SENT_SUFFIX).read_bytes() or 0)
    except (OSError, ValueError):
        return 0


def remove(path: Path) -> None:
    """Remove a segment and what belongs to it, except its dead letters."""
    for gone in (path, beside(path, SENT_SUFFIX)):
        gone.unlink(missing_ok=True)


class DroppedTrajectories:
    """The trajectories of a spool that were dropped, whole, to keep within the disk limit."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / DROPPED_NAME
        self._ids: set[str] = set()
        self._read = 0

    def refresh(self) -> None:
        """Read what has been added."""
        try:
            if self._path.stat().st_size == self._read:
                return
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self._ids.update(whole.decode("ascii", "replace").split())

    def __contains__(self, trace: object) -> bool:
        return trace in self._ids

    def add(self, traces: set[str]) -> None:
        """Add trace ids; raises ``OSError`` when that cannot be noted."""
        new = sorted(traces - self._ids)
        if not new:
            return
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(descriptor, "".join(f"{trace}\n" for trace in new).encode())
        finally:
            os.close(descriptor)
        self.refresh()

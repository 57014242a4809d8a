"""The spool: append-only files, one for each process, that survive every kind of death.

A segment is a sequence of records, each one ``write`` to the page cache::

    RS crc32(8 hex) TAB meta-json TAB body-json LF

RS is the byte 0x1E, which JSON never contains, so that reading finds the next record after any
damage. The checksum covers everything between it and the LF. ``meta`` says what the body is; the
first record of a segment is its header. What has been delivered is noted beside the segment, in
``NAME.sent``, as the offset up to which everything is delivered.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout._version import __version__

FORMAT: Final = 1
SUFFIX: Final = ".spool"
SENT_SUFFIX: Final = ".sent"
SEGMENT_BYTES: Final = 256 << 20
_RS: Final = b"\x1e"
_RECORD: Final = re.compile(rb"([0-9a-f]{8})\t([^\t\n]*)\t([^\t\n]*)\n", re.DOTALL)
_CHUNK: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One record: ``meta`` parsed, ``body`` as bytes of JSON; ``end``: offset just behind it."""

    meta: dict[str, Any]
    body: bytes
    end: int

    def parsed(self) -> Any:
        """Return the body as objects."""
        return orjson.loads(self.body)


def encode_record(meta: dict[str, Any], body: bytes) -> bytes:
    """Return the bytes of a record; ``body`` is JSON without line breaks, as orjson writes it."""
    content = b"\t" + orjson.dumps(meta) + b"\t" + body
    return _RS + b"%08x" % zlib.crc32(content) + content + b"\n"


class SegmentWriter:
    """Writes the segment of this process; made when the first record comes.

    Not for several threads at once. After a fork the child starts a segment of its own.
    """

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._descriptor = -1
        self._pid = 0
        self._size = 0
        self._count = 0
        self.path: Path | None = None

    def append(self, meta: dict[str, Any], body: bytes) -> None:
        """Append one record; raises ``OSError`` when it cannot be written whole."""
        record = encode_record(meta, body)
        if self._descriptor < 0 or self._pid != os.getpid() or self._size >= self._segment_bytes:
            self._open()
        self._write(record)

    @property
    def written_by_another_process(self) -> bool:
        """Whether the segment is that of the process that this one was forked from."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Close the segment; a later append opens another."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> None:
        if self._pid == os.getpid():
            self.close()
        self._pid = os.getpid()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64]
        name = f"{time.time_ns():019d}-{host}-{self._pid}-{self._count}"
        self._count += 1
        self.path = self.directory / (name + SUFFIX)
        self._descriptor = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._size = 0
        header = {
            "kind": "header",
            "format": FORMAT,
            "version": __version__,
            "host": socket.gethostname(),
            "pid": self._pid,
            "started_ns": time.time_ns(),
        }
        self._write(encode_record(header, b"null"))

    def _write(self, record: bytes) -> None:
        written = os.write(self._descriptor, record)
        while written < len(record):
            written += os.write(self._descriptor, record[written:])
        self._size += len(record)


def segments(directory: Path) -> list[Path]:
    """Return the segments below ``directory``, oldest first."""
    return sorted(directory.glob("*" + SUFFIX)) if directory.is_dir() else []


def read(path: Path, start: int = 0) -> Iterator[Record]:
    """Yield every whole record of a segment from offset ``start`` on; damage is skipped.

    A record that is still being written is not yielded; read again from the last ``end``.
    """
    with path.open("rb") as file:
        file.seek(start)
        offset = start  # of the first byte of `pending`
        pending = b""
        while chunk := file.read(_CHUNK):
            pending += chunk
            *whole, rest = pending.split(_RS)
            for piece in whole:
                record = _parse(piece, offset + len(piece))
                offset += len(piece) + 1
                if record is not None:
                    yield record
            pending = rest
        record = _parse(pending, offset + len(pending))
        if record is not None:
            yield record


def _parse(piece: bytes, end: int) -> Record | None:
    match = _RECORD.match(piece)
    if match is None:
        return None
    content = piece[8 : match.end() - 1]
    if zlib.crc32(content) != int(match[1], 16):
        return None
    try:
        meta = orjson.loads(match[2])
    except orjson.JSONDecodeError:
        return None
    return Record(meta, match[3], end - (len(piece) - match.end()))


def sent_offset(path: Path) -> int:
    """Return the offset up to which the segment is delivered, 0 when nothing is noted."""
    try:
        return int((path.parent / (path.name + SENT_SUFFIX)).read_text() or 0)
    except (OSError, ValueError):
        return 0


def note_sent(path: Path, offset: int) -> None:
    """Note that the segment is delivered up to ``offset``."""
    target = path.parent / (path.name + SENT_SUFFIX)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(str(offset))
    temporary.replace(target)

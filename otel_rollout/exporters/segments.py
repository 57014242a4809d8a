"""Writing the spool: the segment of this process, locked for as long as the process lives."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from otel_rollout._version import __version__
from otel_rollout.exporters import locks, spool

SEGMENT_BYTES: Final = 64 << 20
_NEW_SUFFIX: Final = ".new"
_SPACE_MAY_RETURN: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EINTR, errno.EAGAIN})


class SegmentWriter:
    """Writes the segment of this process; made when the first record comes.

    The segment is locked for as long as it is open, so that another process can tell whether it
    still grows. Each record is one ``write`` into the page cache: it survives the process, though
    not a power failure. Not for several threads at once. After a fork the child starts a segment
    of its own.

    Args:
        directory: of the segments, created when it is needed.
        segment_bytes: size from which on a new segment is begun.
        suffix: of the segments' names.
        header: what stands in their headers besides.
    """

    def __init__(
        self,
        directory: Path,
        segment_bytes: int = SEGMENT_BYTES,
        *,
        suffix: str = spool.SUFFIX,
        header: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = directory
        self.path: Path | None = None
        self.size = 0
        """Bytes of the present segment."""
        self._segment_bytes = segment_bytes
        self._suffix = suffix
        self._more_header = dict(header or {})
        self._descriptor = -1
        self._pid = 0
        self._count = 0

    def append(self, meta: dict[str, Any], body: bytes) -> int:
        """Append one record and return its size.

        Raises ``OSError`` when it cannot be written whole. A part of it may then stand in the
        segment, which readers skip; the next record can follow it.
        """
        record = spool.encode_record(meta, body)
        if not self._is_usable():
            self._open()
        try:
            self._write(record)
        except OSError as error:
            if error.errno not in _SPACE_MAY_RETURN:
                self.close()  # the file or its file system has gone: try another one next time
            raise
        return len(record)

    def _is_usable(self) -> bool:
        if self._descriptor < 0 or self.written_by_another_process:
            return False
        if self.size >= self._segment_bytes:
            return False
        return os.fstat(self._descriptor).st_nlink > 0  # not removed by somebody

    @property
    def written_by_another_process(self) -> bool:
        """Whether the segment is that of the process that this one was forked from."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Close the segment; a later append opens another."""
        if self._descriptor >= 0 and not self.written_by_another_process:
            locks.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> None:
        """Begin a segment; it appears under its name when it is locked and has its header."""
        self.close()
        self._pid = os.getpid()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{time.time_ns():019d}-{spool.host_name()}-{self._pid}-{self._count}"
        self._count += 1
        path = self.directory / (name + self._suffix)
        hidden = self.directory / f".{name}{_NEW_SUFFIX}"
        descriptor = os.open(
            hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        locks.hold(descriptor)
        locks.try_lock(descriptor)
        self._descriptor, self.size = descriptor, 0
        try:
            self._write(spool.encode_record(self._header(), b"null"))
            hidden.rename(path)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise
        self.path = path

    def _header(self) -> dict[str, Any]:
        return {
            "kind": spool.HEADER,
            "format": spool.FORMAT,
            "version": __version__,
            "host": socket.gethostname(),
            "pid": self._pid,
            "started_ns": time.time_ns(),
            **self._more_header,
        }

    def _write(self, record: bytes) -> None:
        left = memoryview(record)
        while left:
            written = os.write(self._descriptor, left)
            self.size += written
            left = left[written:]

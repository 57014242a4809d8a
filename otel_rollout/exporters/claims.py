"""The right to deliver a segment: a lock on the note of how far it is delivered.

It is apart from the writer's lock, so that a live process without credentials can have its segment
delivered by another one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from otel_rollout.exporters import locks, spool
from otel_rollout.exporters.locks import Locked


class Claim:
    """A segment that this process alone delivers, until :meth:`release`."""

    def __init__(self, path: Path, descriptor: int, offset: int, *, taken_up: bool) -> None:
        self.path = path
        self.offset = offset
        """Up to here the segment is delivered."""
        self.taken_up = taken_up
        """Whether somebody may have delivered from it before, and died before noting it."""
        self._descriptor = descriptor

    def note(self, offset: int) -> None:
        """Note that the segment is delivered up to ``offset``."""
        self.offset = offset
        if self._descriptor >= 0:
            # One small write in place: whoever reads it later finds the old or the new number.
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, b"%020d\n" % offset, 0)

    def release(self) -> None:
        """Let others deliver the segment."""
        if self._descriptor >= 0:
            locks.close(self._descriptor)
            self._descriptor = -1

    def forget(self) -> None:
        """Remove the delivered segment, where nothing says to keep it, then release it."""
        with contextlib.suppress(OSError):
            if not spool.beside(self.path, spool.KEEP_SUFFIX).exists():
                spool.remove(self.path)
        self.release()


def claim(path: Path) -> Claim | None:
    """Return the right to deliver a segment; ``None`` when another has it, or it is gone.

    Where nothing can be noted beside the segment (a read-only copy), it is delivered all the same.
    """
    note = spool.beside(path, spool.SENT_SUFFIX)
    existed = note.exists()
    try:
        descriptor = os.open(note, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        offset = spool.sent_offset(path)
        return Claim(path, -1, offset, taken_up=existed) if path.exists() else None
    locks.hold(descriptor)
    if locks.try_lock(descriptor) is Locked.NO or _has_gone(path, note, descriptor):
        locks.close(descriptor)
        return None
    return Claim(path, descriptor, spool.sent_offset(path), taken_up=existed)


def _has_gone(path: Path, note: Path, descriptor: int) -> bool:
    """Return whether somebody has delivered and removed the segment in the meantime."""
    try:
        if path.exists() and os.path.samestat(os.fstat(descriptor), note.stat()):
            return False
    except OSError:
        return True
    if not path.exists():
        note.unlink(missing_ok=True)
    return True

"""Advisory locks on files: who writes a segment, who delivers it.

A lock ends with its process, however that ends. A forked child does not keep its parent's locks
alive: what :func:`hold` has registered is closed in the child.
"""

from __future__ import annotations

import contextlib
import os
import sys
from enum import Enum

from otel_rollout.forking import in_child

if sys.platform != "win32":
    import fcntl


class Locked(Enum):
    """What came of trying to lock a file."""

    YES = "locked"
    NO = "another process has it"
    UNKNOWN = "this file system has no locks"


_held: set[int] = set()


def try_lock(descriptor: int, *, shared: bool = False) -> Locked:
    """Try to lock an open file, without waiting."""
    if sys.platform == "win32":
        return Locked.UNKNOWN
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return Locked.NO
    except OSError:
        return Locked.UNKNOWN
    return Locked.YES


def hold(descriptor: int) -> None:
    """Keep a descriptor out of forked children."""
    _held.add(descriptor)


def close(descriptor: int) -> None:
    """Close a descriptor, and with it its lock."""
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def process_exists(pid: int) -> bool:
    """Return whether a process with this id runs on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is there and another user's
        return True
    return True


def _close_in_child() -> None:
    for descriptor in list(_held):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


in_child(_close_in_child)

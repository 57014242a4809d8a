"""What the server will never take, put aside beside its segment with the reason.

One JSON object a line: ``time``, ``status``, ``reason``, ``kind``, ``project``, ``body``. The next
``otel-rollout push`` tries them once more, for the reason may have been one that passes.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from otel_rollout.exporters import spool
from otel_rollout.exporters.spool import Record


def put_aside(segment: Path, record: Record, project_id: str, status: int, reason: str) -> None:
    """Append a record to the segment's dead letters; raises ``OSError``."""
    line = {
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "status": status,
        "reason": reason,
        "project": project_id,
        "meta": record.meta,
        "body": record.parsed(),
    }
    _append(spool.beside(segment, spool.DEAD_SUFFIX), [orjson.dumps(line)])


def files(directory: Path) -> list[Path]:
    """Return the files of dead letters in a spool."""
    return sorted(directory.glob("*" + spool.SUFFIX + spool.DEAD_SUFFIX))


def segment_of(dead: Path) -> Path:
    """Return the segment that a file of dead letters belongs to."""
    return dead.with_name(dead.name.removesuffix(spool.DEAD_SUFFIX))


def read(dead: Path) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of a file; damaged lines are skipped."""
    try:
        lines = dead.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            letter = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(letter, dict) and isinstance(letter.get("meta"), dict):
            yield letter


def count(directory: Path) -> int:
    """Return the number of dead letters in a spool."""
    return sum(1 for dead in files(directory) for _ in read(dead))


def take_all(dead: Path) -> list[Record]:
    """Return the dead letters of a file as records, and put the file out of the way."""
    records = [Record(letter["meta"], orjson.dumps(letter.get("body")), 0) for letter in read(dead)]
    dead.rename(dead.with_name(dead.name + ".tried"))
    return records


def tried(dead: Path) -> Path:
    """Return where :func:`take_all` has put a file."""
    return dead.with_name(dead.name + ".tried")


def _append(path: Path, lines: list[bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(b"\n".join([*lines, b""]))
        while left:
            left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)

"""Settling what dead processes had held: pending segments become calls in the spool, or nothing.

A trajectory with a verdict is what its verdict says. One whose root had ended without a verdict was
waiting for its group, and is dropped. One whose root never ended is kept where the rules have
``error``: its process died; otherwise it is dropped and counted. A trajectory that is copied twice,
because whoever settled died too, merges: its calls are the same.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_rollout.diagnostics import report_internal_error
from otel_rollout.exporters import locks, spool
from otel_rollout.exporters.locks import Locked
from otel_rollout.exporters.segments import SEGMENT_BYTES, SegmentWriter
from otel_rollout.exporters.spool import Record
from otel_rollout.exporters.weave.pending import KEPT, ROOT, as_kept

_DEATH: Final = "error"
"""The rule that keeps a trajectory whose process died."""


@dataclass
class _Trajectory:
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    has_root: bool = False
    has_verdict: bool = False
    kept: str | None = None
    moved: bool = False


def settle(directory: Path, counters: Counter[str], *, everywhere: bool = False) -> int:
    """Settle the pending segments of dead processes; returns how many trajectories are kept.

    ``everywhere``: those of other hosts too, in a copy of a store. ``kept`` and ``dropped_held``
    count calls. Raises ``OSError`` where the spool cannot be written; what is not settled stays.
    """
    kept = 0
    for paths in _by_writer(directory, everywhere):
        with contextlib.ExitStack() as stack:
            descriptors = _claimed(paths, stack)
            if descriptors is not None:
                kept += _settle(directory, paths, descriptors[-1], counters)
                for path in paths:
                    path.unlink(missing_ok=True)
    return kept


def _by_writer(directory: Path, everywhere: bool) -> list[list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in spool.pending(directory):
        if not everywhere and not spool.is_of_this_host(path):
            continue
        try:
            header = next(iter(spool.read(path)), None)
        except OSError:
            continue
        writer = header.meta.get("writer") if header is not None else None
        found.setdefault(str(writer or path.name), []).append(path)
    return list(found.values())


def _claimed(paths: list[Path], stack: contextlib.ExitStack) -> list[int] | None:
    """Lock all segments of a writer; ``None`` where it lives, or somebody else settles them."""
    descriptors = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            return None
        locks.hold(descriptor)
        stack.callback(locks.close, descriptor)
        locked = locks.try_lock(descriptor)
        if locked is Locked.NO or os.fstat(descriptor).st_nlink == 0:
            return None
        if locked is Locked.UNKNOWN:
            writer = spool.writer_of(path)
            here = spool.is_of_this_host(path)
            if writer is None or not here or locks.process_exists(writer[1]):
                return None
        descriptors.append(descriptor)
    return descriptors


def _settle(directory: Path, paths: list[Path], descriptor: int, counters: Counter[str]) -> int:
    trajectories, keep_deaths = _read(paths)
    writer = SegmentWriter(directory, SEGMENT_BYTES)
    kept = 0
    try:
        for trace, one in trajectories.items():
            if one.moved or not one.records:
                continue
            rule = one.kept
            calls = sum(kind == spool.CALL for kind, _ in one.records)
            if not one.has_verdict and not one.has_root:
                rule = _DEATH if keep_deaths else None
                counters["dropped_held"] += calls if rule is None else 0
            if rule is None:
                continue
            for record in one.records.values():
                writer.append(*as_kept(record, rule))
            kept += 1
            counters["kept"] += calls
            with contextlib.suppress(OSError):
                moved = {"kind": spool.MOVED, "trace": trace}
                os.write(descriptor, spool.encode_record(moved, b"null"))
    finally:
        writer.close()
    return kept


def _read(paths: list[Path]) -> tuple[dict[str, _Trajectory], bool]:
    trajectories: dict[str, _Trajectory] = {}
    keep_deaths = False
    for path in paths:
        try:
            for record in spool.read(path):
                if record.kind == spool.HEADER:
                    keep_deaths = keep_deaths or bool(record.meta.get("keep_deaths"))
                else:
                    _take(trajectories.setdefault(record.trace, _Trajectory()), record)
        except OSError as error:
            report_internal_error("reading a pending segment", error)
            raise
    return trajectories, keep_deaths


def _take(one: _Trajectory, record: Record) -> None:
    if record.kind == spool.MOVED:
        one.moved = True
    elif record.kind == spool.VERDICT:
        one.has_verdict, one.kept = True, record.meta.get(KEPT)
    elif record.kind in (spool.CALL, spool.FEEDBACK):
        one.records[record.kind, record.id] = record
        if record.meta.get(ROOT):
            one.has_root = True
            if KEPT in record.meta and not one.has_verdict:
                one.has_verdict, one.kept = True, record.meta[KEPT]

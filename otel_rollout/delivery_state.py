"""The state of the local store's delivery, for ``otel-rollout doctor``.

Every process notes its counters in ``processes/HOST-PID.json`` of the store while it runs, so that
what was dropped can be seen after its end too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.exporters import retention, spool
from otel_rollout.exporters.weave import dead_letters
from otel_rollout.exporters.weave.client import destination
from otel_rollout.self_metrics import in_words, is_loss
from otel_rollout.settings import Settings

_FOLDER: Final = "processes"
_OLD_S: Final = 7 * 24 * 3600.0


@dataclass
class DeliveryState:
    """What the store holds, and what was lost; all numbers are of now."""

    directory: str
    destination: str | None
    has_key: bool
    bytes: int = 0
    max_bytes: int = 0
    segments: int = 0
    being_written: int = 0
    waiting_calls: int = 0
    waiting_feedback: int = 0
    waiting_bytes: int = 0
    oldest_waiting_s: float | None = None
    """Age in seconds of the oldest segment with something undelivered."""
    held_bytes: int = 0
    """Of trajectories that tail rules have yet to decide about."""
    damaged: int = 0
    dead_letters: int = 0
    dropped_trajectories: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    """Of all processes of the last days, added up."""

    @property
    def lost(self) -> int:
        """Number of calls that processes counted as lost, for whatever reason."""
        return sum(count for name, count in self.counters.items() if is_loss(name))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return everything as lines to read."""
        where = self.destination or "nowhere: no W&B credentials, calls stay in the store"
        oldest = f", oldest {self.oldest_waiting_s:.0f} s" if self.oldest_waiting_s else ""
        lines = [
            f"store         {self.directory}: {_size(self.bytes)} of {_size(self.max_bytes)}",
            f"delivers to   {where}",
            f"segments      {self.segments}, {self.being_written} of them being written",
            f"waiting       {self.waiting_calls} calls, {self.waiting_feedback} feedbacks, "
            f"{_size(self.waiting_bytes)}{oldest}",
        ]
        if self.held_bytes:
            lines.append(f"held          {_size(self.held_bytes)} for tail rules to decide about")
        if self.counters:
            lines.append(f"processes     {in_words(Counter(self.counters))}")
        for what, count in (
            ("lost", self.lost),
            ("dead letters", self.dead_letters),
            ("damaged", self.damaged),
            ("dropped", self.dropped_trajectories),
        ):
            if count:
                lines.append(f"{what:<13} {count}")
        return lines


def delivery_state(settings: Settings, directory: Path | None = None) -> DeliveryState:
    """Look at a store; reads what is not delivered of its segments."""
    store = directory or settings.directory
    folder = store / "spool" if (store / "spool").is_dir() else store
    where = destination(settings)
    state = DeliveryState(
        directory=str(store),
        destination=where.shown if where else None,
        has_key=bool(where and where.api_key),
        bytes=retention.used(folder),
        max_bytes=settings.max_disk,
    )
    for path in spool.segments(folder):
        with contextlib.suppress(OSError):
            _look_at(path, state)
    for path in spool.pending(folder):
        with contextlib.suppress(OSError):
            state.held_bytes += path.stat().st_size
    state.dead_letters = dead_letters.count(folder)
    with contextlib.suppress(OSError):
        state.dropped_trajectories = (folder / spool.DROPPED_NAME).read_bytes().count(b"\n")
    state.counters = dict(_noted(store))
    return state


def _look_at(path: Path, state: DeliveryState) -> None:
    state.segments += 1
    state.being_written += spool.is_being_written(path)
    offset = spool.sent_offset(path)
    size = path.stat().st_size
    if offset >= size:
        return
    waiting = False
    with spool.SegmentReader(path, offset) as reader:
        for record in reader:
            state.waiting_calls += record.kind == spool.CALL
            state.waiting_feedback += record.kind == spool.FEEDBACK
            waiting = waiting or record.kind != spool.HEADER
        state.damaged += reader.damaged
    if waiting:
        state.waiting_bytes += size - offset
        age = time.time() - int(path.name[:19]) / 1e9
        state.oldest_waiting_s = max(state.oldest_waiting_s or 0.0, age)


def note_counters(directory: Path, counters: Mapping[str, int]) -> None:
    """Note the counters of this process in its store; raises ``OSError``."""
    folder = directory / _FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{spool.host_name()}-{os.getpid()}.json"
    hidden = target.with_name(f".{target.name}")
    hidden.write_bytes(orjson.dumps(dict(counters)))
    hidden.replace(target)


def forget_old(directory: Path) -> None:
    """Remove what processes noted long ago."""
    for path in (directory / _FOLDER).glob("*.json"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD_S:
                path.unlink()


def _noted(directory: Path) -> Counter[str]:
    total: Counter[str] = Counter()
    for path in (directory / _FOLDER).glob("*.json"):
        with contextlib.suppress(OSError, orjson.JSONDecodeError, AttributeError):
            total.update({k: v for k, v in orjson.loads(path.read_bytes()).items() if v})
    return total


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"

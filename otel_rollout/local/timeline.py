"""When what ran: the calls of a trajectory as bars, in lanes by process and kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout.local.facts import process_of, seconds
from otel_rollout.local.trajectory import Trajectory, value_of

KINDS: Final = {"agent": "loop", "llm": "generate", "tool": "tools", "scorer": "scoring"}
_PHASES: Final = ("queue", "prefill", "decode")


@dataclass(frozen=True)
class Bar:
    """A call, or a phase of one; ``start`` and ``length`` as shares of the whole, 0 to 1."""

    start: float
    length: float
    kind: str
    title: str
    call: str
    failed: bool


@dataclass
class Lane:
    """A row of the timeline."""

    process: str
    kind: str
    label: str
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True)
class Timeline:
    """All lanes, and how many seconds they span."""

    seconds: float
    lanes: list[Lane]


def of(trajectory: Trajectory) -> Timeline:
    """Return the timeline of a trajectory."""
    spans = []
    for node in trajectory.nodes:
        start, end = seconds(node.call.get("started_at")), seconds(node.call.get("ended_at"))
        if start is not None:
            spans.append((start, end if end is not None else start, node.call))
    if not spans:
        return Timeline(0.0, [])
    begin = min(start for start, _, _ in spans)
    whole = max(end for _, end, _ in spans) - begin or 1e-6
    lanes: dict[tuple[str, str], Lane] = {}
    for start, end, call in spans:
        kind = str(value_of(call, "weave", "kind") or "other")
        process = process_of(call.get("attributes") or {}) or "process"
        key = (process, kind)
        if key not in lanes:
            lanes[key] = Lane(process, kind, KINDS.get(kind, kind))
        lanes[key].bars += _bars(call, kind, start - begin, end - begin, whole)
    order = list(KINDS)

    def rank(lane: Lane) -> tuple[str, int]:
        return lane.process, order.index(lane.kind) if lane.kind in order else len(order)

    return Timeline(whole, sorted(lanes.values(), key=rank))


def _bars(call: dict[str, Any], kind: str, start: float, end: float, whole: float) -> Iterator[Bar]:
    name, failed = str(call.get("op_name")), call.get("exception") is not None
    phases = list(_phases(call, start, end)) if kind == "llm" else []
    for phase, begin, until in phases or [(kind, start, end)]:
        said = name if phase == kind else f"{name} · {phase}"
        title = f"{said} · {until - begin:.3f} s from {begin:.3f} s"
        yield Bar(begin / whole, (until - begin) / whole, phase, title, str(call["id"]), failed)


def _phases(call: dict[str, Any], start: float, end: float) -> Iterator[tuple[str, float, float]]:
    """Yield the phases that the engine tells of, as far as they are within the call."""
    timing = value_of(call, "rollout", "timing")
    if not isinstance(timing, dict):
        return
    for phase in _PHASES:
        length = timing.get(phase)
        if not isinstance(length, (int, float)) or length <= 0:
            continue
        until = min(end, start + length)
        if until > start:
            yield phase, start, until
        start = until

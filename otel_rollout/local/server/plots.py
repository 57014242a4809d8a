"""Plots as coordinates: the templates draw them as SVG, each point a link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from otel_rollout.local.queries import Bin

WIDTH: Final = 520
HEIGHT: Final = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 12, 24


@dataclass
class Mark:
    """A point that is clicked into: the strip around it, and what it says."""

    x: float
    width: float
    href: str
    title: str
    dots: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Plot:
    """A plot over steps: areas and lines as SVG points, ticks and marks."""

    title: str
    unit: str
    areas: list[tuple[str, str]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    bars: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ticks_x: list[tuple[float, str]] = field(default_factory=list)
    ticks_y: list[tuple[float, str]] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)

    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


@dataclass
class Scale:
    """Maps values to coordinates."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + share * (self.end - self.start), 2)


Series = Sequence[tuple[float, float | None]]


def over_steps(
    title: str,
    unit: str,
    steps: Sequence[float],
    *,
    lines: dict[str, Series] | None = None,
    bands: dict[str, Sequence[tuple[float, float | None, float | None]]] | None = None,
    bars: dict[str, Series] | None = None,
    links: dict[float, tuple[str, str]],
    floor: float | None = None,
) -> Plot:
    """Return a plot; the keys of ``lines``, ``bands`` and ``bars`` are their CSS classes."""
    lines, bands, bars = lines or {}, bands or {}, bars or {}
    values = [v for series in (*lines.values(), *bars.values()) for _, v in series if _real(v)]
    values += [v for band in bands.values() for _, *pair in band for v in pair if _real(v)]
    plot = Plot(title, unit)
    if not steps or not values:
        return plot
    low, high = min(values), max(values)  # type: ignore[type-var]
    if floor is not None:
        low = min(floor, low)  # type: ignore[type-var]
    ticks = nice_ticks(float(low or 0), float(high or 0))
    y = Scale(ticks[0], ticks[-1], plot.bottom, plot.top)
    first, last = min(steps), max(steps)
    single = first == last
    spread = (plot.right - plot.left) / max(1, len(set(steps)))
    x = Scale(first, last, plot.left + spread / 2, plot.right - spread / 2)
    if single:
        x = Scale(first - 1, first + 1, plot.left, plot.right)
    plot.ticks_y = [(y(tick), short(tick)) for tick in ticks]
    plot.ticks_x = [(x(s), str(int(s))) for s in thinned(sorted(set(steps)), 10)]
    for name, band in bands.items():
        whole = [(x(s), a, b) for s, a, b in band if a is not None and b is not None]
        top = [f"{at},{y(b)}" for at, _, b in whole]
        bottom = [f"{at},{y(a)}" for at, a, _ in reversed(whole)]
        plot.areas.append((name, " ".join(top + bottom)))
    for name, series in lines.items():
        points = [f"{x(s)},{y(v)}" for s, v in series if v is not None and _real(v)]
        plot.lines.append((name, " ".join(points)))
    width = min(26.0, spread * 0.6)
    for name, series in bars.items():
        for s, v in series:
            if v:
                top_ = y(v)
                place = (round(x(s) - width / 2, 2), top_, width, round(plot.bottom - top_, 2))
                plot.bars.append((*place, name))
    dots: dict[float, list[tuple[float, str]]] = {}
    for name, series in lines.items():
        if name.startswith("thin"):
            continue
        for s, v in series:
            if v is not None and _real(v):
                dots.setdefault(s, []).append((y(v), name))
    for s, (href, said) in links.items():
        strip = max(2.0, spread)
        plot.marks.append(Mark(x(s), strip, href, said, dots.get(s, [])))
    return plot


def _real(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round numbers that span ``low`` to ``high``."""
    if high <= low:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 10) for number in range(first, last + 1)]


def thinned(values: Sequence[float], most: int) -> list[float]:
    """Return at most so many of the values, evenly."""
    stride = max(1, -(-len(values) // most))
    return list(values[::stride])


def short(value: float) -> str:
    """Return a number with few digits."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}"


@dataclass(frozen=True)
class Bar:
    """A histogram's bar."""

    x: float
    y: float
    width: float
    height: float
    bin: Bin
    shade: int
    """0 for the lowest values to 8 for the highest."""


def histogram(bins: Sequence[Bin], width: int = 520, height: int = 64) -> list[Bar]:
    """Return the bars of a histogram; heights by the square root, so that few are seen too."""
    if not bins:
        return []
    low, high = min(b.low for b in bins), max(b.high for b in bins)
    most = max(b.count for b in bins)
    x = Scale(low, high, 0, width)
    result = []
    for one in bins:
        tall = max(3.0, math.sqrt(one.count / most) * (height - 2))
        left, right = x(one.low), x(one.high)
        shade = round(8 * (one.low - low) / ((high - low) or 1))
        bar = Bar(left + 1, height - tall, max(3.0, right - left - 2), tall, one, min(8, shade))
        result.append(bar)
    return result


def sparkline(values: Sequence[float | None], width: int = 120, height: int = 28) -> str:
    """Return the points of a small line."""
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    if len(known) < 2:
        return ""
    low, high = min(v for _, v in known), max(v for _, v in known)
    x = Scale(0, len(values) - 1, 2, width - 2)
    y = Scale(low, high, height - 3, 3)
    return " ".join(f"{x(i)},{y(v)}" for i, v in known)

"""The rows of the results: how they are made, kept and shown."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Target:
    """What is aimed at: of our figure, or of the ratio."""

    at_most: float | None = None
    at_least: float | None = None
    times_at_most: float | None = None
    """How many times the baseline our figure may be."""
    ratio_at_least: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.at_most is not None:
            parts.append(f"≤ {self.at_most:g}")
        if self.at_least is not None:
            parts.append(f"≥ {self.at_least:g}")
        if self.times_at_most is not None:
            parts.append(f"≤ {self.times_at_most:g} times the baseline")
        if self.ratio_at_least is not None:
            parts.append(f"ratio ≥ {self.ratio_at_least:g}")
        return ", ".join(parts)

    def is_met(self, ours: float, ratio: float | None) -> bool:
        held = [
            self.at_most is None or ours <= self.at_most,
            self.at_least is None or ours >= self.at_least,
        ]
        if self.times_at_most is not None:
            held.append(ratio is not None and ratio * self.times_at_most >= 1)
        if self.ratio_at_least is not None:
            held.append(ratio is not None and ratio >= self.ratio_at_least)
        return all(held)


@dataclass(frozen=True)
class Row:
    """One figure. ``ratio``: baseline / ours for costs, traced / untraced for throughput.

    ``min``, ``median``, ``max``: of our repeats; ``ours`` is their median.
    """

    name: str
    ours: float
    baseline: float | None
    ratio: float | None
    unit: str
    python: str
    against: str
    min: float
    median: float
    max: float
    repeats: int
    target: str
    met: bool | None
    section: str = ""


def row(
    name: str,
    ours: Sequence[float],
    baseline: Sequence[float] = (),
    *,
    unit: str,
    against: str = "",
    target: Target | None = None,
    higher_is_better: bool = False,
    paired: bool = False,
) -> Row:
    """Make a row of repeats.

    ``paired``: each repeat of ours was measured next to the baseline's of the same number, and the
    ratio is the median of theirs: what else the machine does changes both.
    """
    median = statistics.median(ours)
    base = statistics.median(baseline) if baseline else None
    ratio = None
    if base and median:
        pairs = list(zip(ours, baseline, strict=True)) if paired else [(median, base)]
        ratios = [mine / other if higher_is_better else other / mine for mine, other in pairs]
        ratio = statistics.median(ratios)
    return Row(
        name=name,
        ours=rounded(median),
        baseline=rounded(base) if base is not None else None,
        ratio=rounded(ratio) if ratio is not None else None,
        unit=unit,
        python=platform.python_version(),
        against=against,
        min=rounded(min(ours)),
        median=rounded(median),
        max=rounded(max(ours)),
        repeats=len(ours),
        target=str(target) if target is not None else "",
        met=target.is_met(median, ratio) if target is not None else None,
    )


def rounded(value: float) -> float:
    """Four digits are more than a repeat gives again."""
    return float(f"{value:.4g}")


def load(path: Path = RESULTS) -> list[Row]:
    """The rows of a file; none where there is none."""
    if not path.exists():
        return []
    return [Row(**one) for one in json.loads(path.read_text())]


def merge(before: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """The rows of before, those of the same section and Python replaced."""
    redone = {(one.section, one.python) for one in new}
    kept = [one for one in before if (one.section, one.python) not in redone]
    order = list(dict.fromkeys(one.section for one in (*before, *new)))
    return sorted([*kept, *new], key=lambda one: order.index(one.section))


def save(rows: Sequence[Row], path: Path = RESULTS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dataclasses.asdict(one), ensure_ascii=False) for one in rows]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def shown(value: float | None) -> str:
    """A figure for a table."""
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [
        "| what | otel-rollout | min … max | baseline | | ratio | aim | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        met = {True: "met", False: "**missed**", None: ""}[one.met]
        cells = [
            one.name,
            f"{shown(one.ours)} {one.unit}".strip(),
            f"{shown(one.min)} … {shown(one.max)}",
            shown(one.baseline),
            one.against,
            shown(one.ratio),
            one.target,
            met,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plain(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    table = [("", "ours", "unit", "min", "max", "baseline", "of", "ratio", "aim", "")]
    for one in rows:
        met = {True: "ok", False: "MISSED", None: ""}[one.met]
        table.append(
            (
                one.name,
                shown(one.ours),
                one.unit,
                shown(one.min),
                shown(one.max),
                shown(one.baseline),
                one.against,
                shown(one.ratio),
                one.target,
                met,
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )

"""The plots of ``docs/performance.md``, from ``curves.json``.

python -m benchmarks.plots
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "otel-rollout"  # the same curves give the same file
matplotlib.rcParams["svg.fonttype"] = "none"

from matplotlib import pyplot  # noqa: E402

CURVES = Path(__file__).with_name("curves.json")
IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"

_LINES = {
    "ours": ("otel-rollout", "#1b6ca8", "o-"),
    "bare": ("a bare OTel span", "#7a7a7a", "s--"),
    "untraced": ("untraced", "#7a7a7a", "s--"),
    "ints": ("OTel, ids as int lists", "#b07aa1", "^-"),
    "mlflow": ("verl's own, MLflow", "#e0952b", "v-"),
    "weave": ("verl's own, Weave", "#c8443a", "D-"),
}


def draw(axes: Any, lines: dict[str, list[list[float]]], x: str, y: str) -> None:
    for name, points in lines.items():
        label, colour, style = _LINES[name]
        by_x: dict[float, list[float]] = {}
        for where, value in sorted(points):
            by_x.setdefault(where, []).append(value)
        values = [statistics.median(some) for some in by_x.values()]
        axes.plot(list(by_x), values, style, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    ticks = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)


def save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / name, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    curves = json.loads(CURVES.read_text())
    if "tokens" in curves:
        figure, axes = pyplot.subplots(figsize=(6.4, 4))
        draw(axes, curves["tokens"], "token ids in, and as many out", "caller's CPU a call, ms")
        save(figure, "bench-tokens.svg")
    if "turns cpu" in curves:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4))
        turns = "turns of a trajectory, 512 new tokens each"
        draw(left, curves["turns cpu"], turns, "process's CPU a trajectory, ms")
        draw(right, curves["turns bytes"], turns, "sent for a trajectory, kB")
        save(figure, "bench-turns.svg")
    if "crowd throughput" in curves:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4))
        many = "trajectories at once"
        draw(left, curves["crowd throughput"], many, "calls a second")
        draw(right, curves["crowd lag_p99"], many, "the loop is late by, p99, ms")
        save(figure, "bench-crowd.svg")
    if "spool lag" in curves:
        figure, axes = pyplot.subplots(figsize=(6.4, 4))
        draw(axes, curves["spool lag"], "spans of 4096 + 4096 ids a second", "end to disk, p99, ms")
        axes.axhline(100, color="#7a7a7a", linestyle=":")
        save(figure, "bench-spool.svg")


if __name__ == "__main__":
    main()

"""The plots of a run: reward, length, errors and groups without variance, by step."""

from __future__ import annotations

from typing import Any

from otel_rollout.local.queries import Selection
from otel_rollout.local.server import plots
from otel_rollout.local.server.rendering import list_query


def step_plots(rows: list[dict[str, Any]], selection: Selection) -> list[plots.Plot]:
    """Return the plots of a run."""
    training = [row for row in rows if not row["validate"]]
    validation = [row for row in rows if row["validate"]]
    links: dict[float, tuple[str, str]] = {}
    for row in [*validation, *training]:  # training last: it is what a click leads to
        text = f"step=={row['step']}" + ("" if row in training else " and validate")
        chosen = Selection(selection.project, selection.experiment, text)
        said = (
            f"step {row['step']}: {row['trajectories']} trajectories, mean reward "
            f"{row['mean'] if row['mean'] is not None else 0:.3f} "
            f"({row['low']} to {row['high']}), {row['tool_errors']} with failed tools, "
            f"{row['flat_groups']} of {row['groups']} groups without variance"
        )
        links[row["step"]] = (f"/trajectories?{list_query(chosen)}", said)
    steps = [row["step"] for row in rows]

    def series(among: list[dict[str, Any]], value: Any) -> list[tuple[float, float | None]]:
        return [(row["step"], value(row)) for row in among]

    def share(name: str, of: str) -> Any:
        return lambda row: 100 * row[name] / row[of] if row[of] else None

    deviation = [
        (
            r["step"],
            max(r["low"], r["mean"] - r["deviation"]),
            min(r["high"], r["mean"] + r["deviation"]),
        )
        for r in training
        if r["mean"] is not None
    ]
    whole = [(r["step"], r["low"], r["high"]) for r in training]
    reward = plots.over_steps(
        "Reward",
        "",
        steps,
        bands={"range": whole, "deviation": deviation},
        lines={
            "main": series(training, lambda r: r["mean"]),
            "second": series(validation, lambda r: r["mean"]),
        },
        links=links,
    )
    reward.legend = [("main", "mean"), ("deviation", "± std"), ("range", "min\u2013max")]
    if validation:
        reward.legend.append(("second", "validation"))
    length = plots.over_steps(
        "Response length",
        "tokens",
        steps,
        lines={
            "main": series(training, lambda r: r["response_tokens"]),
            "second": series(training, lambda r: r["longest"]),
        },
        links=links,
        floor=0,
    )
    length.legend = [("main", "mean"), ("second", "longest")]
    errors = plots.over_steps(
        "Trajectories with errors",
        "%",
        steps,
        bars={"bad": series(training, share("errors", "trajectories"))},
        lines={},
        links=links,
        floor=0,
    )
    flat = plots.over_steps(
        "Groups without variance",
        "%",
        steps,
        bars={"flat": series(training, share("flat_groups", "groups"))},
        links=links,
        floor=0,
    )
    return [reward, length, errors, flat]

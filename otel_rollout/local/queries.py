"""What the viewer asks the index: runs, steps, lists of trajectories, groups, histograms."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from otel_rollout.local import expression
from otel_rollout.local.expression import Where
from otel_rollout.local.index import Index

PAGE: Final = 50
LIVE_S: Final = 120.0
"""A run is live where something has come within this time."""
_BINS: Final = 20
_FEW: Final = 5000
SORTS: Final = {
    "step": "step",
    "sample": "sample_index",
    "n": "rollout_n",
    "reward": "reward",
    "advantage": "advantage",
    "turns": "turns",
    "tokens": "tokens",
    "response_tokens": "response_tokens",
    "tools": "tools",
    "errors": "errors",
    "seconds": "duration",
    "started": "started",
}
DEFAULT_SORT: Final = "-started"


@dataclass(frozen=True)
class Selection:
    """Which trajectories, in which order: what a list's address says.

    Args:
        project: of the run; ``None``: of every run.
        experiment: as ``project``.
        text: a filter expression.
        sort: a key of :data:`SORTS`, with ``-`` before it for descending.
    """

    project: str | None = None
    experiment: str | None = None
    text: str = ""
    sort: str = DEFAULT_SORT

    @property
    def where(self) -> Where:
        """The condition; raises :class:`~otel_rollout.local.expression.FilterError`."""
        return self.of_run & expression.where(self.text)

    @property
    def of_run(self) -> Where:
        """The condition without the expression."""
        condition = Where()
        if self.project is not None:
            condition = condition & Where("project = ?", (self.project,))
        if self.experiment is not None:
            condition = condition & Where("experiment = ?", (self.experiment,))
        return condition

    @property
    def order(self) -> tuple[str, bool]:
        """Column and whether it descends; raises ``FilterError`` for an unknown one."""
        name = self.sort.removeprefix("-")
        if name not in SORTS:
            raise expression.FilterError(f"no list can be sorted by {name!r}")
        return SORTS[name], self.sort.startswith("-")


@dataclass(frozen=True)
class Page:
    """A part of a list; ``before``/``after``: whether there is more."""

    rows: list[sqlite3.Row]
    before: bool
    after: bool


def runs(index: Index) -> list[sqlite3.Row]:
    """Return one row an experiment, the last active first."""
    return index.query(
        """SELECT project, experiment, sum(trajectories) AS trajectories, sum(done) AS done,
        count(DISTINCT step) AS steps, min(step) AS first_step, max(step) AS last_step,
        sum(errors) AS errors, min(started) AS started, max(ended) AS ended,
        sum(CASE WHEN validate = 0 THEN mean * rewarded END)
          / sum(CASE WHEN validate = 0 THEN rewarded END) AS mean
        FROM steps GROUP BY project, experiment ORDER BY max(ended) DESC, project, experiment"""
    )


def steps(index: Index, project: str, experiment: str) -> list[dict[str, Any]]:
    """Return the statistics of a run by step, training and validation apart."""
    found = index.query(
        "SELECT * FROM steps WHERE project = ? AND experiment = ? ORDER BY step, validate",
        (project, experiment),
    )
    return [{**dict(row), "deviation": _deviation(row)} for row in found]


def _deviation(row: sqlite3.Row) -> float | None:
    if row["mean"] is None:
        return None
    return math.sqrt(max(0.0, row["mean_square"] - row["mean"] ** 2))


def page(
    index: Index,
    selection: Selection,
    *,
    after: str | None = None,
    before: str | None = None,
    limit: int = PAGE,
    matching: int | None = None,
) -> Page:
    """Return the part of a list behind (or before) a trajectory, by default its beginning.

    Where only a few match (``matching``, as far as it is known), they are found and then sorted:
    going through the list in its order until a page is full would be going through all of it.
    """
    if matching == 0:
        return Page([], False, False)
    column, descending = selection.order
    backwards = before is not None
    anchor = _anchor(index, before or after, column)
    condition = selection.where
    if anchor is not None:
        condition = condition & _beyond(column, descending != backwards, *anchor)
    few = matching is not None and matching < _FEW
    direction = "DESC" if descending != backwards else "ASC"
    found = index.query(
        f"SELECT * FROM trajectories WHERE {condition.sql} "
        f"ORDER BY {'+' if few else ''}{column} {direction}, number {direction} LIMIT ?",
        (*condition.values, limit + 1),
    )
    more, rows = len(found) > limit, found[:limit]
    if backwards:
        return Page(rows[::-1], before=more, after=anchor is not None)
    return Page(rows, before=anchor is not None, after=more)


def _anchor(index: Index, trace: str | None, column: str) -> tuple[Any, int] | None:
    if trace is None:
        return None
    found = index.query(f"SELECT {column}, number FROM trajectories WHERE trace = ?", (trace,))
    return (found[0][0], found[0][1]) if found else None


def _beyond(column: str, descending: bool, value: Any, number: int) -> Where:
    """Return the condition for what comes behind a row. NULL is lower than any value."""
    sign = "<" if descending else ">"
    if value is None:
        same = f"{column} IS NULL AND number {sign} ?"
        beyond = same if descending else f"({same}) OR {column} IS NOT NULL"
        return Where(beyond, (number,))
    nulls = f" OR {column} IS NULL" if descending else ""
    return Where(
        f"{column} {sign} ? OR ({column} = ? AND number {sign} ?){nulls}", (value, value, number)
    )


def neighbours(index: Index, selection: Selection, trace: str) -> tuple[str | None, str | None]:
    """Return the trajectories before and behind one in a list."""
    earlier = page(index, selection, before=trace, limit=1).rows
    later = page(index, selection, after=trace, limit=1).rows
    return (earlier[0]["trace"] if earlier else None, later[0]["trace"] if later else None)


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram, and the filter that selects what is in it."""

    low: float
    high: float
    count: int
    filter: str


@dataclass(frozen=True)
class Summary:
    """What a list holds as a whole."""

    count: int
    rewarded: int
    mean: float | None
    errors: int
    bins: tuple[Bin, ...]


def summary(index: Index, selection: Selection) -> Summary:
    """Return count, mean reward and histogram of a list; kept until something new comes in."""
    return _summary(index, selection, index.version())


@lru_cache(maxsize=256)
def _summary(index: Index, selection: Selection, _version: int) -> Summary:
    condition = selection.where
    (whole,) = index.query(
        "SELECT count(*), count(reward), avg(reward), min(reward), max(reward), "
        f"sum(errors > 0) FROM trajectories WHERE {condition.sql}",
        condition.values,
    )
    count, rewarded, mean, low, high, errors = whole
    bins = _bins(index, condition, low, high) if rewarded else ()
    return Summary(count, rewarded, mean, errors or 0, bins)


def _bins(index: Index, condition: Where, low: float, high: float) -> tuple[Bin, ...]:
    if not (math.isfinite(low) and math.isfinite(high)):
        return ()
    width = (high - low) / _BINS or 1.0
    found = index.query(
        f"SELECT min(CAST((reward - ?) / ? AS INTEGER), ?) AS bin, count(*), min(reward), "
        f"max(reward) FROM trajectories WHERE {condition.sql} AND reward IS NOT NULL GROUP BY bin",
        (low, width, _BINS - 1, *condition.values),
    )
    bins = []
    for number, count, least, most in found:
        start, end = low + number * width, low + (number + 1) * width
        if least == most:
            chosen = f"reward=={least!r}"
        elif number == _BINS - 1:
            chosen = f"reward>={least!r}"
        else:
            chosen = f"{least!r}<=reward<={most!r}"
        bins.append(Bin(start, end, count, chosen))
    return tuple(bins)


def trajectory(index: Index, trace: str) -> sqlite3.Row | None:
    """Return a trajectory's row."""
    found = index.query("SELECT * FROM trajectories WHERE trace = ?", (trace,))
    return found[0] if found else None


def group(index: Index, name: str) -> list[sqlite3.Row]:
    """Return the rollouts of one prompt, in order."""
    return index.query(
        "SELECT * FROM trajectories WHERE grp = ? ORDER BY rollout_n, number", (name,)
    )


def groups(index: Index, selection: Selection, limit: int = 200) -> list[sqlite3.Row]:
    """Return the groups with a trajectory in a list: the widest spread of rewards first."""
    run = selection.of_run
    condition = selection.where
    among = Where()
    if selection.text:
        listed = f"SELECT grp FROM trajectories WHERE {condition.sql}"
        among = Where(f"grp IN ({listed})", condition.values)
    whole = run & among
    return index.query(
        f"SELECT * FROM groups WHERE {whole.sql} ORDER BY spread DESC LIMIT ?",
        (*whole.values, limit),
    )


@dataclass(frozen=True)
class Damage:
    """A segment in which something could not be read."""

    segment: str
    damaged: int
    unreadable: int


def damage(index: Index) -> list[Damage]:
    """Return the segments with parts that were skipped."""
    found = index.query(
        "SELECT name, damaged, unreadable FROM segments WHERE damaged OR unreadable ORDER BY name"
    )
    return [Damage(*row) for row in found]

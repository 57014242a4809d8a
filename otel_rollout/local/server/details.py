"""Trajectories for the pages that show them: alone, in their group, beside others."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout.local import queries, strips, trajectory
from otel_rollout.local.comparison import (
    Parting,
    best_of,
    common_text,
    first_difference,
    nearest,
    parting,
)
from otel_rollout.local.index import Index
from otel_rollout.local.server.rendering import shade
from otel_rollout.local.strips import Strip
from otel_rollout.local.trajectory import Trajectory
from otel_rollout.local.vocabulary import Vocabularies

MOST_IN_A_GROUP: Final = 64
_SHARED: Final = 40
_SHOWN: Final = 600


@dataclass(frozen=True)
class Siblings:
    """The group of a trajectory, and its neighbours in it."""

    members: list[sqlite3.Row]
    before: str | None
    after: str | None

    def shade(self, reward: float | None) -> int | None:
        """Return 0 to 8 for a reward's place in the group."""
        rewards = [row["reward"] for row in self.members if row["reward"] is not None]
        return shade(reward, min(rewards, default=None), max(rewards, default=None))


class Details:
    """Loads trajectories from the store."""

    def __init__(self, index: Index, vocabularies: Vocabularies) -> None:
        self._index = index
        self.vocabularies = vocabularies

    def trajectory(self, trace: str) -> Trajectory | None:
        """Return a trajectory, or ``None``."""
        row = queries.trajectory(self._index, trace)
        return trajectory.load(self._index, row) if row is not None else None

    def group(self, name: str) -> list[Trajectory]:
        """Return the rollouts of one prompt."""
        rows = queries.group(self._index, name)[:MOST_IN_A_GROUP]
        return [trajectory.load(self._index, row) for row in rows]

    def siblings(self, one: Trajectory) -> Siblings:
        """Return the group of a trajectory."""
        name = one.facts["grp"]
        members = queries.group(self._index, name) if name is not None else []
        traces = [row["trace"] for row in members]
        if one.trace not in traces:
            return Siblings(members, None, None)
        at = traces.index(one.trace)
        before = traces[at - 1] if at else None
        after = traces[at + 1] if at + 1 < len(traces) else None
        return Siblings(members, before, after)

    def parting_from_best(self, one: Trajectory) -> tuple[Parting, Trajectory] | None:
        """Return where a trajectory leaves the best of its group; ``None`` for the best itself.

        Of several that are equally good it is the one that goes along the longest.
        """
        name = one.facts["grp"]
        if name is None or one.reward is None:
            return None
        rows = [r for r in queries.group(self._index, name) if r["reward"] is not None]
        highest = max((row["reward"] for row in rows), default=one.reward)
        if highest <= one.reward:
            return None
        best = [row for row in rows if row["reward"] == highest][:MOST_IN_A_GROUP]
        other = nearest(one, [trajectory.load(self._index, row) for row in best])
        if other is None:
            return None
        found = parting(one, other, self.vocabularies)
        return (found, other) if found is not None else None


@dataclass(frozen=True)
class Member:
    """A rollout in its group."""

    one: Trajectory
    parting: Parting | None
    """Where it leaves ``other``, the nearest of the best."""
    other: Trajectory | None
    shared: int
    """Characters of its response that are those of ``other``."""
    by_text: bool
    """Whether it leaves ``other`` in its text, and there are no tokens to tell where."""
    is_best: bool
    bar: float
    """Its reward's place between the lowest and the highest, 0 to 1."""
    shade: int | None


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt."""

    facts: dict[str, Any]
    members: list[Member]
    mean: float | None
    low: float | None
    high: float | None
    prompt: str


def grouped(trajectories: list[Trajectory], vocabularies: Vocabularies) -> Group:
    """Return a group with where each member leaves the best."""
    best = best_of(trajectories)
    rewards = [one.reward for one in trajectories if one.reward is not None]
    low, high = min(rewards, default=None), max(rewards, default=None)
    members = []
    for one in trajectories:
        other = nearest(one, best) if one not in best else None
        away = parting(one, other, vocabularies) if other is not None else None
        shared = common_text(one.response_text, other.response_text) if other is not None else 0
        by_text = (
            away is None
            and other is not None
            and one.response_text != other.response_text
            and not (one.tokens().ids and other.tokens().ids)
        )
        bar = 0.0
        if one.reward is not None and low is not None and high is not None:
            # From zero where all are positive, so that equal rewards are not empty bars.
            start = min(0.0, low)
            bar = (one.reward - start) / ((high - start) or 1.0)
        members.append(
            Member(
                one, away, other, shared, by_text, one in best, bar, shade(one.reward, low, high)
            )
        )
    mean = sum(rewards) / len(rewards) if rewards else None
    prompt = trajectories[0].prompt_text
    return Group(trajectories[0].facts, members, mean, low, high, prompt)


@dataclass(frozen=True)
class Column:
    """A trajectory beside others: its tokens from just before they part."""

    one: Trajectory
    strip: Strip
    parts_at: int | None
    """Position from which on this one differs from the first of them."""


@dataclass(frozen=True)
class Comparison:
    """Trajectories side by side; ``position``: of the first token that not all share."""

    columns: list[Column]
    position: int | None
    same_prompt: bool
    start: int
    text_at: int | None
    """Where no token is stored: the first character of the responses that not all share."""


def compared(trajectories: list[Trajectory], vocabularies: Vocabularies) -> Comparison:
    """Return a comparison of some trajectories."""
    tokens = [one.tokens() for one in trajectories]
    position = first_difference([each.ids for each in tokens])
    start = max(0, (position or 0) - _SHARED)
    columns = []
    for one, each in zip(trajectories, tokens, strict=True):
        own = first_difference([tokens[0].ids, each.ids]) if each is not tokens[0] else position
        strip = strips.strip(one, vocabularies, start, _SHOWN, each)
        columns.append(Column(one, strip, own))
    same = all(each.prompt_ids == tokens[0].prompt_ids for each in tokens)
    text_at = None
    if not any(each.ids for each in tokens):
        first = trajectories[0].response_text
        text_at = min(common_text(first, one.response_text) for one in trajectories)
    return Comparison(columns, position, same, start, text_at)

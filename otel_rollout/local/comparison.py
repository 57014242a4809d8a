"""Trajectories side by side: where they part, and from what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otel_rollout.local.trajectory import Tokens, Trajectory
from otel_rollout.local.vocabulary import Vocabularies

_TEXT_AROUND = 60


@dataclass(frozen=True)
class Parting:
    """Where a trajectory leaves another.

    ``position``: of the first token that differs, counted behind the prompt; ``turn``: its turn;
    ``ids``: that token here and there, ``None`` where one has ended. ``shared``, ``here``,
    ``there``: the text just before, and how each goes on.
    """

    position: int
    turn: int
    ids: tuple[int | None, int | None]
    shared: str
    here: str
    there: str
    same_prompt: bool = True


def parting(a: Trajectory, b: Trajectory, vocabularies: Vocabularies) -> Parting | None:
    """Return where ``a`` leaves ``b``; ``None`` where they are the same or have no tokens."""
    first, second = a.tokens(), b.tokens()
    position = first_difference([first.ids, second.ids])
    if position is None:
        return None
    shared, here, there = _texts(a, b, first, second, position, vocabularies)
    turns = first.turns if position < len(first.turns) else second.turns
    return Parting(
        position,
        turns[position],
        (_at(first.ids, position), _at(second.ids, position)),
        shared,
        here,
        there,
        first.prompt_ids == second.prompt_ids,
    )


def first_difference(sequences: Sequence[Sequence[int]]) -> int | None:
    """Return the first position at which not all are the same; ``None`` where there is none."""
    if len(sequences) < 2 or not all(sequences):
        return None
    shortest = min(map(len, sequences))
    head = sequences[0]
    for position in range(shortest):
        if any(one[position] != head[position] for one in sequences[1:]):
            return position
    return shortest if any(len(one) != shortest for one in sequences) else None


def best_of(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return those with the highest reward."""
    rewards = [one.reward for one in trajectories if one.reward is not None]
    return [one for one in trajectories if rewards and one.reward == max(rewards)]


def nearest(one: Trajectory, others: Sequence[Trajectory]) -> Trajectory | None:
    """Return the one that goes along with ``one`` the longest: what parts them tells the most."""
    ids = one.tokens().ids

    def shared(other: Trajectory) -> float:
        position = first_difference([ids, other.tokens().ids])
        return position if position is not None else -1

    return max((other for other in others if other is not one), key=shared, default=None)


def _texts(
    a: Trajectory, b: Trajectory, first: Tokens, second: Tokens, position: int, known: Vocabularies
) -> tuple[str, str, str]:
    """Return the text before and behind the parting: of the tokens, or else of the responses."""
    start = max(0, position - 24)
    here = known.pieces(a.model, first.ids[start : position + 16])
    there = known.pieces(b.model, second.ids[start : position + 16])
    if here is not None and there is not None:
        split = position - start
        return "".join(here[:split]), "".join(here[split:]), "".join(there[split:])
    left, right = a.response_text, b.response_text
    split = common_text(left, right)
    around = slice(split, split + _TEXT_AROUND)
    return left[max(0, split - _TEXT_AROUND) : split], left[around], right[around]


def common_text(a: str, b: str) -> int:
    """Return how many characters two texts share at their start."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _at(ids: list[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None

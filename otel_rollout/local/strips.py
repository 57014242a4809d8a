"""Tokens as cells: id, text, log-probability, and whether the policy made them."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from otel_rollout.local.trajectory import Tokens, Trajectory
from otel_rollout.local.vocabulary import Vocabularies

CELLS: Final = 4000
"""Cells of one page."""
_SURPRISES: Final = (0.02, 0.1, 0.25, 0.5, 1.0, 2.0, 3.5, 5.0)
"""Bounds of -log p between the shades 0 (as good as certain) to 8."""


@dataclass(frozen=True)
class Cell:
    """A token. ``shade``: 0 to 8, ``None`` without a log-probability. ``opens``: its turn."""

    position: int
    id: int
    text: str
    logprob: float | None
    shade: int | None
    made: bool
    opens: int | None
    breaks: bool
    newline: bool


@dataclass(frozen=True)
class Strip:
    """A part of a trajectory's tokens; ``named``: whether their text is known."""

    cells: list[Cell]
    start: int
    total: int
    prompt: int
    named: bool
    scored: bool


def strip(
    trajectory: Trajectory,
    vocabularies: Vocabularies,
    start: int = 0,
    count: int = CELLS,
    tokens: Tokens | None = None,
) -> Strip:
    """Return the cells from ``start`` on, counted behind the first prompt."""
    tokens = tokens or trajectory.tokens()
    start = max(0, min(start, len(tokens.ids)))
    end = min(len(tokens.ids), start + count)
    lead = min(start, 12)  # so that a character over several tokens is decoded whole
    pieces = vocabularies.pieces(trajectory.model, tokens.ids[start - lead : end])
    texts = pieces[lead:] if pieces is not None else None
    breaks = set(tokens.breaks)
    cells = []
    for position in range(start, end):
        number, logprob = tokens.ids[position], tokens.logprobs[position]
        known = not math.isnan(logprob)
        opens = position == start or tokens.turns[position] != tokens.turns[position - 1]
        text = texts[position - start] if texts is not None else str(number)
        cells.append(
            Cell(
                position,
                number,
                text,
                logprob if known else None,
                bisect_right(_SURPRISES, -logprob) if known else None,
                bool(tokens.mask[position]),
                tokens.turns[position] if opens else None,
                position in breaks,
                "\n" in text if texts is not None else False,
            )
        )
    scored = any(not math.isnan(value) for value in tokens.logprobs)
    total, prompt = len(tokens.ids), len(tokens.prompt_ids)
    return Strip(cells, start, total, prompt, texts is not None, scored)

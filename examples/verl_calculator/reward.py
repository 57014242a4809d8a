"""The reward: 1 if the last answer given is the right one, else 0."""

from __future__ import annotations

import re
from typing import Any

ANSWER = re.compile(r"The answer is ([^\s<]+)\.")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Score one rollout, in the form that verl's reward managers call."""
    answers = ANSWER.findall(solution_str)
    return {"score": float(bool(answers) and answers[-1] == ground_truth)}

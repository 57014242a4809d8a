"""A store for programs: each trajectory as a dict of plain values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from otel_rollout.local import queries, trajectory
from otel_rollout.local.conversation import shown
from otel_rollout.local.facts import error_of
from otel_rollout.local.index import Index, Progress
from otel_rollout.local.queries import Selection
from otel_rollout.local.trajectory import Trajectory, value_of

_AT_A_TIME = 500


class Store:
    """Reads one store. Use it as a context manager, or call :meth:`close`.

    Raises ``FileNotFoundError`` where there is no such folder.

    Args:
        directory: ``OTEL_ROLLOUT_DIR`` of the traced processes.
        progress: called while the store is indexed, with bytes read and bytes to read.
    """

    def __init__(self, directory: Path, progress: Progress | None = None) -> None:
        if not directory.is_dir():
            raise FileNotFoundError(f"there is no store at {directory}")
        self.index = Index(directory)
        self.index.update(progress)

    def refresh(self) -> bool:
        """Take in what has been written since; return whether there was anything.

        Raises nothing for damaged parts of a file: they are skipped.
        """
        return self.index.update()

    def count(self, filter: str = "") -> int:  # noqa: A002
        """Return how many trajectories match an expression.

        Raises :class:`~otel_rollout.local.expression.FilterError`, a ``ValueError``.

        Args:
            filter: an expression as in the viewer; empty: all.
        """
        return queries.summary(self.index, Selection(text=filter)).count

    def trajectories(self, filter: str = "", *, sort: str = "started") -> Iterator[dict[str, Any]]:  # noqa: A002
        """Yield the trajectories that match, oldest first, as the rows of ``otel-rollout export``.

        Raises :class:`~otel_rollout.local.expression.FilterError`, a ``ValueError``.

        Args:
            filter: an expression as in the viewer, such as ``step==3 and reward<0.1``.
            sort: what they are sorted by, ``-`` before it for descending: ``reward``, ``-tokens``.
        """
        after: str | None = None
        while True:
            selection = Selection(text=filter, sort=sort)
            page = queries.page(self.index, selection, after=after, limit=_AT_A_TIME)
            for row in page.rows:
                yield record(trajectory.load(self.index, row))
            if not page.after:
                return
            after = page.rows[-1]["trace"]

    def trajectory(self, trace_id: str) -> dict[str, Any]:
        """Return one trajectory; raises ``KeyError`` where it is not in the store.

        Args:
            trace_id: 32 hexadecimal digits.
        """
        row = queries.trajectory(self.index, trace_id)
        if row is None:
            raise KeyError(trace_id)
        return record(trajectory.load(self.index, row))

    def close(self) -> None:
        """Close the index; raises nothing where it is closed already."""
        self.index.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record(one: Trajectory) -> dict[str, Any]:
    """Return a trajectory as plain values.

    ``response_ids`` are all tokens behind the first prompt, ``response_mask`` is 1 where the policy
    made them, ``response_logprobs`` is NaN where there is none.
    """
    facts, tokens = one.facts, one.tokens()
    return {
        "trace_id": one.trace,
        "project": facts["project"],
        "experiment_name": facts["experiment"],
        "step": facts["step"],
        "sample_index": facts["sample_index"],
        "rollout_n": facts["rollout_n"],
        "validate": bool(facts["validate"]),
        "group_id": facts["group_id"],
        "reward": one.reward,
        "advantage": facts["advantage"],
        "finished": bool(facts["done"]),
        "started": facts["started"],
        "seconds": facts["duration"],
        "turns": len(one.turns),
        "weight_version": facts["weight_version"],
        "prompt_text": one.prompt_text,
        "response_text": one.response_text,
        "prompt_ids": tokens.prompt_ids,
        "response_ids": tokens.ids,
        "response_mask": tokens.mask,
        "response_logprobs": tokens.logprobs,
        "context_breaks": tokens.breaks,
        "tools": list(_tools(one)),
        "errors": [
            {"call": str(call.get("op_name")), "type": kind, "message": message}
            for call, kind, message in one.errors()
        ],
    }


def _tools(one: Trajectory) -> Iterator[dict[str, Any]]:
    for node in one.nodes:
        call = node.call
        if value_of(call, "weave", "kind") != "tool":
            continue
        failed = call.get("exception")
        name = value_of(call, "gen_ai", "tool", "name")
        yield {
            "name": str(name if name is not None else call.get("op_name")),
            "arguments": shown(call.get("inputs")),
            "result": shown(call["output"]) if call.get("output") is not None else None,
            "error": ": ".join(error_of(failed)) if failed is not None else None,
        }

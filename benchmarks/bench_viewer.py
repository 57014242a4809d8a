"""How fast a large store opens and answers: 100,000 trajectories, written through the real spool.

python -m benchmarks.bench_viewer [--trajectories 100000] [--store DIRECTORY] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.synthetic_store import PROJECT, write_store
from otel_rollout.local import queries, trajectory
from otel_rollout.local.index import FILE_NAME, Index
from otel_rollout.local.queries import Selection

OPEN_S = 2.0
ANSWER_S = 0.2
_REPEATS = 5


def timed(ask: Callable[[], object]) -> list[float]:
    """How long each of some calls takes, in seconds."""
    taken = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - begun)
    return taken


def show_list(index: Index, selection: Selection) -> None:
    """What the table's page asks: its rows, and count and histogram of the whole list."""
    queries._summary.cache_clear()
    count = queries.summary(index, selection).count
    queries.page(index, selection, matching=count if selection.text else None)


def lists() -> dict[str, Selection]:
    run = {"project": PROJECT, "experiment": "grpo-base"}
    return {
        "everything, newest first": Selection(),
        "one run, newest first": Selection(**run),
        "one run, by reward": Selection(**run, sort="reward"),
        "everything, by tokens": Selection(sort="-response_tokens"),
        "everything, by advantage": Selection(sort="advantage"),
        "step==3 and reward<0.1 and tool.error": Selection(
            **run, text="step==3 and reward<0.1 and tool.error"
        ),
        "reward<0.1 or tool.error": Selection(text="reward<0.1 or tool.error", sort="reward"),
        "no match": Selection(text="turns>99"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--store", type=Path, help="one that is there already")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder)
        if arguments.store is None:
            begun = time.perf_counter()
            write_store(store, arguments.trajectories, samples=64)
            say(f"written in {time.perf_counter() - begun:.0f} s")
        found = measure(store)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(one) for one in found]))
        return 0
    return any(statistics.median(one.taken) > one.limit for one in found)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Answer:
    """``taken`` and ``limit`` in milliseconds."""

    what: str
    taken: list[float]
    limit: float


def measure(store: Path) -> list[Answer]:
    if not (store / FILE_NAME).exists():
        begun = time.perf_counter()
        index = Index(store)
        index.update()
        index.close()
        say(f"first indexing: {time.perf_counter() - begun:.0f} s")
    found: list[Answer] = []

    def report(what: str, taken: list[float], limit: float) -> None:
        answer = Answer(what, [one * 1000 for one in taken], limit * 1000)
        found.append(answer)
        median = statistics.median(answer.taken)
        sign = "ok  " if median <= answer.limit else "SLOW"
        say(
            f"{sign} {what:45s} {median:7.1f} ms, worst {max(answer.taken):7.1f} ms, "
            f"aim {answer.limit:.0f} ms"
        )

    def opened() -> None:
        index = Index(store)
        index.update()
        show_list(index, Selection())
        index.close()

    report("open, look for news, first list", timed(opened), OPEN_S)
    index = Index(store)
    (count,) = index.query("SELECT count(*) FROM trajectories")[0]
    say(f"     {count} trajectories, index {index.file.stat().st_size >> 20} MiB")
    for name, selection in lists().items():
        report(name, timed(lambda chosen=selection: show_list(index, chosen)), ANSWER_S)  # type: ignore[misc]
    far = index.query("SELECT trace FROM trajectories ORDER BY started LIMIT 1 OFFSET 50000")
    if far:
        trace = far[0]["trace"]
        whole = Selection()
        report(
            "the page after 50,000",
            timed(lambda: queries.page(index, whole, after=trace)),
            ANSWER_S,
        )
        report(
            "previous and next in the list",
            timed(lambda: queries.neighbours(index, whole, trace)),
            ANSWER_S,
        )
        row = queries.trajectory(index, trace)
        assert row is not None
        report(
            "one trajectory, tokens rebuilt",
            timed(lambda: trajectory.load(index, row).tokens()),
            ANSWER_S,
        )
    report("runs", timed(lambda: queries.runs(index)), ANSWER_S)
    report("steps", timed(lambda: queries.steps(index, PROJECT, "grpo-base")), ANSWER_S)
    groups = Selection(PROJECT, "grpo-base")
    report("groups of a run", timed(lambda: queries.groups(index, groups)), ANSWER_S)
    return found


if __name__ == "__main__":
    sys.exit(main())

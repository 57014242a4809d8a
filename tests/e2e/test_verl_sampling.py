"""Quotas in a real verl rollout: whole groups, the same ones each time, in every output."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rollouts import runs
from tests.e2e.rollouts.runs import Run
from tests.servers.otlp_receiver import OtlpReceiver
from tests.servers.weave_process import WeaveServer

QUOTA, WORKERS, PROMPTS, N = 2, 2, 8, 2
OPTIONS = ("--path", "classic", "--steps", "1", "--prompts", str(PROMPTS), "--n", str(N))
ROLLOUT = "actor_rollout_ref.rollout.trace."


@pytest.fixture(scope="module")
def sampled(
    verl_python: Path, weave_server: WeaveServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """The same run with our variable, and with verl's own setting and back end instead."""
    found = {}
    ways: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
        "variable": ({"OTEL_ROLLOUT_MAX_SAMPLES_PER_STEP": str(QUOTA)}, ()),
        "verl": (
            {},
            (f"{ROLLOUT}backend=weave", f"{ROLLOUT}max_samples_per_step_per_worker={QUOTA}"),
        ),
    }
    for way, (variables, overrides) in ways.items():
        project = f"sampled-{way}"
        folder = tmp_path_factory.mktemp(project)
        with OtlpReceiver() as receiver:
            results, output = runs.start(
                verl_python,
                folder,
                *OPTIONS,
                *("--project", project, *overrides),
                **runs.both_environments(weave_server, receiver),
                **variables,
            )
            runs.wait_for_calls(weave_server, project, QUOTA * WORKERS * N)
            spans = receiver.spans
        found[way] = Run(project, results, folder / "store", output, weave_server, spans)
    return found


def groups_by_worker(roots: list[Any]) -> dict[Any, Counter[int]]:
    found: dict[Any, Counter[int]] = defaultdict(Counter)
    for root in roots:
        found[root.attributes["process"]["pid"]][root.attributes["sample_index"]] += 1
    return found


@pytest.mark.parametrize("way", ["variable", "verl"])
class TestAQuotaOfTwo:
    """Each worker traces two samples of a step, with all their rollouts, and nothing else."""

    def test_two_samples_a_worker_with_all_their_rollouts(
        self, sampled: dict[str, Run], way: str
    ) -> None:
        workers = groups_by_worker(sampled[way].roots)
        assert len(workers) == WORKERS
        for samples in workers.values():
            assert len(samples) == QUOTA
            assert set(samples.values()) == {N}

    def test_both_outputs_hold_the_same_spans_and_no_other(
        self, sampled: dict[str, Run], way: str
    ) -> None:
        run = sampled[way]
        calls = {(call.trace_id, call.id) for call in run.calls}
        in_trajectories = {
            (s.trace_id, s.span_id) for s in run.spans if "rollout.step" in s.attributes
        }
        assert in_trajectories == calls

    def test_the_batch_is_whole(self, sampled: dict[str, Run], way: str) -> None:
        assert len(sampled[way].trajectories) == PROMPTS * N


def test_the_same_samples_are_taken_whenever_it_is_run(sampled: dict[str, Run]) -> None:
    taken = [
        {(r.attributes["sample_index"], r.attributes["rollout_n"]) for r in run.roots}
        for run in sampled.values()
    ]
    assert taken[0] == taken[1]

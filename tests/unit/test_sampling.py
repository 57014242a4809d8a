"""Sampling: quotas, rates, the same decision in every process, whole groups, no randomness."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout import semconv, trajectory
from otel_rollout.identity import attributes_of
from otel_rollout.processor import sampling
from otel_rollout.processor.sampling import Sampler, sample_key, scope_of, share
from tests.unit.pipeline import Pipeline, attributes

SCOPE = ("e", 1, False)


def values(index: Any, step: Any = 1, n: int = 0, **more: Any) -> dict[str, Any]:
    given_values = {"experiment_name": "e", "step": step, "validate": False, "rollout_n": n}
    return attributes_of({**given_values, "sample_index": index, **more})


class TestRate:
    """A share of samples, by their hash: near the rate, the same each time."""

    @pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.9, 1.0])
    def test_share(self, rate: float) -> None:
        sampler = Sampler(rate=rate)
        kept = sum(sampler.decide(values(index)) for index in range(5000))
        assert abs(kept / 5000 - rate) < 0.03

    def test_near_equal_keys_are_spread(self) -> None:
        sampler = Sampler(rate=0.3)
        for start in range(0, 1000, 20):
            kept = sum(sampler.decide(values(index)) for index in range(start, start + 20))
            assert 0 < kept < 20

    def test_a_higher_rate_keeps_what_a_lower_one_kept(self) -> None:
        low, high = Sampler(rate=0.2), Sampler(rate=0.4)
        for index in range(500):
            assert high.decide(values(index)) >= low.decide(values(index))

    def test_the_same_in_every_process(self) -> None:
        code = (
            "from otel_rollout.processor.sampling import Sampler\n"
            "from otel_rollout.identity import attributes_of as a\n"
            "s = Sampler(0.5)\n"
            "print([s.decide(a({'experiment_name': 'e', 'step': 1, 'sample_index': i}))"
            " for i in range(50)])"
        )
        outputs = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
            for seed in range(3)
        }
        assert len(outputs) == 1
        assert "True" in outputs.pop()

    @pytest.mark.parametrize("index", [7, np.int64(7), np.array(7), np.uint8(7)])
    def test_the_index_may_be_any_kind_of_int(self, index: Any) -> None:
        assert sample_key(values(index)) == sample_key(values(7))
        assert sample_key(values("7")) != sample_key(values(7))


class TestGroups:
    """All rollouts of a sample share its fate."""

    @given(rate=st.floats(0, 1), index=st.integers() | st.text(), group=st.uuids())
    def test_by_index(self, rate: float, index: Any, group: Any) -> None:
        sampler = Sampler(rate=rate, quota=3)
        fates = {sampler.decide(values(index, n=n, group_id=group)) for n in range(8)}
        assert len(fates) == 1

    def test_by_group_where_there_is_no_index(self) -> None:
        sampler = Sampler(quota=2)
        kept = {
            group
            for group in range(5)
            for n in range(4)
            if sampler.decide(attributes_of({"step": 1, "group_id": f"g{group}", "rollout_n": n}))
        }
        assert len(kept) == 2

    def test_by_discriminator_where_one_index_is_many(self) -> None:
        sampler = Sampler(quota=2)
        fates = [sampler.decide(values(0, n=n), f"p{n // 4}") for n in range(16)]
        assert fates == [True] * 8 + [False] * 8

    def test_nested_trajectories_share_the_outer_ones_fate(self, pipeline: Pipeline) -> None:
        sampling.use_sampler(Sampler(quota=1))
        for index in range(3):
            with trajectory(step=1, sample_index=index), trajectory(sample_index=index + 100):
                pass
        assert [attributes(s)["rollout.sample_index"] for s in pipeline.spans()] == [100, 0]


class TestQuota:
    """At most N unique samples for each step and kind of run, over several batches."""

    def test_a_known_batch_takes_the_lowest_hashes(self) -> None:
        sampler = Sampler(quota=2)
        keys = [sample_key(values(index)) for index in range(10)]
        sampler.plan(SCOPE, keys * 4)
        kept = [key for index, key in enumerate(keys) if sampler.decide(values(index))]
        assert sorted(kept, key=share) == sorted(keys, key=share)[:2]

    def test_over_several_batches(self) -> None:
        sampler = Sampler(quota=5)
        kept: set[int] = set()
        for start in (0, 2, 4, 20):
            batch = range(start, start + 2)
            sampler.plan(SCOPE, [sample_key(values(index)) for index in batch])
            kept |= {index for index in batch if sampler.decide(values(index))}
        assert len(kept) == 5
        assert {0, 1, 2, 3} < kept

    def test_a_batch_again_is_decided_as_before(self) -> None:
        sampler = Sampler(quota=2)
        keys = [sample_key(values(index)) for index in range(10)]
        sampler.plan(SCOPE, keys)
        first = [sampler.decide(values(index)) for index in range(10)]
        sampler.plan(SCOPE, keys)
        sampler.plan(SCOPE, [sample_key(values(99))])
        assert [sampler.decide(values(index)) for index in range(10)] == first
        assert not sampler.decide(values(99))

    def test_an_unknown_batch_takes_the_first_that_come(self) -> None:
        sampler = Sampler(quota=2)
        assert [sampler.decide(values(i)) for i in (5, 6, 7, 5, 6, 8)] == [
            *(True, True, False),
            *(True, True, False),
        ]

    def test_each_step_and_kind_has_its_own(self) -> None:
        sampler = Sampler(quota=1)
        for step in range(3):
            assert sampler.decide(values(1, step=step))
            assert not sampler.decide(values(2, step=step))
        validation = attributes_of({"experiment_name": "e", "step": 0, "validate": True})
        assert sampler.decide({**validation, semconv.SAMPLE_INDEX: 3})

    def test_with_a_rate(self) -> None:
        sampler = Sampler(rate=0.5, quota=3)
        keys = [sample_key(values(index)) for index in range(100)]
        sampler.plan(SCOPE, keys)
        kept = [key for index, key in enumerate(keys) if sampler.decide(values(index))]
        assert len(kept) == 3
        assert all(share(key) < 0.5 for key in kept)

    def test_none_at_all(self) -> None:
        assert not Sampler(quota=0).decide(values(1))

    def test_it_is_kept_by_many_threads(self) -> None:
        sampler = Sampler(quota=10)
        kept: set[int] = set()

        def decide(start: int) -> None:
            for index in range(start, 200):
                if sampler.decide(values(index)):
                    kept.add(index)

        threads = [threading.Thread(target=decide, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(kept) == 10

    def test_memory_is_bounded(self) -> None:
        sampler = Sampler(quota=1)
        for step in range(2000):
            sampler.decide(values(1, step=step))
        assert len(sampler._steps) <= 256


class TestProcess:
    """Sampling reads no random generator, and survives a fork."""

    def test_no_generator_is_moved(self) -> None:
        before = random.getstate()
        sampler = Sampler(rate=0.5, quota=2)
        sampler.plan(SCOPE, [sample_key(values(index)) for index in range(10)])
        for index in range(10):
            sampler.decide(values(index))
        assert random.getstate() == before

    def test_a_child_forked_while_another_thread_decides(self) -> None:
        sampler = Sampler(quota=1)
        sampling.use_sampler(sampler)
        with sampler._lock:
            child = os.fork()
            if child == 0:
                thread = threading.Thread(target=sampler.decide, args=(values(1),), daemon=True)
                thread.start()
                thread.join(5)
                os._exit(int(thread.is_alive()))
        assert os.waitpid(child, 0)[1] == 0

    def test_scope(self) -> None:
        assert scope_of(values(1)) == SCOPE

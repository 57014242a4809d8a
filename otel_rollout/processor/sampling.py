"""Which trajectories are traced: one decision for each sample, the same wherever it is taken.

The key of a sample is (experiment, step, validate, sample_index), hashed with blake2b: no random
generator is read, every process comes to the same decision, and all rollouts of a sample share it.

*Rate*: a sample is traced when its hash, as a share of the hash's range, is below the rate.
*Quota*: at most N unique samples for each (experiment, step, validate) in this process. Where the
batch is known beforehand (:meth:`Sampler.plan`), the N lowest hashes are taken, and the quota is
kept over several batches of one step; where it is not, the first N that come.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from otel_rollout import semconv
from otel_rollout.forking import in_child
from otel_rollout.settings import settings

_STEPS_KEPT: Final = 256
_NOT_IN_KEY: Final = frozenset({semconv.ROLLOUT_N, semconv.SAMPLED, semconv.PROJECT})

Scope = tuple[Any, Any, Any]


def sample_key(attributes: Mapping[str, Any], discriminator: str | None = None) -> str:
    """Return the text whose hash decides about a sample.

    ``attributes``: full names. A trajectory without ``sample_index`` is told apart by its group,
    or else by all its values. ``discriminator``: joins the key where one index stands for
    several samples.
    """
    index: Any = attributes.get(semconv.SAMPLE_INDEX)
    if index is None:
        index = attributes.get(semconv.GROUP_ID)
    if index is None:
        index = sorted((k, v) for k, v in attributes.items() if k not in _NOT_IN_KEY)
    key = [*scope_of(attributes), index]
    if discriminator is not None:
        key.append(discriminator)
    return json.dumps(key, default=str)


def scope_of(attributes: Mapping[str, Any]) -> Scope:
    """Return what a quota is counted for: experiment, step and validate."""
    return (
        attributes.get(semconv.EXPERIMENT_NAME),
        attributes.get(semconv.STEP),
        bool(attributes.get(semconv.VALIDATE)),
    )


def share(key: str) -> float:
    """Return the place of ``key``'s hash in its range, 0 <= share < 1."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class _Step:
    __slots__ = ("chosen", "seen")

    def __init__(self) -> None:
        self.chosen: set[str] = set()
        self.seen: set[str] = set()


class Sampler:
    """Decides, and remembers what it decided for the steps it saw last.

    Args:
        rate: share of samples, 0 to 1.
        quota: unique samples for each step, validate and process; ``None`` for all.
    """

    def __init__(self, rate: float = 1.0, quota: int | None = None) -> None:
        self.rate = rate
        self.quota = quota
        self._steps: OrderedDict[Scope, _Step] = OrderedDict()
        self.new_lock()

    def new_lock(self) -> None:
        """Forget who holds the lock: in a forked child, nobody does."""
        self._lock = threading.Lock()

    @property
    def keeps_all(self) -> bool:
        """Whether every trajectory is traced, so that nothing needs to be planned."""
        return self.rate >= 1.0 and self.quota is None

    def decide(self, attributes: Mapping[str, Any], discriminator: str | None = None) -> bool:
        """Return whether the trajectory with these values is traced."""
        if self.keeps_all:
            return True
        key = sample_key(attributes, discriminator)
        if not self._within_rate(key):
            return False
        if self.quota is None:
            return True
        with self._lock:
            step = self._step(scope_of(attributes))
            if key not in step.seen:
                step.seen.add(key)
                if len(step.chosen) < self.quota:
                    step.chosen.add(key)
            return key in step.chosen

    def plan(self, scope: Scope, keys: Iterable[str]) -> None:
        """Choose among the samples of a batch that is about to start.

        What an earlier batch of the same step decided stays; new samples fill the quota.
        """
        if self.quota is None:
            return
        with self._lock:
            step = self._step(scope)
            fresh = {key for key in keys if key not in step.seen and self._within_rate(key)}
            left = max(0, self.quota - len(step.chosen))
            step.chosen.update(sorted(fresh, key=share)[:left])
            step.seen.update(fresh)

    def _within_rate(self, key: str) -> bool:
        return self.rate >= 1.0 or share(key) < self.rate

    def _step(self, scope: Scope) -> _Step:
        step = self._steps.get(scope)
        if step is None:
            step = self._steps[scope] = _Step()
            if len(self._steps) > _STEPS_KEPT:
                self._steps.popitem(last=False)
        return step


_sampler: Sampler | None = None


def _after_fork() -> None:
    """In a forked child: a thread of the parent's may have been deciding."""
    if _sampler is not None:
        _sampler.new_lock()


in_child(_after_fork)


def sampler() -> Sampler:
    """Return the sampler of this process, made from the settings at the first call."""
    global _sampler
    if _sampler is None:
        current = settings()
        _sampler = Sampler(current.sample_rate, current.max_samples_per_step)
    return _sampler


def use_sampler(replacement: Sampler | None) -> None:
    """Put another sampler in place; ``None`` makes one from the settings again."""
    global _sampler
    _sampler = replacement

"""What is known after a trajectory's end only: a reward model's score of a batch, an advantage.

A span that has ended cannot be changed, nor can a call that is completed. So each such fact is a
span of its own, ``evaluate {name}``, below the root that has ended; in Weave it is feedback on the
root's call, and readers of the local store let the last one count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext

from otel_rollout import identity as identities
from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import contained, report_internal_error, say_once
from otel_rollout.forking import in_child
from otel_rollout.identity import AttributeValue, Identity

REMEMBERED: Final = 16_384
"""Ended trajectories that :func:`ended_trajectory` finds: the latest ones of this process."""
_FOUND_BY: Final = (semconv.GROUP_ID, semconv.SAMPLE_INDEX)


class EndedTrajectory:
    """A trajectory that has ended in this process; its rewards can still be told."""

    __slots__ = ("_root", "identity")

    def __init__(self, identity: Identity, root: SpanContext) -> None:
        self.identity = identity
        self._root = root

    @contained("record_reward", None)
    def record_reward(self, value: Any, name: str = "reward", detail: Any = None) -> None:
        """Record a reward, or any other score such as ``advantage``; never raises.

        Args:
            value: see :func:`otel_rollout.record_reward`.
            name: the source; of several ``reward`` the last one counts.
            detail: mapping of parts of it, or ``None``.
        """
        from otel_rollout.trajectory import reward_on, split_reward

        score, parts = split_reward(value)
        if detail:
            parts = {**parts, **detail}
        context = identities.into_context(self.identity, Context())
        recording = recordings.start(
            semconv.OP_EVALUATE,
            name,
            context=trace.set_span_in_context(NonRecordingSpan(self._root), context),
            identity=self.identity,
            attributes={semconv.EVALUATION_NAME: name, semconv.AFTERWARDS: True},
        )
        if score is not None:
            recording.set(semconv.EVALUATION_SCORE, score)
        reward_on(recording, score, parts, name)
        recording.end()


_latest: OrderedDict[int, EndedTrajectory] = OrderedDict()
_by_value: defaultdict[tuple[str, AttributeValue], dict[int, EndedTrajectory]] = defaultdict(dict)
_lock = threading.Lock()


def _new_lock() -> None:
    """In a forked child: a thread of the parent's may have held it."""
    global _lock
    _lock = threading.Lock()


in_child(_new_lock)


def remember(identity: Identity, span: Span) -> None:
    """Note that a trajectory has ended; forgets the oldest ones. Never raises."""
    try:
        root = span.get_span_context()
        one = EndedTrajectory(identity, root)
        with _lock:
            _latest[root.span_id] = one
            for key in _keys(identity):
                _by_value[key][root.span_id] = one
            while len(_latest) > REMEMBERED:
                span_id, oldest = _latest.popitem(last=False)
                for key in _keys(oldest.identity):
                    _by_value[key].pop(span_id, None)
                    if not _by_value[key]:
                        del _by_value[key]
    except Exception as error:
        report_internal_error("the end of a trajectory", error)


def _keys(identity: Identity) -> list[tuple[str, AttributeValue]]:
    found = ((name, identity.get(name)) for name in _FOUND_BY)
    return [(name, value) for name, value in found if value is not None]


def ended_trajectory(
    *,
    group_id: Any = None,
    sample_index: Any = None,
    rollout_n: Any = None,
    step: Any = None,
    validate: Any = None,
    experiment_name: Any = None,
) -> EndedTrajectory | None:
    """Return the trajectory of this process that has ended and has these values; never raises.

    For facts that come late: ``ended_trajectory(group_id=uid, rollout_n=n)``, then its
    ``record_reward``. ``None`` when there is none, when it ended longer than 16,384 trajectories
    ago, and, said once, when several have these values.

    Args:
        group_id, sample_index: one of them has to be given.
        rollout_n, step, validate, experiment_name: as in :class:`otel_rollout.trajectory`; what is
            left out is not looked at.
    """
    try:
        wanted = identities.attributes_of(
            {
                "group_id": group_id,
                "sample_index": sample_index,
                "rollout_n": rollout_n,
                "step": step,
                "validate": validate,
                "experiment_name": experiment_name,
            }
        )
        keys = [(name, wanted[name]) for name in _FOUND_BY if name in wanted]
        if not keys:
            say_once(
                "ended-by-nothing",
                "ended_trajectory(): give group_id or sample_index to find it by",
            )
            return None
        with _lock:
            found = [
                one
                for one in _by_value.get(keys[0], {}).values()
                if all(one.identity.get(name) == value for name, value in wanted.items())
            ]
        if len(found) > 1:
            say_once(
                "ended-ambiguous",
                "ended_trajectory(%s): %d trajectories have these values; give more of them",
                ", ".join(f"{name}={value!r}" for name, value in wanted.items()),
                len(found),
            )
        return found[0] if len(found) == 1 else None
    except Exception as error:
        report_internal_error("ended_trajectory", error)
        return None

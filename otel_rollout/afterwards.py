"""What is known after a trajectory's end only: a reward model's score of a batch, an advantage.

A span that has ended cannot be changed, nor can a call that is completed. So each such fact is a
span of its own, ``evaluate {name}``, below the root that has ended; in Weave it is feedback on the
root's call, and readers of the local store let the last one count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout import identity as identities
from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import contained, report_internal_error, say_once
from otel_rollout.forking import in_child
from otel_rollout.identity import AttributeValue, Identity

REMEMBERED: Final = 16_384
"""Ended trajectories that :func:`ended_trajectory` finds: the latest ones of this process."""
_trace_context = TraceContextTextMapPropagator()
_baggage = W3CBaggagePropagator()
_FOUND_BY: Final = (semconv.GROUP_ID, semconv.SAMPLE_INDEX)


class EndedTrajectory:
    """A trajectory that has ended; its rewards can still be told.

    ``identity``: its values and whether it is traced. ``root``: the context of its root span. Made
    by :func:`ended_trajectory` and :meth:`from_headers`.
    """

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
        recording = recordings.start(
            semconv.OP_EVALUATE,
            name,
            context=self._context(),
            identity=self.identity,
            attributes={semconv.EVALUATION_NAME: name, semconv.AFTERWARDS: True},
        )
        if score is not None:
            recording.set(semconv.EVALUATION_SCORE, score)
        reward_on(recording, score, parts, name)
        recording.end()

    def headers(self) -> dict[str, str]:
        """Return trace context and baggage as W3C headers, for :meth:`from_headers`.

        Names and values are plain text. Never raises.
        """
        headers: dict[str, str] = {}
        context = self._context()
        _trace_context.inject(headers, context)
        _baggage.inject(headers, context)
        return headers

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> EndedTrajectory | None:
        """Return the trajectory that another process gave ``headers`` of; never raises.

        ``None``, said once, where it is anything else.
        """
        try:
            context = _baggage.extract(headers, _trace_context.extract(headers, Context()))
            root = trace.get_current_span(context).get_span_context()
            identity = identities.from_context(context)
            if root.is_valid and identity is not None:
                return cls(identity, root)
        except Exception as error:
            report_internal_error("from_headers", error)
            return None
        say_once(
            "ended-headers",
            "EndedTrajectory.from_headers(%r): allowed is what headers() of a trajectory returned",
            headers,
        )
        return None

    def _context(self) -> Context:
        context = identities.into_context(self.identity, Context())
        return trace.set_span_in_context(NonRecordingSpan(self._root), context)


_latest: OrderedDict[int, EndedTrajectory] = OrderedDict()
_by_value: defaultdict[tuple[str, AttributeValue], dict[int, EndedTrajectory]] = defaultdict(dict)
_lock = threading.RLock()  # the garbage collector may end a trajectory, on any thread


def _new_lock() -> None:
    """In a forked child: a thread of the parent's may have held it."""
    global _lock
    _lock = threading.RLock()


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

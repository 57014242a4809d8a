"""The trajectory: one rollout of one sample, from its first prompt to its reward.

:class:`trajectory` opens its root span and puts its identity into the baggage, so that every span
below it, in this process or another, carries the same attributes and follows the same decision of
whether it is traced.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link

from otel_rollout import afterwards, contexts, semconv, snapshot
from otel_rollout import identity as identities
from otel_rollout import recording as recordings
from otel_rollout import summary as summaries
from otel_rollout.diagnostics import contained, report_internal_error, say_once
from otel_rollout.identity import Identity
from otel_rollout.processor import keeping, sampling
from otel_rollout.randomness import IdGenerator
from otel_rollout.recording import Recording
from otel_rollout.summary import Summary

_HANDLE = otel_context.create_key("otel-rollout-trajectory")
_ids = IdGenerator()
_MAX_PARTS = 1000
"""Items of a mapping that is a reward."""


class Trajectory:
    """An open trajectory, in the process that opened it; made by :class:`trajectory`.

    ``identity``: its values and whether it is traced. ``recording``: its root span.
    """

    __slots__ = ("identity", "recording", "summary")

    def __init__(self, identity: Identity, recording: Recording) -> None:
        self.identity = identity
        self.recording = recording
        self.summary = Summary()
        recording.payload.is_root = True

    @property
    def is_root(self) -> bool:
        """Whether this trajectory is in no other one."""
        return getattr(self.recording.span, "parent", None) is None

    @property
    def sampled(self) -> bool:
        """Whether this trajectory is traced."""
        return self.identity.sampled

    def set(self, name: str, value: Any) -> None:
        """Set an attribute of the root span; never raises.

        ``name``: its full name. ``value``: numbers, text and booleans as they are, anything else as
        its text; ``None`` is ignored.
        """
        self.recording.set(name, identities.plain(value))

    @contained("record_reward", None)
    def record_reward(self, value: Any, name: str = "reward", detail: Any = None) -> None:
        """Record a reward; after the trajectory's end too, as a fact of its own. Never raises.

        ``value``, ``name`` and ``detail`` (here a mapping): see :func:`record_reward`.
        """
        if self.recording.ended:
            self._ended.record_reward(value, name, detail)
            return
        score, parts = split_reward(value)
        if detail:
            parts = {**parts, **detail}
        reward_on(self.recording, score, parts, name)

    def headers(self) -> dict[str, str]:
        """Return what another process needs to speak of this trajectory: W3C trace headers.

        For :meth:`EndedTrajectory.from_headers`; plain text, which may travel with anything. Never
        raises.
        """
        return self._ended.headers()

    @property
    def _ended(self) -> afterwards.EndedTrajectory:
        root = self.recording.span.get_span_context()
        return afterwards.EndedTrajectory(self.identity, root)


def current_trajectory(context: Context | None = None) -> Trajectory | None:
    """Return the innermost open trajectory of this process, ``None`` outside any; never raises.

    Args:
        context: an OpenTelemetry context; the current one by default.
    """
    handle = otel_context.get_value(_HANDLE, context)
    return handle if isinstance(handle, Trajectory) else None


def record_reward(value: Any, *, name: str = "reward", **detail: Any) -> None:
    """Record a reward on the current trajectory; never raises.

    Call it inside ``trajectory(...)``, as often as there are reward sources.

    Args:
        value: the score; any number (numpy and torch scalars too), None, or a mapping whose
            ``score`` (or ``reward``) is the score and whose other items are detail. What is no
            finite number is recorded as detail and leaves the score out.
        name: the source; ``reward`` is the trajectory's own, the last one of it counts.
        detail: parts of the reward, any values.
    """
    try:
        handle = current_trajectory()
        if handle is not None:
            handle.record_reward(value, name, detail)
            return
        span = trace.get_current_span()
        if span.is_recording():
            score, parts = split_reward(value)
            attributes = _evaluation(score, {**parts, **detail}, name)
            span.add_event(semconv.EVALUATION_EVENT, attributes)
    except Exception as error:
        report_internal_error("record_reward", error)


def split_reward(value: Any) -> tuple[float | None, dict[str, Any]]:
    """Return the score of what a user gave as a reward, and its detail; never raises."""
    try:
        return _split(value)
    except Exception as error:
        kind = type(value).__name__
        return None, {"value": f"<{kind}: cannot be read ({type(error).__name__})>"}


def _split(value: Any) -> tuple[float | None, dict[str, Any]]:
    detail: dict[str, Any] = {}
    if isinstance(value, Mapping):
        items = itertools.islice(value.items(), _MAX_PARTS)
        detail = {snapshot.text_of(key): item for key, item in items}
        value = detail.pop("score", detail.pop("reward", None))
    score = identities.plain(_as_float(value))
    if isinstance(score, (int, float)) and math.isfinite(score):
        return float(score), detail
    if score is not None:
        detail["value"] = str(score)
    return None, detail


def _evaluation(score: float | None, detail: Mapping[str, Any], name: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {semconv.EVALUATION_NAME: name}
    if score is not None:
        attributes[semconv.EVALUATION_SCORE] = score
    for key, item in detail.items():
        plain = identities.plain(item) if _is_scalar(item) else None
        attributes[f"{semconv.REWARD_DETAIL}.{key}"] = (
            plain if plain is not None else snapshot.text_of(item)[: recordings.MAX_MESSAGE]
        )
    return attributes


def _as_float(value: Any) -> Any:
    """Return an int as a float where it is one: beyond 64 bits no attribute holds it as an int."""
    try:
        return float(value) if isinstance(value, int) else value
    except OverflowError:
        return value


def _is_scalar(value: Any) -> bool:
    """Return whether it is text or one number, of whatever library."""
    try:
        return isinstance(value, (str, numbers.Number)) or getattr(value, "shape", None) == ()
    except Exception:
        return False


def reward_on(
    recording: Recording, score: float | None, detail: Mapping[str, Any], name: str
) -> None:
    """Put a reward on a span: as attributes, and as an event for each source."""
    if not recording.live:
        return
    if score is not None and name == "reward":
        recording.set(semconv.REWARD, score)
    if detail:
        kept = recording.payload.values.setdefault(semconv.REWARD_DETAIL, {})
        kept[name] = snapshot.take(detail)
    recording.event(semconv.EVALUATION_EVENT, _evaluation(score, detail, name))


def open_trajectory(
    values: Mapping[str, Any],
    *,
    agent: str | None = None,
    provider: str | None = None,
    discriminator: str | None = None,
) -> tuple[Trajectory, Context]:
    """Start a trajectory's root span; returns it with the context that holds from now on.

    ``values``: short names (``step`` …) to any values. ``discriminator``: tells samples apart that
    share one index (see :mod:`otel_rollout.processor.sampling`).
    """
    outer = otel_context.get_current()
    attributes = identities.attributes_of(values)
    enclosing = identities.from_context(outer)
    if enclosing is not None:
        attributes = identities.inside(enclosing.attributes, attributes)
        sampled, held = enclosing.sampled, enclosing.held
    else:
        sampled = sampling.sampler().decide(attributes, discriminator)
        held = not sampled and keeping.in_use()
    identity = Identity.of(attributes, sampled, held=held)
    context = identities.into_context(identity, outer)
    if enclosing is None:
        recording = _root(identity, context, agent, provider)
        if sampled and keeping.in_use():
            if not recording.live:  # the user's own sampler left it out
                identity = Identity.of(attributes, sampled=False, held=True)
                context = identities.into_context(identity, outer)
                recording = _root(identity, context, agent, provider)
            elif sampling.sampler().keeps_all:
                _say_that_all_are_kept()
    else:
        recording = recordings.start(
            semconv.OP_ROLLOUT,
            agent,
            context=context,
            identity=identity,
            attributes=_extra(agent, provider),
        )
    if (identity.sampled or identity.held) and not recording.live:
        # The user's own sampler, or no SDK at all: one decision for the whole trajectory.
        identity = Identity.of(attributes, sampled=False)
        context = identities.into_context(identity, outer)
    handle = Trajectory(identity, recording)
    more = {**summaries.values(handle.summary), _HANDLE: handle}
    return handle, contexts.within(context, recording.span, more)


def _say_that_all_are_kept() -> None:
    say_once(
        "keep-all",
        "tail rules (OTEL_ROLLOUT_KEEP) have no effect: every trajectory is traced anyway. They "
        "keep what sampling leaves out: set OTEL_ROLLOUT_SAMPLE_RATE, 0 for the named ones only",
    )


def _extra(agent: str | None, provider: str | None) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if agent:
        extra[semconv.AGENT_NAME] = agent
    if provider:
        extra[semconv.PROVIDER] = provider
    return extra


def _root(
    identity: Identity, context: Context, agent: str | None, provider: str | None
) -> Recording:
    """Start a root in a trace of its own, linked to the span that is current in ``context``."""
    current = trace.get_current_span(context).get_span_context()
    if current.is_valid:
        context = contexts.within(context, trace.INVALID_SPAN)
    if identity.held:
        from otel_rollout.processor.following import follow  # loads the SDK

        follow(recordings.tracer())
    elif not identity.sampled:
        # Flags 0 tell every parent-based sampler, here and in other processes, to drop its spans.
        absent = recordings.unsampled_span(_ids.generate_trace_id(), _ids.generate_span_id())
        return Recording(absent, context)
    return recordings.start(
        semconv.OP_ROLLOUT,
        agent,
        context=context,
        identity=identity,
        attributes=_extra(agent, provider),
        links=[Link(current)] if current.is_valid else None,
    )


class trajectory:  # noqa: N801 - used like a function, as `contextlib.suppress` is
    """Context manager, sync and async, around one rollout of one sample.

    Counterpart of verl's ``rollout_trace_attr``. Opens the root span ``rollout {agent}`` in a new
    trace, linked to the span that was current, and lets every span below carry the values given
    here. Inside another trajectory it is a span of that one's trace, and its values win.

    Args:
        step: training step.
        sample_index: which sample of the dataset.
        rollout_n: which of the sample's rollouts.
        validate: whether this is a validation rollout.
        experiment_name: name of the run.
        group_id: what the rollouts compared with each other have in common (GRPO's group).
        project: where the calls go, ``project`` or ``entity/project``.
        agent: name of the agent, for the span's name.
        extra: more values, each a baggage entry and attribute ``rollout.{name}``.

    Every value may be an int, float, bool, str or anything with a readable ``str()``; ``None``
    leaves the key out. Entering returns the :class:`Trajectory`. Never raises by itself.
    """

    def __init__(
        self,
        *,
        step: Any = None,
        sample_index: Any = None,
        rollout_n: Any = None,
        validate: Any = None,
        experiment_name: Any = None,
        group_id: Any = None,
        project: Any = None,
        agent: str | None = None,
        **extra: Any,
    ) -> None:
        self._values = {
            "step": step,
            "sample_index": sample_index,
            "rollout_n": rollout_n,
            "validate": validate,
            "experiment_name": experiment_name,
            "group_id": group_id,
            "project": project,
            **extra,
        }
        self._agent = agent
        self._provider: str | None = None
        self._discriminator: str | None = None
        self._open: list[tuple[Trajectory, object]] = []

    def told_by(self, provider: str, discriminator: str | None = None) -> trajectory:
        """Say which framework's trajectory this is; for instrumentors. Returns the same object.

        Never raises.

        ``provider``: the framework's name, as GenAI's ``gen_ai.provider.name``.
        ``discriminator``: tells samples apart that share one index.
        """
        self._provider = provider
        self._discriminator = discriminator
        return self

    def __enter__(self) -> Trajectory:
        try:
            handle, context = open_trajectory(
                self._values,
                agent=self._agent,
                provider=self._provider,
                discriminator=self._discriminator,
            )
        except Exception as error:
            report_internal_error("trajectory", error)
            current = otel_context.get_current()
            handle = Trajectory(Identity({}, False), Recording(trace.INVALID_SPAN, current))
            context = current
        self._open.append((handle, recordings.attach(context)))
        return handle

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        handle, token = self._leave()
        recordings.detach(token)
        if error is not None:
            handle.recording.fail(error)
        for name, value in handle.summary.attributes().items():
            handle.recording.set(name, value)
        handle.recording.end()
        if handle.recording.live and handle.is_root:
            afterwards.remember(handle.identity, handle.recording.span)

    def _leave(self) -> tuple[Trajectory, object]:
        """Return what this block had entered, also where several tasks share this object."""
        current = current_trajectory()
        for position in range(len(self._open) - 1, -1, -1):
            if self._open[position][0] is current:
                return self._open.pop(position)
        return self._open.pop()

    async def __aenter__(self) -> Trajectory:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

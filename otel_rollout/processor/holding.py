"""Held trajectories: unsampled ones whose spans wait until the tail rules have decided.

All on the worker thread. A trajectory is decided when its root has ended; with ``group`` it then
waits for the others of its group, for a while. Exporters that can keep spans safe themselves
(Weave's: its spool survives a death) are given them at once; for the others they wait in memory,
bounded in bytes and time. What exceeds the bounds is dropped, the oldest trajectory first and
whole, and counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanContext, StatusCode, TraceFlags

from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.exporters.bounded import attributes_size
from otel_rollout.forking import in_child_while_alive
from otel_rollout.processor import keeping, sampling
from otel_rollout.processor.assembly import Assembled
from otel_rollout.processor.behind import Behind
from otel_rollout.processor.items import FULL, NONE, Item
from otel_rollout.processor.keeping import Rules, TrajectoryFacts

OPEN_S: Final = 3600.0
"""How long a trajectory is held after its last span while its root is open."""
GROUP_S: Final = 600.0
"""How long a trajectory that no rule has named waits for the others of its group."""
_SWEEP_S: Final = 1.0
_HELD: Final = 50_000
_VERDICTS: Final = 65_536
_GROUPS: Final = 4_096
_FIXED: Final = 2048

_GENERATIONS: Final = frozenset(
    {semconv.OP_TEXT_COMPLETION, semconv.OP_CHAT, "generate_content", "embeddings"}
)

HandOn = Callable[[Sequence[Assembled], Sequence[Behind]], None]


class _Trajectory:
    """What is known of a held trajectory so far."""

    __slots__ = (
        "bytes",
        "count",
        "error",
        "forgotten",
        "group",
        "last",
        "reward",
        "root",
        "spans",
        "tokens",
        "turns",
    )

    def __init__(self) -> None:
        self.spans: list[Assembled] = []
        self.bytes = 0
        self.count = 0
        self.last = 0.0
        self.root: Assembled | None = None
        self.group: str | None = None
        self.forgotten = False
        """Whether its spans have been dropped from memory."""
        self.error = False
        self.reward: float | None = None
        self.turns = 0
        self.tokens = 0

    def note(self, one: Assembled, is_root: bool) -> None:
        """Learn from a span that has ended."""
        attributes = one.base
        self.count += 1
        self.error = self.error or one.span.status.status_code is StatusCode.ERROR
        told_above = semconv.TOKENS_SPAN in attributes or semconv.ATTEMPT in attributes
        if attributes.get(semconv.OPERATION) in _GENERATIONS and not told_above:
            self.turns += 1
            tokens = _number(attributes.get(semconv.INPUT_TOKENS)) or 0
            tokens += _number(attributes.get(semconv.OUTPUT_TOKENS)) or 0
            self.tokens = max(self.tokens, int(tokens))
        reward = _number(attributes.get(semconv.REWARD))
        if reward is not None and (is_root or self.root is None):
            self.reward = reward
        if is_root:
            self.root = one

    def facts(self, item: Item) -> TrajectoryFacts:
        """Return what rules are asked about, when the root has ended."""
        assert self.root is not None
        span = self.root.span
        return TrajectoryFacts(
            error=self.error,
            reward=self.reward,
            turns=self.turns,
            tokens=self.tokens,
            duration=max(0, (span.end_time or 0) - (span.start_time or 0)) / 1e9,
            identity=dict(item.identity.attributes) if item.identity is not None else {},
            attributes=dict(self.root.base),
        )


class _Group:
    __slots__ = ("kept", "waiting")

    def __init__(self) -> None:
        self.kept = False
        self.waiting: set[int] = set()


class Holding:
    """Holds trajectories until ``rules`` have decided about them.

    Args:
        rules: that decide.
        things: what stands behind the processor.
        hand_on: gives assembled spans to some of ``things``.
        max_bytes: bound of what waits in memory, for things that keep nothing safe themselves.
        counters: ``kept`` and ``sampled_out`` (spans, by verdict) and ``dropped_held`` (spans that
            went for want of room or time, or with an open root at the end) are counted here.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        rules: Rules,
        things: Sequence[Behind],
        hand_on: HandOn,
        max_bytes: int,
        counters: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._safe = [t for t in things if t.withholding is not None]
        self._others = [t for t in things if t.withholding is None]
        self._levels = {thing.level for thing in self._others}
        self._hand_on = hand_on
        self._max_bytes = max_bytes
        self._counters = counters
        self._clock = clock
        self._begin()
        in_child_while_alive(self._begin)
        keeping.use(self)

    def _begin(self) -> None:
        """Hold nothing: a forked child knows of no verdict and waits for no root."""
        self._lock = threading.RLock()
        self._open: OrderedDict[int, _Trajectory] = OrderedDict()
        self._with_spans: OrderedDict[int, None] = OrderedDict()
        self._verdicts: OrderedDict[int, tuple[bool, bool]] = OrderedDict()  # kept, forgotten
        self._groups: OrderedDict[str, _Group] = OrderedDict()
        self._bytes = 0
        self._next_sweep = 0.0

    @property
    def waiting_bytes(self) -> int:
        """Estimate of the bytes that wait in memory."""
        return self._bytes

    @property
    def trajectories(self) -> int:
        """Number of trajectories without a verdict."""
        return len(self._open)

    def take(self, spans: Iterable[tuple[Item, Assembled]]) -> None:
        """Take ended spans of held trajectories."""
        with self._lock:
            for item, one in spans:
                try:
                    self._take(item, one)
                except Exception as error:
                    self._counters["failed_in_worker"] += 1
                    report_internal_error("holding a span", error)
            self._sweep()

    def close(self) -> None:
        """Decide about what is left: the process ends.

        An open root is a death: its trajectory is kept where the rules have ``error``.
        """
        keeping.use_no_longer(self)
        with self._lock:
            for trace_id, held in list(self._open.items()):
                if held.root is not None:
                    self._decide(trace_id, None)
                elif self._rules.keep_deaths:
                    self._decide(trace_id, keeping.ERROR)
                else:
                    self._give_up(trace_id)

    # --- one span --------------------------------------------------------------------------------

    def _take(self, item: Item, one: Assembled) -> None:
        given = one.span.context
        assert given is not None
        flags = TraceFlags(given.trace_flags | TraceFlags.SAMPLED)
        one.context = SpanContext(
            given.trace_id, given.span_id, given.is_remote, flags, given.trace_state
        )
        trace_id = given.trace_id
        verdict = self._verdicts.get(trace_id)
        if verdict is not None:
            self._follow(verdict, one)
            return
        held = self._open.get(trace_id)
        if held is None:
            held = self._open[trace_id] = _Trajectory()
            if len(self._open) > _HELD:
                self._give_up(next(iter(self._open)))
        is_root = one.span.parent is None and item.payload is not None and item.payload.is_root
        held.note(one, is_root)
        held.last = self._clock()
        rule = None
        if is_root:
            rule = self._rules.match(held.facts(item))
            if self._rules.group:
                group = self._group_of(held, item)
                if rule is None and group.kept:
                    rule = keeping.GROUP
                elif rule is None:
                    group.waiting.add(trace_id)
            if rule is None and not self._rules.group:
                self._decide(trace_id, None)
                return
        self._hold(trace_id, held, one, is_root=is_root, kept=rule)
        if rule is not None:
            self._decide(trace_id, rule)
            if held.group is not None and rule != keeping.GROUP:
                self._keep_group(held.group)

    def _follow(self, verdict: tuple[bool, bool], one: Assembled) -> None:
        """Let a span that comes after its trajectory's verdict share its fate."""
        kept, forgotten = verdict
        if not kept:
            self._counters["sampled_out"] += 1
            return
        self._counters["kept"] += 1
        self._counters["handed_on"] += 1
        self._counters["dropped_held"] += forgotten
        self._hand_on([one], self._safe if forgotten else [*self._safe, *self._others])

    def _hold(
        self, trace_id: int, held: _Trajectory, one: Assembled, *, is_root: bool, kept: str | None
    ) -> None:
        for thing in self._safe:
            assert thing.withholding is not None
            try:
                thing.withholding.withhold(
                    one.at(thing.level),
                    is_root=is_root,
                    kept=kept,
                    keep_deaths=self._rules.keep_deaths,
                )
            except Exception as error:
                self._counters["failed_behind"] += 1
                report_internal_error(f"{thing.name}.withhold", error)
        if not self._others:
            return
        if held.forgotten:
            self._counters["dropped_held"] += 1
            return
        if FULL not in self._levels:
            one.tokens = {}
        if self._levels == {NONE}:
            one.text = {}
        size = _FIXED + sum(map(attributes_size, (one.base, one.text, one.tokens)))
        held.spans.append(one)
        held.bytes += size
        self._bytes += size
        self._with_spans[trace_id] = None
        while self._bytes > self._max_bytes and self._with_spans:
            self._forget(next(iter(self._with_spans)))

    # --- verdicts --------------------------------------------------------------------------------

    def _decide(self, trace_id: int, rule: str | None) -> None:
        """Hand a trajectory on, or drop it."""
        held = self._open.pop(trace_id)
        self._verdicts[trace_id] = (rule is not None, held.forgotten)
        if len(self._verdicts) > _VERDICTS:
            self._verdicts.popitem(last=False)
        self._bytes -= held.bytes
        self._with_spans.pop(trace_id, None)
        self._leave_group(trace_id, held)
        self._counters["sampled_out" if rule is None else "kept"] += held.count
        self._counters["handed_on"] += held.count if rule is not None else 0
        if rule is not None and held.root is not None:
            held.root.base[semconv.KEPT] = rule
        for thing in self._safe:
            assert thing.withholding is not None
            try:
                thing.withholding.settle(trace_id, rule)
            except Exception as error:
                self._counters["failed_behind"] += held.count
                report_internal_error(f"{thing.name}.settle", error)
        if rule is not None and held.spans:
            self._hand_on(held.spans, self._others)

    def _forget(self, trace_id: int) -> None:
        """Drop from memory what one trajectory has there; the verdict is still to come."""
        held = self._open[trace_id]
        self._counters["dropped_held"] += len(held.spans)
        self._bytes -= held.bytes
        self._with_spans.pop(trace_id, None)
        held.spans, held.bytes, held.forgotten = [], 0, True
        say_once(
            "held-bytes",
            "more than %d bytes wait for tail rules (OTEL_ROLLOUT_KEEP) to decide: the oldest "
            "trajectories are dropped, whole, and counted",
            self._max_bytes,
        )

    def _give_up(self, trace_id: int) -> None:
        """Drop a trajectory that no rule could decide about."""
        held = self._open[trace_id]
        self._counters["dropped_held"] += held.count
        self._counters["sampled_out"] -= held.count
        self._decide(trace_id, None)

    # --- groups ----------------------------------------------------------------------------------

    def _group_of(self, held: _Trajectory, item: Item) -> _Group:
        held.group = _group_key(item)
        group = self._groups.get(held.group)
        if group is None:
            group = self._groups[held.group] = _Group()
            if len(self._groups) > _GROUPS:
                self._groups.popitem(last=False)
        else:
            self._groups.move_to_end(held.group)
        return group

    def _keep_group(self, key: str) -> None:
        group = self._groups.get(key)
        if group is not None:
            group.kept = True
            for trace_id in sorted(group.waiting):
                self._decide(trace_id, keeping.GROUP)

    def _leave_group(self, trace_id: int, held: _Trajectory) -> None:
        group = self._groups.get(held.group) if held.group is not None else None
        if group is not None:
            group.waiting.discard(trace_id)

    def _sweep(self) -> None:
        """Decide about what has waited too long."""
        now = self._clock()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_S
        for trace_id, held in list(self._open.items()):
            if held.root is not None and now - held.last > GROUP_S:
                self._decide(trace_id, None)
            elif held.root is None and now - held.last > OPEN_S:
                self._give_up(trace_id)


def _group_key(item: Item) -> str:
    attributes: Any = item.identity.attributes if item.identity is not None else {}
    group = attributes.get(semconv.GROUP_ID)
    if group is None:
        return sampling.sample_key(attributes)
    return json.dumps([*sampling.scope_of(attributes), "group", group], default=str)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None

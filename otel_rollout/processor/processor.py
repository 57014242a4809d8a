"""The span processor that stands in front of every exporter.

It is made at the start of every process; what only a process with rollouts needs (text, rules,
redaction) is imported when it is asked for.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter

from otel_rollout import identity as identities
from otel_rollout import payload as payloads
from otel_rollout import self_metrics, semconv
from otel_rollout.diagnostics import contained, report_internal_error, say_once
from otel_rollout.fairness import give_way
from otel_rollout.forking import in_child_while_alive
from otel_rollout.identity import Identity
from otel_rollout.processor.behind import Behind, behind, within
from otel_rollout.processor.following import take_back_sampled
from otel_rollout.processor.items import AttributeLimits, Item
from otel_rollout.processor.light_span import Lane, is_alone
from otel_rollout.processor.worker import BATCH_ITEMS, MANY_ITEMS, QuietFlusher, Worker
from otel_rollout.settings import Settings, settings

if TYPE_CHECKING:
    from otel_rollout.processor.assembly import Assembled, Assembler
    from otel_rollout.processor.holding import Holding
    from otel_rollout.processor.keeping import Callback
    from otel_rollout.processor.redaction import Redaction
    from otel_rollout.processor.token2text import Decoder

_OPEN_SPANS: Final = 200_000
_DRAIN_S: Final = 5.0


class RolloutSpanProcessor(SpanProcessor):
    """Owns the span processors and exporters behind it and hands them what they should see.

    Spans of a trajectory get its attributes, their token ids become text, and unsampled
    trajectories are dropped, all on one worker thread; the caller's thread only puts the span into
    a queue that is bounded in bytes. Spans outside any trajectory pass unchanged.

    Args:
        things: span processors and span exporters; an exporter is called straight from the worker
            thread.
        configuration: settings to use instead of the environment's.
        keep: tail rules in place of ``OTEL_ROLLOUT_KEEP``: the same text, or a function that is
            given the :class:`TrajectoryFacts` of an unsampled trajectory and says whether it is
            kept. It runs on the worker thread.

    ::

        provider.add_span_processor(
            RolloutSpanProcessor(WeaveSpanExporter(), BatchSpanProcessor(OTLPSpanExporter()))
        )
    """

    def __init__(
        self,
        *things: SpanProcessor | SpanExporter,
        configuration: Settings | None = None,
        keep: str | Callback | None = None,
    ) -> None:
        self._settings = configuration or settings()
        self.counters: Counter[str] = Counter()
        """What was seen, queued and dropped, by reason."""
        self._behind: list[Behind] = [
            behind(thing, self._settings.otlp_payload, self._settings.max_batch_bytes)
            for thing in things
        ]
        self._redaction, self._content = None, self._settings.capture_content
        if self._settings.redact is not None:
            self._redaction = _redaction(self._settings.redact)
            self._content = self._content and self._redaction is not None
        self._open: dict[int, Identity] = {}
        self._worker: Worker[Item] = Worker(
            "otel-rollout",
            self._handle,
            Item.compact,
            self._settings.max_queue_bytes,
            self.counters,
            MANY_ITEMS if any(thing.sends_batches for thing in self._behind) else BATCH_ITEMS,
        )
        self._flusher = QuietFlusher("otel-rollout-flush", self._flush_behind)
        self._limits: Any = None
        self._behind_is_quiet = all(thing.is_quiet for thing in self._behind)
        self._lane: Lane | None = None
        self._shut_down = False
        self._holding = self._begin_holding(self._settings.keep if keep is None else keep)
        self_metrics.observe(self_metrics.PROCESSOR, self, RolloutSpanProcessor._queue)

    def _begin_holding(self, keep: str | Callback | None) -> Holding | None:
        if keep is None:
            return None
        from otel_rollout.processor.holding import Holding
        from otel_rollout.processor.keeping import rules_of

        rules = rules_of(keep)
        if rules is None:
            return None
        in_child_while_alive(self._let_go_in_child)
        return Holding(
            rules, self._behind, self._hand_on, self._settings.max_queue_bytes, self.counters
        )

    @functools.cached_property
    def _assembler(self) -> Assembler:
        """Made on the worker thread, when the first span has ended."""
        from otel_rollout.processor.assembly import Assembler

        return Assembler(
            self._decoder,
            deltas=self._settings.prompt_deltas,
            content=self._content,
            redaction=self._redaction,
            limits=AttributeLimits.of(self._limits),
        )

    def _queue(self) -> dict[str, float]:
        return {
            "queue_size": self._worker.waiting,
            "queue_bytes": self._worker.waiting_bytes,
            "queue_capacity": self._settings.max_queue_bytes,
            "held": self._holding.trajectories if self._holding is not None else 0,
            "held_bytes": self._holding.waiting_bytes if self._holding is not None else 0,
        }

    def _decoder(self, model: str | None) -> Decoder | None:
        from otel_rollout.processor.token2text import tokenizers

        return tokenizers.decoder(model) if self._settings.token2text else None

    # --- on the caller's thread ------------------------------------------------------------------

    @contained("RolloutSpanProcessor.on_start", None)
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Give the span its trajectory's attributes and tell the processors behind, at once."""
        identity = identities.from_context(parent_context)
        if identity is not None:
            self.remember(span, identity)
            if not identity.sampled:
                if not self._holds(identity):
                    return
                take_back_sampled(span)
            scope = span.instrumentation_scope
            if scope is None or scope.name != semconv.SCOPE:
                span.set_attributes(identity.attributes)
            elif self._behind_is_quiet and is_alone(span, self):
                payloads.offer_starter(span, self._lane_of(span))
        for thing in self._behind:
            try:
                thing.on_start(span, parent_context)
            except Exception as error:
                report_internal_error(f"on_start of {thing.name}", error)

    def remember(self, span: ReadableSpan, identity: Identity) -> None:
        """Note whose ``span`` this is, until it ends: ``identity`` is its trajectory's.

        Never raises.
        """
        if self._limits is None:
            self._limits = getattr(span, "_limits", None)
        while len(self._open) >= _OPEN_SPANS:  # never ended, long ago
            self._open.pop(next(iter(self._open)), None)
        if span.context is not None:
            self._open[span.context.span_id] = identity

    def _holds(self, identity: Identity) -> bool:
        """Return whether an unsampled trajectory's spans wait here for the tail rules."""
        return identity.held and self._holding is not None

    def _let_go_in_child(self) -> None:
        """Leave what is held in the parent to it: its root will end there."""
        for span_id, identity in list(self._open.items()):
            if identity.held:
                self._open[span_id] = Identity(identity.attributes, sampled=False)

    def _lane_of(self, span: Span) -> Lane:
        if self._lane is None or not self._lane.is_of(span):
            self._lane = Lane(span, self)
        return self._lane

    def _on_ending(self, span: Span) -> None:
        if not self._behind_is_quiet:
            self._tell_of_ending(span)

    @contained("RolloutSpanProcessor._on_ending", None)
    def _tell_of_ending(self, span: Span) -> None:
        identity = self._open.get(span.get_span_context().span_id)
        if identity is not None and not (identity.sampled or self._holds(identity)):
            return
        for thing in self._behind:
            try:
                thing.on_ending(span)
            except Exception as error:
                report_internal_error(f"_on_ending of {thing.name}", error)

    @contained("RolloutSpanProcessor.on_end", None)
    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span, or drop it if its trajectory is not sampled."""
        if span.context is None or self._shut_down:
            return
        identity = self._open.pop(span.context.span_id, None)
        payload = payloads.beside(span)
        if identity is None and payload is None:
            self._pass_outside(span)
            return
        self.counters["seen"] += 1
        if identity is not None and not (identity.sampled or self._holds(identity)):
            self.counters["sampled_out"] += 1
            return
        item = Item(span, identity, payload)
        # After a trajectory's root a process may be ended at any time.
        self._worker.put(item, item.size(), urgent=payload is not None and payload.is_root)

    def _pass_outside(self, span: ReadableSpan) -> None:
        waits = False
        for thing in self._behind:
            try:
                waits = not thing.outside(span) or waits
            except Exception as error:
                report_internal_error(f"on_end of {thing.name}", error)
        if waits:
            item = Item(span, None, None)
            self._worker.put(item, item.size())

    # --- on the worker thread --------------------------------------------------------------------

    def _handle(self, items: Sequence[Item]) -> None:
        ended: list[Assembled | ReadableSpan] = []
        held: list[tuple[Item, Assembled]] = []
        handed_on = 0
        for item in items:
            if item.identity is None and item.payload is None:
                ended.append(item.span)
                continue
            try:
                one = self._assembler.assemble(item)
                if item.identity is not None and item.identity.held:
                    held.append((item, one))
                else:
                    ended.append(one)
                    handed_on += 1
                give_way()
            except Exception as error:
                self.counters["failed_in_worker"] += 1
                report_internal_error("assemble", error)
        self._hand_on(ended, self._behind)
        self.counters["handed_on"] += handed_on
        if held and self._holding is not None:
            self._holding.take(held)

    def _hand_on(self, ended: Sequence[Assembled | ReadableSpan], things: Sequence[Behind]) -> None:
        """Give some of what is behind what it should see, in the order in which it ended.

        Spans outside of any trajectory stand there as they are.
        """
        touched = False
        for thing in things:
            spans: list[ReadableSpan] = []
            for one in ended:
                if not isinstance(one, ReadableSpan):
                    spans.append(one.at(thing.level))
                elif not thing.holds_back:
                    spans.append(one)
            if not spans:
                continue
            try:
                self.counters["failed_behind"] += thing.emit(spans)
            except Exception as error:
                self.counters["failed_behind"] += len(spans)
                report_internal_error(f"handing spans to {thing.name}", error)
            touched = touched or thing.holds_back
        if touched:
            self._flusher.touch()

    def _flush_behind(self) -> None:
        for thing in self._behind:
            if thing.holds_back:
                try:
                    thing.force_flush(30_000)
                except Exception as error:
                    report_internal_error(f"force_flush of {thing.name}", error)

    # --- flush and shutdown ----------------------------------------------------------------------

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Hand on all that ended before, then flush what is behind.

        Returns False after ``timeout_millis`` milliseconds, or where something was not flushed.
        The timeout holds even if something behind ignores it.
        """
        if self._shut_down:
            return True
        deadline = time.monotonic() + timeout_millis / 1000
        done = self._worker.wait_for_all(timeout_millis / 1000)
        for thing in self._behind:
            left = deadline - time.monotonic()
            if left <= 0:
                return False

            def flush(seconds: float, thing: Behind = thing) -> bool:
                return thing.force_flush(int(seconds * 1000))

            done = within(left, flush, "flush") and done
        return done

    def shutdown(self) -> None:
        """Hand on what waits (for at most 5 s), then shut down what is behind."""
        if self._shut_down:
            return
        self._worker.stop(_DRAIN_S)
        self._shut_down = True
        if self._holding is not None:
            self._holding.close()
        self._flusher.stop()
        for thing in self._behind:
            try:
                thing.shutdown()
            except Exception as error:
                report_internal_error("shutdown", error)


def _redaction(setting: str) -> Redaction | None:
    """Return what the setting asks for; ``None``, and so no content, for what cannot be used."""
    from otel_rollout.processor.redaction import parse

    try:
        return parse(setting)
    except Exception as error:
        say_once(
            "redact",
            "OTEL_ROLLOUT_REDACT=%r is not usable (%s: %s): no text, token ids or arguments leave "
            "this process; allowed are regular expressions, one a line, or module:function",
            setting,
            type(error).__name__,
            error,
        )
        return None

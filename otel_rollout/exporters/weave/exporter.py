"""The ``weave`` span exporter: each span becomes a call in the spool, to be sent from there.

It is made at the start of every process; what only a process with rollouts needs (the conversion,
the client, the shipper) is imported when there is something to export.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout import self_metrics, semconv
from otel_rollout.diagnostics import logger, report_internal_error, say_once
from otel_rollout.exporters import retention, spool
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.weave.memory import Memory
from otel_rollout.fairness import give_way
from otel_rollout.forking import in_child_while_alive
from otel_rollout.settings import SPOOL_FOLDER as SPOOL_FOLDER
from otel_rollout.settings import Settings, settings

if TYPE_CHECKING:
    from otel_rollout.exporters.weave.pending import Pending
    from otel_rollout.exporters.weave.shipper import Shipper

LAST_DELIVERY_S: Final = 1.75
"""Of the 2 s that an exit may take; the rest is for what goes on around it."""
_TOKEN_IDS: Final = frozenset({semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.CHOICES_IDS})

active_exporters: int = 0
"""How many exporters this process has made: whether Weave is fed by us at all."""


class WeaveSpanExporter(SpanExporter):
    """Writes calls to the spool and has them delivered; never raises, touches no network itself.

    Behind :class:`otel_rollout.RolloutSpanProcessor` it gets text, token ids and rewards; behind a
    stock ``BatchSpanProcessor`` it works too, with what the spans carry by themselves.

    Args:
        configuration: settings to use instead of the environment's.
    """

    rollout_payload = "full"
    """What :class:`RolloutSpanProcessor` puts on the spans that it hands over."""

    def __init__(self, configuration: Settings | None = None) -> None:
        global active_exporters
        active_exporters += 1
        self._settings = configuration or settings()
        self._begin()
        self_metrics.observe(self_metrics.EXPORTER, self, _gauges)
        in_child_while_alive(self._begin)

    def _begin(self) -> None:
        """Begin afresh: a forked child has a segment, a shipper and counters of its own."""
        self.counters: Counter[str] = Counter()
        self._writer = SegmentWriter(
            self._settings.spool, retention.segment_bytes(self._settings.max_disk)
        )
        self._memory = Memory(self.counters)
        self._pending: Pending | None = None
        self._models: set[str] = set()
        self._lock = threading.Lock()
        self._shipper: Shipper | None = None
        self._shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Spool the calls of the spans that belong to a trajectory; other spans are left alone."""
        from otel_rollout.exporters.weave import calls

        result = SpanExportResult.SUCCESS
        with self._lock:
            any_call = False
            for span in spans:
                if not calls.belongs_to_trajectory(span):
                    continue
                any_call = True
                try:
                    self._spool(span)
                    give_way()
                except Exception as error:
                    self.counters["failed_conversion"] += 1
                    result = SpanExportResult.FAILURE
                    report_internal_error("span to call", error)
            if any_call:
                self._ship()
        return result

    def withhold(
        self, span: ReadableSpan, *, is_root: bool, kept: str | None, keep_deaths: bool
    ) -> None:
        """Keep the call of a span on disk, apart from the spool, until :meth:`settle`.

        ``is_root``: of its trajectory. ``kept``: on a root, the rule that keeps it, where that is
        known. ``keep_deaths``: whether to deliver it where this process dies before its root ends.
        A disk that cannot be written raises nothing: the call waits in memory, within bounds.
        """
        from otel_rollout.exporters.weave import calls, pending

        if not calls.belongs_to_trajectory(span):
            return
        with self._lock:
            records = self._records(span)
            if is_root:
                verdict = {} if kept is None else {pending.KEPT: kept}
                meta, body = records[0]
                records[0] = ({**meta, pending.ROOT: True, **verdict}, body)
            if self._pending is None:
                self._pending = pending.Pending(
                    self._settings.spool,
                    self._settings.max_disk,
                    keep_deaths=keep_deaths,
                    counters=self.counters,
                )
                self._started_shipper().start()
            self._pending.add(records[0][0]["trace"], records)

    def settle(self, trace_id: int, kept: str | None) -> None:
        """Move what was withheld of a trajectory into the spool, or drop it.

        ``trace_id``: 128 bits. ``kept``: the rule that keeps it; ``None``: drop it. As with
        :meth:`withhold`, a disk raises nothing; calls that cannot be read back are counted as lost.
        """
        with self._lock:
            if self._pending is None:
                return
            self._pending.settle(f"{trace_id:032x}", kept, self._write)
            if kept is not None:
                self._ship()

    def _spool(self, span: ReadableSpan) -> None:
        for meta, body in self._records(span):
            self._write(meta, body)

    def _records(self, span: ReadableSpan) -> list[tuple[dict[str, Any], bytes]]:
        """Return a span's call and feedback as they are spooled."""
        from otel_rollout.exporters.weave import calls
        from otel_rollout.exporters.weave.projects import current_wandb_run, full_name

        assert span.context is not None
        meta: dict[str, Any] = {
            "kind": spool.CALL,
            "id": f"{span.context.span_id:016x}",
            "trace": f"{span.context.trace_id:032x}",
            "project": full_name(calls.project_of(span), self._settings),
        }
        run = current_wandb_run()
        if run is not None:
            meta["wandb"] = run
        records = []
        if not calls.is_no_call(span):
            call = calls.call_of(span)
            self.counters["decode_errors"] += semconv.DECODE_ERROR in (span.attributes or {})
            records.append((meta, orjson.dumps(call, option=orjson.OPT_NON_STR_KEYS)))
        for feedback in calls.feedback_of(span):
            meta = {**meta, "kind": spool.FEEDBACK, "id": feedback["id"]}
            records.append((meta, orjson.dumps(feedback)))
        self._keep_tokenizer(span.attributes or {})
        return records

    def _keep_tokenizer(self, attributes: Mapping[str, Any]) -> None:
        """Leave the tokenizer of a model in the store, for the text of single tokens there."""
        from otel_rollout.exporters import tokenizers
        from otel_rollout.processor import token2text

        if not _TOKEN_IDS.intersection(attributes):
            return
        model = str(attributes.get(semconv.REQUEST_MODEL) or "")
        if model in self._models:
            return
        serialized = token2text.tokenizers.serialized(model or None)
        if serialized is not None:
            self._models.add(model)
            with contextlib.suppress(OSError):
                tokenizers.keep(self._settings.directory, model, serialized)

    def _write(self, meta: dict[str, Any], body: bytes) -> None:
        """Write a record to the spool, or keep it in memory where that fails."""
        if not self._memory.is_waiting:
            try:
                self._memory.write(self._writer)
                self.counters["spooled_bytes"] += self._writer.append(meta, body)
            except OSError as error:
                say_once(
                    "unwritable",
                    "the spool %s cannot be written (%s): calls are kept in memory, within bounds, "
                    "until they are sent or it can",
                    self._writer.directory,
                    error,
                )
            else:
                self.counters["spooled"] += meta["kind"] == spool.CALL
                return
        self._memory.put(meta, body)

    def _ship(self) -> None:
        self._started_shipper().follow(self._writer.path, self._writer.size)

    def _started_shipper(self) -> Shipper:
        if self._shipper is None:
            from otel_rollout.exporters.weave.client import destination
            from otel_rollout.exporters.weave.shipper import Shipper

            where = destination(self._settings)
            if where is None:
                say_once(
                    "no-credentials",
                    "no W&B credentials (WANDB_API_KEY or netrc): calls stay in the local store "
                    "%s; deliver them later with `otel-rollout push`",
                    self._settings.directory,
                )
            self._shipper = Shipper(where, self._settings, self._memory, self.counters)
        return self._shipper

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until what was spooled is delivered; without a server there is nothing to wait for.

        Everything is on disk by the time that ``export`` returns. Returns False after
        ``timeout_millis`` milliseconds.
        """
        shipper = self._shipper
        return shipper is None or shipper.wait_until_idle(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Deliver for 2 s at most, what dead processes have left here too; the rest is on disk."""
        if self._shut_down:
            return
        self._shut_down = True
        try:
            self._last_delivery()
        except Exception as error:
            report_internal_error("shutdown", error)

    def _last_delivery(self) -> None:
        with self._lock:
            with contextlib.suppress(OSError):
                self._memory.write(self._writer)
            self._writer.close()
            if self._pending is not None:
                self._pending.close()
        if self._shipper is None and self._is_to_take_orphans():
            self._started_shipper().start()
        if self._shipper is not None:
            self._shipper.stop(LAST_DELIVERY_S)
        self._memory.give_up()
        self._summarize()

    def _is_to_take_orphans(self) -> bool:
        """Return whether a process that has traced nothing itself (a Ray driver) has work left."""
        if any(map(spool.is_of_this_host, spool.pending(self._settings.spool))):
            return True
        if not any(map(spool.is_of_this_host, spool.segments(self._settings.spool))):
            return False
        from otel_rollout.exporters.weave.client import destination

        return destination(self._settings) is not None

    def _summarize(self) -> None:
        """Say in one line what became of everything, as a warning where something was lost."""
        found = self_metrics.counts()
        if any(found.values()):
            from otel_rollout import delivery_state

            with contextlib.suppress(OSError):
                delivery_state.note_counters(self._settings.directory, found)
            lost = any(count for name, count in found.items() if self_metrics.is_loss(name))
            level = logging.WARNING if lost else logging.INFO
            logger.log(level, "otel-rollout: %s", self_metrics.in_words(found))

    @property
    def lag_bytes(self) -> int:
        """Bytes in the spool that this process has yet to deliver."""
        return self._shipper.lag_bytes if self._shipper is not None else 0


def _gauges(exporter: WeaveSpanExporter) -> dict[str, float]:
    counters = exporter.counters
    return {
        "inflight": max(0, counters["spooled"] - counters["shipped"] - counters["dead_letters"]),
        "lag_bytes": exporter.lag_bytes,
    }

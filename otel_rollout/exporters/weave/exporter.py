"""The ``weave`` span exporter: each span becomes a call in the spool, to be sent from there."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.exporters.spool import SegmentWriter
from otel_rollout.exporters.weave import calls
from otel_rollout.exporters.weave.client import destination
from otel_rollout.exporters.weave.shipper import Shipper
from otel_rollout.settings import Settings, settings

SPOOL_FOLDER: Final = "spool"
DEFAULT_PROJECT: Final = "otel-rollout"
_LAST_DELIVERY_S: Final = 2.0

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
        self.counters: Counter[str] = Counter()
        self._settings = configuration or settings()
        self._writer = SegmentWriter(self._settings.directory / SPOOL_FOLDER)
        self._lock = threading.Lock()
        self._shipper: Shipper | None = None
        self._pid = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Spool the calls of the spans that belong to a trajectory; other spans are left alone."""
        result = SpanExportResult.SUCCESS
        with self._lock:
            for span in spans:
                if not calls.belongs_to_trajectory(span):
                    continue
                try:
                    self._spool(span)
                except OSError as error:
                    self.counters["dropped_unwritable"] += 1
                    result = SpanExportResult.FAILURE
                    say_once(
                        "unwritable",
                        "the spool %s cannot be written (%s): calls are dropped and counted",
                        self._writer.directory,
                        error,
                    )
                except Exception as error:
                    self.counters["failed_conversion"] += 1
                    result = SpanExportResult.FAILURE
                    report_internal_error("span to call", error)
            self._ship()
        return result

    def _spool(self, span: ReadableSpan) -> None:
        meta = {"kind": "call", "project": calls.project_of(span)}
        body = orjson.dumps(calls.call_of(span), option=orjson.OPT_NON_STR_KEYS)
        self._writer.append(meta, body)
        self.counters["spooled"] += 1
        for feedback in calls.feedback_of(span):
            self._writer.append({**meta, "kind": "feedback"}, orjson.dumps(feedback))

    def _ship(self) -> None:
        if self._writer.path is None or self._writer.written_by_another_process:
            return
        if self._pid != os.getpid():
            self._pid = os.getpid()
            where = destination(self._settings)
            if where is None:
                self._shipper = None
                say_once(
                    "no-credentials",
                    "no W&B credentials (WANDB_API_KEY or netrc): calls stay in the local store "
                    "%s; deliver them later with `otel-rollout push`",
                    self._settings.directory,
                )
            else:
                self._shipper = Shipper(where, self._project(), self.counters)
        if self._shipper is not None:
            self._shipper.follow(self._writer.path)

    def _project(self) -> str:
        return self._settings.weave_project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until what was spooled is delivered; without a server there is nothing to wait for.

        Everything is on disk by the time that ``export`` returns.
        """
        shipper = self._shipper
        return shipper is None or shipper.wait_until_idle(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Deliver for 2 s at most; what is left is in the spool."""
        if self._shipper is not None and self._pid == os.getpid():
            self._shipper.stop(_LAST_DELIVERY_S)
        with self._lock:
            self._writer.close()

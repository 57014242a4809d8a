"""The whole way: span, processor, spool, W&B's server code, the real client; and OTLP beside it.

A module of tests holds classes with a `roll_out`. All of them run in one go, each in a trajectory
whose experiment is named like its class; everything is delivered once, and each class's tests look
at what arrived of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_rollout import (
    IdGenerator,
    RolloutSpanProcessor,
    WeaveSpanExporter,
    diagnostics,
    payload,
    recording,
    semconv,
    trajectory,
)
from otel_rollout.exporters import spool
from otel_rollout.processor.token2text import tokenizers
from otel_rollout.settings import Settings
from tests.e2e.rollouts.runs import Call
from tests.servers.otlp_receiver import OtlpReceiver, Span
from tests.servers.weave_process import WeaveServer

IDENTITY = {"step": 7, "rollout_n": 0, "validate": False, "group_id": "g"}


class Log(logging.Handler):
    """Everything that any logger says."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.lines if not line.startswith(("DEBUG", "INFO"))]


@dataclasses.dataclass
class Arrived:
    """What arrived of one class's rollout."""

    calls: list[Call]
    spans: list[Span]
    result: Any

    @property
    def root(self) -> Call:
        (found,) = [call for call in self.calls if call.parent_id is None]
        return found

    def call(self, name: str) -> Call:
        (found,) = [call for call in self.calls if call.op_name == name]
        return found

    def span(self, name: str) -> Span:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def generations(self) -> list[Call]:
        return [call for call in self.calls if call.op_name.startswith("text_completion")]


@dataclasses.dataclass
class Delivery:
    """What arrived of a whole module, and what was said meanwhile."""

    calls: list[Call]
    spans: list[Span]
    bodies: dict[str, bytes]
    log: Log
    results: dict[str, Any]
    counters: dict[str, int]

    def of(self, name: str) -> Arrived:
        return Arrived(
            [call for call in self.calls if call.attributes["experiment_name"] == name],
            [s for s in self.spans if s.attributes.get("rollout.experiment_name") == name],
            self.results[name],
        )


@contextmanager
def listening() -> Iterator[Log]:
    log = Log()
    root = logging.getLogger()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.INFO)
    try:
        yield log
    finally:
        root.removeHandler(log)
        root.setLevel(level)


def deliver(module: Any, server: WeaveServer, folder: Path) -> Delivery:
    """Run every `roll_out` of a module, deliver everything, and read it where it arrived.

    `SETTINGS` of the module: settings other than the defaults.
    """
    project = f"reported-{module.__name__.rpartition('_')[2]}"
    results: dict[str, Any] = {}
    settings = Settings(
        weave_project=f"local/{project}",
        directory=folder,
        keep_local=True,
        otlp_payload="full",
        **getattr(module, "SETTINGS", {}),
    )
    with OtlpReceiver() as receiver, listening() as log, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        diagnostics.forget_said()
        tokenizers.clear()
        exporter = WeaveSpanExporter(settings)
        otlp = BatchSpanProcessor(OTLPSpanExporter(endpoint=receiver.traces_endpoint))
        provider = TracerProvider(id_generator=IdGenerator(), shutdown_on_exit=False)
        processor = RolloutSpanProcessor(exporter, otlp, configuration=settings)
        provider.add_span_processor(processor)
        recording.use_tracer_provider(provider)
        try:
            for number, case in enumerate(cases(module)):
                results[case.__name__] = run(case, number)
            assert provider.force_flush(60_000)
            found = server.client(project).get_calls(include_feedback=True)
            calls = sorted(map(Call.of, found), key=lambda call: call.started_at)
            counters = dict(processor.counters + exporter.counters)
            spans = receiver.spans
        finally:
            provider.shutdown()
            recording.use_tracer_provider(None)
            tokenizers.clear()
        bodies = {
            record.id: record.body
            for segment in spool.segments(settings.spool)
            for record in spool.read(segment)
            if record.kind == spool.CALL
        }
    return Delivery(calls, spans, bodies, log, results, counters)


def cases(module: Any) -> list[Any]:
    return [kind for kind in vars(module).values() if hasattr(kind, "roll_out")]


def run(case: Any, number: int) -> Any:
    """Run one case in a trajectory of its own, which stays open for no longer than that."""
    with trajectory(sample_index=number, experiment_name=case.__name__, **IDENTITY):
        result = case.roll_out()
        return asyncio.run(result) if inspect.iscoroutine(result) else result


def generate(prompt: Any, response: Any, **parts: Any) -> None:
    """Record a generation as instrumentors do."""
    made = recording.start(semconv.OP_TEXT_COMPLETION, "policy")
    with recording.active(made):
        made.payload.prompt_ids = payload.copy_ids(prompt)
        made.payload.response_ids = payload.copy_ids(response)
        for part, value in parts.items():
            setattr(made.payload, part, value)


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def check_all(delivery: Delivery) -> None:
    """Every span is there once, as a call and in OTLP, with its identity, as strict JSON."""
    ids = [call.id for call in delivery.calls]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(delivery.bodies)
    assert set(ids) == {
        span.span_id for span in delivery.spans if "rollout.sampled" in span.attributes
    }
    for body in delivery.bodies.values():
        json.loads(body.decode("utf-8"), parse_constant=no_constant)
    for call in delivery.calls:
        for name, value in {**IDENTITY, "sample_index": 0, "experiment_name": ""}.items():
            assert type(call.attributes[name]) is type(value), (call.op_name, name)
    for span in delivery.spans:
        for name, value in {**IDENTITY, "sample_index": 0, "experiment_name": ""}.items():
            assert type(span.attributes[f"rollout.{name}"]) is type(value), (span.name, name)
    parents = {None, *ids}
    assert [call.op_name for call in delivery.calls if call.parent_id not in parents] == []
    assert [line for line in delivery.log.warnings if "internal error" in line] == []
    assert [line for line in delivery.log.warnings if "encode" in line] == []
    assert delivery.counters.get("dropped_queue_full", 0) == 0

"""verl's real classes in this process, instrumented, with spans kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from otel_rollout import IdGenerator, RolloutSpanProcessor, recording
from otel_rollout.instrumentors.ray import RayInstrumentor
from otel_rollout.instrumentors.verl import VerlInstrumentor
from otel_rollout.settings import Settings


class Spans:
    """What was exported, as soon as it is asked for."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.exporter.rollout_payload = "full"  # type: ignore[attr-defined]
        self.provider = TracerProvider(id_generator=IdGenerator())
        processor = RolloutSpanProcessor(self.exporter, configuration=Settings())
        self.provider.add_span_processor(processor)

    def named(self, start: str) -> list[object]:
        assert self.provider.force_flush()
        return [s for s in self.exporter.get_finished_spans() if s.name.startswith(start)]

    def names(self) -> list[str]:
        return [span.name for span in self.named("")]  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def instrumented() -> Iterator[None]:
    instrumentors = [RayInstrumentor(), VerlInstrumentor()]
    for instrumentor in instrumentors:
        instrumentor.instrument()
    yield
    for instrumentor in reversed(instrumentors):
        instrumentor.uninstrument()


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    recording.use_tracer_provider(found.provider)
    yield found
    recording.use_tracer_provider(None)
    found.provider.shutdown()

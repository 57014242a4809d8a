"""Tracing neither reads nor moves a random generator of the process."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_rollout import IdGenerator, RolloutSpanProcessor, recording, trajectory
from otel_rollout.randomness import give_exporters_their_own
from tests.servers.otlp_receiver import OtlpReceiver


class TestExporters:
    """What exports, and what retries, draws from the operating system."""

    @pytest.mark.parametrize("status", [200, 503])
    def test_the_otlp_exporter_leaves_the_seeded_generator_alone(
        self, status: int, otlp_receiver: OtlpReceiver
    ) -> None:
        otlp_receiver.status = status
        exporter = OTLPSpanExporter(endpoint=otlp_receiver.traces_endpoint, timeout=1)
        provider = TracerProvider(id_generator=IdGenerator())
        provider.add_span_processor(RolloutSpanProcessor(BatchSpanProcessor(exporter)))
        recording.use_tracer_provider(provider)
        try:
            random.seed(42)
            numpy.random.seed(42)
            before = random.getstate(), repr(numpy.random.get_state())
            for index in range(3):
                with trajectory(step=1, sample_index=index):
                    pass
            provider.force_flush(3000)
            assert (random.getstate(), repr(numpy.random.get_state())) == before
        finally:
            recording.use_tracer_provider(None)
        assert status != 200 or len(otlp_receiver.spans) == 3

    def test_everybody_else_keeps_the_module(self) -> None:
        give_exporters_their_own()
        assert isinstance(random.getrandbits(8), int)
        random.seed(1)
        first = random.random()
        random.seed(1)
        assert random.random() == first


class TestIds:
    """Ids are unique, whatever is seeded."""

    def test_equal_seeds_give_different_ids(self) -> None:
        ids = []
        for _ in range(100):
            random.seed(42)
            generator = IdGenerator()
            ids.append((generator.generate_trace_id(), generator.generate_span_id()))
        assert len({trace_id for trace_id, _ in ids}) == 100
        assert len({span_id for _, span_id in ids}) == 100

    def test_a_forked_child_makes_other_ids(self, tmp_path: Path) -> None:
        generator = IdGenerator()
        generator.generate_trace_id()
        child = os.fork()
        if child == 0:
            (tmp_path / "id").write_text(str(generator.generate_trace_id()))
            os._exit(0)
        os.waitpid(child, 0)
        assert int((tmp_path / "id").read_text()) != generator.generate_trace_id()

    def test_a_child_does_not_use_what_its_parent_has_read_ahead(self, tmp_path: Path) -> None:
        generator = IdGenerator()
        generator.generate_span_id()  # a block is there now
        child = os.fork()
        if child == 0:
            ids = [generator.generate_span_id() for _ in range(400)]
            (tmp_path / "ids").write_text(" ".join(map(str, ids)))
            os._exit(0)
        own = {generator.generate_span_id() for _ in range(400)}
        os.waitpid(child, 0)
        assert not own & {int(text) for text in (tmp_path / "ids").read_text().split()}

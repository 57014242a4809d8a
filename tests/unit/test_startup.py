"""Zero-code start-up: what it imports, what it sets up, and what it leaves alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.sdk.resources import PROCESS_PID
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
)

from otel_rollout import IdGenerator, RolloutSpanProcessor, recording, semconv, trajectory
from otel_rollout.instrumentors.hooking import HookingInstrumentor
from otel_rollout.processor import sampling
from otel_rollout.startup import NOT_ASKED, adopt, is_ray_service, is_switched_off
from tests.unit.pipeline import attributes, generation

INSTRUMENT = Path(sys.executable).with_name("opentelemetry-instrument")


def instrumented(
    code: str, tmp_path: Path, exporter: str | None = "weave", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run code under the real `opentelemetry-instrument`."""
    variables = {**os.environ, "OTEL_ROLLOUT_DIR": str(tmp_path), **environ}
    if exporter is not None:
        variables["OTEL_TRACES_EXPORTER"] = exporter
    return subprocess.run(
        [INSTRUMENT, sys.executable, "-c", code],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


PROCESSORS = (
    "from opentelemetry import trace\n"
    "p = trace.get_tracer_provider()._active_span_processor._span_processors\n"
    "print([type(x).__name__ for x in p], [b.name for x in p for b in x._behind])\n"
)


class TestInstrument:
    """`opentelemetry-instrument` with nothing but OTEL_TRACES_EXPORTER."""

    def test_nothing_heavy_is_imported(self, tmp_path: Path) -> None:
        heavy = ("torch", "ray", "verl", "vllm", "sglang", "weave", "numpy", "transformers")
        code = f"import sys; print([m for m in {heavy!r} if m in sys.modules])"
        result = instrumented(code, tmp_path)
        assert result.stdout.strip() == "[]"
        assert result.stderr == ""

    def test_weave_alone_needs_only_us(self, tmp_path: Path) -> None:
        result = instrumented(PROCESSORS, tmp_path)
        assert result.stdout.strip() == "['RolloutSpanProcessor'] ['WeaveSpanExporter']"
        assert result.stderr == ""

    def test_weave_and_otlp(self, tmp_path: Path) -> None:
        result = instrumented(
            PROCESSORS, tmp_path, "weave,otlp", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1"
        )
        assert result.stdout.startswith("['RolloutSpanProcessor'] [")
        assert "WeaveSpanExporter" in result.stdout
        assert "BatchSpanProcessor" in result.stdout
        assert "Traceback" not in result.stderr

    def test_no_exporter_at_all(self, tmp_path: Path) -> None:
        result = instrumented("print('ran')", tmp_path, None)
        assert result.stdout.strip() == "ran"
        assert result.stderr == ""

    def test_a_bad_setting_is_one_line(self, tmp_path: Path) -> None:
        result = instrumented("print('ran')", tmp_path, OTEL_ROLLOUT_SAMPLE_RATE="5")
        assert result.stdout.strip() == "ran"
        (line,) = result.stderr.strip().splitlines()
        assert "OTEL_ROLLOUT_SAMPLE_RATE" in line
        assert "'5'" in line

    def test_a_misspelt_setting_is_one_line(self, tmp_path: Path) -> None:
        result = instrumented("print('ran')", tmp_path, OTEL_ROLLOUT_SAMPLERATE="0.5")
        assert result.stdout.strip() == "ran"
        (line,) = result.stderr.strip().splitlines()
        assert "did you mean OTEL_ROLLOUT_SAMPLE_RATE?" in line

    def test_an_exporter_that_a_misspelt_variable_names_is_one_line(self, tmp_path: Path) -> None:
        result = instrumented("print('ran')", tmp_path, None, OTEL_TRACE_EXPORTER="weave")
        assert result.stdout.strip() == "ran"
        (line,) = result.stderr.strip().splitlines()
        assert line.startswith("OTEL_TRACE_EXPORTER=weave turns nothing on")

    def test_an_exporter_that_cannot_be_had_is_said_before_the_traceback(
        self, tmp_path: Path
    ) -> None:
        result = instrumented("print('ran')", tmp_path, "weav")
        assert result.stdout.strip() == "ran"
        line = result.stderr.splitlines()[0]
        assert line.startswith("nothing is traced")
        assert "OTEL_TRACES_EXPORTER=weav " in line
        assert "otel-rollout doctor" in line

    def test_propagators_without_baggage_are_one_line(self, tmp_path: Path) -> None:
        done = instrumented("pass", tmp_path, OTEL_PROPAGATORS="tracecontext")
        (line,) = [line for line in done.stderr.splitlines() if "baggage" in line]
        assert "OTEL_PROPAGATORS='tracecontext'" in line
        assert "tracecontext,baggage" in line

    def test_a_trajectory_is_spooled(self, tmp_path: Path) -> None:
        code = (
            "from otel_rollout import trajectory\n"
            "import random; random.seed(1); before = random.getstate()\n"
            "with trajectory(step=1): pass\n"
            "assert random.getstate() == before\n"
        )
        result = instrumented(code, tmp_path)
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        assert [path for path in tmp_path.rglob("*") if path.is_file()]


class TestAdopt:
    """The provider's processors are owned by ours, once."""

    def test_twice_is_once(self) -> None:
        provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(memory))
        assert adopt(provider)
        assert adopt(provider)
        (ours,) = provider._active_span_processor._span_processors
        assert isinstance(ours, RolloutSpanProcessor)
        recording.use_tracer_provider(provider)
        with trajectory(step=1):
            generation([1], [2])
        assert provider.force_flush()
        assert [s.name for s in memory.get_finished_spans()] == ["text_completion m", "rollout"]
        provider.shutdown()

    def test_ids_come_from_elsewhere_unless_the_user_chose(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        adopt(provider)
        assert isinstance(provider.id_generator, IdGenerator)

        class Theirs(RandomIdGenerator): ...

        provider = TracerProvider(id_generator=Theirs(), shutdown_on_exit=False)
        adopt(provider)
        assert isinstance(provider.id_generator, Theirs)

    @pytest.mark.parametrize("sampler", [ALWAYS_ON, ParentBased(ALWAYS_ON)])
    def test_other_tracers_follow_the_trajectorys_decision(self, sampler: Sampler) -> None:
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        adopt(provider)
        adopt(provider)
        recording.use_tracer_provider(provider)
        tracer = provider.get_tracer("x")
        sampling.use_sampler(sampling.Sampler(rate=0.0))
        carrier: dict[str, str] = {}
        with trajectory(step=1), tracer.start_as_current_span("http") as span:
            assert not span.is_recording()
            propagate.inject(carrier)
        assert carrier["traceparent"].endswith(("-00", "-02"))
        sampling.use_sampler(None)
        with trajectory(step=1), tracer.start_as_current_span("http") as span:
            assert span.is_recording()
        assert tracer.start_span("outside").is_recording()
        provider.shutdown()

    def test_a_sampler_that_gives_no_attributes_back_takes_none_away(self) -> None:
        class Forgetful(Sampler):
            def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
                return SamplingResult(Decision.RECORD_AND_SAMPLE, {"sampler.note": 1})

            def get_description(self) -> str:
                return "Forgetful"

        provider, memory = (
            TracerProvider(sampler=Forgetful(), shutdown_on_exit=False),
            InMemorySpanExporter(),
        )
        provider.add_span_processor(SimpleSpanProcessor(memory))
        adopt(provider)
        recording.use_tracer_provider(provider)
        tracer = provider.get_tracer("x")
        with trajectory(step=1), tracer.start_as_current_span("http", attributes={"path": "/"}):
            generation([1], [2])
        assert provider.force_flush()
        spans = {span.name: attributes(span) for span in memory.get_finished_spans()}
        assert spans["text_completion m"][semconv.OPERATION] == semconv.OP_TEXT_COMPLETION
        assert spans["rollout"][semconv.STEP] == 1
        assert spans["http"]["path"] == "/"
        assert all(span["sampler.note"] == 1 for span in spans.values())
        provider.shutdown()

    def test_the_process_is_on_the_resource(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        adopt(provider)
        assert provider.resource.attributes[PROCESS_PID] == os.getpid()

    def test_what_is_no_sdk_provider_is_left_alone(self) -> None:
        from opentelemetry.trace import NoOpTracerProvider

        assert adopt(NoOpTracerProvider()) is False
        assert adopt(None) is False

    def test_an_sdk_that_keeps_its_processors_elsewhere(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Elsewhere(SpanProcessor):
            def __init__(self) -> None:
                self.members: list[SpanProcessor] = []

            def add_span_processor(self, processor: SpanProcessor) -> None:
                self.members.append(processor)

            def on_start(self, span: Any, parent_context: Any = None) -> None:
                for member in self.members:
                    member.on_start(span, parent_context)

            def on_end(self, span: ReadableSpan) -> None:
                for member in self.members:
                    member.on_end(span)

            def shutdown(self) -> None:
                for member in self.members:
                    member.shutdown()

        provider = TracerProvider(
            active_span_processor=Elsewhere(),  # type: ignore[arg-type]
            shutdown_on_exit=False,
        )
        memory = InMemorySpanExporter()
        assert adopt(provider) is False
        assert adopt(provider) is False
        provider.add_span_processor(SimpleSpanProcessor(memory))
        assert len(provider._active_span_processor.members) == 2  # type: ignore[attr-defined]
        assert len(caplog.records) == 1
        recording.use_tracer_provider(provider)
        with trajectory(step=1), provider.get_tracer("x").start_as_current_span("http"):
            pass
        http, root = memory.get_finished_spans()
        assert attributes(http)[semconv.STEP] == attributes(root)[semconv.STEP] == 1
        provider.shutdown()


class TestRayServices:
    """Ray's own processes are told from its workers."""

    @pytest.mark.parametrize(
        "command",
        [
            "python -u /site-packages/ray/dashboard/dashboard.py --host=1",
            "python -u /site-packages/ray/dashboard/agent.py",
            "python -u /site-packages/ray/_private/log_monitor.py",
            "python -u /site-packages/ray/_private/runtime_env/agent/main.py",
            "python -u /site-packages/ray/autoscaler/_private/monitor.py",
        ],
    )
    def test_services(self, command: str) -> None:
        assert is_ray_service(command.split())

    @pytest.mark.parametrize(
        "command",
        [
            "python /site-packages/ray/_private/workers/default_worker.py --node-ip=1",
            "python -m verl.trainer.main_ppo",
        ],
    )
    def test_others(self, command: str) -> None:
        assert not is_ray_service(command.split())


@pytest.mark.parametrize("library", ["ray", "sglang", "threads", "verl", "vllm"])
def test_every_hook_that_an_instrumentor_names_is_there(library: str) -> None:
    module = importlib.import_module(f"otel_rollout.instrumentors.{library}")
    (kind,) = [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, HookingInstrumentor)
        and found is not HookingInstrumentor
    ]
    names = [name for hooks in (*kind.hooks.values(), *kind.actors.values()) for name in hooks]
    assert names
    for name in names:
        path, _, function = name.partition(":")
        found = importlib.import_module(f"otel_rollout.instrumentors.{path}")
        assert callable(getattr(found, function)), name


class TestSwitchedOff:
    """What the user's variables say is off, and what only nobody has asked for."""

    @pytest.mark.parametrize(
        ("environ", "off"),
        [
            ({}, False),
            ({"OTEL_SDK_DISABLED": "true"}, True),
            ({"OTEL_SDK_DISABLED": " TRUE "}, True),
            ({"OTEL_SDK_DISABLED": "false"}, False),
            ({"OTEL_SDK_DISABLED": "1"}, False),  # as the SDK reads it
            ({"OTEL_TRACES_EXPORTER": "none"}, True),
            ({"OTEL_TRACES_EXPORTER": "none", NOT_ASKED: "1"}, False),
            ({"OTEL_TRACES_EXPORTER": "weave"}, False),
        ],
    )
    def test_variables(self, environ: dict[str, str], off: bool) -> None:
        assert is_switched_off(environ) is off

    @pytest.mark.parametrize(("exporter", "off"), [(None, False), ("none", True), ("weave", False)])
    def test_a_process(self, tmp_path: Path, exporter: str | None, off: bool) -> None:
        code = "from otel_rollout import startup; print(startup.switched_off)"
        assert instrumented(code, tmp_path, exporter).stdout.strip() == str(off)

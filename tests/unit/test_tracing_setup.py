"""Setting up tracing alone: what comes of it is what the SDK's own configurator makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk import _configuration as configuration
from opentelemetry.sdk.trace import TracerProvider

from otel_rollout import distro, tracing_setup
from otel_rollout.tracing_setup import PLAIN, set_up_tracing

VERSION = "1.2b3"
MadeBy = Callable[[Callable[[], object]], TracerProvider]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_ROLLOUT_DIR", str(tmp_path))
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")


@pytest.fixture
def variables(
    request: pytest.FixtureRequest, no_variables: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment has these, and no other of OTel's."""
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def made_by(monkeypatch: pytest.MonkeyPatch) -> MadeBy:
    """What a function sets up, caught before it would be the process's for good."""
    caught: list[TracerProvider] = []
    for name in vars(configuration):
        if name.startswith("set_") and name.endswith("_provider"):
            catch = caught.append if name == "set_tracer_provider" else lambda provider: None
            monkeypatch.setattr(configuration, name, catch)
    monkeypatch.setattr(trace, "set_tracer_provider", caught.append)

    def made(set_up: Callable[[], object]) -> TracerProvider:
        caught.clear()
        set_up()
        (provider,) = caught
        return provider

    return made


def the_sdks_way() -> None:
    configuration._OTelSDKConfigurator().configure(auto_instrumentation_version=VERSION)  # type: ignore[no-untyped-call]


def our_way() -> None:
    assert set_up_tracing(VERSION)


def plain_values(thing: Any) -> dict[str, Any]:
    return {k: v for k, v in vars(thing).items() if isinstance(v, (int, float, str, type(None)))}


def described(provider: TracerProvider) -> dict[str, Any]:
    """What a tracer provider is made of, and shut it down."""
    processors = []
    for processor in provider._active_span_processor._span_processors:
        batch = getattr(processor, "_batch_processor", processor)
        processors.append(
            (type(processor), plain_values(batch), type(processor.span_exporter))  # type: ignore[attr-defined]
        )
    configurator = vars(provider).get("_tracer_configurator")
    found = {
        "type": type(provider),
        "values": plain_values(provider),
        "sampler": provider.sampler.get_description(),
        "ids": type(provider.id_generator),
        "resource": (dict(provider.resource.attributes), provider.resource.schema_url),
        "limits": vars(provider._span_limits),
        "configurator": getattr(configurator, "__qualname__", configurator),
        "processors": processors,
        "tracer": type(provider.get_tracer("t")),
    }
    provider.shutdown()
    return found


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_EXPORTER": "weave"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": " console , weave,console"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "s"},
        {"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=from,telemetry.auto.version=9"},
        {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process,otel"},
        {"OTEL_PYTHON_ID_GENERATOR": "random"},
        {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "7", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "9"},
        {
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_BSP_MAX_QUEUE_SIZE": "99",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9",
        },
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
    ids=",".join,
    indirect=True,
)
@pytest.mark.usefixtures("variables")
def test_both_ways_make_the_same_provider(made_by: MadeBy) -> None:
    assert described(made_by(our_way)) == described(made_by(the_sdks_way))


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_TRACES_SAMPLER": "always_off"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
        {"OTEL_PYTHON_TRACER_CONFIGURATOR": "unheard-of"},
    ],
    ids=",".join,
    indirect=True,
)
@pytest.mark.usefixtures("variables")
def test_what_the_configurator_reads_is_left_to_it(
    made_by: MadeBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not set_up_tracing(VERSION)
    monkeypatch.setattr("opentelemetry.instrumentation.version.__version__", VERSION)
    assert described(made_by(distro._configure_sdk)) == described(made_by(the_sdks_way))


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, "x") for name in PLAIN]
    + [
        ("OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED", "true"),
        ("OTEL_METRICS_EXPORTER", "console"),
        ("OTEL_TRACES_EXPORTER", "otlp"),
        ("OTEL_TRACES_EXPORTER", "weave,otlp_proto_http"),
        ("OTEL_TRACES_EXPORTER", "weave,"),
        ("OTEL_TRACES_EXPORTER", "unheard-of"),
    ],
)
def test_what_asks_for_more_is_left_to_the_configurator(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(provider: object) -> None:
        raise AssertionError("set up all the same")

    monkeypatch.setattr(trace, "set_tracer_provider", unwanted)
    monkeypatch.setenv(name, value)
    assert not set_up_tracing(VERSION)


def test_an_agent_that_configures_the_sdk_is_left_to_the_configurator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = tracing_setup.entry_points

    def with_agent(**which: Any) -> Any:
        return [object()] if which["group"] == "_opentelemetry_opamp" else real(**which)

    monkeypatch.setattr(tracing_setup, "entry_points", with_agent)
    assert not set_up_tracing(VERSION)


def test_every_variable_of_this_sdks_configurator_is_known() -> None:
    """One that a later SDK reads is to be looked at: what it asks for would be passed over."""
    reads = {
        value
        for name, value in vars(configuration).items()
        if "OTEL_" in name and isinstance(value, str) and value.startswith("OTEL_")
    }
    itself = {
        "OTEL_TRACES_EXPORTER",
        "OTEL_TRACES_SAMPLER_ARG",  # nothing without OTEL_TRACES_SAMPLER
        "OTEL_EXPORTER_OTLP_PROTOCOL",  # and its likes: OTLP is left to it
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
        "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
    }
    assert reads
    assert reads <= PLAIN.keys() | itself


@pytest.mark.parametrize(("metrics", "loaded"), [("none", "[]"), ("console", "['metrics']")])
def test_the_metrics_sdk_is_loaded_where_it_is_asked_for(
    metrics: str, loaded: str, tmp_path: Path
) -> None:
    code = (
        "import sys; print([n for n in ('metrics',) if f'opentelemetry.sdk.{n}' in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, "-c", code],
        env={
            **os.environ,
            "OTEL_ROLLOUT_DIR": str(tmp_path),
            "OTEL_TRACES_EXPORTER": "weave",
            "OTEL_METRICS_EXPORTER": metrics,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.splitlines()[0] == loaded

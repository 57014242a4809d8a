"""Setting up tracing alone, where nothing else is asked for.

The SDK's configurator sets up metrics and logs too, with nobody to export them to, and importing
those two SDKs costs more than all else that happens at the start of a process. What the variables
ask of the configurator itself beyond exporters by their names is left to it.
"""

from __future__ import annotations

import os
from typing import Final

from opentelemetry import trace
from opentelemetry.util._importlib_metadata import entry_points

PLAIN: Final = {
    "OTEL_METRICS_EXPORTER": ("none",),
    "OTEL_LOGS_EXPORTER": ("none",),
    "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": ("false",),
    "OTEL_PYTHON_ID_GENERATOR": ("random",),
    "OTEL_TRACES_SAMPLER": (),
    "OTEL_PYTHON_TRACER_CONFIGURATOR": (),
    "OTEL_PYTHON_METER_CONFIGURATOR": (),
    "OTEL_PYTHON_LOGGER_CONFIGURATOR": (),
    "OTEL_CONFIG_FILE": (),
    "OTEL_EXPERIMENTAL_CONFIG_FILE": (),
}
"""What the SDK's configurator reads, and the values that ask nothing of it (unset always does so).

Resource, span limits and batches are not here: provider and processors read those themselves.
"""
_OPAMP: Final = "_opentelemetry_opamp"
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_OTLP: Final = "otlp"
"""How exporters are called whose name the configurator looks up by protocol."""


def set_up_tracing(version: str) -> bool:
    """Make the global tracer provider that the SDK's configurator would make, without the rest.

    ``version``: of the auto instrumentation, for the resource. Returns ``False``, with nothing
    done, where the configurator is needed: for what :data:`PLAIN` leaves out, and for an exporter
    that cannot be had, which it reports. Raises what an exporter raises when it is made, as the
    configurator does.
    """
    for variable, plain in PLAIN.items():
        value = os.environ.get(variable, "").strip()
        if value and value not in plain:
            return False
    if list(entry_points(group=_OPAMP)):
        return False
    exporters = _exporters(os.environ.get("OTEL_TRACES_EXPORTER", ""))
    if exporters is None:
        return False

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"telemetry.auto.version": version}))
    trace.set_tracer_provider(provider)
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter()))
    return True


def _exporters(text: str) -> list[type] | None:
    """Return the exporters of these names, each once; ``None`` where the configurator is needed."""
    from opentelemetry.sdk.trace.export import SpanExporter

    if text.strip().lower() in ("", "none"):
        return []
    found: dict[str, type] = {}
    for name in map(str.strip, text.split(",")):
        named = list(entry_points(group=_EXPORTERS, name=name))
        if name.startswith(_OTLP) or not named:
            return None
        try:
            exporter = named[0].load()
        except Exception:
            return None  # the configurator meets the same, and says so
        if not (isinstance(exporter, type) and issubclass(exporter, SpanExporter)):
            return None
        found[name] = exporter
    return list(found.values())

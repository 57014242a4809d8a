"""The OpenTelemetry distro that makes ``OTEL_TRACES_EXPORTER=weave`` all that is needed.

The stock distro also turns on OTLP export of metrics, logs and traces over gRPC, which fails where
no such exporter is installed. Here only what the user named is exported. A distro that is
installed besides ours keeps its say: it is asked first.
"""

from __future__ import annotations

import os
from typing import Any, Final

from opentelemetry.instrumentation.distro import BaseDistro  # type: ignore[attr-defined]
from opentelemetry.util._importlib_metadata import EntryPoint, entry_points

from otel_rollout import misspelt, startup
from otel_rollout.diagnostics import report_internal_error, say_once

_TRACES: Final = "OTEL_TRACES_EXPORTER"
_SIGNALS: Final = {
    _TRACES: "opentelemetry_traces_exporter",
    "OTEL_METRICS_EXPORTER": "opentelemetry_metrics_exporter",
    "OTEL_LOGS_EXPORTER": "opentelemetry_logs_exporter",
}
_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class RolloutDistro(BaseDistro):  # type: ignore[misc]
    """Configures what other distros leave open, and the SDK where nobody else does."""

    def __init__(self) -> None:
        self._other = _other_distro()

    def _configure(self, **kwargs: Any) -> None:
        given = {name: os.environ.get(name) for name in (*_SIGNALS, _PROTOCOL)}
        if self._other is not None:
            self._other.configure(**kwargs)
        _fill_gaps(given)
        if not list(entry_points(group="opentelemetry_configurator")):
            _configure_sdk()

    def load_instrumentor(self, entry_point: EntryPoint, **kwargs: Any) -> None:
        """Load an instrumentor the way that the other distro does, where there is one."""
        if self._other is not None:
            self._other.load_instrumentor(entry_point, **kwargs)
        else:
            super().load_instrumentor(entry_point, **kwargs)


def _other_distro() -> BaseDistro | None:
    for entry_point in entry_points(group="opentelemetry_distro"):
        if not entry_point.value.startswith("otel_rollout."):
            try:
                distro = entry_point.load()()
            except Exception as error:
                report_internal_error(f"distro {entry_point.name}", error)
                continue
            if isinstance(distro, BaseDistro):
                return distro
    return None


def _fill_gaps(given: dict[str, str | None]) -> None:
    """Set what the user has not set so that only exporters that are installed are asked for."""
    if not given[_PROTOCOL] and not _installed("OTEL_TRACES_EXPORTER", "otlp_proto_grpc"):
        os.environ[_PROTOCOL] = "http/protobuf"
    otlp = _BY_PROTOCOL.get(os.environ.get(_PROTOCOL, "grpc"), "otlp_proto_grpc")
    for name in _SIGNALS:
        if given[name]:
            continue
        chosen = os.environ.get(name)
        if not chosen or (chosen == "otlp" and not _installed(name, otlp)):
            os.environ[name] = "none"
            if name == _TRACES:
                os.environ[startup.NOT_ASKED] = "1"
                _say_what_was_meant()


def _say_what_was_meant() -> None:
    meant = misspelt.meant_exporter(os.environ, _SIGNALS)
    if meant is not None:
        say_once(
            "setting:meant",
            "%s=%s turns nothing on: OpenTelemetry reads %s. Nothing is traced",
            meant,
            os.environ[meant],
            _TRACES,
        )


def _installed(signal: str, exporter: str) -> bool:
    return bool(list(entry_points(group=_SIGNALS[signal], name=exporter)))


def _configure_sdk() -> None:
    from opentelemetry.instrumentation.version import __version__

    from otel_rollout.tracing_setup import set_up_tracing

    if set_up_tracing(__version__):
        return
    from opentelemetry.sdk._configuration import _OTelSDKConfigurator

    try:
        _OTelSDKConfigurator().configure(auto_instrumentation_version=__version__)  # type: ignore[no-untyped-call]
    except Exception as error:
        say_once(
            "setting:set-up",
            "nothing is traced: OpenTelemetry cannot be set up as %s=%s asks (%s); "
            "`otel-rollout doctor`, with the same variables, says what to do",
            _TRACES,
            os.environ.get(_TRACES),
            error,
        )
        raise

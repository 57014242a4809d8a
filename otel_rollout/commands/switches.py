"""What the environment's variables say that keeps rollouts from being traced, or may."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final
from urllib.parse import urlsplit

from otel_rollout import misspelt
from otel_rollout.commands.findings import ERROR, NOTE, WARNING, Finding
from otel_rollout.settings import VARIABLES, Settings

_OURS: Final = "otel_rollout"


def findings(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield everything that is worth knowing; ``settings``: those made of the same variables."""
    yield from _opentelemetry(environ)
    yield from _exporters(environ)
    yield from _sampling(settings, environ)
    yield from _our_settings(settings, environ)


def _true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() == "true"


def _list(environ: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in environ.get(name, "").split(",") if part.strip()]


def _opentelemetry(environ: Mapping[str, str]) -> Iterator[Finding]:
    if _true(environ, "OTEL_SDK_DISABLED"):
        yield Finding(
            ERROR, "sdk-disabled", "OTEL_SDK_DISABLED=true: nothing is traced", "unset it"
        )
    disabled = _list(environ, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS")
    ours = [name for name in disabled if name == "*" or name.startswith(_OURS)]
    if ours:
        yield Finding(
            WARNING,
            "instrumentors-disabled",
            f"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS turns off {', '.join(ours)}",
            "leave these names out of it",
        )
    propagators = _list(environ, "OTEL_PROPAGATORS")
    if propagators and "baggage" not in propagators:
        yield Finding(
            ERROR,
            "propagators",
            f"OTEL_PROPAGATORS={environ['OTEL_PROPAGATORS']} leaves out baggage: spans in other "
            "processes do not know their trajectory",
            "add baggage",
        )
    others = [one for one in _entry_points("opentelemetry_distro") if not one.startswith(_OURS)]
    chosen = environ.get("OTEL_PYTHON_DISTRO")
    if chosen and chosen != _OURS:
        yield Finding(
            NOTE,
            "distro",
            f"OTEL_PYTHON_DISTRO={chosen}: that distro sets OpenTelemetry up, ours does not",
        )
    elif others:
        yield Finding(
            NOTE,
            "distro",
            f"another distro is installed ({', '.join(others)}): it may turn on exporters of "
            "metrics and logs by itself",
            "OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none where you want none",
        )


def _exporters(environ: Mapping[str, str]) -> Iterator[Finding]:
    named = _list(environ, "OTEL_TRACES_EXPORTER")
    file = environ.get("OTEL_CONFIG_FILE")
    if file:
        yield Finding(
            WARNING,
            "config-file",
            f"OTEL_CONFIG_FILE={file}: it decides on exporters, OTEL_TRACES_EXPORTER does not",
            "name the exporter `weave:` in a batch processor of that file",
        )
        if not os.path.isfile(file):
            yield Finding(ERROR, "config-file-missing", f"there is no file {file}", "correct it")
        return
    if not named:
        yield Finding(
            WARNING,
            "no-exporter",
            "OTEL_TRACES_EXPORTER is not set here: spans go nowhere",
            "OTEL_TRACES_EXPORTER=weave",
        )
    elif named == ["none"]:
        yield Finding(ERROR, "no-exporter", "OTEL_TRACES_EXPORTER=none: spans go nowhere")
    known = set(_entry_points("opentelemetry_traces_exporter")) | {"none", "otlp"}
    for name in named:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            yield Finding(
                ERROR,
                "unknown-exporter",
                f"OTEL_TRACES_EXPORTER names {name!r}, which is not installed: OpenTelemetry gives "
                "up its whole set-up over it",
                f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}",
            )
    if "otlp" in named and not known & {"otlp_proto_http", "otlp_proto_grpc"}:
        yield Finding(
            ERROR,
            "unknown-exporter",
            "OTEL_TRACES_EXPORTER names otlp, and no OTLP exporter is installed",
            "pip install 'otel-rollout[otlp]'",
        )
    for variable in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        host = urlsplit(environ.get(variable, "")).hostname or ""
        if "weave" in named and any(n.startswith("otlp") for n in named) and "wandb" in host:
            yield Finding(
                WARNING,
                "twice",
                f"{variable} is W&B's too: every span would be in Weave twice",
                "send OTLP elsewhere, or leave out one of the two",
            )
            break


def _sampling(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    share = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    if sampler.endswith("always_off") or (sampler.endswith("traceidratio") and _is_zero(share)):
        yield Finding(
            ERROR,
            "sampler",
            f"OTEL_TRACES_SAMPLER={sampler} {share}".rstrip() + " drops every trajectory",
            "unset it; OTEL_ROLLOUT_SAMPLE_RATE samples whole groups",
        )
    elif sampler.endswith("traceidratio") and share:
        yield Finding(
            WARNING,
            "sampler",
            f"OTEL_TRACES_SAMPLER={sampler} {share} drops single rollouts, not whole groups",
            "OTEL_ROLLOUT_SAMPLE_RATE",
        )
    tail_rules = settings.keep is not None
    if settings.sample_rate == 0 and not tail_rules:
        yield Finding(ERROR, "rate", "OTEL_ROLLOUT_SAMPLE_RATE=0: no trajectory is traced")
    if tail_rules and settings.sample_rate == 1 and settings.max_samples_per_step is None:
        yield Finding(
            NOTE,
            "keep-alone",
            "OTEL_ROLLOUT_KEEP does nothing where every trajectory is traced anyway",
            "OTEL_ROLLOUT_SAMPLE_RATE or OTEL_ROLLOUT_MAX_SAMPLES_PER_STEP",
        )
    if settings.max_samples_per_step == 0 and not tail_rules:
        yield Finding(ERROR, "rate", "OTEL_ROLLOUT_MAX_SAMPLES_PER_STEP=0: none is traced")


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def _our_settings(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        if not text:
            continue
        try:
            variable.parse(text)
        except Exception:
            yield Finding(
                WARNING,
                "bad-value",
                f"{variable.name}={text!r} is not usable; the default takes its place",
                f"allowed is {variable.allowed}",
            )
    for name, meant in (*misspelt.unknown(environ), *misspelt.slips(environ)):
        yield Finding(
            WARNING,
            "unknown-variable",
            f"{name} is no setting of this version",
            f"did you mean {meant}?" if meant else "",
        )
    if environ.get("RAY_ADDRESS") and environ.get("WANDB_API_KEY") and not settings.ray_secrets:
        yield Finding(
            NOTE,
            "ray-secrets",
            "workers of the Ray cluster are not given WANDB_API_KEY: without a key of their own, "
            "their calls stay on their nodes",
            "OTEL_ROLLOUT_RAY_SECRETS=true, or `otel-rollout push` there",
        )
    if not settings.capture_content:
        yield Finding(
            NOTE,
            "content",
            "content is off: no text, token ids or arguments leave the process",
            "unset OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
        )


def _entry_points(group: str) -> list[str]:
    return [one.name for one in metadata.entry_points(group=group)]

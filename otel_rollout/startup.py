"""Zero-code start-up: what ``opentelemetry-instrument`` and Ray's workers call.

Nothing heavy is imported here, and nothing here may raise: an exception in a pre-instrument hook
would abort every instrumentor, and one in a worker's set-up hook the worker.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry import propagate, trace

from otel_rollout.diagnostics import contained, logger, say_once
from otel_rollout.randomness import IdGenerator, give_exporters_their_own

_RAY_SERVICES: Final = (
    "/ray/dashboard/",
    "/ray/_private/log_monitor.py",
    "/ray/_private/runtime_env/agent/",
    "/ray/autoscaler/",
    "/ray/util/client/server/",
    "ray/_private/workers/io_worker",
)
_PEER: Final = "_otel_rollout_is_a_peer"


def is_ray_service(argv: Sequence[str] | None = None) -> bool:
    """Return whether a process is one of Ray's own (dashboard, agents, log monitor).

    ``argv``: its command line, by default this process's.
    """
    given = getattr(sys, "orig_argv", sys.argv) if argv is None else argv
    command = " ".join(given[:4])
    return any(part in command for part in _RAY_SERVICES)


NOT_ASKED: Final = "OTEL_ROLLOUT_NO_EXPORTER_NAMED"
"""Set where our distro, not the user, has said ``OTEL_TRACES_EXPORTER=none``."""

switched_off: bool = False
"""Whether this process was started with tracing off: then instrumentors leave everything alone."""


def is_switched_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the user's variables switch tracing off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return True
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter == "none" and NOT_ASKED not in environ


@contained("pre_instrument", None)
def pre_instrument() -> None:
    """Put :class:`RolloutSpanProcessor` in front of everything that the provider exports to."""
    global switched_off
    switched_off = is_switched_off()
    if is_ray_service():
        return
    adopt(trace.get_tracer_provider())


def adopt(provider: Any) -> bool:
    """Let a ``RolloutSpanProcessor`` own the provider's processors, once.

    Where the SDK keeps them elsewhere than we know, it joins them as a peer: then the others get
    spans without text, token ids and sampling, which is said.
    """
    from opentelemetry.sdk.trace import TracerProvider

    from otel_rollout.processor.processor import RolloutSpanProcessor

    if not isinstance(provider, TracerProvider):
        return False
    _adjust(provider)
    multi = getattr(provider, "_active_span_processor", None)
    lock = getattr(multi, "_lock", None)
    if multi is None or not isinstance(getattr(multi, "_span_processors", None), tuple) or not lock:
        say_once(
            "peer",
            "this OpenTelemetry SDK keeps its span processors elsewhere than expected: exporters "
            "get spans without text, token ids and sampling",
        )
        if _PEER not in vars(provider):
            vars(provider)[_PEER] = True
            provider.add_span_processor(RolloutSpanProcessor())
        return False
    with lock:
        if not _is_adopted(provider):
            multi._span_processors = (RolloutSpanProcessor(*multi._span_processors),)
    return True


def _is_adopted(provider: Any) -> bool:
    """Return whether a ``RolloutSpanProcessor`` of ours is among the provider's processors."""
    from otel_rollout.processor.processor import RolloutSpanProcessor

    multi = getattr(provider, "_active_span_processor", None)
    processors = getattr(multi, "_span_processors", ())
    return any(isinstance(processor, RolloutSpanProcessor) for processor in processors)


def _adjust(provider: Any) -> None:
    """No draw from the training's random generator, no span in an unsampled trajectory.

    And the process's id on every span's resource.
    """
    from opentelemetry.sdk.resources import PROCESS_PID, Resource
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.sdk.trace.sampling import Sampler

    from otel_rollout.processor.following import FollowingSampler

    if "baggage" not in propagate.get_global_textmap().fields:
        say_once(
            "propagators",
            "OTEL_PROPAGATORS=%r leaves out baggage: spans in other processes will not know their "
            "trajectory; add baggage (the default is tracecontext,baggage)",
            os.environ.get("OTEL_PROPAGATORS"),
        )
    give_exporters_their_own()  # those of metrics and logs, too
    if type(getattr(provider, "id_generator", None)) is RandomIdGenerator:  # not one of the user's
        vars(provider)["id_generator"] = IdGenerator()
    sampler = getattr(provider, "sampler", None)
    if isinstance(sampler, Sampler) and not isinstance(sampler, FollowingSampler):
        provider.sampler = FollowingSampler(sampler)
    resource = getattr(provider, "_resource", None)
    if isinstance(resource, Resource) and PROCESS_PID not in resource.attributes:
        provider._resource = resource.merge(Resource({PROCESS_PID: os.getpid()}))


def ray_worker() -> None:
    """Set up a Ray worker as ``opentelemetry-instrument`` would; never raises.

    Called by Ray as ``worker_process_setup_hook``, in workers of a local and of an existing
    cluster. Does nothing where the worker's start-up has instrumented it already.
    """
    try:
        from otel_rollout.settings import IN_RAY_WORKER

        os.environ[IN_RAY_WORKER] = "1"
        if not _is_adopted(trace.get_tracer_provider()):
            from opentelemetry.instrumentation.auto_instrumentation import initialize

            initialize()
    except Exception:
        logger.log(logging.WARNING, "this Ray worker is not traced", exc_info=True)


def imported(path: str) -> Any:
    """Return what ``package.module.attribute`` names."""
    module, _, attribute = path.rpartition(".")
    return getattr(importlib.import_module(module), attribute)

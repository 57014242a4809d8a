"""Keeping telemetry off the random generator that a training run may have seeded.

Python's ``random`` module has one hidden generator for a whole process. A run that seeds it expects
its draws to be its own; the SDK's id generator takes ids from it (so workers with equal seeds make
equal ids), and the OTLP exporters draw the jitter of their retries from it, at every export.
"""

from __future__ import annotations

import os
import random
import sys
from types import ModuleType

from opentelemetry.sdk.trace.id_generator import IdGenerator as SdkIdGenerator
from opentelemetry.trace import INVALID_SPAN_ID, INVALID_TRACE_ID

_EXPORTERS = "opentelemetry.exporter."


class IdGenerator(SdkIdGenerator):
    """For ``TracerProvider(id_generator=IdGenerator())``; reads and moves no random generator."""

    def generate_span_id(self) -> int:
        """Return a new span id, 1 to 2**64 - 1."""
        span_id = INVALID_SPAN_ID
        while span_id == INVALID_SPAN_ID:
            span_id = int.from_bytes(os.urandom(8), "big")
        return span_id

    def generate_trace_id(self) -> int:
        """Return a new trace id, 1 to 2**128 - 1."""
        trace_id = INVALID_TRACE_ID
        while trace_id == INVALID_TRACE_ID:
            trace_id = int.from_bytes(os.urandom(16), "big")
        return trace_id

    def is_trace_id_random(self) -> bool:
        """Return True: all bits are random, which newer SDKs say in the ``traceparent``."""
        return True


def give_exporters_their_own() -> None:
    """Let every exporter module that is loaded draw from the operating system instead.

    What they hold as ``random`` is replaced; the module itself stays as it is for everybody else.
    """
    own = random.SystemRandom()
    for name, module in list(sys.modules.items()):
        if (
            name.startswith(_EXPORTERS)
            and isinstance(module, ModuleType)
            and vars(module).get("random") is random
        ):
            vars(module)["random"] = own

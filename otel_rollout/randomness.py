"""Keeping telemetry off the random generator that a training run may have seeded.

Python's ``random`` module has one hidden generator for a whole process. A run that seeds it expects
its draws to be its own; the SDK's id generator takes ids from it (so workers with equal seeds make
equal ids), and the OTLP exporters draw the jitter of their retries from it, at every export.
"""

from __future__ import annotations

import os
import random
import sys
from array import array
from collections import deque
from types import ModuleType

from opentelemetry.sdk.trace.id_generator import IdGenerator as SdkIdGenerator

from otel_rollout.forking import in_child

_EXPORTERS = "opentelemetry.exporter."


_BLOCK = 256
"""Ids read at a time: the call gives up the interpreter's lock, which a worker may keep long."""

_entropy: deque[int] = deque()
# A forked child must not make the ids that its parent will make.
in_child(_entropy.clear)


def _random_64() -> int:
    """Return 64 bits of the operating system's entropy, never 0."""
    while True:
        try:
            bits = _entropy.popleft()
        except IndexError:
            _entropy.extend(array("Q", os.urandom(8 * _BLOCK)))
        else:
            if bits:
                return bits


class IdGenerator(SdkIdGenerator):
    """For ``TracerProvider(id_generator=IdGenerator())``; reads and moves no random generator."""

    def generate_span_id(self) -> int:
        """Return a new span id, 1 to 2**64 - 1; never raises."""
        return _random_64()

    def generate_trace_id(self) -> int:
        """Return a new trace id, 1 to 2**128 - 1; never raises."""
        return _random_64() << 64 | _random_64()

    def is_trace_id_random(self) -> bool:
        """Return True: all bits are random, as newer SDKs say in ``traceparent``; never raises."""
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

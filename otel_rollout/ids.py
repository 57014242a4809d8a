"""Trace and span ids from the operating system's entropy.

The SDK's own generator draws from Python's ``random``: that moves the generator a training run may
have seeded, and gives equal ids to workers that seed it equally.
"""

from __future__ import annotations

import os

from opentelemetry.sdk.trace.id_generator import IdGenerator as SdkIdGenerator
from opentelemetry.trace import INVALID_SPAN_ID, INVALID_TRACE_ID


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

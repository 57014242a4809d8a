"""What a waiting span holds, once the worker has packed it. Run as a program of its own.

python -m benchmarks.memory SPANS TOKENS

Prints JSON: bytes for each waiting span by Python's own count of what is allocated, and by the
process's resident set; bytes that wait when more is ended than the bound allows.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout import IdGenerator, RolloutSpanProcessor, payload, recording, semconv
from otel_rollout.processor import worker
from otel_rollout.settings import Settings


class Blocked(SpanExporter):
    """An exporter that takes a batch when it is let, as one behind a slow line does."""

    rollout_payload = "none"

    def __init__(self) -> None:
        self.let = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.release()
        self.let.acquire()
        return SpanExportResult.SUCCESS


class Backlog:
    """A processor before a blocked exporter."""

    def __init__(self, tokens: int, max_queue_bytes: int) -> None:
        self._tokens = tokens
        self._exporter = Blocked()
        self.processor = RolloutSpanProcessor(
            self._exporter, configuration=Settings(max_queue_bytes=max_queue_bytes)
        )
        provider = TracerProvider(id_generator=IdGenerator(), shutdown_on_exit=False)
        provider.add_span_processor(self.processor)
        recording.use_tracer_provider(provider)

    def end_spans(self, count: int) -> None:
        """End spans of new ids, each of its own objects, as an engine's answers are."""
        for number in range(count):
            first = 1000 + number
            made = recording.start(semconv.OP_TEXT_COMPLETION, "policy")
            made.payload.prompt_ids = payload.copy_ids(list(range(first, first + self._tokens)))
            made.payload.response_ids = payload.copy_ids(list(range(first, first + self._tokens)))
            made.end()

    def settle(self) -> None:
        """Let one batch through: at the next one the worker packs what waits behind it."""
        self._exporter.entered.acquire()
        self._exporter.let.release()
        self._exporter.entered.acquire()

    @property
    def queue(self) -> dict[str, float]:
        return self.processor._queue()

    def close(self) -> None:
        for _ in range(10_000):
            self._exporter.let.release()
        self.processor.shutdown()


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def per_waiting_span(spans: int, tokens: int) -> float:
    """Bytes for each span that waits, from how much more many hold than few."""
    held = []
    waiting = []
    for count in (2 * worker.BATCH_ITEMS + spans // 4, 2 * worker.BATCH_ITEMS + spans):
        backlog = Backlog(tokens, 4 << 30)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        backlog.end_spans(count)
        backlog.settle()
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0] - before)
        waiting.append(backlog.queue["queue_size"])
        backlog.close()
    return (held[1] - held[0]) / (waiting[1] - waiting[0])


def at_the_bound(tokens: int) -> tuple[float, float]:
    """Resident memory gained, and the bound, when four times more is ended than may wait."""
    bound = 64 << 20
    backlog = Backlog(tokens, bound)
    # The objects of a list's ints are the caller's: ones that live on hold nothing more for us.
    ids = list(range(1000, 1000 + tokens))
    before = resident()
    for _ in range(4 * bound // (16 * tokens)):
        made = recording.start(semconv.OP_TEXT_COMPLETION, "policy")
        made.payload.prompt_ids = payload.copy_ids(ids)
        made.payload.response_ids = payload.copy_ids(ids)
        made.end()
    time.sleep(0.2)
    gained = resident() - before
    backlog.close()
    return gained, bound


def main() -> None:
    spans, tokens = int(sys.argv[1]), int(sys.argv[2])
    gained, bound = at_the_bound(tokens)
    tracemalloc.start()
    print(
        json.dumps(
            {
                "per_span": per_waiting_span(spans, tokens),
                "ids": 2 * tokens * 4,
                "gained": gained,
                "bound": bound,
            }
        )
    )


if __name__ == "__main__":
    main()

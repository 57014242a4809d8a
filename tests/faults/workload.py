"""A process that rolls out trajectories and notes each ended span, until it ends or is ended.

    python workload.py JOURNAL END SECONDS

The journal has a line for each ended span, its id and the (system-wide) monotonic time, written
with one `write`: it survives whatever becomes of the process. END: `normal`, `exception`,
`sys_exit`, `os_exit` (after SECONDS), `fork` (children that end in both ways), or `wait` (to be
killed). `OTEL_ROLLOUT_TEST_TELEMETRY=0` rolls out without telemetry.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from pathlib import Path

TURNS = 3
TURN_S = 0.03
CONCURRENT = 4


class Journal:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str) -> None:
        os.write(self._descriptor, f"{what} {time.monotonic():.6f}\n".encode())

    def ended(self, span: object) -> None:
        context = span.get_span_context()  # type: ignore[attr-defined]
        self.note(f"span {context.span_id:016x}")


def beat(journal: Journal) -> None:
    """Note every 20 ms that a thread of this process got its turn.

    On a busy machine it may not for long, and then nothing can be written either.
    """

    def beats() -> None:
        while True:
            journal.note("beat")
            time.sleep(0.02)

    threading.Thread(target=beats, daemon=True).start()


def set_up() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from otel_rollout import IdGenerator, RolloutSpanProcessor, WeaveSpanExporter

    provider = TracerProvider(id_generator=IdGenerator())
    provider.add_span_processor(RolloutSpanProcessor(WeaveSpanExporter()))
    trace.set_tracer_provider(provider)


async def one(journal: Journal, sample: int, size: int) -> None:
    from opentelemetry import trace

    from otel_rollout import record_reward, trajectory

    tracer = trace.get_tracer("workload")
    root = None
    async with trajectory(step=1, sample_index=sample, rollout_n=0):
        root = trace.get_current_span()
        for turn in range(TURNS):
            given = {"rollout.input": "x" * size, "turn": turn}
            with tracer.start_as_current_span("turn", attributes=given) as span:
                await asyncio.sleep(TURN_S)
            if span.is_recording() or span.get_span_context().is_valid:
                journal.ended(span)
        record_reward(1.0)
    journal.ended(root)


async def roll_out(journal: Journal, seconds: float, size: int) -> int:
    deadline = time.monotonic() + seconds
    done = 0

    async def some(start: int) -> None:
        nonlocal done
        sample = start
        while time.monotonic() < deadline:
            await one(journal, sample, size)
            sample += CONCURRENT
            done += 1

    await asyncio.gather(*(some(start) for start in range(CONCURRENT)))
    return done


def fork(journal: Journal, seconds: float, size: int) -> None:
    """Roll out in the parent and in two forked children; one child ends without a word."""
    asyncio.run(roll_out(journal, seconds / 2, size))
    children = []
    for abruptly in (False, True):
        child = os.fork()
        if child == 0:
            beat(journal)
            asyncio.run(roll_out(journal, seconds / 2, size))
            if abruptly:
                journal.note("death")
                os._exit(0)
            time.sleep(0.3)
            os._exit(0)
        children.append(child)
    asyncio.run(roll_out(journal, seconds / 2, size))
    for child in children:
        os.waitpid(child, 0)


def main() -> None:
    path, end, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    size = int(os.environ.get("OTEL_ROLLOUT_TEST_SIZE", "300"))
    journal = Journal(path)
    atexit.register(journal.note, "gone")  # called after the provider's own handler
    if os.environ.get("OTEL_ROLLOUT_TEST_TELEMETRY") != "0":
        set_up()
    beat(journal)
    journal.note("begin")
    if end == "fork":
        fork(journal, seconds, size)
        journal.note("exit")
        return
    started = time.monotonic()
    done = asyncio.run(roll_out(journal, 3600 if end == "wait" else seconds, size))
    journal.note(f"rate:{done / (time.monotonic() - started):.3f}")
    if end == "os_exit":
        journal.note("death")
        os._exit(3)
    journal.note("exit")
    if end == "exception":
        raise RuntimeError("as asked")
    if end == "sys_exit":
        sys.exit(4)


if __name__ == "__main__":
    main()

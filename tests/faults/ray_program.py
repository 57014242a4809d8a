"""A Ray driver with two actors that roll out and journal, and one of Ray's ways to end them.

    opentelemetry-instrument python ray_program.py FOLDER END SECONDS

END: `exit` (the driver's), `shutdown`, `kill` (of the actors), `driver_killed`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import ray

from tests.faults.workload import Journal, beat, one

FOLDER, END, SECONDS = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])


class Roller:
    def __init__(self, folder: str, number: int) -> None:
        self.journal = Journal(Path(folder) / f"journal-{number}")
        beat(self.journal)

    async def roll(self, start: int) -> None:
        sample = start
        while True:
            await one(self.journal, sample, 300)
            sample += 1

    async def ready(self) -> int:
        return os.getpid()


class Rollers(Roller):
    """A synchronous actor."""

    def roll(self, start: int) -> None:  # type: ignore[override]
        asyncio.run(super().roll(start))

    def ready(self) -> int:  # type: ignore[override]
        return os.getpid()


def main() -> None:
    ray.init(include_dashboard=False, num_cpus=2, log_to_driver=False)
    actors = [
        ray.remote(num_cpus=0)(kind).remote(str(FOLDER), number)
        for number, kind in enumerate((Roller, Rollers))
    ]
    pids = ray.get([actor.ready.remote() for actor in actors])
    running = [actor.roll.remote(1000 * number) for number, actor in enumerate(actors)]
    time.sleep(1.0 + SECONDS)
    own = Journal(FOLDER / "driver")
    own.note("death")
    print("actors", *pids, flush=True)
    if END == "shutdown":
        ray.shutdown()
    elif END == "kill":
        for actor in actors:
            ray.kill(actor)
        time.sleep(1.0)
    elif END == "driver_killed":
        os.kill(os.getpid(), signal.SIGKILL)
    del running
    own.note("exit")


if __name__ == "__main__":
    main()

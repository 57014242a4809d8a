"""What a probe measures, in its own process. Times are in seconds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import time
from typing import Any

from benchmarks import crowd, rollouts, spooling, stub_server, tracers
from benchmarks.rollouts import SAMPLING, Bare, MultiTurn, Prepared, client_of, output_of
from benchmarks.vocabulary import Ids, tokenizer

_CACHES = bytes(64 << 20)
_PAUSE_S = 0.003


def _empty_caches() -> None:
    """Push everything else out of the processor's caches."""
    assert _CACHES.count(1) == 0


class Bench:
    """Everything that can be asked of a probe."""

    def __init__(self, tracer_name: str, url: str) -> None:
        self._url = url
        self._ids = Ids()
        self._tokenizer = tokenizer()
        self._tracer = tracers.set_up(tracer_name, url)
        gc.collect()
        gc.freeze()  # what torch and verl have made is not to be walked through while measuring

    # --- one generation --------------------------------------------------------------------------

    def caller_cpu(
        self, prompt: int, response: int, bursts: int, burst: int = 16, cold: bool = False
    ) -> dict[str, Any]:
        """CPU of the calling thread for one call of verl's client, beyond the call itself.

        Calls come in bursts, as an event loop has them, traced and untraced in turns; after each,
        what was queued is worked off. ``cold``: the ids are in no cache.
        """
        answer: list[Any] = []

        async def engine() -> Any:
            return answer[0]

        client = client_of(engine, self._tokenizer)
        ways = (Bare(client).generate, self._tracer.client(client).generate)
        taken: tuple[list[float], list[float]] = ([], [])

        async def all_calls() -> None:
            with rollouts.entered(7):
                for number in range(2 * bursts):
                    generate = ways[number % 2]
                    ids = self._ids.take(prompt)
                    answer[:] = [output_of(self._ids, response)]
                    if cold:
                        _empty_caches()
                    begun = time.thread_time()
                    for _ in range(burst):
                        await generate("request", prompt_ids=ids, sampling_params=SAMPLING)
                    taken[number % 2].append((time.thread_time() - begun) / burst)
                    time.sleep(_PAUSE_S)
                    if number % 16 == 15:
                        self._tracer.flush()

        self._settle()
        asyncio.run(all_calls())
        self._tracer.flush()
        untraced, traced = taken
        return {
            "cost": statistics.median(traced) - statistics.median(untraced),
            "mean": statistics.fmean(traced) - statistics.fmean(untraced),
            "untraced": statistics.median(untraced),
        }

    def process_cpu(self, prompt: int, response: int, calls: int) -> dict[str, Any]:
        """CPU of the whole process for one such call, until all is delivered; and bytes sent."""
        results = []
        for traced in (False, True):
            prompts = [self._ids.take(prompt) for _ in range(calls)]
            engine = Prepared([output_of(self._ids, response) for _ in range(calls)])
            client = client_of(engine.generate, self._tokenizer)
            generate = (self._tracer.client(client) if traced else Bare(client)).generate

            async def all_calls(generate: Any = generate, prompts: Any = prompts) -> None:
                for number, ids in enumerate(prompts):
                    await generate(f"request-{number}", prompt_ids=ids, sampling_params=SAMPLING)
                    time.sleep(_PAUSE_S)

            async def in_a_trajectory(calls: Any = all_calls) -> None:
                with rollouts.entered(7):
                    await calls()

            results.append(self._process(in_a_trajectory if traced else all_calls))
        (cpu_before, _), (cpu, sent) = results
        return {"cost": (cpu - cpu_before) / calls, "bytes": sent / calls}

    # --- whole trajectories ----------------------------------------------------------------------

    def trajectories(self, turns: int, new: int, count: int) -> dict[str, Any]:
        """Process CPU and bytes sent of one trajectory of some turns, text and logprobs on."""
        results = []
        for traced in (False, True):
            outputs = [output_of(self._ids, new) for _ in range(turns * count)]
            prompts = [self._ids.take(new) for _ in range(count)]
            client = client_of(Prepared(outputs).generate, self._tokenizer)
            loop = MultiTurn(
                self._tracer.client(client) if traced else Bare(client), self._tokenizer, self._ids
            )
            enter = rollouts.trajectory if traced else rollouts.untraced_trajectory

            async def all_of_them(
                loop: Any = loop, prompts: Any = prompts, run: Any = enter
            ) -> None:
                for number, prompt in enumerate(prompts):
                    await run(loop, number, prompt, turns)

            results.append(self._process(all_of_them))
        (cpu_before, _), (cpu, sent) = results
        return {"cost": (cpu - cpu_before) / count, "bytes": sent / count}

    # --- what they share -------------------------------------------------------------------------

    def _settle(self) -> None:
        self._tracer.flush()
        gc.collect()

    def _process(self, work: Any) -> tuple[float, int]:
        """CPU of this process and bytes sent, from the start of some work to its delivery."""
        self._settle()
        bytes_before = stub_server.bytes_taken(self._url)
        begun = time.process_time()
        asyncio.run(work())
        self._tracer.flush()
        taken = time.process_time() - begun
        return taken, stub_server.bytes_taken(self._url) - bytes_before

    # --- many trajectories at once ---------------------------------------------------------------

    def concurrency(
        self, trajectories: int, seconds: float, new: int, work: float, *, idle: bool = False
    ) -> dict[str, Any]:
        """Calls a second and lag of an event loop with many trajectories at a time.

        An engine is simulated: 0.3 to 1 s a call, for real. Beside each call the loop does some
        ``work`` (seconds) of its own, as parsing, templates and tools are. ``idle``: our worker
        throws away what it is given, as if all of its work were done in no time elsewhere.
        """
        doing_nothing: Any = contextlib.nullcontext()
        if idle:
            assert isinstance(self._tracer, tracers.Ours)
            doing_nothing = self._tracer.with_idle_worker()
        with doing_nothing:
            return asyncio.run(
                crowd.run(
                    self._tracer, self._tokenizer, self._ids, trajectories, seconds, new, work
                )
            )

    # --- from a span's end to the disk -----------------------------------------------------------

    def spool_lag(self, rate: float, seconds: float, tokens: int) -> dict[str, Any]:
        """How long ended spans take to the disk when so many end each second; ours only."""
        assert isinstance(self._tracer, tracers.Ours)
        return spooling.lag(self._tracer, self._tokenizer, self._ids, rate, seconds, tokens)

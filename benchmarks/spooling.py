"""From the end of a span to its record on the disk, at a given rate of spans."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks import rollouts
from benchmarks.rollouts import SAMPLING, client_of, output_of
from benchmarks.tracers import Ours
from benchmarks.vocabulary import Ids

_PREPARED = 48
_TRAJECTORY_CALLS = 16


class _Watched:
    """Notes when each generation's record is written: the exporter's own writer, wrapped."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._append = writer.append
        self.written: list[float] = []

    def __enter__(self) -> _Watched:
        def append(meta: dict[str, Any], body: bytes) -> int:
            size: int = self._append(meta, body)
            if b'"op_name":"text_completion' in body[:600]:
                self.written.append(time.perf_counter())
            return size

        self._writer.append = append
        return self

    def __exit__(self, *_: object) -> None:
        del self._writer.append


def lag(
    tracer: Ours, tokenizer: Any, ids: Ids, rate: float, seconds: float, tokens: int
) -> dict[str, Any]:
    """End ``rate`` generations a second, and match them with the records, which keep their order.

    Everything is delivered meanwhile.
    """
    outputs = [output_of(ids, tokens) for _ in range(_PREPARED)]
    prompts = [ids.take(tokens) for _ in range(_PREPARED)]
    ended: list[float] = []

    async def engine() -> Any:
        return outputs[len(ended) % _PREPARED]

    client = tracer.client(client_of(engine, tokenizer))
    count = int(rate * seconds)

    async def generate() -> None:
        begun = time.perf_counter()
        while len(ended) < count:
            with rollouts.entered(len(ended)):
                for _ in range(_TRAJECTORY_CALLS):
                    wait = begun + len(ended) / rate - time.perf_counter()
                    if wait > 0:
                        await asyncio.sleep(wait)
                    prompt = prompts[len(ended) % _PREPARED]
                    await client.generate("r", prompt_ids=prompt, sampling_params=SAMPLING)
                    ended.append(time.perf_counter())

    tracer.flush()
    with _Watched(tracer.writer()) as watched:
        begun = time.perf_counter()
        asyncio.run(generate())
        reached = len(ended) / (time.perf_counter() - begun)
        tracer.flush()
    assert len(watched.written) == len(ended), (len(watched.written), len(ended))
    lags = sorted(written - end for written, end in zip(watched.written, ended, strict=True))
    return {
        "reached": reached,
        "p50": lags[len(lags) // 2],
        "p99": lags[int(len(lags) * 0.99)],
    }

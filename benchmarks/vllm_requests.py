"""Requests to the real vLLM on this CPU, traced and untraced in turns. A program of its own.

python -m benchmarks.vllm_requests REQUESTS PAIRS

Prints JSON: requests a second of each round. One engine serves all rounds; the instrumentor is put
in and taken out between them. Runs under ``opentelemetry-instrument``, as a user's program does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from benchmarks.probe import ROOT

MODEL = ROOT / "examples" / "verl_calculator" / "policy"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_PROMPT_TOKENS = 96
_NEW_TOKENS = 32


def engine() -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(MODEL),
            dtype="float32",
            max_model_len=512,
            max_num_seqs=32,
            enforce_eager=True,
            enable_prefix_caching=False,
        )
    )


async def one_round(made: Any, requests: int) -> float:
    """Requests a second, each in a trajectory of its own."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    from otel_rollout import trajectory

    async def ask(number: int) -> None:
        prompt = [10 + (number * 7 + place) % 300 for place in range(_PROMPT_TOKENS)]
        parameters = SamplingParams(
            max_tokens=_NEW_TOKENS,
            temperature=1.0,
            ignore_eos=True,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async with trajectory(step=1, sample_index=number, project="local/bench"):
            async for _ in made.generate(
                TokensPrompt(prompt_token_ids=prompt), parameters, os.urandom(8).hex()
            ):
                pass

    begun = time.perf_counter()
    await asyncio.gather(*(ask(number) for number in range(requests)))
    return requests / (time.perf_counter() - begun)


async def measure(requests: int, pairs: int) -> dict[str, Any]:
    from opentelemetry import trace

    from otel_rollout import recording
    from otel_rollout.instrumentors.vllm import VllmInstrumentor

    made = engine()
    provider: Any = trace.get_tracer_provider()
    instrumentor = VllmInstrumentor()
    rates: dict[str, list[float]] = {"traced": [], "untraced": []}
    await one_round(made, requests)
    for number in range(pairs):
        for name in ("traced", "untraced") if number % 2 else ("untraced", "traced"):
            if name == "untraced":
                instrumentor.uninstrument()
                recording.use_tracer_provider(trace.NoOpTracerProvider())
            rates[name].append(await one_round(made, requests))
            assert provider.force_flush(60_000)
            if name == "untraced":
                recording.use_tracer_provider(None)
                instrumentor.instrument()
    made.shutdown()
    return rates


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.update(ENVIRONMENT)
    rates = asyncio.run(measure(int(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps(rates), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""The calculator example on verl's own vLLM server, with a real weight sync between its steps.

A program of its own, for the vLLM environment: `verl_server.py OUT [train.py's options]`. After
the steps, a generation is aborted by the server and resumed by verl's fully-async client.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "verl_calculator"


def main() -> None:
    out, *options = sys.argv[1:]
    sys.path.insert(0, str(EXAMPLE))
    train = importlib.import_module("train")
    args = train.parse_args(["--path", "classic", "--engine", "vllm", *options])
    setup = train.setup(args)
    results: dict[str, Any] = {"trajectories": [], "pid": os.getpid()}
    for step in range(1, args.steps + 1):
        results["trajectories"] += train.rollout(setup, step)
    results["partial"] = asyncio.run(partial(setup))
    Path(out).write_text(json.dumps(results))
    train.teardown(setup)


class Agent:
    """An agent in a process of its own, with verl's fully-async client."""

    async def run(self, client: Any, prompt_ids: list[int]) -> dict[str, Any]:
        from otel_rollout import rollout_op

        @rollout_op(kind="agent", name="resumed")
        async def resumed() -> Any:
            # No end before its length: long enough to be aborted in the middle.
            params = {"logprobs": True, "max_tokens": 400, "ignore_eos": True}
            return await client.generate(
                request_id="partial", prompt_ids=prompt_ids, sampling_params=params
            )

        output = await resumed()
        return {
            "token_ids": list(output.token_ids),
            "versions": [output.extra_fields[f"{which}_global_steps"] for which in ("min", "max")],
        }


async def partial(setup: Any) -> dict[str, Any]:
    """One long generation, aborted in the middle for new weights, and resumed."""
    import ray
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    from otel_rollout import trajectory

    engine = setup.sync.__self__
    client = engine.client(FullyAsyncLLMServerClient)
    ids = setup.tokenizer("What is 17 plus 25?", add_special_tokens=False)["input_ids"]
    agent = ray.remote(Agent).remote()
    await agent.__ray_ready__.remote()
    (replica,) = engine.manager.rollout_replicas
    async with trajectory(step=99, sample_index=0, rollout_n=0, experiment_name="partial"):
        task = agent.run.remote(client, ids)
        await asyncio.sleep(0.3)
        while not (await replica.abort_all_requests())["aborted_count"]:
            await replica.resume_generation()  # it had not reached the engine yet
            await asyncio.sleep(0.1)
        await engine.trainer.sync.remote(500)
        await replica.resume_generation()
        return dict(await task)


if __name__ == "__main__":
    main()

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

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[3] / "examples" / "verl_calculator"

ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(
        path for path in (str(HERE), str(EXAMPLE), os.environ.get("PYTHONPATH", "")) if path
    ),
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform",
    "VERL_PLATFORM": "cpu",
    "VERL_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
ROLLOUT = {
    "max_model_len": 512,
    "max_num_seqs": 16,
    "load_format": "auto",
    "enforce_eager": True,
    "tensor_model_parallel_size": 1,
    "nnodes": 1,
    "n_gpus_per_node": 1,
    "free_cache_engine": False,
    "disable_log_stats": False,  # the engine's times come with them
    "+enable_sleep_mode": False,
    "checkpoint_engine.update_weights_bucket_megabytes": 16,
}


class Syncer:
    """What a trainer's worker is to the servers: it sends them weights."""

    def __init__(self, config: Any) -> None:
        os.environ.update(RANK="0", RAY_LOCAL_WORLD_SIZE="1")
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.config import HFModelConfig
        from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

        of_actor = config.actor_rollout_ref
        self.adapter = ServerAdapter(
            config=omega_conf_to_dataclass(of_actor.rollout),
            model_config=omega_conf_to_dataclass(of_actor.model, dataclass_type=HFModelConfig),
            device_mesh=None,
        )

    async def sync(self, folder: str, step: int) -> None:
        from safetensors.torch import load_file

        weights = load_file(f"{folder}/model.safetensors")
        await self.adapter.update_weights(iter(weights.items()), global_steps=step)


def main() -> None:
    out, *options = sys.argv[1:]
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("RAY_worker_niceness", "0")
    sys.path[:0] = [str(HERE), str(EXAMPLE)]
    import ray

    ray.init(
        num_cpus=8,
        num_gpus=1,  # a pretended one
        include_dashboard=False,
        runtime_env={"env_vars": ENVIRONMENT},
    )
    train = importlib.import_module("train")
    args = train.parse_args(
        [
            *("--path", "classic", "--servers", "1", *options),
            *(
                f"{'+' if key.startswith('+') else ''}actor_rollout_ref.rollout."
                f"{key.lstrip('+')}={value}"
                for key, value in ROLLOUT.items()
            ),
        ]
    )
    config = train.make_config(args)
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.utils import hf_tokenizer
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerManager

    servers = LLMServerManager.create(config=config)
    rewards = RewardLoopManager(config=config).reward_loop_worker_handles
    manager = AgentLoopManager.create(
        config=config, llm_client=servers.get_client(), reward_loop_worker_handles=rewards
    )
    tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
    setup = train.Setup(args, config, tokenizer, {}, rewards, manager)
    syncer = ray.remote(Syncer).remote(config)
    results: dict[str, Any] = {"trajectories": [], "pid": os.getpid()}
    for step in range(1, args.steps + 1):
        ray.get(syncer.sync.remote(str(EXAMPLE / "policy"), 10 * step), timeout=120)
        results["trajectories"] += train.rollout(setup, step)
    client = servers.get_client(FullyAsyncLLMServerClient)
    results["partial"] = asyncio.run(partial(client, servers, syncer, tokenizer))
    Path(out).write_text(json.dumps(results))
    ray.shutdown()


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


async def partial(client: Any, servers: Any, syncer: Any, tokenizer: Any) -> dict[str, Any]:
    """One long generation, aborted in the middle for new weights, and resumed."""
    import ray

    from otel_rollout import trajectory

    ids = tokenizer("What is 17 plus 25?", add_special_tokens=False)["input_ids"]
    agent = ray.remote(Agent).remote()
    await agent.__ray_ready__.remote()
    (replica,) = servers.rollout_replicas
    async with trajectory(step=99, sample_index=0, rollout_n=0, experiment_name="partial"):
        task = agent.run.remote(client, ids)
        await asyncio.sleep(0.3)
        while not (await replica.abort_all_requests())["aborted_count"]:
            await replica.resume_generation()  # it had not reached the engine yet
            await asyncio.sleep(0.1)
        await syncer.sync.remote(str(EXAMPLE / "policy"), 500)
        await replica.resume_generation()
        return dict(await task)


if __name__ == "__main__":
    main()

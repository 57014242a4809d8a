"""verl's own vLLM server, unchanged and on a CPU, in place of `policy_server.py`.

A real weight sync brings it weights before each step: those of `policy/` again, with a new version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray.actor import ActorHandle
    from verl.workers.rollout.llm_server import LLMServerClient

ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu_platform",
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Else every engine of the machine binds its threads to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
ROLLOUT = {
    "max_model_len": 512,
    "max_num_seqs": 32,
    "load_format": "auto",
    "enforce_eager": True,
    "tensor_model_parallel_size": 1,
    "nnodes": 1,
    "n_gpus_per_node": 1,
    "free_cache_engine": False,
    "disable_log_stats": False,  # the engine's times come with them
    "checkpoint_engine.update_weights_bucket_megabytes": 16,
}
"""verl's options below `actor_rollout_ref.rollout`."""
ADDED = {"enable_sleep_mode": False}
"""Those that its configuration does not list."""
GPUS = 1
"""What Ray is to believe in: verl places its servers by them."""


class Trainer:
    """What a trainer's worker is to the servers: it sends them weights."""

    def __init__(self, config: DictConfig) -> None:
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
        self.weights = Path(of_actor.model.path) / "model.safetensors"

    async def sync(self, version: int) -> None:
        from safetensors.torch import load_file

        await self.adapter.update_weights(
            iter(load_file(self.weights).items()), global_steps=version
        )


class VllmServers:
    """Starts the servers, and brings them weights."""

    def __init__(self, config: DictConfig) -> None:
        from verl.workers.rollout.llm_server import LLMServerManager

        self.manager: Any = LLMServerManager.create(config=config)
        self.trainer = ray.remote(Trainer).options(num_cpus=0.1).remote(config)

    @property
    def servers(self) -> dict[str, ActorHandle]:
        """The servers' actors by address."""
        return dict(zip(self.manager.server_addresses, self.manager.server_handles, strict=True))

    def client(self, *kind: type[LLMServerClient]) -> LLMServerClient:
        """A client of all of them, of verl's class `kind` or its plain one."""
        client: LLMServerClient = self.manager.get_client(*kind)
        return client

    def sync(self, version: int) -> None:
        """Bring them the weights of a version."""
        ray.get(self.trainer.sync.remote(version), timeout=120)

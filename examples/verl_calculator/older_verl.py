"""The agent loop managers of verl 0.6 and 0.7 with the example's servers: 0.8 takes a client."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray.actor import ActorHandle
    from verl.experimental.agent_loop import AgentLoopManager


def overrides(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of verl's newer configuration as verl 0.6 knows them."""
    renamed = {
        key.removeprefix("reward.") if "custom_reward_function" in key else key: value
        for key, value in options.items()
        if key != "reward.num_workers"
    }
    return renamed | {
        "actor_rollout_ref.rollout.free_cache_engine": False,  # no engine, no cache
        "++reward_model.enable": False,
    }


def create_manager(
    config: DictConfig, servers: dict[str, ActorHandle], reward_workers: list[ActorHandle]
) -> AgentLoopManager:
    """Start the agent loop workers; they share the servers out among their requests."""
    from verl.experimental.agent_loop import AgentLoopManager

    waits = inspect.iscoroutinefunction(AgentLoopManager._initialize_llm_servers)

    class Manager(AgentLoopManager):
        rollout_replica_class = None  # verl's own would start an engine

        def _initialize_llm_servers(self) -> Any:
            self.server_addresses = list(servers)
            self.server_handles = list(servers.values())
            return _nothing() if waits else None

    if not waits:  # verl 0.6
        return Manager(config)
    config.actor_rollout_ref.rollout.nnodes = 1  # it has servers of its own, not a trainer's
    return Manager.create(config=config, reward_loop_worker_handles=reward_workers)


async def _nothing() -> None: ...

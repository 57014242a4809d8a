"""verl's tool agent loop with a sampling seed for each rollout, so that a run can be repeated."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop


class SeededToolAgentLoop(ToolAgentLoop):
    """Seeds the sampling of each rollout from its step, its sample and its place in the group."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        if "session_id" in kwargs:  # trainer.use_v1: the place in the group
            rollout = int(kwargs["session_id"])
        else:  # the row of the batch (from verl 0.9 on); the rows of a group are neighbours
            # Its own attribute from verl 0.7 on.
            config = getattr(self, "rollout_config", None) or self.config.actor_rollout_ref.rollout
            rollout = int(kwargs.get("priority", 0)) % max(config.n, config.val_kwargs.n)
        key = f"{kwargs['extra_info']['step']}/{kwargs['index']}/{rollout}"
        seed = int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "big")
        return await super().run({**sampling_params, "seed": seed}, **kwargs)

"""Things that go wrong in real runs: ids outside the vocabulary, odd values, cancellations."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from agent_loop import SeededToolAgentLoop
from calculator import CalculatorTool
from policy_server import PolicyServer

OUTSIDE = 100_000
"""Beyond the policy's vocabulary, as a model with a padded embedding may sample it."""


TOOL_CALL = 462
"""The policy's token that begins a tool call."""


class Unreadable:
    """Cannot be shown, and not be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __repr__(self) -> str:
        raise RuntimeError("no representation")

    def __reduce__(self) -> Any:
        raise TypeError("no pickle")


class HostileServer(PolicyServer):
    """Ends an answer that calls no tool with an id that no tokenizer knows."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        output = await super().generate(*args, **kwargs)
        if TOOL_CALL not in output.token_ids and output.log_probs is not None:
            output.token_ids.append(OUTSIDE)
            output.log_probs.append(float("nan"))
        return output


class HostileTool(CalculatorTool):
    """Returns metrics that nothing can serialize."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        response, reward, _ = await super().execute(instance_id, parameters, **kwargs)
        itself: dict[str, Any] = {"nan": float("nan"), "big": 2**70, "surrogate": "\ud800"}
        itself["itself"] = itself
        return response, reward, {"unreadable": Unreadable(), "cycle": itself, "bytes": b"\xff"}


class HostileLoop(SeededToolAgentLoop):
    """Starts a generation that it gives up, then does what it should."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        given_up = asyncio.create_task(
            self.server_manager.generate(
                request_id="given up", prompt_ids=[1, 2, 3], sampling_params={**sampling_params}
            )
        )
        await asyncio.sleep(0)
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        return await super().run(sampling_params, **kwargs)

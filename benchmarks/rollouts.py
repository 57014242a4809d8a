"""verl's own client and agent loop over a stub engine: the work that is traced in different ways.

The engine behind the client is a stub (no model, no Ray); the client, its decorators and the data
classes are verl's own.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)
from verl.utils import rollout_trace
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from benchmarks.vocabulary import Ids

MODEL = "/models/policy"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 4096, "logprobs": True}
TOOL_TOKENS = 32


def output_of(ids: Ids, count: int) -> TokenOutput:
    """What the engine gives back: new ids with their log-probabilities."""
    return TokenOutput(
        token_ids=ids.take(count), log_probs=ids.logprobs(count), stop_reason="completed"
    )


class _Method:
    """A method of a Ray actor's handle: ``handle.method.remote(...)``."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self.remote = call


def client_of(generate: Callable[[], Awaitable[TokenOutput]], tokenizer: Any = None) -> Any:
    """verl's client in front of an engine that answers with ``generate()``.

    ``tokenizer``: for verl's own token2text, which looks for it on the decorated method's object.
    """

    async def fields() -> list[str]:
        return ["request_id"]

    async def acquire(**given: Any) -> tuple[str, Any]:
        return "server", server

    async def answer(**given: Any) -> TokenOutput:
        return await generate()

    balancer = types.SimpleNamespace(
        require_acquire_fields=_Method(fields),
        require_release_fields=_Method(fields),
        acquire_server=_Method(acquire),
        release_server=types.SimpleNamespace(remote=lambda **given: None),
    )
    server = types.SimpleNamespace(generate=_Method(answer))
    rollout = types.SimpleNamespace(name="vllm", full_determinism=False)
    config = types.SimpleNamespace(
        actor_rollout_ref=types.SimpleNamespace(
            rollout=rollout, model=types.SimpleNamespace(path=MODEL)
        )
    )
    client = LLMServerClient(config, balancer)
    if tokenizer is not None:
        client.tokenizer = tokenizer
    return client


class Bare:
    """verl's client without any tracing around it, not even verl's own wrapper."""

    def __init__(self, client: Any) -> None:
        self.generate = inspect.unwrap(LLMServerClient.generate).__get__(client)


class Prepared:
    """An engine that does no work: it hands out answers that were made before, and keeps them.

    A training loop keeps them, too: that they are freed is no part of a call.
    """

    def __init__(self, outputs: Sequence[TokenOutput]) -> None:
        self._outputs = outputs
        self._next = iter(outputs)

    async def generate(self) -> TokenOutput:
        return next(self._next)


class MultiTurn(AgentLoopBase):
    """An agent loop as users write them: generate, append a tool's answer, generate again."""

    def __init__(self, client: Any, tokenizer: Any, ids: Ids) -> None:
        self.server_manager = client
        self.tokenizer = tokenizer
        self.ids = ids
        self.work: Callable[[], None] = lambda: None

    @rollout_trace.rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt: list[int] = kwargs["prompt_ids"]
        whole = list(prompt)
        mask: list[int] = []
        logprobs: list[float] = []
        for turn in range(kwargs["turns"]):
            if turn:
                answer = self.ids.take(TOOL_TOKENS)
                whole += answer
                mask += [0] * len(answer)
                logprobs += [0.0] * len(answer)
            output = await self.server_manager.generate(
                kwargs["request_id"], prompt_ids=list(whole), sampling_params=sampling_params
            )
            self.work()
            whole += output.token_ids
            mask += [1] * len(output.token_ids)
            logprobs += output.log_probs
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=whole[len(prompt) :],
            response_mask=mask,
            response_logprobs=logprobs,
            num_turns=2 * kwargs["turns"],
            metrics=AgentLoopMetrics(),
        )


def entered(number: int) -> Any:
    """A trajectory's context, entered as verl's workers do."""
    return rollout_trace.rollout_trace_attr(
        sample_index=number, step=1, rollout_n=0, name="agent_loop"
    )


async def untraced_trajectory(loop: MultiTurn, number: int, prompt: list[int], turns: int) -> Any:
    """The same as :func:`trajectory`, with nothing of tracing in it."""
    return await inspect.unwrap(MultiTurn.run)(
        loop, dict(SAMPLING), prompt_ids=prompt, turns=turns, request_id=f"request-{number}"
    )


async def trajectory(loop: MultiTurn, number: int, prompt: list[int], turns: int) -> Any:
    """One trajectory of some turns."""
    with entered(number):
        return await loop.run(
            dict(SAMPLING), prompt_ids=prompt, turns=turns, request_id=f"request-{number}"
        )

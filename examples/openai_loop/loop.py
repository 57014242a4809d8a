"""An agent loop of one's own on any OpenAI-compatible server: a tiny policy and a calculator.

    OTEL_TRACES_EXPORTER=weave opentelemetry-instrument python loop.py --base-url http://127.0.0.1:8000/v1

All that the loop has to do for tracing is to say where a rollout begins and ends
(`trajectory`), which functions are the model and the tool (`rollout_op`) and what the reward was
(`record_reward`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from otel_rollout import record_reward, rollout_op, trajectory

CALCULATOR = Path(__file__).resolve().parent.parent / "verl_calculator"
sys.path.insert(0, str(CALCULATOR))

from reward import compute_score  # noqa: E402
from tasks import TOOL, Task, calculate, sample_task  # noqa: E402

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>")
MAX_TURNS = 4


class Policy:
    """The model behind the server."""

    def __init__(self, base_url: str, model: str) -> None:
        self.client = AsyncOpenAI(base_url=base_url, api_key="none")
        self.model = model

    @rollout_op(kind="llm", name="policy")
    async def answer(self, messages: list[Any], seed: int) -> ChatCompletion:
        return await self.client.chat.completions.create(
            model=self.model,
            messages=messages,
            tools=[TOOL],  # type: ignore[list-item]
            tool_choice="none",  # the policy writes its calls as text
            temperature=1.0,
            max_tokens=64,
            seed=seed,
            logprobs=True,
            extra_body={"return_token_ids": True},  # vLLM's; others leave the ids out
        )


@rollout_op(kind="tool", name="calculator")
def calculator(a: float, b: float, op: str) -> str:
    return calculate(a, b, op)


def use_tool(answer: str) -> str | None:
    """The tool's reply, an error's text for a failed call, None where no tool is called."""
    call = TOOL_CALL.search(answer)
    if call is None:
        return None
    try:
        return calculator(**json.loads(call[1])["arguments"])
    except Exception as error:
        return f"Error executing tool 'calculator': {error}"


async def rollout(policy: Policy, task: Task, step: int, index: int, number: int) -> float:
    """One rollout: turns of policy and tool until the policy calls no more, then the reward."""
    async with trajectory(
        step=step,
        sample_index=index,
        rollout_n=number,
        experiment_name="openai_loop",
        project="openai_loop",
        agent="calculator",
    ):
        messages: list[Any] = [{"role": "user", "content": task.question}]
        for turn in range(MAX_TURNS):
            seed = hash((step, index, number, turn)) % 2**31
            answer = (await policy.answer(messages, seed)).choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            reply = use_tool(answer)
            if reply is None:
                break
            messages.append({"role": "tool", "content": reply, "tool_call_id": str(turn)})
        score = compute_score("calculator", messages[-1]["content"], task.answer)["score"]
        record_reward(score, answer=task.answer)
    return score


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="policy", help="name under which the server has it")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=4, help="questions in a step")
    parser.add_argument("--n", type=int, default=4, help="rollouts of each question")
    args = parser.parse_args()
    policy = Policy(args.base_url, args.model)
    draw = random.Random(0)
    for step in range(1, args.steps + 1):
        tasks = [sample_task(draw) for _ in range(args.prompts)]
        rewards = await asyncio.gather(
            *(
                rollout(policy, task, step, index, number)
                for index, task in enumerate(tasks)
                for number in range(args.n)
            )
        )
        print(f"step {step}: mean reward {sum(rewards) / len(rewards):.3f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())

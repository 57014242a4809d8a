"""An agent loop of one's own on SGLang, without verl: a tiny policy that may call a calculator.

    OTEL_TRACES_EXPORTER=weave opentelemetry-instrument python loop.py --steps 2 --prompts 4 --n 4

All that the loop has to do for tracing is to say where a rollout begins and ends
(`trajectory`), what the tool is (`rollout_op`) and what the reward was (`record_reward`). The
engine's spans come by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from otel_rollout import record_reward, rollout_op, trajectory

CALCULATOR = Path(__file__).resolve().parent.parent / "verl_calculator"
sys.path.insert(0, str(CALCULATOR))

from dialogues import Turn, prompt_text  # noqa: E402
from reward import compute_score  # noqa: E402
from tasks import Task, calculate, sample_task  # noqa: E402

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine

TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>")
MAX_TURNS = 4


def start_engine() -> Engine:
    """Start SGLang with the example's policy; on a CPU with plain torch instead of its kernels."""
    import torch
    from sglang.srt.entrypoints.engine import Engine

    on_cpu = {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "max_total_tokens": 16384,
        "max_running_requests": 32,
        "disable_overlap_schedule": True,
    }
    return Engine(
        model_path=str(CALCULATOR / "policy"),
        dtype="float32",
        mem_fraction_static=0.1,
        log_level="error",
        enable_metrics=True,  # the engine's times come with them
        **({} if torch.cuda.is_available() else on_cpu),
    )


async def generate(engine: Engine, prompt: list[int], request_id: str) -> list[int]:
    output = await engine.async_generate(
        input_ids=prompt,
        sampling_params={"temperature": 1.0, "max_new_tokens": 64},
        return_logprob=True,
        rid=request_id,
    )
    return list(output["output_ids"])


@rollout_op(kind="tool", name="calculator")
def calculator(arguments: dict[str, float | str]) -> str:
    return calculate(arguments["a"], arguments["b"], arguments["op"])  # type: ignore[arg-type]


def use_tool(answer: str) -> str | None:
    """The tool's reply, an error's text for a failed call, None where no tool is called."""
    call = TOOL_CALL.search(answer)
    if call is None:
        return None
    try:
        return calculator(json.loads(call[1])["arguments"])
    except Exception as error:
        return f"Error executing tool 'calculator': {error}"


async def rollout(engine: Engine, task: Task, step: int, index: int, number: int) -> float:
    """One rollout: turns of policy and tool until the policy calls no more, then the reward."""
    tokenizer = engine.tokenizer_manager.tokenizer
    async with trajectory(
        step=step,
        sample_index=index,
        rollout_n=number,
        experiment_name="sglang_loop",
        project="sglang_loop",
        agent="calculator",
    ):
        turns: list[Turn] = [("user", task.question)]
        for turn in range(MAX_TURNS):
            prompt = tokenizer.encode(prompt_text(turns), add_special_tokens=False)
            answer = await generate(engine, prompt, f"{step}-{index}-{number}-{turn}")
            text = tokenizer.decode(answer, skip_special_tokens=True)
            turns.append(("assistant", text))
            reply = use_tool(text)
            if reply is None:
                break
            turns.append(("tool", reply))
        score = compute_score("calculator", turns[-1][1], task.answer)["score"]
        record_reward(score, answer=task.answer)
    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=4, help="questions in a step")
    parser.add_argument("--n", type=int, default=4, help="rollouts of each question")
    args = parser.parse_args()
    engine = start_engine()
    # The engine has an event loop of its own, which its requests have to run in.
    engine.loop.run_until_complete(train(engine, args))
    engine.shutdown()


async def train(engine: Engine, args: argparse.Namespace) -> None:
    draw = random.Random(0)
    for step in range(1, args.steps + 1):
        tasks = [sample_task(draw) for _ in range(args.prompts)]
        rewards = await asyncio.gather(
            *(
                rollout(engine, task, step, index, number)
                for index, task in enumerate(tasks)
                for number in range(args.n)
            )
        )
        print(f"step {step}: mean reward {sum(rewards) / len(rewards):.3f}", flush=True)


if __name__ == "__main__":
    main()

"""Synthetic calculator dialogues, some with mistakes: what the policy learns from.

A policy trained on mistakes makes some when it is sampled at temperature 1, so that it is right in
only part of its rollouts, and its tool calls fail now and then.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

from tasks import TOOL, UNDEFINED, WORDS, Task, calculate, parse_number, sample_task

Turn = tuple[str, str]  # role (user, assistant or tool) and text

# Share of dialogues with each mistake. The first five end in a wrong answer; the last two are
# repaired in the next turn.
MISTAKES = {
    "operand": 0.08,
    "op": 0.02,
    "json": 0.03,
    "answer": 0.05,
    "no_tool": 0.03,
    "tool_name": 0.03,
    "missing_key": 0.03,
}


def call_text(a: str, b: str, op: str | None, name: str = "calculator") -> str:
    """Write a tool call in Hermes format."""
    arguments = f'"a":{a},"b":{b}' + (f',"op":"{op}"' if op else "")
    return f'<tool_call>{{"name":"{name}","arguments":{{{arguments}}}}}</tool_call>'


def slip(number: str, rng: random.Random) -> str:
    """Change one digit of a number."""
    i = rng.choice([i for i, char in enumerate(number) if char.isdigit()])
    return number[:i] + rng.choice([d for d in "0123456789" if d != number[i]]) + number[i + 1 :]


def slip_operand(a: str, b: str, rng: random.Random) -> tuple[str, str]:
    """Change one digit of one of two numbers."""
    a, b = (slip(a, rng), b) if rng.random() < 0.5 else (a, slip(b, rng))
    leading_zeros = re.compile(r"^(-?)0+(?=\d)")  # JSON allows none
    return leading_zeros.sub(r"\1", a), leading_zeros.sub(r"\1", b)


def break_json(call: str, rng: random.Random) -> str:
    """Leave out a character that JSON needs."""
    wrong = [("}}<", "}<"), (',"b"', '"b"'), ('"}', "}")]
    return rng.choice([call.replace(old, new) for old, new in wrong])


def pick_mistake(rng: random.Random, noise: float) -> str | None:
    u = rng.random() / max(noise, 1e-9)
    for kind, share in MISTAKES.items():
        if u < share:
            return kind
        u -= share
    return None


def dialogue(rng: random.Random, noise: float = 1.0) -> list[Turn]:
    """Write one dialogue; `noise` scales the share of mistakes."""
    task = sample_task(rng, two_step=0.25, zero_div=0.05, held_out=False)
    return write_turns(task, pick_mistake(rng, noise), rng)


def write_turns(task: Task, mistake: str | None, rng: random.Random) -> list[Turn]:
    """Write the turns that solve a task, with at most one kind of mistake."""
    turns: list[Turn] = [("user", task.question)]
    if mistake == "no_tool":
        guess = slip(task.answer.replace(UNDEFINED, "0"), rng)
        return [*turns, ("assistant", f"The answer is {guess}.")]
    value = str(task.first)
    mistaken_step = rng.randrange(len(task.steps))
    for i, (op, operand) in enumerate(task.steps):
        fault = mistake if i == mistaken_step else None
        a, b = value, str(operand)
        if fault == "operand":
            a, b = slip_operand(a, b, rng)
        elif fault == "op":
            op = rng.choice([other for other in WORDS if other != op])
        elif fault == "json":
            return [*turns, ("assistant", break_json(call_text(a, b, op), rng))]
        elif fault == "tool_name":
            name = rng.choice(["calc", "math"])
            reply = f"Unknown function '{name}'. Available tools: ['calculator']"
            turns += [("assistant", call_text(a, b, op, name)), ("tool", reply)]
        elif fault == "missing_key":
            reply = "Error executing tool 'calculator': 'op'"
            turns += [("assistant", call_text(a, b, None)), ("tool", reply)]
        turns.append(("assistant", call_text(a, b, op)))
        try:
            value = calculate(parse_number(a), parse_number(b), op)
        except ZeroDivisionError:
            turns.append(("tool", "Error executing tool 'calculator': division by zero"))
            return [*turns, ("assistant", f"The answer is {UNDEFINED}.")]
        turns.append(("tool", value))
    answer = slip(value, rng) if mistake == "answer" else value
    return [*turns, ("assistant", f"The answer is {answer}.")]


def segments(turns: list[Turn]) -> Iterator[tuple[str, bool]]:
    """Cut a dialogue into pieces of text, and say which of them the policy has to produce.

    Together the pieces are the text that the chat template gives.
    """
    tool = json.dumps(TOOL, separators=(",", ":"))
    yield f"<|im_start|>system\n# Tools\n{tool}<|im_end|>\n", False
    for role, text in turns:
        if role == "assistant":
            yield "<|im_start|>assistant\n", False
            yield f"{text}<|im_end|>", True
            yield "\n", False
        else:
            if role == "tool":
                text = f"<tool_response>\n{text}\n</tool_response>"
            yield f"<|im_start|>user\n{text}<|im_end|>\n", False


def prompt_text(turns: list[Turn]) -> str:
    """Write what the policy sees before its next turn."""
    return "".join(text for text, _ in segments(turns)) + "<|im_start|>assistant\n"

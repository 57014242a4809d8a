"""Arithmetic questions, their answers, and the calculator that helps to answer them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Number = int | float

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Compute a op b.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "number"},
                "b": {"type": "number"},
                "op": {"type": "string", "enum": ["add", "sub", "mul", "div"]},
            },
            "required": ["a", "b", "op"],
        },
    },
}

WORDS = {"add": "plus", "sub": "minus", "mul": "times", "div": "divided by"}
FORMS = ["What is {}?", "Compute {}.", "How much is {}?", "Calculate {}."]
UNDEFINED = "undefined"


def calculate(a: Number, b: Number, op: str) -> str:
    """Apply one operation and write the result with at most two decimals."""
    if op == "add":
        result = a + b
    elif op == "sub":
        result = a - b
    elif op == "mul":
        result = a * b
    else:
        result = a / b
    return f"{round(result, 2):.10g}"


def parse_number(text: str) -> Number:
    return float(text) if "." in text else int(text)


@dataclass(frozen=True)
class Task:
    """A question: a first number and the (operation, operand) pairs applied to it in turn."""

    question: str
    first: int
    steps: tuple[tuple[str, int], ...]

    @property
    def answer(self) -> str:
        value = str(self.first)
        try:
            for op, operand in self.steps:
                value = calculate(parse_number(value), operand, op)
        except ZeroDivisionError:
            return UNDEFINED
        return value


def sample_task(
    rng: random.Random, two_step: float = 0.0, zero_div: float = 0.0, held_out: bool = True
) -> Task:
    """Draw a question; one number pair in ten is held out from training.

    Args:
        rng: source of randomness.
        two_step: share of questions with a second operation.
        zero_div: share of questions that divide by zero.
        held_out: draw from the pairs that training never sees (or only from the others).
    """
    while True:
        a, b, op = rng.randint(0, 99), rng.randint(0, 99), rng.choice(list(WORDS))
        if ((a * 100 + b) * 7919 % 10 == 3) == held_out and not (op == "div" and b == 0):
            break
    if rng.random() < zero_div:
        op, b = "div", 0
    steps, text = [(op, b)], f"{a} {WORDS[op]} {b}"
    if rng.random() < two_step:
        op, c = rng.choice(list(WORDS)), rng.randint(1, 99)
        steps.append((op, c))
        text += f", then {WORDS[op]} {c}"
    return Task(rng.choice(FORMS).format(text), a, tuple(steps))

"""Writes a store as a long run would: through the span-to-call conversion and the real spool.

The agent answers sums with a calculator: it thinks, calls the tool, reads the result, answers.
It errs less from step to step; now and then the tool fails. Rollouts of one question share their
beginning and part somewhere, as sampled ones do.

    python -m benchmarks.synthetic_store DIRECTORY [--trajectories 1000]
"""

from __future__ import annotations

import argparse
import random
import re
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from otel_rollout import semconv
from otel_rollout.exporters import spool
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.weave import calls
from otel_rollout.payload import FLOAT32, INT32, UINT8, encode_array
from otel_rollout.settings import SPOOL_FOLDER

PROJECT = "calculators"
MODEL = "policy"
_PIECE = re.compile(r"<[^<> ]+>|<\|[^|]+\|>| ?[A-Za-z]+|\d| |[^\w ]|\n")
_SYSTEM = (
    "<|im_start|>system\nYou are careful with numbers. Think first, then call the tool calculator "
    "with a, b and op (add, sub, mul, div). Answer in one sentence.<|im_end|>\n"
)
_OPERATIONS = {"add": "plus", "sub": "minus", "mul": "times", "div": "divided by"}
_OPENINGS = (
    "Let me work this out with the tool.",
    "Let me see what is asked here.",
    "The question is a simple one, but I should not guess.",
    "I could do this in my head, but the tool is safer.",
)
_ERRORS = (
    ("ZeroDivisionError", "division by zero"),
    ("TimeoutError", "the calculator did not answer within 10 s"),
)


@dataclass
class Vocabulary:
    """Pieces of text and their ids; grows with what is written."""

    ids: dict[str, int] = field(default_factory=dict)

    def encode(self, text: str) -> array[int]:
        known = self.ids
        return array("i", [known.setdefault(p, len(known)) for p in _PIECE.findall(text)])

    def save(self, path: Path, special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> None:
        """Write it as a `tokenizer.json`."""
        from tokenizers import Tokenizer, decoders, models

        tokenizer = Tokenizer(models.WordLevel(self.ids, unk_token=special[0]))
        tokenizer.decoder = decoders.Fuse()
        path.parent.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(path))


@dataclass
class Worker:
    """One process of the run: its segment and its name."""

    writer: SegmentWriter
    resource: Resource

    def write(self, span: ReadableSpan) -> None:
        call = calls.call_of(span)
        meta = {
            "kind": spool.CALL,
            "id": call["id"],
            "trace": call["trace_id"],
            "project": PROJECT,
        }
        self.writer.append(meta, orjson.dumps(call))
        for feedback in calls.feedback_of(span):
            about = {**meta, "kind": spool.FEEDBACK, "id": feedback["id"]}
            self.writer.append(about, orjson.dumps(feedback))


@dataclass(frozen=True)
class Place:
    """Where a trajectory belongs."""

    experiment: str
    step: int
    sample: int
    rollout: int
    validate: bool

    def attributes(self) -> dict[str, Any]:
        return {
            semconv.SAMPLED: True,
            semconv.EXPERIMENT_NAME: self.experiment,
            semconv.STEP: self.step,
            semconv.SAMPLE_INDEX: self.sample,
            semconv.ROLLOUT_N: self.rollout,
            semconv.VALIDATE: self.validate,
            semconv.GROUP_ID: f"{self.experiment}-{self.step}-{self.sample}-{self.validate}",
        }


class Trajectory:
    """The spans of one trajectory, made in the order in which they end."""

    def __init__(
        self, place: Place, rng: random.Random, words: Vocabulary, skill: float, start: int
    ) -> None:
        self.place = place
        self._rng = rng
        self._words = words
        self._skill = skill
        self._now = start
        self._trace = rng.getrandbits(128) | 1
        self._root = rng.getrandbits(64) | 1
        self._agent = rng.getrandbits(64) | 1
        self._mask = array("B")
        self._turns: list[str] = []
        self.resource = Resource({})
        self.scorers = self.resource

    def spans(self) -> Iterator[ReadableSpan]:
        begun = self._now
        question, truth, arguments = self._question()
        prompt = f"{_SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        thought, called = self._first_answer(arguments)
        said = f"{thought}{called}<|im_end|>"
        ids, answer = self._words.encode(prompt), self._words.encode(said)
        first, first_id = self._generation(ids, answer, prompt, said, None)
        yield first
        self._mask.extend([1] * len(answer))
        error, result, tool = self._tool(arguments)
        yield tool
        shown = f"Error: {error[0]}: {error[1]}" if error else str(result)
        news = (
            f"\n<|im_start|>user\n<tool_response>\n{shown}\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        more = self._words.encode(news)
        self._mask.extend([0] * len(more))
        right = self._rng.random() < self._skill and not error
        value = truth if right else truth + self._rng.choice((-10, -1, 1, 10, 100))
        last = f"The answer is {value}.<|im_end|>" if not error else "I cannot tell.<|im_end|>"
        final = self._words.encode(last)
        prefix = (first_id, len(ids) + len(answer))
        yield self._generation(more, final, news, last, prefix)[0]
        self._mask.extend([1] * len(final))
        reward = 1.0 if right else 0.0 if error else round(self._rng.random() * 0.3, 3)
        yield self._span("invoke_agent", "calculator_agent", begun, self._agent, self._root)
        yield self._score(reward)
        yield self._whole(begun, prompt, said + news + last, reward)

    def _question(self) -> tuple[str, int, dict[str, Any]]:
        rng = random.Random(f"{self.place.step}/{self.place.sample}")  # one for the whole group
        op = rng.choice(list(_OPERATIONS))
        a, b = rng.randint(2, 99), rng.randint(0 if op == "div" else 2, 12)
        truth = {"add": a + b, "sub": a - b, "mul": a * b, "div": a // b if b else 0}[op]
        return f"What is {a} {_OPERATIONS[op]} {b}?", truth, {"a": a, "b": b, "op": op}

    def _first_answer(self, arguments: dict[str, Any]) -> tuple[str, str]:
        rng = self._rng
        opening = _OPENINGS[0] if rng.random() < 0.6 else rng.choice(_OPENINGS)
        detail = " ".join(
            f"First I take {arguments['a']}, then {arguments['b']}."
            if rng.random() < 0.7
            else "I check the signs twice."
            for _ in range(rng.randint(1, 4))
        )
        call = orjson.dumps({"name": "calculator", "arguments": arguments}).decode()
        return f"<think>\n{opening} {detail}\n</think>\n", f"<tool_call>\n{call}\n</tool_call>"

    def _generation(
        self,
        prompt: array[int],
        response: array[int],
        asked: str,
        said: str,
        prefix: tuple[str, int] | None,
    ) -> tuple[ReadableSpan, str]:
        start = self._now
        queue, prefill = self._rng.expovariate(20), 0.02 + len(prompt) / 20_000
        decode = len(response) * 0.008
        self._now += int((queue + prefill + decode) * 1e9)
        number = self._rng.getrandbits(64) | 1
        whole = len(prompt) + (prefix[1] if prefix else 0)
        logprobs = array("f", [-(self._rng.expovariate(3) ** 2) for _ in response])
        attributes: dict[str, Any] = {
            semconv.PROVIDER: "vllm",
            semconv.REQUEST_MODEL: MODEL,
            semconv.INPUT_TOKENS: whole,
            semconv.OUTPUT_TOKENS: len(response),
            semconv.FINISH_REASONS: ["stop"],
            semconv.WEIGHT_VERSION: max(0, self.place.step - 1),
            semconv.TIME_QUEUE: queue,
            semconv.TIME_PREFILL: prefill,
            semconv.TIME_DECODE: decode,
            semconv.IDS_ENCODING: INT32,
            semconv.PROMPT_IDS: encode_array(prompt),
            semconv.RESPONSE_IDS: encode_array(response),
            semconv.RESPONSE_LOGPROBS: encode_array(logprobs),
            semconv.LOGPROBS_ENCODING: FLOAT32,
            semconv.INPUT_MESSAGES: _messages("user", asked),
            semconv.OUTPUT_MESSAGES: _messages("assistant", said, "stop"),
        }
        if prefix is not None:
            attributes[semconv.PROMPT_PREFIX_SPAN], attributes[semconv.PROMPT_PREFIX_LENGTH] = (
                prefix
            )
        self._turns.append(f"{number:016x}")
        span = self._span("text_completion", MODEL, start, number, self._agent, attributes)
        return span, self._turns[-1]

    def _tool(self, arguments: dict[str, Any]) -> tuple[tuple[str, str] | None, Any, ReadableSpan]:
        start = self._now
        self._now += int(self._rng.expovariate(30) * 1e9)
        error: tuple[str, str] | None = None
        result: Any = None
        a, b, op = arguments["a"], arguments["b"], arguments["op"]
        if op == "div" and b == 0:
            error = _ERRORS[0]
        elif self._rng.random() < 0.03:
            error = _ERRORS[1]
        else:
            result = {"add": a + b, "sub": a - b, "mul": a * b, "div": a // (b or 1)}[op]
        attributes: dict[str, Any] = {semconv.TOOL_ARGUMENTS: orjson.dumps(arguments).decode()}
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error[0]
        else:
            attributes[semconv.TOOL_RESULT] = orjson.dumps(result).decode()
        span = self._span(
            "execute_tool", "calculator", start, self._rng.getrandbits(64) | 1, self._agent,
            attributes, error=error[1] if error else None,
        )  # fmt: skip
        return error, result, span

    def _score(self, reward: float) -> ReadableSpan:
        start = self._now
        self._now += int(self._rng.expovariate(100) * 1e9)
        attributes = {semconv.REWARD: reward, semconv.EVALUATION_NAME: "reward"}
        number = self._rng.getrandbits(64) | 1
        return self._span("evaluate", "reward", start, number, self._root, attributes)

    def _whole(self, begun: int, prompt: str, response: str, reward: float) -> ReadableSpan:
        attributes: dict[str, Any] = {
            semconv.REWARD: reward,
            semconv.NUM_TURNS: 4,
            semconv.TURNS: self._turns,
            semconv.RESPONSE_MASK: encode_array(self._mask),
            semconv.MASK_ENCODING: UINT8,
            semconv.INPUT_MESSAGES: _messages("user", prompt),
            semconv.OUTPUT_MESSAGES: _messages("assistant", response),
        }
        event = Event(
            semconv.EVALUATION_EVENT,
            {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: reward},
            self._now,
        )
        return self._span(
            "rollout", "calculator_agent", begun, self._root, None, attributes, events=[event]
        )

    def _span(
        self,
        operation: str,
        subject: str,
        start: int,
        number: int,
        parent: int | None,
        attributes: dict[str, Any] | None = None,
        *,
        events: Any = (),
        error: str | None = None,
    ) -> ReadableSpan:
        named = {"execute_tool": semconv.TOOL_NAME, "rollout": semconv.AGENT_NAME}
        named["invoke_agent"] = semconv.AGENT_NAME
        every = {semconv.OPERATION: operation, **self.place.attributes(), **(attributes or {})}
        if operation in named:
            every[named[operation]] = subject
        status = Status(StatusCode.ERROR, error) if error is not None else Status(StatusCode.OK)
        return ReadableSpan(
            name=f"{operation} {subject}",
            context=self._context(number),
            parent=self._context(parent) if parent is not None else None,
            resource=self.scorers if operation == "evaluate" else self.resource,
            attributes=every,
            events=events,
            status=status,
            start_time=start,
            end_time=self._now,
        )

    def _context(self, number: int) -> SpanContext:
        return SpanContext(self._trace, number, False, TraceFlags(1))


def _messages(role: str, text: str, reason: str | None = None) -> str:
    message: dict[str, Any] = {"role": role, "parts": [{"type": "text", "content": text}]}
    if reason is not None:
        message["finish_reason"] = reason
    return orjson.dumps([message]).decode()


def places(trajectories: int, samples: int, rollouts: int, steps: int) -> Iterator[Place]:
    """Two experiments, step by step; every fifth step is validated with one rollout a prompt."""
    made = 0
    for step in range(1, steps + 1):
        for experiment in ("grpo-base", "grpo-lr2"):
            for sample in range(samples):
                for rollout in range(rollouts):
                    if made == trajectories:
                        return
                    made += 1
                    yield Place(experiment, step, sample, rollout, False)
            for sample in range(samples // 4 if step % 5 == 0 else 0):
                made += 1
                yield Place(experiment, step, sample, 0, True)


def write_store(
    directory: Path,
    trajectories: int = 1000,
    *,
    samples: int = 16,
    rollouts: int = 8,
    workers: int = 4,
    seed: int = 7,
) -> int:
    """Write about so many trajectories into the store `directory`; return how many."""
    rng = random.Random(seed)
    words = Vocabulary()
    crew = [
        Worker(
            SegmentWriter(directory / SPOOL_FOLDER),
            Resource({"process.pid": 4000 + number, "host.name": f"node{number % 2}"}),
        )
        for number in range(workers)
    ]
    per_step = samples * rollouts * 2
    steps = -(-trajectories // per_step)
    now = time.time_ns() - steps * 60 * 10**9
    count = 0
    for place in places(trajectories, samples, rollouts, steps):
        skill = (
            0.25
            + 0.65 * min(1.0, place.step / max(4, steps))
            + 0.05 * (place.experiment == "grpo-lr2")
        )
        start = now + place.step * 60 * 10**9 + rng.randrange(10**10)
        one = Trajectory(place, rng, words, skill, start)
        agent, scorer = crew[count % workers], crew[(count + 1) % workers]
        one.resource, one.scorers = agent.resource, scorer.resource
        for span in one.spans():
            (scorer if span.name.startswith("evaluate") else agent).write(span)
        count += 1
    for worker in crew:
        worker.writer.close()
    words.save(directory / "tokenizers" / f"{MODEL}.json")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--trajectories", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=8)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    count = write_store(
        arguments.directory,
        arguments.trajectories,
        samples=arguments.samples,
        rollouts=arguments.rollouts,
    )
    print(f"{count} trajectories in {time.perf_counter() - begun:.1f} s")


if __name__ == "__main__":
    main()

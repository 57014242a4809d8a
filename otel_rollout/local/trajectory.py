"""One trajectory as it is stored: its calls as a tree, and its tokens put together again.

Of a later turn's prompt the store has only what is new; here it is whole again. All tokens behind
the first prompt make the *response* of the trajectory, as the trainer sees it: the mask says which
of them the policy made.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from otel_rollout import payload, semconv
from otel_rollout.local import chats
from otel_rollout.local.facts import error_of, number, seconds
from otel_rollout.local.index import Index
from otel_rollout.local.store import Node


@dataclass
class Turn:
    """A generation. What is not stored, or cannot be rebuilt, is ``None``.

    ``call``: as it would be sent to Weave. ``prompt_ids``: of the whole context. ``logprobs``:
    natural logarithms, one for each of the ``response_ids``. ``problem``: why ids are missing.
    """

    call: dict[str, Any]
    prompt_ids: list[int] | None
    response_ids: list[int] | None
    logprobs: list[float] | None
    known: int
    """How many tokens of the prompt are those of a turn before."""
    prompt_text: str
    """Text of what is new in the prompt."""
    response_text: str
    messages: list[Any]
    """The messages that are new in the prompt."""
    problem: str | None = None

    @property
    def id(self) -> str:
        """The call's id."""
        return str(self.call["id"])

    @property
    def model(self) -> str | None:
        """Name of the model."""
        found = value_of(self.call, "gen_ai", "request", "model")
        return str(found) if found is not None else None


@dataclass
class Tokens:
    """The tokens of a trajectory behind its first prompt, ``ids``; ``prompt_ids``: of that prompt.

    ``mask``: 1 where the policy made the token. ``logprobs``: NaN where there is none. ``turns``:
    number of the turn that a token belongs to. ``breaks``: positions at which the context was not
    an extension of what stood before, so that the tokens before them are no part of it.
    """

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)

    def _add(self, ids: list[int], mask: int, logprobs: list[float] | None, turn: int) -> None:
        self.ids.extend(ids)
        self.mask.extend([mask] * len(ids))
        given = logprobs if logprobs is not None and len(logprobs) == len(ids) else None
        self.logprobs.extend(given if given is not None else [math.nan] * len(ids))
        self.turns.extend([turn] * len(ids))


@dataclass(eq=False)
class Trajectory:
    """A trajectory: ``facts`` as in the index, roots, calls in order of start, and feedback."""

    facts: dict[str, Any]
    roots: list[Node]
    nodes: list[Node]
    feedback: list[dict[str, Any]]
    turns: list[Turn]

    @property
    def trace(self) -> str:
        """The trace id."""
        return str(self.facts["trace"])

    @property
    def reward(self) -> float | None:
        """The reward as it stands now."""
        return number(self.facts["reward"])

    @property
    def model(self) -> str | None:
        """Model of the first turn."""
        return self.turns[0].model if self.turns else None

    @property
    def root(self) -> dict[str, Any] | None:
        """The call of the trajectory itself, once it has ended."""
        for node in self.roots:
            if node.call.get("parent_id") is None:
                return node.call
        return None

    @property
    def prompt_text(self) -> str:
        """Text of the first prompt."""
        found = self._whole_text("prompt_text")
        return found if found is not None else self.turns[0].prompt_text if self.turns else ""

    @property
    def response_text(self) -> str:
        """Text behind the first prompt, tools' results included."""
        found = self._whole_text("response_text")
        if found is not None:
            return found
        result = ""
        for position, turn in enumerate(self.turns):
            between = "\n" if chats.is_chat(turn.call) else ""
            for text in (turn.prompt_text if position else "", turn.response_text):
                result += (between if result and text else "") + text
        return result

    def _whole_text(self, name: str) -> str | None:
        """Return a text of the root's; of long ones it has the ends only, and the turns all."""
        root = self.root
        if root is not None and self.turns and value_of(root, *semconv.TEXT_CUT.split(".")):
            return None
        return _root_output(root, name)

    def tokens(self) -> Tokens:
        """Return all tokens, put together over the turns."""
        result = Tokens()
        whole: list[int] = []
        for number_, turn in enumerate(self.turns):
            prompt, response = turn.prompt_ids, turn.response_ids or []
            if prompt is None:
                prompt = whole
            if number_ == 0:
                result.prompt_ids = list(prompt)
            elif prompt[: len(whole)] == whole:
                result._add(prompt[len(whole) :], 0, None, number_)
            else:
                result.breaks.append(len(result.ids))
                result._add(prompt[_common(prompt, whole) :], 0, None, number_)
            result._add(response, 1, turn.logprobs, number_)
            whole = [*prompt, *response]
        return result

    def errors(self) -> Iterator[tuple[dict[str, Any], str, str]]:
        """Yield each failed call with type and message of its error."""
        for node in self.nodes:
            if node.call.get("exception") is not None:
                yield (node.call, *error_of(node.call["exception"]))


def load(index: Index, facts: Mapping[str, Any] | sqlite3.Row) -> Trajectory:
    """Return the trajectory of a row of the index; calls that have gone are left out."""
    places = index.query(
        "SELECT s.name, c.offset, c.bytes FROM calls c JOIN segments s ON s.number = c.segment "
        "WHERE c.trace = ?",
        (facts["trace"],),
    )
    found = index.query(
        "SELECT s.name, f.offset, f.bytes FROM calls c JOIN feedback f ON f.call = c.id "
        "JOIN segments s ON s.number = f.segment WHERE c.trace = ? ORDER BY f.at, s.name, f.offset",
        (facts["trace"],),
    )
    return put_together(facts, _bodies(index, places), _bodies(index, found))


def put_together(
    facts: Mapping[str, Any] | sqlite3.Row,
    calls: Iterable[dict[str, Any]],
    feedback: Iterable[dict[str, Any]],
) -> Trajectory:
    """Return the trajectory that these calls of one trace make up."""
    nodes = {call["id"]: Node(call) for call in calls}
    kept = list(feedback)
    for one in kept:
        if one.get("call_id") in nodes:
            nodes[one["call_id"]].feedback.append(one)
    ordered = sorted(nodes.values(), key=lambda node: _start(node.call))
    roots = []
    for node in ordered:
        parent = nodes.get(node.call.get("parent_id"))
        if parent is not None and parent is not node:
            parent.children.append(node)
        else:
            roots.append(node)
    return Trajectory(dict(facts), roots, ordered, kept, _turns(ordered))


def _bodies(index: Index, places: list[Any]) -> Iterator[dict[str, Any]]:
    for segment, offset, size in places:
        try:
            body = orjson.loads(index.body(segment, offset, size))
        except (OSError, ValueError):
            continue
        if isinstance(body, dict):
            yield body


def value_of(call: Mapping[str, Any], *keys: str) -> Any:
    """Return a nested attribute of a call, ``None`` where there is none."""
    value: Any = call.get("attributes")
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _start(call: Mapping[str, Any]) -> float:
    return seconds(call.get("started_at")) or 0.0


def _end(call: Mapping[str, Any]) -> float:
    return seconds(call.get("ended_at")) or _start(call)


def _turns(nodes: list[Node]) -> list[Turn]:
    """Return the generations in the order of their end, their prompts whole."""
    generations = [node.call for node in nodes if _is_turn(node.call)]
    whole: dict[str, list[int]] = {}
    turns: list[Turn] = []
    for call in sorted(generations, key=_end):
        turn = _turn(call, whole, [one.call for one in turns])
        turns.append(turn)
        if turn.prompt_ids is not None:
            whole[turn.id] = [*turn.prompt_ids, *(turn.response_ids or ())]
    return turns


def _is_turn(call: Mapping[str, Any]) -> bool:
    above = value_of(call, "rollout", "tokens", "span_id") is not None
    attempt = value_of(call, "rollout", "generation", "attempt") is not None
    return value_of(call, "weave", "kind") == "llm" and not (above or attempt)


def _turn(
    call: dict[str, Any], whole: Mapping[str, list[int]], earlier: Iterable[dict[str, Any]]
) -> Turn:
    problem = None
    encoding = str(value_of(call, "rollout", "token_ids", "encoding") or payload.INT32)
    prompt = _ids(value_of(call, "rollout", "prompt", "token_ids"), encoding)
    response = _ids(value_of(call, "rollout", "response", "token_ids"), encoding)
    prefix = value_of(call, "rollout", "prompt", "prefix")
    known = 0
    if isinstance(prefix, dict) and prompt is not None:
        known = int(prefix.get("length") or 0)
        before = whole.get(str(prefix.get("span_id")), [])[:known]
        if len(before) == known:
            prompt = [*before, *prompt]
        else:
            prompt, problem = None, f"the turn {prefix.get('span_id')} is not in the store"
    messages = chats.asked(call) if known else chats.new_messages(call, earlier)
    return Turn(
        call,
        prompt,
        response,
        _floats(value_of(call, "rollout", "response", "logprobs")),
        known,
        chats.text(messages),
        chats.content_text(chats.answer(call).get("content")),
        messages,
        problem,
    )


def _ids(text: Any, encoding: str) -> list[int] | None:
    try:
        return payload.decode_ids(text, encoding)
    except Exception:  # none, or none of ours
        return None


def _floats(text: Any) -> list[float] | None:
    try:
        return payload.decode_floats(text)
    except Exception:
        return None


def _root_output(root: Mapping[str, Any] | None, key: str) -> str | None:
    output = root.get("output") if root is not None else None
    found = output.get(key) if isinstance(output, dict) else None
    return found if isinstance(found, str) else None


def _common(a: list[int], b: list[int]) -> int:
    from otel_rollout.processor.deltas import common_prefix

    return common_prefix(array("q", a), array("q", b))

"""A trajectory as a conversation: who said what, which tools ran, what failed, how it was scored.

Texts are what the tokens decode to, so the template's marks are in them. Where they are marks that
are known (ChatML, Llama 3) the text is taken apart into messages; otherwise it stands as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from otel_rollout.local import chats
from otel_rollout.local.facts import error_of, seconds
from otel_rollout.local.store import Node
from otel_rollout.local.trajectory import Trajectory, Turn, value_of

_TAKEN_APART: Final = 1 << 20
"""Longer texts stand as they are."""
_TEMPLATES: Final = (
    re.compile(
        r"<\|im_start\|>([\w-]+)\n(.*?)(?:<\|im_end\|>\n?|(?=<\|im_start\|>)|\Z)", re.DOTALL
    ),
    re.compile(
        r"<\|start_header_id\|>([\w-]+)<\|end_header_id\|>\n\n(.*?)(?:<\|eot_id\|>|\Z)", re.DOTALL
    ),
)
_END: Final = re.compile(r"(?:<\|im_end\|>|<\|eot_id\|>|<\|endoftext\|>|</s>)\s*\Z")
_SPECIAL_PARTS: Final = re.compile(r"<(think|tool_call|tool_response)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_KINDS: Final = {"think": "reasoning", "tool_call": "tool_call", "tool_response": "tool_response"}


@dataclass(frozen=True)
class Part:
    """A piece of a message: ``text``, ``reasoning``, ``tool_call`` or ``tool_response``."""

    kind: str
    text: str


@dataclass
class Entry:
    """One entry: ``role`` is a message's, or ``tool``, ``score`` or ``error``."""

    role: str
    call: dict[str, Any]
    parts: list[Part] = field(default_factory=list)
    title: str = ""
    result: str | None = None
    error: tuple[str, str] | None = None
    notes: list[str] = field(default_factory=list)
    turn: int | None = None


def entries(trajectory: Trajectory) -> list[Entry]:
    """Return the conversation, in the order of time."""
    numbers = {turn.id: number for number, turn in enumerate(trajectory.turns)}
    result: list[tuple[float, Entry]] = []
    for node in trajectory.nodes:
        start = seconds(node.call.get("started_at")) or 0.0
        number = numbers.get(str(node.call["id"]))
        if number is not None:
            found = list(_turn(trajectory.turns[number], number))
        else:
            found = list(_other(node))
        result += [(start, entry) for entry in found]
    result.sort(key=lambda pair: pair[0])
    return [entry for _, entry in result]


def _turn(turn: Turn, number: int) -> Iterator[Entry]:
    if chats.is_chat(turn.call):
        yield from _chat(turn, number)
    else:
        for role, text in messages(turn.prompt_text):
            yield Entry(role, turn.call, parts(text), turn=number)
    called = _calls(chats.answer(turn.call))
    said = _END.sub("", turn.response_text)
    answered = [] if called and not said.strip() else parts(said)
    answer = Entry("assistant", turn.call, [*answered, *called], turn=number)
    answer.title = turn.model or ""
    answer.notes = list(_notes(turn))
    if turn.call.get("exception") is not None:
        answer.error = error_of(turn.call["exception"])
    yield answer


def _chat(turn: Turn, number: int) -> Iterator[Entry]:
    """Yield the messages that are new to a chat; a tool's result as one that the policy read."""
    for message in turn.messages:
        if not isinstance(message, dict):
            continue
        role = str(message.get("role") or "prompt")
        said = chats.content_text(message.get("content"))
        found = parts(said) if said.strip() else []
        if role == "tool":
            found = [Part("tool_response", part.text) for part in found]
        found += _calls(message)
        if found:
            yield Entry(role, turn.call, found, str(message.get("name") or ""), turn=number)


def _calls(message: Any) -> list[Part]:
    return [Part("tool_call", f"{name}({said})") for name, said in chats.tool_calls(message)]


def _notes(turn: Turn) -> Iterator[str]:
    if turn.response_ids is not None:
        yield f"{len(turn.response_ids)} tokens"
    reasons = value_of(turn.call, "gen_ai", "response", "finish_reasons")
    if isinstance(reasons, list):
        yield from (str(reason) for reason in reasons)
    version = value_of(turn.call, "rollout", "weight_version")
    if version is not None:
        yield f"weights {version}"
    if turn.problem:
        yield turn.problem
    for name in ("token2text", "payload"):
        said = value_of(turn.call, "rollout", name)
        yield from (str(text) for text in said.values()) if isinstance(said, dict) else ()


def _other(node: Node) -> Iterator[Entry]:
    call = node.call
    kind = value_of(call, "weave", "kind")
    failed = error_of(call["exception"]) if call.get("exception") is not None else None
    if kind == "tool":
        entry = Entry("tool", call, title=_subject(call), error=failed)
        entry.parts = [Part("arguments", shown(call.get("inputs")))]
        if call.get("output") is not None:
            entry.result = shown(call["output"])
        reward = value_of(call, "rollout", "tool", "reward")
        entry.notes = [f"tool reward {reward}"] if reward else []
        yield entry
    elif kind == "scorer":
        value = value_of(call, "gen_ai", "evaluation", "score", "value")
        value = value if value is not None else value_of(call, "rollout", "reward")
        yield Entry("score", call, title=_subject(call), result=shown(value), error=failed)
    elif failed is not None:
        yield Entry("error", call, title=str(call.get("op_name")), error=failed)


def _subject(call: dict[str, Any]) -> str:
    return str(call.get("op_name") or "").partition(" ")[2] or str(call.get("op_name"))


def messages(text: str) -> list[tuple[str, str]]:
    """Take a prompt apart into (role, text); one without known marks is one message."""
    if not text.strip():
        return []
    if len(text) <= _TAKEN_APART:
        for template in _TEMPLATES:
            found = list(template.finditer(text))
            if found:
                before = text[: found[0].start()].strip()
                whole = [("prompt", before)] if before else []
                return whole + [(m[1], m[2].strip("\n")) for m in found if m[2].strip()]
    return [("prompt", text)]


def parts(text: str) -> list[Part]:
    """Take a message apart into text, reasoning, tool calls and tool results."""
    if len(text) > _TAKEN_APART:
        return [Part("text", text)]
    result = []
    position = 0
    for match in _SPECIAL_PARTS.finditer(text):
        result.append(Part("text", text[position : match.start()].strip("\n")))
        result.append(Part(_KINDS[match[1]], match[2].strip("\n")))
        position = match.end()
    result.append(Part("text", text[position:].strip("\n")))
    return [part for part in result if part.text.strip()] or [Part("text", text)]


def shown(value: Any) -> str:
    """Return a value as text: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()

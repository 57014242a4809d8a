"""The messages of a stored generation: what is new in a prompt, what was answered, which calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson


def asked(call: Mapping[str, Any]) -> list[Any]:
    """Return the messages that a generation was given."""
    inputs = call.get("inputs")
    found = inputs.get("messages") if isinstance(inputs, dict) else None
    return found if isinstance(found, list) else []


def answer(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message that a generation gave, its first choice; empty where there is none."""
    output = call.get("output")
    choices = output.get("choices") if isinstance(output, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return {}
    message = choices[0].get("message")
    return message if isinstance(message, dict) else {}


def new_messages(call: Mapping[str, Any], before: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the messages that a chat has more than the latest generation that it goes on from.

    The answer of that one, which such a chat repeats as well, is none of them. All messages where
    it goes on from none of ``before``, which are in the order of time.
    """
    messages = asked(call)
    for one in reversed(list(before)):
        known = asked(one)
        if known and len(known) < len(messages) and messages[: len(known)] == known:
            new = messages[len(known) :]
            first = new[0]
            if isinstance(first, dict) and first.get("role") == "assistant":
                said = content_text(first.get("content"))
                new = new[1:] if said == content_text(answer(one).get("content")) else new
            return new
    return messages


def is_chat(call: Mapping[str, Any]) -> bool:
    """Return whether its messages were given as messages, not as the one text of a template."""
    attributes = call.get("attributes")
    gen_ai = attributes.get("gen_ai") if isinstance(attributes, dict) else None
    operation = gen_ai.get("operation") if isinstance(gen_ai, dict) else None
    return isinstance(operation, dict) and operation.get("name") == "chat"


def text(messages: Iterable[Any]) -> str:
    """Return the text of messages, each on lines of its own."""
    found = (content_text(one.get("content")) for one in messages if isinstance(one, dict))
    return "\n".join(filter(None, found))


def content_text(content: Any) -> str:
    """Return the text of a message's content in any of its forms."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content
        )
    return orjson.dumps(content, default=str).decode()


def tool_calls(message: Any) -> list[tuple[str, str]]:
    """Return name and arguments (JSON, as they were said) of the tools that a message calls."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments")
            said = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
            found.append((str(function.get("name")), said))
    return found

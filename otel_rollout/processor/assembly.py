"""A payload becomes attributes of a new span: decoding, packing, JSON. On the worker thread only.

The span that the SDK ended is never changed, since processors beside ours may hold it. What an
exporter gets is a new ``ReadableSpan``, in one of three levels: ``full``, ``text`` (no token ids)
or ``none`` (no payload).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Status

from otel_rollout import semconv
from otel_rollout.identity import Identity
from otel_rollout.payload import (
    FLOAT32,
    UINT8,
    Choice,
    Payload,
    encode_array,
    ids_encoding,
    pack_ids,
)
from otel_rollout.processor.deltas import Delta, Trajectories, Turns
from otel_rollout.processor.token2text import Decoder

FULL: Final = "full"
TEXT: Final = "text"
NONE: Final = "none"
LEVELS: Final = (FULL, TEXT, NONE)

_FOREIGN_SIZE: Final = 2048


@dataclass(slots=True)
class Item:
    """An ended span on its way through the worker."""

    span: ReadableSpan
    identity: Identity | None
    payload: Payload | None

    def size(self) -> int:
        """Return an estimate of the bytes that the item holds."""
        return _FOREIGN_SIZE + (self.payload.size() if self.payload is not None else 0)


@dataclass(slots=True)
class Assembled:
    """The span and the three parts of its attributes."""

    span: ReadableSpan
    base: dict[str, Any]
    text: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()
    status: Status | None = None

    def at(self, level: str) -> ReadableSpan:
        """Return a new span with what ``level`` allows."""
        attributes = dict(self.base)
        if level != NONE:
            attributes.update(self.text)
        if level == FULL:
            attributes.update(self.tokens)
        span = self.span
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=attributes,
            events=self.events,
            links=span.links,
            kind=span.kind,
            status=self.status or span.status,
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )


class Assembler:
    """Turns items into assembled spans; holds the turns of open trajectories.

    Args:
        decoder: gives the decoder of a model, or ``None``; called only when text is wanted.
        deltas: store only what is new in a later turn's prompt.
        content: False leaves out all text, ids, arguments and messages.
        max_length: longest attribute value that the user allows, in characters; ``None``: any.
    """

    def __init__(
        self,
        decoder: Callable[[str | None], Decoder | None],
        *,
        deltas: bool = True,
        content: bool = True,
        max_length: int | None = None,
    ) -> None:
        self._decoder = decoder
        self._deltas = deltas
        self._content = content
        self.max_length = max_length
        self._trajectories = Trajectories()

    def assemble(self, item: Item) -> Assembled:
        """Return the span with its payload as attributes; a part that fails is said on the span."""
        span, payload = item.span, item.payload
        base = dict(span.attributes or {})
        if item.identity is not None:
            base.update(item.identity.attributes)  # the SDK's cap may have evicted them
        result = Assembled(span, base, events=span.events, status=span.status)
        if payload is None:
            return result
        if payload.errors:
            result.events = [*span.events, *self._exceptions(payload)]
        if not self._content:
            self._strip(result)
            self._close(span, payload)
            return result
        omitted: list[str] = []
        for key, text in payload.texts.items():
            result.text[key] = text
        for key, value in payload.values.items():
            try:
                result.text[key] = _json(_messages(value) if key in _MESSAGE_KEYS else value)
            except Exception as error:
                omitted.append(f"{key}: {type(error).__name__}: {error}")
        try:
            self._tokens(span, payload, result)
        except (OverflowError, TypeError, ValueError) as error:
            omitted.append(f"token ids: {type(error).__name__}: {error}")
        finally:
            self._close(span, payload)
        self._fit(result, omitted)
        if omitted:
            base[semconv.OMITTED] = "; ".join(omitted)
        return result

    def _close(self, span: ReadableSpan, payload: Payload) -> None:
        if payload.is_root and span.parent is None and span.context is not None:
            self._trajectories.close(span.context.trace_id)

    # --- tokens ----------------------------------------------------------------------------------

    def _tokens(self, span: ReadableSpan, payload: Payload, result: Assembled) -> None:
        choices = payload.choices
        if payload.prompt_ids is None and payload.response_ids is None and choices is None:
            return
        prompt = pack_ids(payload.prompt_ids or ())
        response = pack_ids(payload.response_ids or ())
        assert span.context is not None
        turns = self._trajectories.of(span.context.trace_id)
        decoder = self._decoder(payload.model)
        if payload.is_root:
            self._root(payload, prompt, response, turns, decoder, result)
            return
        delta, before = Delta(prompt), prompt[:0]
        if self._deltas:
            delta, before = turns.delta(prompt)
        turns.remember(span.context.span_id, prompt, response)
        self._trajectories.trim()
        tokens = result.tokens
        shown = _same_width(delta.ids, response)
        tokens[semconv.IDS_ENCODING] = ids_encoding(shown[0])
        if payload.prompt_ids is not None:
            tokens[semconv.PROMPT_IDS] = encode_array(shown[0])
            if delta.prefix_span_id is not None:
                tokens[semconv.PROMPT_PREFIX_SPAN] = f"{delta.prefix_span_id:016x}"
                tokens[semconv.PROMPT_PREFIX_LENGTH] = delta.length
        self._response(payload, shown[1], tokens)
        packed: list[array[int]] = []
        if choices is not None:
            shown_prompt, *packed = _same_width(delta.ids, *(pack_ids(one.ids) for one in choices))
            tokens[semconv.IDS_ENCODING] = ids_encoding(shown_prompt)
            if payload.prompt_ids is not None:
                tokens[semconv.PROMPT_IDS] = encode_array(shown_prompt)
            self._choices(choices, packed, tokens)
        if decoder is not None:
            errors: list[str] = []
            if payload.prompt_ids is not None and semconv.INPUT_MESSAGES not in result.text:
                text, error = decoder.continuation(before, delta.ids)
                result.text[semconv.INPUT_MESSAGES] = _json([_message("user", text)])
                errors += [f"prompt: {error}"] if error else []
            if payload.response_ids is not None:
                text, error = decoder.continuation(prompt[-64:], response)
                result.text[semconv.OUTPUT_MESSAGES] = _json(
                    [_message("assistant", text, _finish_reason(result.base))]
                )
                errors += [f"response: {error}"] if error else []
            if choices is not None:
                messages = []
                for number, (choice, ids) in enumerate(zip(choices, packed, strict=True)):
                    text, error = decoder.continuation(prompt[-64:], ids)
                    messages.append(_message("assistant", text, choice.finish_reason))
                    errors += [f"choice {number}: {error}"] if error else []
                result.text[semconv.OUTPUT_MESSAGES] = _json(messages)
            if errors:
                result.base[semconv.DECODE_ERROR] = "; ".join(errors)

    def _response(self, payload: Payload, response: array[int], tokens: dict[str, Any]) -> None:
        if payload.response_ids is not None:
            tokens[semconv.RESPONSE_IDS] = encode_array(response)
        if payload.logprobs is not None:
            tokens[semconv.RESPONSE_LOGPROBS] = encode_array(array("f", payload.logprobs))
            tokens[semconv.LOGPROBS_ENCODING] = FLOAT32
        self._mask(payload, tokens)

    @staticmethod
    def _choices(
        choices: Sequence[Choice], packed: Sequence[array[int]], tokens: dict[str, Any]
    ) -> None:
        tokens[semconv.CHOICES_IDS] = [encode_array(ids) for ids in packed]
        if any(choice.logprobs is not None for choice in choices):
            tokens[semconv.CHOICES_LOGPROBS] = [
                encode_array(array("f", choice.logprobs or ())) for choice in choices
            ]
            tokens[semconv.LOGPROBS_ENCODING] = FLOAT32

    @staticmethod
    def _mask(payload: Payload, tokens: dict[str, Any]) -> None:
        if payload.mask is not None:
            tokens[semconv.RESPONSE_MASK] = encode_array(array("B", payload.mask))
            tokens[semconv.MASK_ENCODING] = UINT8

    def _root(
        self,
        payload: Payload,
        prompt: array[int],
        response: array[int],
        turns: Turns,
        decoder: Decoder | None,
        result: Assembled,
    ) -> None:
        """The root refers to its turns and repeats none of their ids; its text is whole."""
        if turns.span_ids:
            result.tokens[semconv.TURNS] = [f"{span_id:016x}" for span_id in turns.span_ids]
            self._mask(payload, result.tokens)
        else:
            shown = _same_width(prompt, response)
            result.tokens[semconv.IDS_ENCODING] = ids_encoding(shown[0])
            result.tokens[semconv.PROMPT_IDS] = encode_array(shown[0])
            self._response(payload, shown[1], result.tokens)
        if decoder is None:
            return
        prompt_text, prompt_error = decoder.text(prompt)
        response_text, response_error = decoder.text(response)
        result.text[semconv.INPUT_MESSAGES] = _json([_message("user", prompt_text)])
        result.text[semconv.OUTPUT_MESSAGES] = _json([_message("assistant", response_text)])
        errors = [
            f"{part}: {error}"
            for part, error in (("prompt", prompt_error), ("response", response_error))
            if error
        ]
        if errors:
            result.base[semconv.DECODE_ERROR] = "; ".join(errors)

    # --- limits and content ----------------------------------------------------------------------

    def _fit(self, result: Assembled, omitted: list[str]) -> None:
        """Leave out what the user's limit of attribute length does not allow; never cut base64."""
        if self.max_length is None:
            return
        for part in (result.text, result.tokens):
            for key, value in list(part.items()):
                texts = value if isinstance(value, list) else [value]
                if any(isinstance(text, str) and len(text) > self.max_length for text in texts):
                    del part[key]
                    omitted.append(f"{key}: longer than the attribute limit of {self.max_length}")

    def _exceptions(self, payload: Payload) -> list[Event]:
        events = []
        for when, error in payload.errors:
            kind = getattr(error, "exc_type_str", None) or getattr(
                error.exc_type, "__qualname__", "Exception"
            )
            attributes: dict[str, Any] = {"exception.type": kind}
            if self._content:
                attributes["exception.message"] = str(error)
                attributes["exception.stacktrace"] = "".join(error.format())
            events.append(Event("exception", attributes, when))
        return events

    @staticmethod
    def _strip(result: Assembled) -> None:
        """Without content, an error keeps its type and no word of its message."""
        if result.span.status.description:
            result.status = Status(result.span.status.status_code)
        result.events = [
            Event(event.name, _without_text(event.attributes or {}), event.timestamp)
            for event in result.events
        ]


_MESSAGE_KEYS: Final = frozenset({semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES})
_KEPT_TEXT: Final = frozenset({"exception.type", semconv.EVALUATION_NAME})


def _without_text(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in attributes.items()
        if key in _KEPT_TEXT or isinstance(value, (bool, int, float))
    }


def _same_width(*parts: array[int]) -> tuple[array[int], ...]:
    """Return all in the widest of their types: a span says its encoding once."""
    if len({part.typecode for part in parts}) == 1:
        return parts
    return tuple(array("q", part) for part in parts)


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _finish_reason(attributes: Mapping[str, Any]) -> str | None:
    reasons = attributes.get(semconv.FINISH_REASONS)
    return reasons[0] if isinstance(reasons, (tuple, list)) and reasons else None


def _message(role: str, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "parts": [{"type": "text", "content": text}]}
    if finish_reason is not None:
        message["finish_reason"] = finish_reason
    return message


def _messages(value: Any) -> Any:
    """Return chat messages (OpenAI's form) as GenAI messages of parts."""
    if not isinstance(value, list):
        return value
    return [_genai(message) if isinstance(message, dict) else message for message in value]


def _genai(message: dict[str, Any]) -> dict[str, Any]:
    if "parts" in message:
        return message
    parts: list[Any] = []
    content = message.get("content")
    if isinstance(content, str):
        parts.append({"type": "text", "content": content})
    elif isinstance(content, list):
        for piece in content:
            if not isinstance(piece, dict):
                parts.append({"type": "text", "content": str(piece)})
            elif piece.get("type") == "text":
                parts.append({"type": "text", "content": piece.get("text", "")})
            else:
                parts.append(piece)
    for call in message.get("tool_calls") or []:
        function = call.get("function", {}) if isinstance(call, dict) else {}
        part = {
            "type": "tool_call",
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        }
        if isinstance(call, dict) and call.get("id") is not None:
            part["id"] = call["id"]
        parts.append(part)
    return {"role": message.get("role", "user"), "parts": parts}

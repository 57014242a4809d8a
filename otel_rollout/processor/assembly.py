"""A payload becomes attributes of a new span: decoding, packing, JSON. On the worker thread only.

The span that the SDK ended is never changed, since processors beside ours may hold it. What an
exporter gets is a new ``ReadableSpan``, in one of three levels: ``full``, ``text`` (no token ids)
or ``none`` (no payload).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, Status

from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.identity import clean_text, plain
from otel_rollout.media import described, is_in, without
from otel_rollout.payload import Payload
from otel_rollout.processor.deltas import Delta, Key, Trajectories, Turns
from otel_rollout.processor.items import FULL, NONE, AttributeLimits, Item, is_encodable
from otel_rollout.processor.redaction import Redaction
from otel_rollout.processor.token2text import Decoder
from otel_rollout.processor.tokens import NO_IDS, Decoding, Parts, parts_of
from otel_rollout.snapshot import MAX_DEPTH, MAX_TEXT, text_of

_MAX_MESSAGE: Final = 4096
_MAX_STACK: Final = 1 << 16
_SEAM: Final = 64
_END_TOKENS: Final = 384
"""Of a root's prompt and response, where longer than twice this: so many of each end are shown."""


@dataclass(slots=True)
class Assembled:
    """The span and the three parts of its attributes."""

    span: ReadableSpan
    base: dict[str, Any]
    identity_keys: AbstractSet[str] = frozenset()
    text: dict[str, Any] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    events: Sequence[Event] = ()
    status: Status | None = None
    context: SpanContext | None = None
    """In place of the span's own."""

    def at(self, level: str) -> ReadableSpan:
        """Return a new span with what ``level`` allows."""
        attributes = dict(self.base)
        if level != NONE:
            attributes.update(self.text)
        if level == FULL:
            attributes.update(self.tokens)
        span = self.span
        return ReadableSpan(
            name=_text(span.name),
            context=self.context or span.context,
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
        redaction: what every text is passed through; ``None`` leaves them as they are.
        limits: the provider's limits of attributes.
    """

    def __init__(
        self,
        decoder: Callable[[str | None], Decoder | None],
        *,
        deltas: bool = True,
        content: bool = True,
        redaction: Redaction | None = None,
        limits: AttributeLimits | None = None,
    ) -> None:
        self._decoder = decoder
        self._deltas = deltas
        self._content = content
        self._redaction = redaction
        self.limits = limits or AttributeLimits()
        self._trajectories = Trajectories()

    def assemble(self, item: Item) -> Assembled:
        """Return the span with its payload as attributes; a part that fails is said on the span."""
        span, payload = item.span, item.payload
        base = self._attributes(span, payload)
        if item.identity is not None:
            base.update(item.identity.attributes)  # the SDK's cap may have evicted them
        keys = item.identity.attributes.keys() if item.identity is not None else frozenset()
        events = [_encodable_event(event) for event in span.events]
        result = Assembled(span, base, keys, events=events, status=_encodable_status(span.status))
        if payload is not None and payload.errors:
            result.events = [*events, *self._exceptions(payload)]
        if not self._content:
            self._strip(result)
        elif payload is not None:
            try:
                self._add(item, payload, result)
            except Exception as error:  # the span itself is not lost
                report_internal_error("payload", error)
                base[semconv.OMITTED] = f"payload: {type(error).__name__}: {error}"
        if self._redaction is not None and self._content:
            self._redaction.apply(result)
        if payload is not None and payload.is_root and span.parent is None and span.context:
            self._trajectories.close(span.context.trace_id)
        return result

    def _attributes(self, span: ReadableSpan, payload: Payload | None) -> dict[str, Any]:
        """Return the span's attributes, and those that came late as the SDK would have taken them.

        What somebody set on the span itself wins.
        """
        if payload is None or payload.attributes is None:
            return _encodable(span.attributes or {})
        given = {**payload.attributes, **(span.attributes or {})}
        plain_ones = self.limits.plain(given)
        if plain_ones is not None:
            return plain_ones
        try:
            return _encodable(self.limits.applied(given))
        except Exception:  # a value that the SDK cannot look at
            return self.limits.applied(_encodable(given))

    def _add(self, item: Item, payload: Payload, result: Assembled) -> None:
        omitted: list[str] = []
        for key, text in payload.texts.items():
            result.text[key] = without(text, MAX_TEXT) if is_in(text) else text
        for key, value in payload.values.items():
            try:
                result.text[key] = _json(_messages(value) if key in _MESSAGE_KEYS else value)
            except Exception as error:
                omitted.append(f"{key}: {type(error).__name__}: {error}")
        if item.span.context is not None:
            values = tuple(item.identity.attributes.items()) if item.identity is not None else ()
            self._tokens((item.span.context.trace_id, values), item.span, payload, result, omitted)
        self._fit(result, omitted)
        if omitted:
            result.base[semconv.OMITTED] = "; ".join(omitted)

    # --- tokens ----------------------------------------------------------------------------------

    def _tokens(
        self,
        key: Key,
        span: ReadableSpan,
        payload: Payload,
        result: Assembled,
        omitted: list[str],
    ) -> None:
        parts = parts_of(payload, omitted)
        text = Decoding(self._decoder(payload.model) if parts.any_ids else None)
        if payload.is_root:
            self._root(self._trajectories.known(key), parts, text, result)
        elif parts.any_ids:
            assert span.context is not None
            self._turn(self._trajectories.of(key), span.context.span_id, parts, text, result)
            self._trajectories.trim()
        if text.errors:
            result.base[semconv.DECODE_ERROR] = "; ".join(text.errors)

    def _turn(
        self, turns: Turns, span_id: int, parts: Parts, text: Decoding, result: Assembled
    ) -> None:
        prompt = parts.prompt if parts.prompt is not None else NO_IDS
        response = parts.response if parts.response is not None else NO_IDS
        delta, before = turns.delta(prompt) if self._deltas else (Delta(prompt), NO_IDS)
        turns.remember(span_id, prompt, response)
        if delta.prefix_span_id is not None:
            # with the text as well: it is the text of what is new
            result.text[semconv.PROMPT_PREFIX_SPAN] = f"{delta.prefix_span_id:016x}"
            result.text[semconv.PROMPT_PREFIX_LENGTH] = delta.length
        new = delta.ids if parts.prompt is not None else None
        result.tokens.update(replace(parts, prompt=new).attributes())
        if new is not None and semconv.INPUT_MESSAGES not in result.text:
            shown = text.of("prompt", new, before)
            if shown is not None:
                result.text[semconv.INPUT_MESSAGES] = _json([_message("user", shown)])
        answers = []
        if parts.response is not None:
            answers.append(("response", parts.response, _finish_reason(result.base)))
        for number, choice in enumerate(parts.choices):
            answers.append((f"choice {number}", choice.ids, choice.finish_reason))
        messages = []
        for what, ids, finish_reason in answers:
            shown = text.of(what, ids, prompt[-_SEAM:])
            if shown is not None:
                messages.append(_message("assistant", shown, finish_reason))
        if messages:
            result.text[semconv.OUTPUT_MESSAGES] = _json(messages)

    def _root(self, turns: Turns, parts: Parts, text: Decoding, result: Assembled) -> None:
        """The root refers to its turns; it repeats none of their ids, and of long text the ends."""
        if turns.span_ids:
            result.tokens[semconv.TURNS] = [f"{span_id:016x}" for span_id in turns.span_ids]
            result.tokens.update(Parts(mask=parts.mask).attributes())
        else:
            result.tokens.update(parts.attributes())
        for what, key, role, ids in (
            ("prompt", semconv.INPUT_MESSAGES, "user", parts.prompt),
            ("response", semconv.OUTPUT_MESSAGES, "assistant", parts.response),
        ):
            if ids is None:
                continue
            # What is redacted is looked for in the whole: a cut could leave half a secret.
            if turns.span_ids and self._redaction is None and len(ids) > 2 * _END_TOKENS:
                shown = _ends(text, what, ids)
                result.base[semconv.TEXT_CUT] = True
            else:
                shown = text.of(what, ids)
            if shown is not None:
                result.text[key] = _json([_message(role, shown)])

    # --- limits and content ----------------------------------------------------------------------

    def _fit(self, result: Assembled, omitted: list[str]) -> None:
        """Leave out what the user's limit of attribute length does not allow; never cut base64."""
        limit = self.limits.length
        if limit is None:
            return
        for part in (result.text, result.tokens):
            for key, value in list(part.items()):
                texts = value if isinstance(value, list) else [value]
                if any(isinstance(text, str) and len(text) > limit for text in texts):
                    del part[key]
                    omitted.append(f"{key}: longer than the attribute limit of {limit}")

    def _exceptions(self, payload: Payload) -> list[Event]:
        events = []
        for when, error in payload.errors:
            kind = getattr(error, "exc_type_str", None) or getattr(
                error.exc_type, "__qualname__", "Exception"
            )
            attributes: dict[str, Any] = {"exception.type": kind}
            if self._content:
                attributes["exception.message"] = clean_text(str(error))[:_MAX_MESSAGE]
                attributes["exception.stacktrace"] = clean_text("".join(error.format()))[
                    :_MAX_STACK
                ]
            events.append(Event("exception", attributes, when))
        return events

    @staticmethod
    def _strip(result: Assembled) -> None:
        """Without content, an error keeps its type and no word of its message.

        Spans of other instrumentations too: each has a switch of its own, and not all heed ours.
        """
        for key in _CONTENT_KEYS & result.base.keys():
            del result.base[key]
        if result.span.status.description:
            result.status = Status(result.span.status.status_code)
        result.events = [
            Event(event.name, _without_text(event.attributes or {}), event.timestamp)
            for event in result.events
        ]


_MESSAGE_KEYS: Final = frozenset({semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES})
_CONTENT_KEYS: Final = frozenset(
    {
        *_MESSAGE_KEYS,
        semconv.INPUT,
        semconv.OUTPUT,
        semconv.TOOL_ARGUMENTS,
        semconv.TOOL_RESULT,
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
        "gen_ai.prompt",
        "gen_ai.completion",
        "exception.message",
        "exception.stacktrace",
    }
)
_KEPT_TEXT: Final = frozenset({"exception.type", semconv.EVALUATION_NAME})


def _without_text(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in attributes.items()
        if key in _KEPT_TEXT or isinstance(value, (bool, int, float))
    }


def _encodable(attributes: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return attributes that every exporter can encode: one that cannot be costs a whole batch."""
    return {_text(key): _encodable_value(value, depth) for key, value in attributes.items()}


def _text(value: Any) -> str:
    return clean_text(str.__str__(value)) if isinstance(value, str) else text_of(value)


def _encodable_value(value: Any, depth: int) -> Any:
    if is_encodable(value):
        return value
    if isinstance(value, str):
        return _text(value)
    if depth > MAX_DEPTH and isinstance(value, (tuple, list, Mapping)):
        return f"<{type(value).__name__}: nested too deeply>"
    if isinstance(value, (tuple, list)):
        return tuple(_encodable_value(item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        return _encodable(value, depth + 1)
    return plain(value)  # numbers of numpy, where they came with the payload


def _encodable_event(event: Event) -> Event:
    attributes = event.attributes or {}
    if is_encodable(event.name) and all(
        is_encodable(key) and is_encodable(value) for key, value in attributes.items()
    ):
        return event
    return Event(_text(event.name), _encodable(attributes), event.timestamp)


def _encodable_status(status: Status) -> Status:
    said = status.description
    if said is None or is_encodable(said):
        return status
    return Status(status.status_code, _text(said))


def _json(value: Any) -> str:
    return orjson.dumps(value, default=described, option=orjson.OPT_NON_STR_KEYS).decode()


def _ends(text: Decoding, what: str, ids: array[int]) -> str | None:
    """Return the text of the first and of the last tokens, and how many are left out."""
    start = text.of(what, ids[:_END_TOKENS])
    end = text.of(what, ids[-_END_TOKENS:], ids[-_END_TOKENS - _SEAM : -_END_TOKENS])
    if start is None or end is None:
        return None
    return f"{start}\n… ({len(ids) - 2 * _END_TOKENS} tokens: see the turns) …\n{end}"


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
    calls = _from_json(message.get("tool_calls"))
    for given in calls if isinstance(calls, list) else []:
        call = _from_json(given)
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):  # malformed, as the model gave it
            parts.append({"type": "tool_call", "name": None, "arguments": given})
            continue
        part = {
            "type": "tool_call",
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        }
        if call.get("id") is not None:
            part["id"] = call["id"]
        parts.append(part)
    return {"role": message.get("role", "user"), "parts": parts}


def _from_json(value: Any) -> Any:
    """Return the objects behind text that is JSON: data sets hold tool calls that way."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value

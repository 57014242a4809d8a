"""A span becomes a Weave call. The same span always becomes, byte for byte, the same call.

Everything comes from the span, so that a call that is sent twice merges on the server: its id is
the span's, ``started_at`` the span's start. The trajectory's values stand flat in ``attributes``
under verl's names, with their own types; everything else stands there by its OpenTelemetry name,
dots as nesting.
"""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

import orjson
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from otel_rollout import semconv, snapshot
from otel_rollout.identity import INT64, clean_text, plain

MAX_OP_NAME: Final = 128
MAX_DISPLAY_NAME: Final = 1024
_UNNAMED: Final = "span"
_MAX_DEPTH: Final = 100

_FLAT: Final = {
    semconv.STEP: "step",
    semconv.SAMPLE_INDEX: "sample_index",
    semconv.ROLLOUT_N: "rollout_n",
    semconv.VALIDATE: "validate",
    semconv.EXPERIMENT_NAME: "experiment_name",
    semconv.GROUP_ID: "group_id",
}
_KINDS: Final = {
    semconv.OP_ROLLOUT: "agent",
    semconv.OP_INVOKE_AGENT: "agent",
    semconv.OP_TEXT_COMPLETION: "llm",
    semconv.OP_CHAT: "llm",
    "generate_content": "llm",
    "embeddings": "llm",
    semconv.OP_EXECUTE_TOOL: "tool",
    semconv.OP_EVALUATE: "scorer",
}
_IN_THEIR_OWN_PLACE: Final = frozenset(
    {
        semconv.PROJECT,
        semconv.SAMPLED,
        semconv.INPUT_MESSAGES,
        semconv.OUTPUT_MESSAGES,
        semconv.INPUT,
        semconv.OUTPUT,
        semconv.TOOL_ARGUMENTS,
        semconv.TOOL_RESULT,
        *_FLAT,
    }
)
_PROCESS: Final = (("pid", "process.pid"), ("host", "host.name"), ("service", "service.name"))
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def belongs_to_trajectory(span: ReadableSpan) -> bool:
    """Return whether the span carries a trajectory's identity."""
    return semconv.SAMPLED in (span.attributes or {})


def project_of(span: ReadableSpan) -> str | None:
    """Return the project that the trajectory names, if it names one."""
    value = (span.attributes or {}).get(semconv.PROJECT)
    return str(value) if value is not None else None


def call_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the call for a span, without ``project_id``, which is known only when it is sent."""
    attributes = dict(span.attributes or {})
    context = span.context
    assert context is not None
    span_id = f"{context.span_id:016x}"
    trace_id = f"{context.trace_id:032x}"
    is_root = span.parent is None
    operation = attributes.get(semconv.OPERATION)
    failed = span.status.status_code is StatusCode.ERROR
    start = span.start_time or 0
    end = max(span.end_time or start, start)
    inputs, output = _inputs_and_output(str(operation), attributes, is_root)
    name = clean_text(span.name or _UNNAMED)
    return {
        "id": span_id,
        "trace_id": trace_id,
        "parent_id": f"{span.parent.span_id:016x}" if span.parent is not None else None,
        "thread_id": trace_id,
        "turn_id": span_id if is_root else None,
        "op_name": name[:MAX_OP_NAME],
        "display_name": name[:MAX_DISPLAY_NAME],
        "started_at": _timestamp(start),
        "ended_at": _timestamp(end),
        "attributes": _attributes(attributes, _KINDS.get(str(operation)), span),
        "inputs": _clean(inputs),
        "output": _clean(output),
        "summary": _summary(attributes, failed, (end - start) // 1_000_000, name),
        "exception": _exception(span, attributes) if failed else None,
    }


def is_no_call(span: ReadableSpan) -> bool:
    """Return whether the span only tells of a call that is complete already, as feedback."""
    return span.parent is not None and semconv.AFTERWARDS in (span.attributes or {})


def feedback_of(span: ReadableSpan) -> list[dict[str, Any]]:
    """Return the rewards recorded on a span, as Weave feedback without project and reference."""
    result = []
    for number, event in enumerate(e for e in span.events if e.name == semconv.EVALUATION_EVENT):
        given = dict(event.attributes or {})
        payload: dict[str, Any] = {
            "name": given.get(semconv.EVALUATION_NAME),
            "value": given.get(semconv.EVALUATION_SCORE),
        }
        prefix = semconv.REWARD_DETAIL + "."
        for key, value in given.items():
            if key.startswith(prefix):
                part = key[len(prefix) :]
                payload[f"detail.{part}" if part in payload else part] = value
        assert span.context is not None
        about = span.context
        if span.parent is not None and is_no_call(span):
            about = span.parent  # it has ended without this
        result.append(
            {
                "id": _feedback_id(span.context.trace_id, span.context.span_id, number),
                "call_id": f"{about.span_id:016x}",
                "feedback_type": "reward",
                "payload": _clean(payload),
                "created_at": _timestamp(event.timestamp),
            }
        )
    return result


def _clean(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as JSON takes it: attributes of other instrumentations may be anything."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else clean_text(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is int:
        return value if value in INT64 else str(value)
    if depth > _MAX_DEPTH:
        return "… (nested too deeply)"
    # The exact types first: to ask for an abstract one takes as long as all the rest.
    if kind is dict or isinstance(value, Mapping):
        return {_clean_key(key): _clean(item, depth + 1) for key, item in value.items()}
    if kind is list or isinstance(value, (list, tuple)):
        return [_clean(item, depth + 1) for item in value]
    return snapshot.settled(value)


def _clean_key(key: Any) -> str:
    return key if type(key) is str and key.isascii() else clean_text(str(key))


def _feedback_id(trace_id: int, span_id: int, number: int) -> str:
    """Return a UUID that is the same whenever this feedback is sent."""
    text = f"{trace_id:032x}/{span_id:016x}/{number}".encode()
    return str(uuid.UUID(bytes=hashlib.blake2b(text, digest_size=16).digest(), version=4))


def _timestamp(nanoseconds: int) -> str:
    moment = _EPOCH + datetime.timedelta(microseconds=nanoseconds // 1000)
    return moment.isoformat(timespec="microseconds")


def _attributes(
    attributes: Mapping[str, Any], kind: str | None, span: ReadableSpan
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in attributes.items():
        if key not in _IN_THEIR_OWN_PLACE:
            _nest(result, _clean_key(key), _clean(value))
    for key, name in _FLAT.items():
        if key in attributes:
            result[name] = _clean(attributes[key])
    if kind is not None:
        _object_at(result, "weave")["kind"] = kind
    resource = span.resource.attributes
    process = {name: plain(resource[key]) for name, key in _PROCESS if key in resource}
    if process:
        _object_at(result, "process").update(process)
    links = [
        {"trace_id": f"{link.context.trace_id:032x}", "span_id": f"{link.context.span_id:016x}"}
        for link in span.links
    ]
    if links:
        result["links"] = links
    events = [
        _clean(
            {"name": event.name, "time": _timestamp(event.timestamp), **_event_attributes(event)}
        )
        for event in span.events
        if event.name != semconv.EVALUATION_EVENT
    ]
    if events:
        result["events"] = events
    return result


def _event_attributes(event: Any) -> dict[str, Any]:
    return {"attributes": dict(event.attributes)} if event.attributes else {}


def _object_at(target: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object at ``key``; a plain value that is there becomes its ``value``."""
    inner = target.get(key)
    if not isinstance(inner, dict):
        inner = target[key] = {} if inner is None else {"value": inner}
    return inner


def _nest(target: dict[str, Any], key: str, value: Any) -> None:
    """Put ``a.b.c`` into nested dicts; where a part is a value already, the rest stays dotted."""
    parts = key.split(".")
    for position, part in enumerate(parts[:-1]):
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            target[".".join(parts[position:])] = value
            return
        target = inner
    last = parts[-1]
    existing = target.get(last)
    if isinstance(existing, dict):
        existing["value"] = value
    else:
        target[last] = value


def _loaded(text: Any) -> Any:
    """Return the objects behind a JSON attribute; what is no JSON stays text."""
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _inputs_and_output(
    operation: str, attributes: Mapping[str, Any], is_root: bool
) -> tuple[dict[str, Any], Any]:
    given = _loaded(attributes.get(semconv.INPUT_MESSAGES))
    answered = _loaded(attributes.get(semconv.OUTPUT_MESSAGES))
    if operation == semconv.OP_ROLLOUT:
        output: dict[str, Any] = {}
        if given is not None:
            output["prompt_text"] = _text(given)
        if answered is not None:
            output["response_text"] = _text(answered)
        if semconv.REWARD in attributes:
            output["reward"] = attributes[semconv.REWARD]
        return {}, output or None
    if operation == semconv.OP_EXECUTE_TOOL:
        arguments = _loaded(attributes.get(semconv.TOOL_ARGUMENTS))
        if not isinstance(arguments, dict):
            arguments = {} if arguments is None else {"arguments": arguments}
        return arguments, _loaded(attributes.get(semconv.TOOL_RESULT))
    inputs: dict[str, Any] = {}
    if given is not None:
        inputs["messages"] = _chat(given)
    more = _loaded(attributes.get(semconv.INPUT))
    if isinstance(more, dict):
        inputs.update({key: value for key, value in more.items() if key not in inputs})
    elif more is not None:
        inputs["input"] = more
    result = _loaded(attributes.get(semconv.OUTPUT))
    if answered is not None:
        choices = _choices(answered, attributes)
        result = (
            {**result, "choices": choices} if isinstance(result, dict) else {"choices": choices}
        )
    return inputs, result


def _text(messages: Any) -> str:
    if not isinstance(messages, list):
        return str(messages)
    return "".join(_content(message) for message in messages)


def _content(message: Any) -> str:
    if not isinstance(message, Mapping):
        return str(message)
    if "parts" not in message:  # not in the form of the conventions, as some instrumentations do
        content = message.get("content")
        return content if isinstance(content, str) else "" if content is None else _as_text(content)
    said = ""
    for part in _parts(message):
        kind = part.get("type")
        if kind in ("text", "reasoning"):
            said += str(part.get("content", ""))
        elif kind != "tool_call":  # an image, a tool's answer: as what it is, on a line of its own
            said += f"\n{_as_text(part)}" if said else _as_text(part)
    return said


def _parts(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = message.get("parts")
    return [p for p in parts if isinstance(p, Mapping)] if isinstance(parts, list) else []


def _chat(messages: Any) -> Any:
    """Return GenAI messages in the form that Weave's chat view reads."""
    if not isinstance(messages, list):
        return messages
    return [_chat_message(m) if isinstance(m, dict) else m for m in messages]


def _chat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"role": message.get("role"), "content": _content(message)}
    calls = [
        {
            "id": part.get("id"),
            "type": "function",
            "function": {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))},
        }
        for part in _parts(message)
        if part.get("type") == "tool_call"
    ]
    if calls:
        result["tool_calls"] = calls
    return result


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(_clean(value)).decode()


def _choices(messages: Any, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = attributes.get(semconv.FINISH_REASONS)
    reasons = given if isinstance(given, (list, tuple)) else () if given is None else (given,)
    choices = []
    for index, message in enumerate(messages if isinstance(messages, list) else [messages]):
        reason = message.get("finish_reason") if isinstance(message, dict) else None
        if reason is None and index < len(reasons):
            reason = reasons[index]
        shown = _chat_message(message) if isinstance(message, dict) else {"content": str(message)}
        choices.append({"index": index, "message": shown, "finish_reason": reason})
    return choices


def _summary(
    attributes: Mapping[str, Any], failed: bool, latency_ms: int, name: str
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "status_counts": {"success": int(not failed), "error": int(failed)},
        "weave": {
            "status": "error" if failed else "success",
            "latency_ms": latency_ms,
            "trace_name": name,
        },
    }
    usage = {
        key.rsplit(".", 1)[1]: _clean(attributes[key])
        for key in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS)
        if key in attributes
    }
    told_above = semconv.TOKENS_SPAN in attributes or semconv.ATTEMPT in attributes
    if usage and _KINDS.get(str(attributes.get(semconv.OPERATION))) == "llm" and not told_above:
        # only once where tokens were made: the server adds the calls of a trace up
        model = attributes.get(semconv.RESPONSE_MODEL) or attributes.get(semconv.REQUEST_MODEL)
        summary["usage"] = {_clean_key(model or "unknown"): {"requests": 1, **usage}}
    return summary


def _exception(span: ReadableSpan, attributes: Mapping[str, Any]) -> str:
    kind = attributes.get(semconv.ERROR_TYPE)
    if kind is None:  # the SDK's own record of an exception, in other instrumentations' spans
        kinds = [
            (event.attributes or {}).get("exception.type")
            for event in span.events
            if event.name == "exception"
        ]
        kind = (kinds and kinds[-1]) or "Error"
    return _as_text({"type": str(kind), "message": span.status.description or ""})

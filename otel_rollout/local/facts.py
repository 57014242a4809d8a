"""What the index keeps of a call: the few facts that lists, filters and plots are made of."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

import orjson

COLUMNS: Final = (
    "id",
    "trace",
    "parent",
    "root",
    "kind",
    "op",
    "name",
    "started",
    "ended",
    "error",
    "turn",
    "tokens_in",
    "tokens_out",
    "reward",
    "num_turns",
    "weight_version",
    "process",
    "project",
    "experiment",
    "step",
    "sample_index",
    "rollout_n",
    "validate",
    "group_id",
)


def of_call(call: Mapping[str, Any], project: str) -> tuple[Any, ...]:
    """Return the facts of a call in the order of :data:`COLUMNS`.

    A call may come from any Weave client, so nothing but ``id`` and ``trace_id`` is relied upon.
    """
    attributes = _mapping(call.get("attributes"))
    ours = _mapping(attributes.get("rollout"))
    gen_ai = _mapping(attributes.get("gen_ai"))
    kind = str(_mapping(attributes.get("weave")).get("kind") or "")
    operation = str(_mapping(gen_ai.get("operation")).get("name") or "")
    usage = _mapping(gen_ai.get("usage"))
    root = call.get("parent_id") is None
    turn = kind == "llm" and not _told_above(ours)
    return (
        str(call["id"]),
        str(call["trace_id"]),
        call.get("parent_id"),
        int(root),
        kind,
        str(call.get("op_name") or ""),
        _name(operation, kind, call, gen_ai),
        seconds(call.get("started_at")),
        seconds(call.get("ended_at")),
        _error_type(call.get("exception")),
        int(turn),
        _whole(usage.get("input_tokens")) if turn else None,
        _whole(usage.get("output_tokens")) if turn else None,
        _reward(call, ours) if root or kind == "scorer" else None,
        _whole(ours.get("num_turns")) if root else None,
        _whole(ours.get("weight_version")),
        process_of(attributes),
        project,
        _text(attributes.get("experiment_name")),
        _whole(attributes.get("step")),
        _scalar(attributes.get("sample_index")),
        _whole(attributes.get("rollout_n")),
        int(bool(attributes.get("validate"))),
        _text(attributes.get("group_id")),
    )


def seconds(timestamp: Any) -> float | None:
    """Return an ISO time as seconds since the epoch."""
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def process_of(attributes: Mapping[str, Any]) -> str:
    """Return host and process id of a call, as far as they are told."""
    process = _mapping(attributes.get("process"))
    parts = [str(process[name]) for name in ("host", "pid") if process.get(name) is not None]
    return ":".join(parts)


def number(value: Any) -> float | None:
    """Return a value as a float where it is a number; booleans count as 0 and 1."""
    return float(value) if isinstance(value, (int, float)) else None


def _told_above(ours: Mapping[str, Any]) -> bool:
    """Whether the tokens of a generation are those of a span above (an engine's, an attempt's)."""
    tokens, generation = _mapping(ours.get("tokens")), _mapping(ours.get("generation"))
    return "span_id" in tokens or "attempt" in generation


def _name(operation: str, kind: str, call: Mapping[str, Any], gen_ai: Mapping[str, Any]) -> str:
    place = {"tool": "tool", "scorer": "evaluation", "agent": "agent"}.get(kind, "")
    named = _mapping(gen_ai.get(place)).get("name")
    if named is None and kind == "llm":
        named = _mapping(gen_ai.get("request")).get("model")
    if named is None:
        named = str(call.get("op_name") or "").removeprefix(operation).strip()
    return str(named)


def _error_type(exception: Any) -> str | None:
    if exception is None:
        return None
    return error_of(exception)[0]


def error_of(exception: Any) -> tuple[str, str]:
    """Return type and message of a call's exception."""
    try:
        parsed = orjson.loads(exception)
    except (TypeError, ValueError):
        return "Error", str(exception)
    if not isinstance(parsed, dict):
        return "Error", str(exception)
    return str(parsed.get("type") or "Error"), str(parsed.get("message") or "")


def _reward(call: Mapping[str, Any], ours: Mapping[str, Any]) -> float | None:
    output = _mapping(call.get("output"))
    given = output.get("reward") if "reward" in output else ours.get("reward")
    return number(given)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int | None:
    if isinstance(value, (int, float)) and abs(value) < 2**62 and value == int(value):
        return int(value)
    return None


def _scalar(value: Any) -> Any:
    whole = _whole(value)
    return whole if whole is not None or value is None else str(value)


def _text(value: Any) -> str | None:
    return str(value) if value is not None else None

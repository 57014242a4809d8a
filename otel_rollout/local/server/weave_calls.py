"""Calls and feedback of the store in the form in which Weave's server gives and takes them."""

from __future__ import annotations

import datetime
import itertools
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from otel_rollout.exporters import spool
from otel_rollout.local.expression import Where
from otel_rollout.local.facts import seconds
from otel_rollout.local.server import weave_query
from otel_rollout.local.server.state import State

USER: Final = "local"
_REF: Final = re.compile(r"weave:///([^/]+)/([^/]+)/call/([^/]+)\Z")
_NEEDED: Final = ("id", "trace_id", "op_name", "started_at")
_OPEN_CALLS: Final = 10_000


class Refused(ValueError):
    """A request that the service would refuse with 422."""


class WeaveCalls:
    """Reads and writes calls; what is written goes through the spool, as everything does."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._index = state.index
        self._open: dict[str, dict[str, Any]] = {}

    # --- reading ---------------------------------------------------------------------------------

    def query(self, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the calls that a ``calls/stream_query`` asks for."""
        self._state.catch_up()
        sort_by = asked.get("sort_by") or []
        order = weave_query.indexed_order(sort_by)
        found = self._matching(asked, order)
        if order is None:
            found = iter(weave_query.in_order(found, sort_by))  # type: ignore[arg-type]
        start = int(asked.get("offset") or 0)
        limit = asked.get("limit")
        end = start + int(limit) if limit is not None else None
        for call in itertools.islice(found, start, end):
            if asked.get("include_feedback"):
                feedback = list(self._feedback(Where("f.call = ?", (call["id"],))))
                call["summary"]["weave"]["feedback"] = feedback
            yield _columns(call, asked.get("columns"))

    def count(self, asked: Mapping[str, Any]) -> int:
        """Return how many calls match."""
        self._state.catch_up()
        if not asked.get("query"):
            condition = self._condition(asked)
            sql = f"SELECT count(*) FROM calls c WHERE {condition.sql}"
            count = int(self._index.query(sql, condition.values)[0][0])
        else:
            count = sum(1 for _ in self._matching(asked, None))
        limit = asked.get("limit")
        return min(count, int(limit)) if limit is not None else count

    def _condition(self, asked: Mapping[str, Any]) -> Where:
        condition = weave_query.of_project(str(asked.get("project_id")))
        condition = condition & weave_query.of_filter(asked.get("filter"))
        return condition & weave_query.indexed_part((asked.get("query") or {}).get("$expr"))

    def _matching(self, asked: Mapping[str, Any], order: str | None) -> Iterator[dict[str, Any]]:
        condition = self._condition(asked)
        expression = (asked.get("query") or {}).get("$expr")
        places = self._index.query(
            "SELECT s.name, c.offset, c.bytes FROM calls c JOIN segments s "
            f"ON s.number = c.segment WHERE {condition.sql} ORDER BY {order or 'c.number'}",
            condition.values,
        )
        for place in places:
            try:
                call = orjson.loads(self._index.body(*place))
            except (OSError, ValueError):
                continue
            shaped = _shaped(call, str(asked.get("project_id")))
            if expression is None or weave_query.matches(expression, shaped):
                yield shaped

    def feedback(self, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the feedback that a ``feedback/query`` asks for."""
        self._state.catch_up()
        project_id = str(asked.get("project_id"))
        expression = (asked.get("query") or {}).get("$expr")
        found: Iterator[Any] = (
            one
            for one in self._feedback(weave_query.of_project(project_id), project_id)
            if expression is None or weave_query.matches(expression, one)
        )
        if asked.get("sort_by"):
            found = iter(weave_query.in_order(found, asked["sort_by"]))
        start = int(asked.get("offset") or 0)
        end = start + int(asked["limit"]) if asked.get("limit") is not None else None
        rows = itertools.islice(found, start, end)
        fields = asked.get("fields")
        if not fields:
            return list(rows)
        return [{field: weave_query.field_of(row, field) for field in fields} for row in rows]

    def _feedback(self, condition: Where, project_id: str = "") -> Iterator[dict[str, Any]]:
        places = self._index.query(
            "SELECT s.name, f.offset, f.bytes, c.project, c.ended FROM feedback f "
            "JOIN segments s ON s.number = f.segment JOIN calls c ON c.id = f.call "
            f"WHERE {condition.sql} ORDER BY f.at, s.name, f.offset",
            condition.values,
        )
        for segment, offset, size, project, ended in places:
            try:
                one = orjson.loads(self._index.body(segment, offset, size))
            except (OSError, ValueError):
                continue
            project = project_id or project
            made = datetime.datetime.fromtimestamp(ended or 0, datetime.timezone.utc)
            yield {
                "id": one["id"],
                "project_id": project,
                "weave_ref": f"weave:///{project}/call/{one['call_id']}",
                "feedback_type": one["feedback_type"],
                "payload": one["payload"],
                "creator": one.get("creator"),
                "created_at": one.get("created_at") or made.isoformat(),
                "wb_user_id": USER,
            }

    # --- writing ---------------------------------------------------------------------------------

    def complete(self, calls: list[Any], project_id: str) -> None:
        """Store completed calls; raises :class:`Refused` before any is stored."""
        for call in calls:
            _check(call, project_id)
        for call in calls:
            self._write(spool.CALL, call, project_id, call["trace_id"])

    def start(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the start of a call until its end comes."""
        began = {**call}
        began["id"] = began.get("id") or uuid.uuid4().hex
        began["trace_id"] = began.get("trace_id") or uuid.uuid4().hex
        _check(began, str(began.get("project_id")))
        while len(self._open) >= _OPEN_CALLS:
            self._open.pop(next(iter(self._open)))
        self._open[began["id"]] = began
        return {"id": began["id"], "trace_id": began["trace_id"]}

    def end(self, call: Mapping[str, Any]) -> None:
        """Store a call whose start has come."""
        began = self._open.pop(str(call.get("id")), None)
        if began is None:
            raise Refused(f"call {call.get('id')} has not been started here")
        whole = {**began, **{key: value for key, value in call.items() if value is not None}}
        self.complete([whole], str(whole["project_id"]))

    def create_feedback(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Store feedback of a call."""
        reference = _REF.match(str(given.get("weave_ref")))
        if reference is None:
            raise Refused("weave_ref: only calls can be given feedback here")
        payload, project_id = given.get("payload"), str(given.get("project_id"))
        if not isinstance(payload, Mapping) or not isinstance(given.get("feedback_type"), str):
            raise Refused("feedback needs feedback_type and payload")
        one = {
            "id": str(given.get("id") or uuid.uuid4()),
            "call_id": reference[3],
            "feedback_type": given["feedback_type"],
            "payload": payload,
            "creator": given.get("creator"),
            "created_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        }
        found = self._index.query("SELECT trace FROM calls WHERE id = ?", (one["call_id"],))
        self._write(spool.FEEDBACK, one, project_id, found[0]["trace"] if found else "")
        return {
            "id": one["id"],
            "created_at": one["created_at"],
            "wb_user_id": USER,
            "payload": payload,
        }

    def _write(self, kind: str, body: Mapping[str, Any], project_id: str, trace: str) -> None:
        meta = {"kind": kind, "id": body["id"], "trace": trace, "project": project_id}
        stored = {key: value for key, value in body.items() if key != "project_id"}
        with self._state.writing:
            self._state.writer.append(meta, orjson.dumps(stored))


def _check(call: Any, project_id: str) -> None:
    if not isinstance(call, Mapping):
        raise Refused("a call is an object")
    if call.get("project_id") != project_id:
        raise Refused(f"call {call.get('id')} is of {call.get('project_id')}, not {project_id}")
    for name in _NEEDED:
        if not isinstance(call.get(name), str) or not call[name]:
            raise Refused(f"call {call.get('id')}: {name} is missing")
    for name in ("started_at", "ended_at"):
        if call.get(name) is not None and seconds(call[name]) is None:
            raise Refused(f"call {call['id']}: {name} is no time")


def _shaped(call: dict[str, Any], project_id: str) -> dict[str, Any]:
    """Return a stored call as the service gives it."""
    failed = call.get("exception") is not None
    start, end = seconds(call.get("started_at")), seconds(call.get("ended_at"))
    latency = round((end - start) * 1000) if start is not None and end is not None else None
    given = call.get("summary")
    summary = {**given} if isinstance(given, dict) else {}
    status = "error" if failed else "success" if end is not None else "running"
    told = summary.get("weave")
    summary["weave"] = {
        "status": status,
        "latency_ms": latency,
        "trace_name": call.get("op_name"),
        **(told if isinstance(told, dict) else {}),
    }
    return {
        "parent_id": None,
        "thread_id": None,
        "turn_id": None,
        "display_name": None,
        "ended_at": None,
        "exception": None,
        "output": None,
        "wb_run_id": None,
        "wb_user_id": USER,
        **call,
        "attributes": call.get("attributes") or {},
        "inputs": call.get("inputs") or {},
        "project_id": project_id,
        "summary": summary,
    }


def _columns(call: dict[str, Any], columns: Any) -> dict[str, Any]:
    if not columns:
        return call
    wanted = {str(column).split(".")[0] for column in columns}
    # Without these the client cannot make a call of it.
    wanted |= {"id", "project_id", "op_name", "trace_id", "started_at", "attributes", "inputs"}
    return {key: value for key, value in call.items() if key in wanted}

"""Weave's queries: ``filter``, ``query.$expr`` and ``sort_by`` over the calls of the store.

What the index knows is asked in SQL; the rest is decided on the calls themselves, as they are read.
A condition of which the index knows a part narrows what is read by that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cmp_to_key
from typing import Any, Final

from otel_rollout.local.expression import Where


class QueryError(ValueError):
    """A query that is not understood."""


INDEXED: Final = {
    "id": "c.id",
    "trace_id": "c.trace",
    "parent_id": "c.parent",
    "op_name": "c.op",
    "started_at": "c.started",
    "ended_at": "c.ended",
    "attributes.step": "c.step",
    "attributes.sample_index": "c.sample_index",
    "attributes.rollout_n": "c.rollout_n",
    "attributes.experiment_name": "c.experiment",
    "attributes.group_id": "c.group_id",
}
_LISTS: Final = {
    "op_names": "c.op",
    "parent_ids": "c.parent",
    "trace_ids": "c.trace",
    "call_ids": "c.id",
    "thread_ids": "c.trace",
}
_LEFT_ALONE: Final = frozenset({"wb_user_ids", "wb_run_ids"})


def of_project(project_id: str) -> Where:
    """Return the condition for a project; a stored name without an entity is of any entity."""
    name = project_id.rpartition("/")[2]
    return Where("c.project IN (?, ?)", (project_id, name))


def of_filter(given: Mapping[str, Any] | None) -> Where:
    """Return the condition that a ``filter`` means; raises :class:`QueryError`."""
    condition = Where()
    for key, value in (given or {}).items():
        if value is None or key in _LEFT_ALONE:
            continue
        if key in _LISTS and isinstance(value, list):
            condition = condition & _among(_LISTS[key], [str(one) for one in value])
        elif key == "trace_roots_only":
            condition = condition & Where("c.root = 1") if value else condition
        elif key == "turn_ids":
            condition = condition & _among("c.id", [str(one) for one in value])
        else:
            raise QueryError(f"filter.{key} is not known here")
    return condition


def _among(column: str, values: Sequence[str]) -> Where:
    if column == "c.op":  # a pattern of Weave's: any version of an op
        exact = [value for value in values if not value.endswith(":*")]
        ops = [value[:-1] for value in values if value.endswith(":*")]
        parts = [_list(column, exact)] + [
            Where(f"substr({column}, 1, {len(o)}) = ?", (o,)) for o in ops
        ]
        return Where(" OR ".join(p.sql for p in parts), tuple(v for p in parts for v in p.values))
    return _list(column, values)


def _list(column: str, values: Sequence[str]) -> Where:
    return Where(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def indexed_part(expression: Any) -> Where:
    """Return what of an expression the index can tell: the condition is met wherever it is."""
    if not isinstance(expression, Mapping):
        return Where()
    condition = Where()
    for one in expression.get("$and", ()) or ():
        condition = condition & indexed_part(one)
    pair = expression.get("$eq")
    if isinstance(pair, list) and len(pair) == 2:
        field, literal = pair
        if isinstance(field, Mapping) and "$convert" in field:
            field = field["$convert"].get("input")
        column = INDEXED.get(str(field.get("$getField"))) if isinstance(field, Mapping) else None
        value = literal.get("$literal") if isinstance(literal, Mapping) else None
        if column in ("c.step", "c.rollout_n") and type(value) is int:
            condition = condition & Where(f"{column} = ?", (value,))
        if column in ("c.id", "c.trace", "c.parent", "c.op") and isinstance(value, str):
            condition = condition & Where(f"{column} = ?", (value,))
    return condition


# --- conditions on the calls themselves ----------------------------------------------------------


def matches(expression: Any, row: Mapping[str, Any]) -> bool:
    """Return whether a row meets an expression; raises :class:`QueryError`."""
    return bool(_value(expression, row))


def _value(node: Any, row: Mapping[str, Any]) -> Any:
    if not isinstance(node, Mapping) or len(node) != 1:
        raise QueryError("an operation is an object with one key")
    ((name, operands),) = node.items()
    if name == "$literal":
        return operands
    if name == "$getField":
        return field_of(row, str(operands))
    if name == "$convert":
        return _converted(_value(operands["input"], row), str(operands["to"]))
    if name == "$contains":
        return _contains(operands, row)
    operation = _OPERATIONS.get(name)
    if operation is None:
        raise QueryError(f"{name} is not known here")
    return operation(operands, row)


def field_of(row: Mapping[str, Any], path: str) -> Any:
    """Return a field by its path, dots as nesting; ``None`` where there is none."""
    value: Any = row
    parts = path.split(".")
    for position, part in enumerate(parts):
        if isinstance(value, Mapping):
            rest = ".".join(parts[position:])
            if rest in value:
                return value[rest]
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _converted(value: Any, to: str) -> Any:
    try:
        if to == "exists":
            return value is not None
        if value is None:
            return None
        if to == "int":
            return int(float(value))
        if to == "double":
            return float(value)
        if to == "string":
            return str(value).lower() if isinstance(value, bool) else str(value)
        if to == "bool":
            return value in (True, 1, "1", "true", "True")
    except (TypeError, ValueError, OverflowError):
        return None
    raise QueryError(f"$convert to {to!r} is not known here")


def _contains(spec: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    text, part = _value(spec["input"], row), _value(spec["substr"], row)
    if text is None or part is None:
        return False
    text, part = str(text), str(part)
    if spec.get("case_insensitive"):
        text, part = text.lower(), part.lower()
    return part in text


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Return two values so that they can be compared: a number and its text are the same."""
    if isinstance(a, str) and isinstance(b, (int, float)):
        b = str(b).lower() if isinstance(b, bool) else str(b)
    elif isinstance(b, str) and isinstance(a, (int, float)):
        a = str(a).lower() if isinstance(a, bool) else str(a)
    return a, b


def _compared(test: Callable[[Any, Any], bool]) -> Callable[[Any, Mapping[str, Any]], bool]:
    def compare(operands: Sequence[Any], row: Mapping[str, Any]) -> bool:
        a, b = _alike(_value(operands[0], row), _value(operands[1], row))
        if a is None or b is None:
            return False
        try:
            return test(a, b)
        except TypeError:
            return False

    return compare


def _equal(operands: Sequence[Any], row: Mapping[str, Any]) -> bool:
    a, b = _alike(_value(operands[0], row), _value(operands[1], row))
    return bool(a == b)


def _in(operands: Sequence[Any], row: Mapping[str, Any]) -> bool:
    value = _value(operands[0], row)
    pairs = (_alike(value, _value(one, row)) for one in operands[1])
    return any(a == b for a, b in pairs)


_OPERATIONS: Final[dict[str, Callable[[Any, Mapping[str, Any]], bool]]] = {
    "$and": lambda operands, row: all(matches(one, row) for one in operands),
    "$or": lambda operands, row: any(matches(one, row) for one in operands),
    "$not": lambda operands, row: not matches(operands[0], row),
    "$eq": _equal,
    "$gt": _compared(lambda a, b: a > b),
    "$gte": _compared(lambda a, b: a >= b),
    "$lt": _compared(lambda a, b: a < b),
    "$lte": _compared(lambda a, b: a <= b),
    "$in": _in,
}


# --- order ---------------------------------------------------------------------------------------


def indexed_order(sort_by: Sequence[Mapping[str, Any]]) -> str | None:
    """Return an ORDER BY, or ``None`` where the index does not know a field."""
    parts = []
    for one in sort_by or ({"field": "started_at", "direction": "asc"},):
        column = INDEXED.get(str(one.get("field")))
        if column is None:
            return None
        parts.append(f"{column} {'DESC' if one.get('direction') == 'desc' else 'ASC'}")
    return ", ".join([*parts, "c.number"])


def in_order(
    rows: Iterable[Mapping[str, Any]], sort_by: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return rows in order; those without a field come last."""
    result = list(rows)
    for one in reversed(sort_by):
        path, descending = str(one.get("field")), one.get("direction") == "desc"

        def order(a: Any, b: Any, path: str = path, descending: bool = descending) -> int:
            x, y = _alike(field_of(a, path), field_of(b, path))
            if x is None or y is None:
                return (x is None) - (y is None)
            try:
                sign = int(x > y) - int(x < y)
            except TypeError:
                sign = (str(x) > str(y)) - (str(x) < str(y))
            return -sign if descending else sign

        result.sort(key=cmp_to_key(order))
    return result

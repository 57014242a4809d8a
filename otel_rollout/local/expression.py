"""Filter expressions of the viewer: ``step==3 and reward<0.1 and tool.error``, as SQL.

The text is parsed as a Python expression and never evaluated: only comparisons of known fields
with constants, ``and``, ``or``, ``not`` and ``in`` have a meaning; everything else is refused with
a message for people. Values reach the database as parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

MAX_LENGTH: Final = 2000


class FilterError(ValueError):
    """What is wrong with an expression, in words for whoever typed it."""


@dataclass(frozen=True)
class Where:
    """A condition in SQL and its parameters."""

    sql: str = "1"
    values: tuple[Any, ...] = ()

    def __and__(self, other: Where) -> Where:
        if "1" in (self.sql, other.sql):
            return other if self.sql == "1" else self
        return Where(f"({self.sql}) AND ({other.sql})", (*self.values, *other.values))


@dataclass(frozen=True)
class Field:
    """A field of trajectories: its SQL, what it is when it stands alone, and what it means."""

    sql: str
    meaning: str
    alone: str | None = None
    """Condition where the field stands alone; ``None``: it cannot."""
    listed: bool = False
    """Whether it is a list of names, of which ``==`` finds one."""


def _number(sql: str, meaning: str) -> Field:
    return Field(sql, meaning)


FIELDS: Final[dict[str, Field]] = {
    "step": _number("step", "training step"),
    "sample": Field("sample_index", "index of the prompt in the data; also sample_index"),
    "n": _number("rollout_n", "number among the rollouts of its prompt; also rollout_n"),
    "validate": Field("validate", "of a validation", "validate = 1"),
    "reward": _number("reward", "reward, with later corrections"),
    "advantage": _number("advantage", "reward normalized over the group, as GRPO does"),
    "group.spread": _number("spread", "highest less lowest reward of the group"),
    "turns": _number("turns", "generations"),
    "tokens": _number("tokens", "longest context: prompt and response"),
    "prompt_tokens": _number("prompt_tokens", "tokens of the first prompt"),
    "response_tokens": _number("response_tokens", "tokens that were generated"),
    "tools": _number("tools", "tool calls"),
    "tool.name": Field("tool_names", 'a tool that was called: tool.name == "search"', None, True),
    "tool.error": Field(
        "CASE WHEN tool_errors > 0 THEN error END", "a tool call failed", "tool_errors > 0"
    ),
    "tool.errors": _number("tool_errors", "failed tool calls"),
    "error": Field("error", 'something failed; error == "TimeoutError"', "errors > 0"),
    "errors": _number("errors", "calls that failed"),
    "seconds": _number("duration", "how long it took"),
    "calls": _number("calls", "calls that are stored"),
    "processes": _number("processes", "processes that took part"),
    "weights": _number("weight_version", "version of the weights"),
    "running": Field("done = 0", "has not ended", "done = 0"),
    "agent": Field("agent", "name of the agent"),
    "group": Field("grp", "name of the group, as in its address"),
    "experiment": Field("experiment", "name of the experiment"),
    "project": Field("project", "name of the project"),
    "trace": Field("trace", "trace id"),
}
_ALIASES: Final = {
    "sample_index": "sample",
    "rollout_n": "n",
    "duration": "seconds",
    "group_id": "group",
    "weight_version": "weights",
    "tool": "tool.name",
}
_COMPARE: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "=",
    ast.NotEq: "<>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def where(text: str) -> Where:
    """Return the condition that an expression means; raises :class:`FilterError`."""
    text = text.strip()
    if not text:
        return Where()
    if len(text) > MAX_LENGTH:
        raise FilterError(f"longer than {MAX_LENGTH} characters")
    if "\0" in text:
        raise FilterError("there is a NUL character in it")
    try:
        tree = ast.parse(text, mode="eval")
        translated = _Translation()
        return Where(translated.condition(tree.body), tuple(translated.values))
    except SyntaxError as error:
        at = f" at character {error.offset}" if error.offset else ""
        raise FilterError(f"this cannot be read{at}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise FilterError("too deeply nested") from None


@dataclass
class _Translation:
    values: list[Any] = field(default_factory=list)

    def condition(self, node: ast.expr) -> str:
        if isinstance(node, ast.BoolOp):
            word = " AND " if isinstance(node.op, ast.And) else " OR "
            return "(" + word.join(self.condition(one) for one in node.values) + ")"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"(NOT coalesce({self.condition(node.operand)}, 0))"
        if isinstance(node, ast.Compare):
            return "(" + " AND ".join(self._comparisons(node)) + ")"
        if isinstance(node, (ast.Name, ast.Attribute)):
            known = _field(node)
            if known.alone is None:
                raise FilterError(f"{_dotted(node)} needs a comparison, such as == or <")
            return f"({known.alone})"
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return str(int(node.value))
        raise FilterError(f"what is {_source(node)!r}? Compare a field with a value")

    def _comparisons(self, node: ast.Compare) -> Iterator[str]:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            yield self._comparison(left, operator, right)
            left = right

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str:
        if isinstance(operator, (ast.In, ast.NotIn)):
            inside = self._inside(left, right)
            return f"NOT coalesce({inside}, 0)" if isinstance(operator, ast.NotIn) else inside
        if isinstance(operator, (ast.Is, ast.IsNot)):
            operator = ast.Eq() if isinstance(operator, ast.Is) else ast.NotEq()
        sign = _COMPARE[type(operator)]
        if isinstance(right, (ast.Name, ast.Attribute)) and not isinstance(
            left, (ast.Name, ast.Attribute)
        ):
            left, right, sign = right, left, _MIRRORED[sign]
        known = _field(left)
        if isinstance(right, (ast.Name, ast.Attribute)):
            return f"{known.sql} {sign} {_field(right).sql}"
        value = _constant(right)
        if known.listed:
            return self._listed(known, sign, value)
        if isinstance(value, bool) and known.alone is not None and sign in ("=", "<>"):
            wanted = value if sign == "=" else not value
            return f"coalesce({known.alone}, 0) = {int(wanted)}"
        if value is None:
            if sign not in ("=", "<>"):
                raise FilterError("None can only be compared by == and !=")
            return f"{known.sql} IS {'NOT ' if sign == '<>' else ''}NULL"
        return f"{known.sql} {sign} {self._parameter(value)}"

    def _inside(self, left: ast.expr, right: ast.expr) -> str:
        if isinstance(right, (ast.Name, ast.Attribute)):
            known = _field(right)
            value = _constant(left)
            if known.listed:
                return self._listed(known, "=", value)
            return f"instr({known.sql}, {self._parameter(str(value))}) > 0"
        if not isinstance(right, (ast.List, ast.Tuple, ast.Set)):
            raise FilterError("after `in` comes a list such as (1, 2, 3), or a field of text")
        known = _field(left)
        values = [_constant(one) for one in right.elts]
        if known.listed:
            return "(" + " OR ".join(self._listed(known, "=", v) for v in values) + ")"
        return f"{known.sql} IN ({', '.join(map(self._parameter, values))})"

    def _listed(self, known: Field, sign: str, value: Any) -> str:
        if sign not in ("=", "<>") or not isinstance(value, str):
            raise FilterError('compare it with a name in quotes by == or !=, such as "search"')
        found = f"instr({known.sql}, {self._parameter(f',{value},')}) > 0"
        return found if sign == "=" else f"NOT coalesce({found}, 0)"

    def _parameter(self, value: Any) -> str:
        self.values.append(value)
        return "?"


def _field(node: ast.expr) -> Field:
    name = _dotted(node)
    known = FIELDS.get(_ALIASES.get(name, name))
    if known is None:
        raise FilterError(f"there is no field {name!r}; known are {', '.join(FIELDS)}")
    return known


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    raise FilterError(f"{_source(node)!r} is no field")


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _constant(node.operand)
        if isinstance(value, (int, float)):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, type(None))):
        if isinstance(node.value, int) and not -(2**63) <= node.value < 2**63:
            return float(node.value)
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    raise FilterError(f"{_source(node)!r} is no value; text stands in quotes")


_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
_source: Callable[[ast.AST], str] = ast.unparse

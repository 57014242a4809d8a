"""Tail rules: which trajectories are kept for what became of them, whatever head sampling said.

A setting such as ``error,reward<0.1,turns>8,group`` or a function of the user's is parsed into
:class:`Rules`; :class:`TrajectoryFacts` is what they are asked about. The words mean what they
mean in the viewer's filters.
"""

from __future__ import annotations

import importlib
import math
import operator
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.identity import AttributeValue
from otel_rollout.settings import ALLOWED_RULES

ERROR: Final = "error"
GROUP: Final = "group"
FIELDS: Final = ("reward", "turns", "tokens", "duration")

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPARISON: Final = re.compile(r"(\w+)\s*(<=|>=|==|!=|<|>|=)\s*(\S.*)?\Z")
_FUNCTION: Final = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)\Z")


class RuleError(ValueError):
    """What is wrong with a setting of rules, and where in it."""


@dataclass(frozen=True, slots=True)
class TrajectoryFacts:
    """What rules and callbacks know of a trajectory when its root has ended.

    Only spans of this process count, as for all that is held here.
    """

    error: bool
    """Whether any of its spans ended with status ERROR, a failed tool among them."""
    reward: float | None
    """The trajectory's own reward; ``None`` where none was recorded before its end."""
    turns: int
    """Generations."""
    tokens: int
    """Longest context of a generation: prompt and response."""
    duration: float
    """Seconds from the root's start to its end."""
    identity: Mapping[str, AttributeValue] = field(default_factory=dict)
    """``rollout.step``, ``rollout.sample_index`` and whatever else was given, by full names."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the root span."""


Callback = Callable[[TrajectoryFacts], bool]


class Rule(Protocol):
    """One rule; ``text`` is what stands on the root of a trajectory that it kept."""

    @property
    def text(self) -> str:
        """The rule as it was given."""

    def matches(self, facts: TrajectoryFacts) -> bool:
        """Return whether the trajectory is to be kept; never raises."""


@dataclass(frozen=True, slots=True)
class AnyError:
    """``error``: something in the trajectory failed."""

    text: str = ERROR

    def matches(self, facts: TrajectoryFacts) -> bool:
        """Return whether any span failed."""
        return facts.error


@dataclass(frozen=True, slots=True)
class Comparison:
    """A number compared with a constant; where there is no number, it does not match."""

    text: str
    name: str
    symbol: str
    limit: float

    def matches(self, facts: TrajectoryFacts) -> bool:
        """Return whether the trajectory has the number, and it compares."""
        value = getattr(facts, self.name)
        return value is not None and _OPERATORS[self.symbol](value, self.limit)


class UsersFunction:
    """A function of the user's. What it raises is said once and keeps the trajectory.

    One that is named is imported when it is first needed: at start-up the script's own folder is
    not on the path yet. If it cannot be imported, that is said and the other rules go on.
    """

    def __init__(self, text: str, function: Callback | None = None) -> None:
        self.text = text
        self._function = function
        self._unusable = False

    def matches(self, facts: TrajectoryFacts) -> bool:
        """Return what the function says."""
        function = self._function or self._imported()
        if function is None:
            return False
        try:
            return bool(function(facts))
        except Exception as error:  # it may have meant this one
            report_internal_error(f"OTEL_ROLLOUT_KEEP, {self.text}", error)
            return True

    def _imported(self) -> Callback | None:
        if self._unusable:
            return None
        module, _, path = self.text.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            if not callable(found):
                raise TypeError("it is not callable")
        except Exception as error:
            self._unusable = True
            say_once(
                f"keep:{self.text}",
                "OTEL_ROLLOUT_KEEP: %s cannot be used (%s: %s); going on without this rule",
                self.text,
                type(error).__name__,
                error,
            )
            return None
        self._function = found
        return self._function


@dataclass(frozen=True, slots=True)
class Rules:
    """What keeps a trajectory; the first rule that matches."""

    rules: Sequence[Rule]
    group: bool = False
    """Whether the others of its group are kept with it."""

    @property
    def text(self) -> str:
        """The rules as they were given."""
        return ",".join([rule.text for rule in self.rules] + [GROUP] * self.group)

    @property
    def keep_deaths(self) -> bool:
        """Whether a trajectory whose root never ends is kept: its process died."""
        return any(isinstance(rule, AnyError) for rule in self.rules)

    def match(self, facts: TrajectoryFacts) -> str | None:
        """Return the text of the rule that keeps a trajectory, ``None`` where none does."""
        for rule in self.rules:
            if rule.matches(facts):
                return rule.text
        return None


def parse(text: str) -> Rules:
    """Return the rules of a setting; raises :class:`RuleError` that names the spot."""
    rules: list[Rule] = []
    group = False
    at = 0
    for piece in text.split(","):
        stripped = piece.strip()
        place = at + len(piece) - len(piece.lstrip()) + 1
        at += len(piece) + 1
        if stripped == GROUP:
            group = True
        elif stripped:
            rules.append(_rule(stripped, place))
    if not rules:
        raise RuleError("there is no rule that keeps anything" + (", only group" if group else ""))
    return Rules(tuple(rules), group)


def _rule(text: str, place: int) -> Rule:
    if text == ERROR:
        return AnyError()
    if _FUNCTION.match(text):
        return UsersFunction(text)

    def wrong(why: str) -> RuleError:
        return RuleError(f"{text!r} at character {place}: {why}")

    compared = _COMPARISON.match(text)
    name = compared[1] if compared is not None else text
    if name in (ERROR, GROUP):
        raise wrong(f"{name} stands alone")
    if name not in FIELDS:
        raise wrong(f"there is no {name!r}")
    if compared is None or not compared[3]:
        raise wrong(f"{name} is compared with a number, such as {name}>1")
    if compared[2] == "=":
        raise wrong("equality is ==")
    try:
        limit = float(compared[3])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise wrong(f"{compared[3]!r} is no number")
    return Comparison(text, name, compared[2], limit)


def rules_of(keep: str | Callback | None) -> Rules | None:
    """Return the rules of a setting or function; what cannot be used is said, and is no rule."""
    given: Any = keep
    if not (given is None or isinstance(given, str) or callable(given)):
        say_once("keep", "keep=%r is neither rules nor a function; going on without", keep)
        return None
    if keep is None or (isinstance(keep, str) and not keep.strip()):
        return None
    if isinstance(keep, str):
        try:
            return parse(keep)
        except RuleError as error:
            say_once(
                "keep",
                "keep=%r is not usable (%s): allowed is %s; going on without tail rules",
                keep,
                error,
                ALLOWED_RULES.replace("`", ""),
            )
            return None
    name = getattr(keep, "__qualname__", type(keep).__qualname__)
    return Rules((UsersFunction(f"{getattr(keep, '__module__', '')}:{name}", keep),))


# --- whether this process has rules --------------------------------------------------------------

_users: weakref.WeakSet[Any] = weakref.WeakSet()


def use(user: object) -> None:
    """Say that ``user`` holds trajectories until rules have decided, for as long as it lives."""
    _users.add(user)


def use_no_longer(user: object) -> None:
    """Take :func:`use` back."""
    _users.discard(user)


def in_use() -> bool:
    """Return whether an unsampled trajectory is to be held here instead of left unrecorded."""
    return bool(_users)

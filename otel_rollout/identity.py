"""What makes a trajectory itself: its values, as baggage between processes and as attributes.

Baggage crosses as text. A number or boolean is written as its JSON form, text as it stands; text
that would read as something else (``"7"``, ``" x"``) is written as a JSON string. So every value
has its own type again on the other side, and other readers of the baggage see plain values.
"""

from __future__ import annotations

import enum
import json
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus

from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otel_rollout import contexts, semconv
from otel_rollout.diagnostics import say_once
from otel_rollout.forking import in_child

AttributeValue = bool | int | float | str

MAX_VALUE_BYTES: Final = 512
"""Longest value in its percent-encoded form; carriers drop a whole baggage above 8192 bytes."""
MAX_TOTAL_BYTES: Final = 6144
_CACHE_SIZE: Final = 4096
INT64: Final = range(-(2**63), 2**63)
"""The ints that an attribute can hold."""
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_MAY_BE_JSON: Final = frozenset('"-0123456789tfNI')


@dataclass(frozen=True, slots=True)
class Identity:
    """The values of a trajectory and whether it is traced.

    ``attributes`` are span attributes with full names (``rollout.step`` …, and ``rollout.sampled``
    among them); the mapping is shared by all spans of the trajectory and must not be changed.
    ``held``: not sampled, yet recorded in this process until its tail rules have decided; other
    processes know nothing of it and follow ``sampled``.
    """

    attributes: Mapping[str, AttributeValue]
    sampled: bool = True
    held: bool = False

    @staticmethod
    def of(
        attributes: Mapping[str, AttributeValue], sampled: bool, *, held: bool = False
    ) -> Identity:
        """Return the identity of these values (full names)."""
        # First, so that it is the last thing to be lost where a carrier cuts the baggage.
        given = {key: value for key, value in attributes.items() if key != semconv.SAMPLED}
        return Identity({semconv.SAMPLED: sampled, **given}, sampled, held)

    def get(self, name: str) -> AttributeValue | None:
        """Return one value by its full name, or ``None``."""
        return self.attributes.get(name)


def clean_text(text: str) -> str:
    """Return ``text`` without lone surrogates: they become visible escapes (``\\ud800``)."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def plain(value: Any) -> AttributeValue | None:
    """Return ``value`` as bool, int, float or str; ``None`` only for ``None``. Never raises.

    Array scalars (numpy, torch, zero-dimensional) become Python's own numbers; an int beyond 64
    bits, which no OTLP attribute can hold, and anything else (a UUID, say) becomes its text.
    """
    try:
        return _plain(value)
    except Exception as error:
        return f"<{type(value).__name__}: cannot be shown ({type(error).__name__})>"


def _plain(value: Any) -> AttributeValue | None:
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value  # type: ignore[no-any-return]
    if kind is str:
        return clean_text(value)
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if not isinstance(value, (bool, numbers.Number, str)) and hasattr(value, "item"):
        try:
            return _plain(value.item())
        except Exception:
            return clean_text(str(value))
    if isinstance(value, numbers.Integral):
        number = int(value)
        return number if number in INT64 else _digits(number)
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return clean_text(str(value))
    return clean_text(str(value))


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # Python's limit of digits
        return hex(number)


def encode(value: AttributeValue) -> str:
    """Return the text that stands for ``value`` in the baggage."""
    if isinstance(value, str):
        if not value or value != value.strip() or decode(value) != value:
            return json.dumps(value, ensure_ascii=False)
        return value
    return json.dumps(value)


def decode(text: str) -> AttributeValue:
    """Return the value that ``text`` stands for; inverse of :func:`encode`."""
    if text[:1] not in _MAY_BE_JSON:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if type(value) is int and value not in INT64:
        return text
    return value if type(value) in (bool, int, float, str) else text


def _fitting(name: str, value: AttributeValue) -> AttributeValue:
    """Shorten a value that no carrier would take: its start, an ellipsis and a hash of it all."""
    if not isinstance(value, str) or len(value) <= MAX_VALUE_BYTES // 12:
        return value
    if len(quote_plus(encode(value))) <= MAX_VALUE_BYTES:
        return value
    import hashlib  # loads OpenSSL, which the start of a process need not wait for

    digest = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
    length = MAX_VALUE_BYTES // 2
    while len(quote_plus(encode(short := f"{value[:length]}…{digest}"))) > MAX_VALUE_BYTES:
        length = length * 3 // 4
    say_once(
        f"long:{name}",
        "%s of a trajectory is longer than fits a baggage entry (%d bytes); it is shortened to its "
        "start and a hash: %r",
        name,
        MAX_VALUE_BYTES,
        short,
    )
    return short


def attributes_of(values: Mapping[str, Any]) -> dict[str, AttributeValue]:
    """Return the span attributes for values given by a user: short names in, full names out.

    ``None`` leaves a key out; a name that no baggage key can have and what exceeds the size of a
    baggage is left out and said once.
    """
    result: dict[str, AttributeValue] = {}
    for name, raw in values.items():
        key = semconv.PREFIX + name
        if raw is None:
            continue
        if not _KEY.match(name) or key == semconv.SAMPLED:
            say_once(
                f"key:{name}",
                "trajectory(%s=…): this name cannot be used; allowed are ASCII letters, digits and "
                "'_.-', and not 'sampled'",
                name,
            )
            continue
        value = plain(raw)
        if value is not None:
            result[key] = _fitting(key, value)
    return _within_total(result)


def inside(
    outer: Mapping[str, AttributeValue], inner: Mapping[str, AttributeValue]
) -> dict[str, AttributeValue]:
    """Return the attributes of a trajectory inside another: the inner one's values win."""
    return _within_total({**inner, **{k: v for k, v in outer.items() if k not in inner}})


def _within_total(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    result: dict[str, AttributeValue] = {}
    total = 0
    for key, value in attributes.items():
        size = len(key) + len(quote_plus(encode(value))) + 2
        if total + size > MAX_TOTAL_BYTES:
            say_once(
                "baggage:total",
                "the values of a trajectory exceed %d bytes together; %s and what follows it are "
                "left out",
                MAX_TOTAL_BYTES,
                key,
            )
            break
        total += size
        result[key] = value
    return result


def into_context(identity: Identity, context: Context) -> Context:
    """Return ``context`` with the identity as its baggage; other baggage stays."""
    entries = {
        key: value
        for key, value in baggage.get_all(context).items()
        if not key.startswith(semconv.PREFIX)
    }
    for name, own in identity.attributes.items():
        entries[name] = encode(own)
    changed = {**context, contexts.BAGGAGE: entries}
    if identity.held or context.get(_held_key) is not None:
        changed[_held_key] = identity if identity.held else None
    made = contexts.Known(changed)
    if not identity.held:  # which a child process does not take over
        setattr(made, contexts.IDENTITY, identity)
    return made


_held_key = otel_context.create_key("otel-rollout-held")
"""Where a context has the identity of a held trajectory; never carried to another process."""

_cache: dict[tuple[tuple[str, str], ...], Identity] = {}


def from_context(context: Context | None = None) -> Identity | None:
    """Return the identity that ``context`` (default: the current one) carries, if any.

    Parsed once for each trajectory and process, then found again by its text; and once for each
    context, which never changes: a span's start asks about one several times.
    """
    if context is None:
        context = otel_context.get_current()
    known = getattr(context, contexts.IDENTITY, contexts.UNKNOWN)
    if known is contexts.UNKNOWN:
        known = _of_baggage(baggage.get_all(context))
        setattr(context, contexts.IDENTITY, known)
    if known is not None and not known.sampled:
        held = context.get(_held_key)
        if isinstance(held, Identity) and held.attributes == known.attributes:
            return held
    return known  # type: ignore[no-any-return]


def _begin_in_child() -> None:
    """What is held in the parent is not held here: its root will end there."""
    global _held_key
    _held_key = otel_context.create_key("otel-rollout-held")


in_child(_begin_in_child)


def _of_baggage(entries: Mapping[str, object]) -> Identity | None:
    if not entries or semconv.SAMPLED not in entries:
        return None
    key = tuple((k, str(text)) for k, text in entries.items() if k.startswith(semconv.PREFIX))
    identity = _cache.get(key)
    if identity is None:
        identity = _parse(dict(key))
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[key] = identity
    return identity


def _parse(entries: Mapping[str, str]) -> Identity:
    attributes = {name: decode(text) for name, text in entries.items()}
    return Identity.of(attributes, sampled=attributes.get(semconv.SAMPLED) is not False)

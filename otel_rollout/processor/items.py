"""What the worker's queue holds: ended spans as they came, with their payload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.identity import Identity
from otel_rollout.payload import Payload

FULL: Final = "full"
TEXT: Final = "text"
NONE: Final = "none"
LEVELS: Final = (FULL, TEXT, NONE)
"""What of the payload an exporter gets."""

_FIXED_SIZE: Final = 2048
_INT64: Final = range(-(2**63), 2**63)


@dataclass(slots=True)
class Item:
    """An ended span on its way through the worker."""

    span: ReadableSpan
    identity: Identity | None
    payload: Payload | None

    def size(self) -> int:
        """Return an estimate of the bytes that the item holds."""
        if self.payload is not None:
            return _FIXED_SIZE + self.payload.size()
        texts = (v for v in (self.span.attributes or {}).values() if isinstance(v, str))
        return _FIXED_SIZE + sum(map(len, texts))

    def compact(self) -> int:
        """Pack the token data, which is to wait; returns the bytes that the item holds then."""
        if self.payload is not None:
            self.payload.pack()
        return self.size()


@dataclass(frozen=True, slots=True)
class AttributeLimits:
    """How many attributes a span may have and how long a text may be; ``None``: any."""

    count: int | None = None
    length: int | None = None

    @staticmethod
    def of(limits: Any) -> AttributeLimits:
        """Return those of the SDK's ``SpanLimits``."""

        def first(*names: str) -> int | None:
            found = (getattr(limits, name, None) for name in names)
            return next((value for value in found if isinstance(value, int)), None)

        return AttributeLimits(
            first("max_span_attributes", "max_attributes"),
            first("max_span_attribute_length", "max_attribute_length"),
        )

    def plain(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return attributes that :meth:`applied` would return as they are, without its cost.

        ``None`` where any of them has to be looked at, or where there are limits to look after.
        """
        if self.length is not None or (self.count is not None and len(attributes) > self.count):
            return None
        result: dict[str, Any] = {}
        for key, value in attributes.items():
            kind = type(value)
            if kind is list or kind is tuple:
                value = tuple(value)
                if not all(type(one) is str and one.isascii() for one in value):
                    return None
            elif kind is str:
                if not value.isascii():
                    return None
            elif kind is int:
                if value not in _INT64:
                    return None
            elif kind is not float and kind is not bool:
                return None
            if type(key) is not str or not key or not key.isascii():
                return None
            result[key] = value
        return result

    def applied(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes as the SDK would take them: only of types that it knows, and cut."""
        return dict(
            BoundedAttributes(self.count, attributes, immutable=False, max_value_len=self.length)
        )

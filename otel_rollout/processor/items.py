"""What the worker's queue holds: ended spans as they came, with their payload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan

from otel_rollout.identity import INT64, Identity
from otel_rollout.payload import Payload

FULL: Final = "full"
TEXT: Final = "text"
NONE: Final = "none"
LEVELS: Final = (FULL, TEXT, NONE)
"""What of the payload an exporter gets."""

_FIXED_SIZE: Final = 2048


def is_encodable(value: Any) -> bool:
    """Return whether every exporter can encode a value as it is; False for one to be looked at."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is int:
        return value in INT64
    return kind is bool or kind is float or kind is bytes or value is None


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
                as_it_is = all(type(one) is str and is_encodable(one) for one in value)
            else:  # the SDK decodes bytes, and leaves out what is None
                as_it_is = is_encodable(value) and kind is not bytes and value is not None
            if not (as_it_is and key and type(key) is str and is_encodable(key)):
                return None
            result[key] = value
        return result

    def applied(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes as the SDK would take them: only of types that it knows, and cut."""
        return dict(
            BoundedAttributes(self.count, attributes, immutable=False, max_value_len=self.length)
        )

"""New contexts in one step: each of OTel's own functions copies the whole context once.

A generation needs its span, a mark and a baggage entry in the context of what it calls, which are
three copies of everything in it. The keys are OTel's, learnt by asking it. What was found out of a
context is noted on it, and is known of the ones that are made from it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import baggage, trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span

from otel_rollout import semconv

_SPAN: Final = next(iter(trace.set_span_in_context(INVALID_SPAN, Context())))
BAGGAGE: Final = next(iter(baggage.set_baggage("key", "value", Context())))
IDENTITY: Final = "_otel_rollout_identity"
"""Attribute of a context: whose its baggage says that it is. A context never changes."""


class Known(Context):
    """A context of ours. Only what it has room for beside its values is noted without a dict."""

    __slots__ = (IDENTITY,)


UNKNOWN: Final[Any] = object()
_NOTHING: Final[Mapping[str, object]] = {}


def within(
    context: Context,
    span: Span,
    values: Mapping[str, object] = _NOTHING,
    entries: Mapping[str, object] = _NOTHING,
) -> Context:
    """Return ``context`` with ``span`` as the current one, more values and more baggage entries."""
    changed = {**context, _SPAN: span, **values}
    if entries:
        changed[BAGGAGE] = {**baggage.get_all(context), **entries}
    made = Known(changed)
    known = getattr(context, IDENTITY, UNKNOWN)
    if known is not UNKNOWN and not any(key.startswith(semconv.PREFIX) for key in entries):
        setattr(made, IDENTITY, known)
    return made

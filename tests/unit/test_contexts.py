"""A context made in one step equals one made by OTel's own functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otel_rollout import contexts
from otel_rollout.recording import unsampled_span

_texts = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.text("xyz", max_size=3))


@given(_texts, _texts, st.dictionaries(st.text("k", min_size=1), st.integers()))
def test_it_is_the_same(
    before: dict[str, str], entries: dict[str, str], values: dict[str, int]
) -> None:
    context = Context()
    for key, text in before.items():
        context = baggage.set_baggage(key, text, context)
    outer = dict(context)
    span = unsampled_span(1, 2)
    expected = trace.set_span_in_context(span, context)
    for name, value in values.items():
        expected = otel_context.set_value(name, value, expected)
    for key, text in entries.items():
        expected = baggage.set_baggage(key, text, expected)
    made = contexts.within(context, span, values, entries)
    assert made == expected
    assert type(made) is type(expected)
    assert baggage.get_all(made) == {**before, **entries}
    carriers: list[dict[str, str]] = [{}, {}]
    for carrier, one in zip(carriers, (made, expected), strict=True):
        propagate.inject(carrier, context=one)
    assert carriers[0] == carriers[1]
    assert dict(context) == outer

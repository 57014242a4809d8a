"""A context made in one step equals one made by OTel's own functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otel_rollout import contexts, semconv
from otel_rollout import identity as identities
from otel_rollout.identity import Identity
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
    assert isinstance(made, Context)
    assert baggage.get_all(made) == {**before, **entries}
    carriers: list[dict[str, str]] = [{}, {}]
    for carrier, one in zip(carriers, (made, expected), strict=True):
        propagate.inject(carrier, context=one)
    assert carriers[0] == carriers[1]
    assert dict(context) == outer


def test_whose_it_is_is_read_once_and_known_of_what_is_made_from_it() -> None:
    identity = Identity.of({semconv.STEP: 3}, True)
    context = identities.into_context(identity, Context())
    assert identities.from_context(context) is identity
    inner = contexts.within(context, unsampled_span(1, 2), {"k": 1}, {"else": "1"})
    assert identities.from_context(inner) is identity


def test_other_baggage_of_ours_makes_it_another_ones() -> None:
    context = identities.into_context(Identity.of({semconv.STEP: 3}, True), Context())
    inner = contexts.within(context, unsampled_span(1, 2), entries={semconv.STEP: "4"})
    found = identities.from_context(inner)
    assert found is not None
    assert found.get(semconv.STEP) == 4


def test_what_is_held_is_not_noted() -> None:
    """A forked child takes over every note, and holds nothing."""
    held = Identity.of({semconv.STEP: 3}, False, held=True)
    context = identities.into_context(held, Context())
    assert not hasattr(context, contexts.IDENTITY)
    assert identities.from_context(context) == held

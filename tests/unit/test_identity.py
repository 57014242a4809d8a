"""A trajectory's values: what they become, and that they cross processes as they are."""

from __future__ import annotations

import decimal
import enum
import fractions
import logging
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from otel_rollout import identity, semconv
from otel_rollout.identity import Identity, attributes_of, plain

INT64 = st.integers(-(2**63), 2**63 - 1)
ANY_TEXT = st.text(st.characters(), max_size=60)  # lone surrogates too
TRICKY = st.sampled_from(
    [
        *("7", "-0", "1e999", "true", "false", "null", "NaN", "Infinity", "-Infinity", "9" * 400),
        *('"', '"x"', "'", "", " ", " x", "x ", "\t", "\n", "\x00", "\x1f", "\u2028", "\u00a0x"),
        *(
            "a,b;c=d",
            "100 %",
            "%41",
            "+",
            "🙂",
            "\ud800",
            "{}",
            "[1]",
            "1_0",
            "\\u0041",
            "t",
            '"\\',
        ),
    ]
)
VALUES = st.one_of(st.booleans(), INT64, st.floats(), ANY_TEXT, TRICKY)


def crossed(attributes: dict[str, Any], sampled: bool = True) -> Identity:
    """The identity on the other side of a W3C baggage header."""
    carrier: dict[str, str] = {}
    sent = identity.into_context(Identity.of(attributes, sampled), Context())
    W3CBaggagePropagator().inject(carrier, context=sent)
    received = identity.from_context(W3CBaggagePropagator().extract(carrier, context=Context()))
    assert received is not None
    return received


def same(a: Any, b: Any) -> bool:
    """Equal, of one type, and NaN and -0.0 as they are."""
    return type(a) is type(b) and repr(a) == repr(b)


class Colour(enum.Enum):
    RED = "red"
    THREE = 3
    NOTHING = None


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")

    def __getattr__(self, name: str) -> Any:
        raise OSError(name)


class Shy:
    def __str__(self) -> str:
        raise RuntimeError("no")


class TestPlain:
    """Any value becomes a bool, int, float or text that says what it was."""

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (7, 7),
            (True, True),
            (0.5, 0.5),
            ("x", "x"),
            (np.int64(7), 7),
            (np.int32(-7), -7),
            (np.uint64(2**64 - 1), str(2**64 - 1)),
            (np.bool_(True), True),
            (np.float32(0.5), 0.5),
            (np.float64(0.25), 0.25),
            (np.str_("a"), "a"),
            (np.array(3), 3),
            (np.array([3]), 3),
            (2**70, str(2**70)),
            (-(2**63), -(2**63)),
            (2**63, str(2**63)),
            (uuid.UUID(int=5), str(uuid.UUID(int=5))),
            (Colour.RED, "red"),
            (Colour.THREE, 3),
            (Colour.NOTHING, None),
            (None, None),
            (decimal.Decimal("1.50"), "1.50"),
            (fractions.Fraction(1, 4), 0.25),
            (complex(1, 2), "(1+2j)"),
            ("\ud800x", "\\ud800x"),
            (b"x", "b'x'"),
        ],
    )
    def test_value(self, value: Any, expected: Any) -> None:
        result = plain(value)
        assert result == expected
        assert type(result) is type(expected)

    @pytest.mark.parametrize(
        "value",
        [Hostile(), Shy(), fractions.Fraction(10**400), 10**5000, np.array([1, 2])],
        ids=lambda value: type(value).__name__,
    )
    def test_never_raises(self, value: Any) -> None:
        assert isinstance(plain(value), str)


class TestCrossing:
    """Every value has its own type again in the next process."""

    @given(VALUES)
    def test_value_and_type_survive(self, value: Any) -> None:
        attributes = attributes_of({"x": value})
        assert same(crossed(attributes).get("rollout.x"), attributes["rollout.x"])

    @given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,10}", fullmatch=True), VALUES))
    def test_all_values_survive_together(self, values: dict[str, Any]) -> None:
        attributes = attributes_of(values)
        received = crossed(attributes)
        assert received.sampled is True
        assert received.attributes.keys() == {semconv.SAMPLED, *attributes}
        for key, value in attributes.items():
            assert same(received.get(key), value)

    @pytest.mark.parametrize("value", ["x" * 9999, "🙂" * 3000, '"' * 2000, "%" * 2000, "\0" * 999])
    def test_a_long_value_crosses_shortened(self, value: str) -> None:
        attributes = attributes_of({"x": value})
        short = crossed(attributes).get("rollout.x")
        assert isinstance(short, str)
        assert short == attributes["rollout.x"]
        start, _, digest = short.rpartition("…")
        assert value.startswith(start)
        assert len(start) > 20
        assert len(digest) == 16

    def test_long_values_that_differ_at_the_end_differ(self) -> None:
        one, two = (attributes_of({"x": "x" * 5000 + end})["rollout.x"] for end in "ab")
        assert one != two

    @pytest.mark.parametrize("sampled", [True, False])
    def test_the_decision_crosses(self, sampled: bool) -> None:
        assert crossed({"rollout.step": 1}, sampled).sampled is sampled

    def test_a_number_beyond_64_bits_from_elsewhere_stays_text(self) -> None:
        context = baggage.set_baggage(semconv.SAMPLED, "true", Context())
        context = baggage.set_baggage("rollout.x", str(2**70), context)
        received = identity.from_context(context)
        assert received is not None
        assert received.get("rollout.x") == str(2**70)

    def test_baggage_that_is_no_text_is_read(self) -> None:
        context = baggage.set_baggage(semconv.SAMPLED, True, Context())
        context = baggage.set_baggage("rollout.x", [1, 2], context)
        received = identity.from_context(context)
        assert received is not None
        assert received.get("rollout.x") == "[1, 2]"

    def test_without_a_decision_there_is_no_identity(self) -> None:
        assert identity.from_context(baggage.set_baggage("rollout.step", "1", Context())) is None

    def test_other_baggage_stays(self) -> None:
        context = baggage.set_baggage("mine", "1", Context())
        context = identity.into_context(Identity.of({"rollout.step": 1}, True), context)
        assert baggage.get_baggage("mine", context) == "1"

    def test_an_inner_identity_leaves_nothing_of_the_outer(self) -> None:
        context = identity.into_context(Identity.of({"rollout.a": 1}, True), Context())
        context = identity.into_context(Identity.of({"rollout.b": 1}, True), context)
        assert identity.from_context(context) == Identity.of({"rollout.b": 1}, True)


class TestWhatIsLeftOut:
    """What cannot travel is left out or shortened, and said once."""

    def test_none_leaves_the_key_out(self) -> None:
        assert attributes_of({"step": None, "x": Colour.NOTHING}) == {}

    @pytest.mark.parametrize("name", ["a b", "ä", "1a", "a=b", "a,b", "", "sampled", "a\n"])
    def test_a_name_that_no_baggage_key_can_have(
        self, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            assert attributes_of({name: 1, "step": 2}) == {"rollout.step": 2}
        assert len(caplog.records) == 1

    def test_shortening_is_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        for number in range(3):
            attributes_of({"x": f"{number}" * 9999})
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "rollout.x" in record.getMessage()

    def test_the_total_is_bounded(self, caplog: pytest.LogCaptureFixture) -> None:
        attributes = attributes_of({"step": 3} | {f"k{i}": "v" * 400 for i in range(100)})
        assert attributes["rollout.step"] == 3
        assert crossed(attributes).attributes.keys() == {semconv.SAMPLED, *attributes}
        assert len(caplog.records) == 1

    def test_a_nested_trajectorys_total_is_bounded(self) -> None:
        outer = attributes_of({f"outer{i}": "v" * 400 for i in range(100)})
        inner = attributes_of({f"inner{i}": "v" * 400 for i in range(10)})
        both = identity.inside(outer, inner)
        assert both.items() >= inner.items()
        assert crossed(both).attributes.keys() == {semconv.SAMPLED, *both}

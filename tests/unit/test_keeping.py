"""Tail rules: what they say, what a bad one is answered with, what they match."""

from __future__ import annotations

import contextlib
import logging
import math
import operator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.processor import keeping
from otel_rollout.processor.keeping import RuleError, TrajectoryFacts, parse, rules_of
from otel_rollout.settings import load

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
SYMBOLS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def facts(**known: object) -> TrajectoryFacts:
    values = {"error": False, "reward": None, "turns": 0, "tokens": 0, "duration": 0.0, **known}
    return TrajectoryFacts(**values)  # type: ignore[arg-type]


@given(st.sampled_from(keeping.FIELDS), st.sampled_from(list(SYMBOLS)), NUMBERS, NUMBERS)
def test_a_comparison_is_what_python_says(
    name: str, symbol: str, value: float, limit: float
) -> None:
    rules = parse(f"{name} {symbol} {limit!r}")

    kept = rules.match(facts(**{name: value}))

    assert (kept is not None) == SYMBOLS[symbol](value, limit)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_trajectory_without_a_reward_matches_no_reward(symbol: str) -> None:
    assert parse(f"reward{symbol}0").match(facts()) is None


@given(
    st.lists(
        st.one_of(
            st.just("error"),
            st.just("group"),
            st.builds(
                "{}{}{:g}".format,
                st.sampled_from(keeping.FIELDS),
                st.sampled_from(list(SYMBOLS)),
                st.floats(-1e6, 1e6),
            ),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_rules_read_back_as_they_were_given(pieces: list[str]) -> None:
    if set(pieces) == {"group"}:
        with pytest.raises(RuleError, match="only group"):
            parse(",".join(pieces))
        return
    rules = parse(" , ".join(pieces))

    assert [rule.text for rule in rules.rules] == [p for p in pieces if p != "group"]
    assert rules.group == ("group" in pieces)
    assert parse(rules.text).text == rules.text


@given(st.text(max_size=40))
def test_any_text_is_rules_or_one_clear_error(text: str) -> None:
    rules = None
    with contextlib.suppress(RuleError):
        rules = parse(text)

    assert rules is None or rules.rules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("error,rewrd<0.1", "'rewrd<0.1' at character 7: there is no 'rewrd'"),
        ("error,  turns", "'turns' at character 9: turns is compared with a number"),
        ("turns>", "compared with a number"),
        ("reward=1", "equality is =="),
        ("reward<low", "'low' is no number"),
        ("reward<nan", "'nan' is no number"),
        ("error>1", "error stands alone"),
        ("group", "only group"),
        (",", "no rule"),
    ],
)
def test_a_bad_rule_is_one_line_that_names_the_spot(
    text: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load({"OTEL_ROLLOUT_KEEP": text}).keep is None

    (line,) = caplog.messages
    assert "OTEL_ROLLOUT_KEEP" in line
    assert said in line
    assert "going on with the default (nothing)" in line


def test_a_bad_rule_in_python_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    assert rules_of("rewrd<0.1") is None
    assert "'rewrd<0.1' at character 1" in caplog.text


def test_the_first_rule_that_matches_is_named() -> None:
    rules = parse("error,reward<0.1,turns>8")

    assert rules.match(facts(error=True, reward=0.0)) == "error"
    assert rules.match(facts(reward=0.0, turns=9)) == "reward<0.1"
    assert rules.match(facts(reward=0.1, turns=8)) is None


class TestFunctions:
    """A function of the user's decides; what it raises keeps the trajectory."""

    def test_it_is_given_the_facts(self) -> None:
        rules = rules_of(lambda known: known.tokens > 5 and math.isclose(known.duration, 2))

        assert rules is not None
        assert rules.match(facts(tokens=6, duration=2.0))
        assert rules.match(facts(tokens=6)) is None

    def test_what_it_raises_is_said_once_and_keeps(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken(known: TrajectoryFacts) -> bool:
            raise ZeroDivisionError

        rules = rules_of(broken)

        assert rules is not None
        assert [bool(rules.match(facts())) for _ in range(3)] == [True] * 3
        assert len(caplog.records) == 1

    def test_one_that_is_named_is_imported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "my_rules.py").write_text("def long(facts): return facts.turns > 3\n")
        monkeypatch.syspath_prepend(tmp_path)
        rules = parse("error,my_rules:long")

        assert rules.match(facts(turns=4)) == "my_rules:long"
        assert rules.match(facts(turns=3)) is None

    def test_one_that_cannot_be_imported_is_no_rule(self, caplog: pytest.LogCaptureFixture) -> None:
        rules = parse("no_such_module:keep,error")

        assert rules.match(facts()) is None
        assert rules.match(facts(error=True)) == "error"
        (line,) = caplog.messages
        assert "no_such_module:keep cannot be used (ModuleNotFoundError" in line

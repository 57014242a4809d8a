"""The figures in the documentation are those that were measured."""

from __future__ import annotations

import json

import pytest

from benchmarks import report, rows
from benchmarks.rows import Row, Target, row

FOUND = rows.load()


def test_the_table_of_the_documentation_is_the_one_that_the_results_make() -> None:
    assert report.found_in(report.PAGE.read_text(), "results") == report.table(FOUND)


def test_the_readme_s_figures_are_those_of_the_results() -> None:
    assert report.found_in(report.README.read_text(), "figures") == report.paragraph(FOUND)


def test_a_row_says_whether_its_target_is_met() -> None:
    assert [one.met for one in FOUND if one.target] == [
        _target(one.target).is_met(one.ours, one.ratio) for one in FOUND if one.target
    ]


def _target(text: str) -> Target:
    """Read a target again from the words that it is shown in."""
    given = {}
    for part in text.split(", "):
        words = part.split()
        name = {
            ("≤", 2): "at_most",
            ("≥", 2): "at_least",
            ("≤", 5): "times_at_most",
            ("ratio", 3): "ratio_at_least",
        }[(words[0], len(words))]
        given[name] = float(words[2] if words[0] == "ratio" else words[1])
    return Target(**given)


class TestRows:
    """A row is the median of the repeats, held against its baseline and its target."""

    def test_a_cost(self) -> None:
        made = row("x", [3.0, 1.0, 2.0], [8.0], unit="ms", target=Target(at_most=2))
        assert (made.ours, made.min, made.max, made.baseline, made.ratio) == (2, 1, 3, 8, 4)
        assert made.met is True

    def test_a_throughput(self) -> None:
        target = Target(ratio_at_least=0.98)
        made = row("x", [97.0], [100.0], unit="1/s", target=target, higher_is_better=True)
        assert (made.ratio, made.met) == (0.97, False)

    def test_the_ratio_of_pairs(self) -> None:
        made = row(
            "x",
            [90.0, 60.0, 96.0],
            [100.0, 60.0, 96.0],
            unit="",
            higher_is_better=True,
            paired=True,
        )
        assert (made.ours, made.baseline, made.ratio) == (90, 96, 1)

    @pytest.mark.parametrize(("ours", "met"), [(12.0, True), (12.1, False)])
    def test_so_many_times_the_baseline(self, ours: float, met: bool) -> None:
        assert row("x", [ours], [10.0], unit="", target=Target(times_at_most=1.2)).met is met

    def test_rows_of_a_section_take_the_place_of_those_before(self) -> None:
        def made(name: str, section: str) -> Row:
            return Row(**{**vars_of(row(name, [1.0], unit="")), "section": section})

        before = [made("a", "one"), made("b", "two"), made("c", "three")]
        merged = rows.merge(before, [made("d", "two"), made("e", "two")])
        assert [one.name for one in merged] == ["a", "d", "e", "c"]


def vars_of(one: Row) -> dict[str, object]:
    import dataclasses

    return dataclasses.asdict(one)


def test_the_results_are_rows_with_the_fields_that_others_read() -> None:
    for one in json.loads(rows.RESULTS.read_text()):
        assert {"name", "ours", "baseline", "ratio", "unit", "python"} <= one.keys()

"""Filter expressions select what they say, and can do nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_rollout.local import expression, schema
from otel_rollout.local.expression import FIELDS, FilterError, where


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema.TABLES)
    rows = [
        ("good", 3, 1.0, 0, 0, None, ",search,", 0, 1),
        ("failed", 3, 0.0, 1, 1, "TimeoutError", ",search,calculator,", 0, 1),
        ("low", 4, 0.05, 0, 0, None, None, 1, 1),
        ("running", 4, None, 0, 1, "ValueError", None, 0, 0),
    ]
    connection.executemany(
        "INSERT INTO trajectories (trace, step, reward, tool_errors, errors, error, tool_names, "
        "validate, done, project, experiment) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'p', 'it''s')",
        rows,
    )
    yield connection
    connection.close()


def found(database: sqlite3.Connection, text: str) -> set[str]:
    condition = where(text)
    sql = f"SELECT trace FROM trajectories WHERE {condition.sql}"
    return {row[0] for row in database.execute(sql, condition.values)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "good failed low running"),
        ("step==3 and reward<0.1 and tool.error", "failed"),
        ("reward < 0.1", "failed low"),
        ("0.05 <= reward <= 1", "good low"),
        ("1 == reward", "good"),
        ("reward == None", "running"),
        ("reward is not None", "good failed low"),
        ("not tool.error", "good low running"),
        ("not reward < 0.1", "good running"),
        ("tool.error == 'TimeoutError'", "failed"),
        ("error", "failed running"),
        ("'Error' in error", "failed running"),
        ("tool.name == 'calculator'", "failed"),
        ("tool.name != 'calculator'", "good low running"),
        ("'search' in tool.name", "good failed"),
        ("tool.name == 'sea'", ""),
        ("step in (4, 5)", "low running"),
        ("step not in [4]", "good failed"),
        ("validate", "low"),
        ("validate == False", "good failed running"),
        ("running or validate", "low running"),
        ("(running or validate) and step==4 and not running", "low"),
        ('experiment == "it\'s"', "good failed low running"),
        ("errors > tool.errors", "running"),
        ("reward == -0.0 or reward > 1e308", "failed"),
        ("step == 99999999999999999999999999", ""),
        ("True", "good failed low running"),
    ],
)
def test_what_is_selected(database: sqlite3.Connection, text: str, expected: str) -> None:
    assert found(database, text) == set(expected.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stepp==3", "no field 'stepp'; known are step"),
        ("step=3", "cannot be read"),
        ("step==", "cannot be read"),
        ("step", "needs a comparison"),
        ("reward<'a'+'b'", "no value"),
        ("__import__('os').system('x')", "what is"),
        ("step.__class__ == 1", "no field 'step.__class__'"),
        ("(lambda: 1)() == 1", "is no field"),
        ("[x for x in (1,)] == 1", "is no field"),
        ("step == (1).real", "is no field"),
        ("tool.name > 'a'", "name in quotes"),
        ("reward < None", "only be compared"),
        ("step in step2", "no field 'step2'"),
        ("step in 3", "after `in`"),
        ("step == 1; drop table x", "cannot be read"),
        ("a\0b", "NUL"),
        ("(" * 500 + "step==1" + ")" * 500, ""),
        ("not " * 400 + "validate" + " or step==1" * 150, "longer"),
    ],
)
def test_what_is_refused_is_explained(text: str, said: str) -> None:
    with pytest.raises(FilterError) as refused:
        where(text)

    assert said in str(refused.value)


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(
            st.sampled_from(
                [*FIELDS, "and", "or", "not", "in", "==", "<", "(", ")", "'x'", "1", ",", "None"]
            ),
            max_size=12,
        ).map(" ".join),
    )
)
@example("step == '\"); DROP TABLE trajectories; --'")
@example("experiment == 'x' or '1'=='1'")
def test_no_text_breaks_or_changes_the_database(database: sqlite3.Connection, text: str) -> None:
    try:
        selected = found(database, text)
    except FilterError:
        return
    assert selected <= {"good", "failed", "low", "running"}
    assert database.total_changes == 4


def test_text_from_outside_is_never_part_of_the_sql() -> None:
    condition = where("experiment == 'needle' and 'needle' in error and tool.name == 'needle'")

    assert "needle" not in condition.sql
    assert condition.values == ("needle", "needle", ",needle,")


def test_every_field_is_a_column_or_made_of_columns(database: sqlite3.Connection) -> None:
    for name, one in expression.FIELDS.items():
        value = "'x'" if one.listed else "1"
        found(database, f"{name} == {value}")

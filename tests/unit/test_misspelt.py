"""A slip in a variable's name is found, and what others read is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import environment_variables as of_the_api
from opentelemetry.sdk import environment_variables as of_the_sdk

from otel_rollout import misspelt
from otel_rollout.settings import VARIABLES

OURS = [variable.name for variable in VARIABLES]
THEIRS = sorted(
    {
        value
        for module in (of_the_api, of_the_sdk)
        for name, value in vars(module).items()
        if name.startswith("OTEL_") and isinstance(value, str)
    }
)


def test_what_opentelemetry_and_we_read_is_no_slip() -> None:
    assert len(THEIRS) > 50
    assert misspelt.slips([*THEIRS, *OURS]) == []
    assert misspelt.unknown([*THEIRS, *OURS]) == []


@given(name=st.sampled_from([*OURS, "OTEL_TRACES_EXPORTER"]), data=st.data())
def test_a_letter_that_is_left_out_is_found(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    written = name[:at] + name[at + 1 :]
    found = [*misspelt.unknown([written]), *misspelt.slips([written])]
    assert found == [(written, name)]


@pytest.mark.parametrize(
    ("environ", "meant"),
    [
        ({"OTEL_TRACE_EXPORTER": "weave"}, "OTEL_TRACE_EXPORTER"),
        ({"OTEL_EXPORTERS": "otlp, weave"}, "OTEL_EXPORTERS"),
        ({"OTEL_TRACES_EXPORTER": "weave"}, None),
        ({"OTEL_LOGS_EXPORTER": "weave"}, None),
        ({"OTEL_EXPORTER_WEAVE_PROJECT": "weaver", "EXPORTER": "weave"}, None),
    ],
)
def test_who_asks_for_weave_elsewhere(environ: dict[str, str], meant: str | None) -> None:
    assert misspelt.meant_exporter(environ, ["OTEL_LOGS_EXPORTER"]) == meant

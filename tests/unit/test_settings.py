"""Settings: each variable, its values, and one clear line for a value that cannot be used."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout import diagnostics, environment_variables
from otel_rollout.instrumentors.ray.workers import worker_environment
from otel_rollout.settings import IN_RAY_WORKER, VARIABLES, Settings, Variable, load

BY_FIELD = {variable.field: variable for variable in VARIABLES}
GOOD: list[tuple[str, str, Any]] = [
    ("weave_project", "p", "p"),
    ("weave_project", "team/p", "team/p"),
    ("weave_endpoint", "https://weave.example/", "https://weave.example"),
    ("directory", "/x/y", Path("/x/y")),
    ("max_samples_per_step", "0", 0),
    ("max_samples_per_step", " 4 ", 4),
    ("sample_rate", "0.25", 0.25),
    ("sample_rate", "1", 1.0),
    ("keep", "error, reward<0.1", "error, reward<0.1"),
    ("token2text", "False", False),
    ("token2text", "1", True),
    ("prompt_deltas", "FULL", False),
    ("otlp_payload", "none", "none"),
    ("max_queue_bytes", "1", 1),
    ("max_batch_bytes", "1000", 1000),
    ("max_disk", "1KiB", 1024),
    ("keep_local", "yes", True),
    ("ray_secrets", "on", True),
    ("capture_content", "NO_CONTENT", False),
    ("capture_content", "span_and_event", True),
    ("capture_content", "0", False),
    ("redact", r"sk-\d+", r"sk-\d+"),
]
BAD: list[tuple[str, str]] = [
    ("weave_project", "a/b/c"),
    ("weave_project", "/p"),
    ("weave_project", "team/ p"),
    ("weave_endpoint", "weave.example"),
    ("weave_endpoint", "https://"),
    ("directory", "~nobody-here/x"),
    ("max_samples_per_step", "-1"),
    ("max_samples_per_step", "1.5"),
    ("max_samples_per_step", "many"),
    ("max_samples_per_step", "9" * 5000),
    *(("sample_rate", text) for text in ("-0.1", "1.1", "nan", "inf", "50%", "half")),
    ("keep", "error,rewrd<0.1"),
    ("keep", "group"),
    ("token2text", "maybe"),
    ("prompt_deltas", "true"),
    ("otlp_payload", "all"),
    ("max_queue_bytes", "0"),
    ("max_batch_bytes", "3MB!"),
    ("max_disk", "0"),
    ("max_disk", "9" * 400),
    ("keep_local", "2"),
    ("ray_secrets", "y"),
    ("capture_content", "NO CONTENT"),
]


class TestValues:
    """A value that is allowed is read; one that is not leaves the default and one line."""

    @pytest.mark.parametrize(("field", "text", "expected"), GOOD)
    def test_good(
        self, field: str, text: str, expected: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        value = getattr(load({BY_FIELD[field].name: text}), field)
        assert value == expected
        assert type(value) is type(expected)
        assert caplog.records == []

    @pytest.mark.parametrize(("field", "text"), BAD, ids=lambda text: text[:20])
    def test_bad(self, field: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
        variable = BY_FIELD[field]
        assert load({variable.name: text}) == load({})
        load({variable.name: text})
        (record,) = caplog.records
        line = record.getMessage()
        assert record.levelno == logging.WARNING
        assert "\n" not in line
        assert variable.name in line
        assert repr(text) in line
        assert variable.allowed in line

    def test_every_variable_is_tried_both_ways(self) -> None:
        # what cannot be used as a redaction is found, and fails closed, in the processor
        bad = {field for field, _ in BAD} | {"redact"}
        assert {field for field, *_ in GOOD} == bad == set(BY_FIELD)

    @pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
    def test_empty_is_not_set(self, variable: Variable, caplog: pytest.LogCaptureFixture) -> None:
        assert load({variable.name: "  "}) == load({})
        assert caplog.records == []

    @pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
    @given(text=st.text(st.characters(exclude_characters="\0"), max_size=30))
    def test_no_text_raises(self, variable: Variable, text: str) -> None:
        diagnostics.forget_said()
        assert isinstance(load({variable.name: text}), Settings)

    def test_a_ray_worker_does_not_repeat_it(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, "otel_rollout"):
            load({BY_FIELD["sample_rate"].name: "2", IN_RAY_WORKER: "1"})
        assert [record.levelno for record in caplog.records] == [logging.DEBUG]


class TestNames:
    """Every variable is known to `opentelemetry-instrument`, and the other way round."""

    def test_names(self) -> None:
        known = {name for name in vars(environment_variables) if name.startswith("OTEL_")}
        assert known == {variable.name for variable in VARIABLES}


class TestDirectory:
    """The store is in the user's state folder, wherever that is."""

    def test_state_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert load({"XDG_STATE_HOME": "/state"}).directory == Path("/state/otel-rollout")
        monkeypatch.setenv("HOME", "/home/me")
        expected = Path("/home/me/.local/state/otel-rollout")
        assert load({}).directory == expected
        assert load({"XDG_STATE_HOME": "relative"}).directory == expected

    def test_a_user_without_a_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", home)
        assert load({}).directory.is_absolute()

    def test_it_stays_when_the_process_changes_its_folder(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert load({BY_FIELD["directory"].name: "here"}).directory == tmp_path / "here"


def test_every_setting_reaches_rays_workers() -> None:
    environ = {variable.name: "x" for variable in VARIABLES}

    passed = worker_environment({**environ, "OTEL_EXPORTER_OTLP_HEADERS": "k"}, secrets=False)

    assert passed.keys() == environ.keys()

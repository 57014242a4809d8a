"""What the README says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_rollout import settings

README = Path(__file__).resolve().parents[2] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_table_of_settings_is_the_one_that_the_settings_make() -> None:
    found = re.search(r"<!-- settings:.*?-->\n(.*?)\n<!-- /settings -->", README.read_text(), re.S)
    assert found is not None
    assert found[1] == settings.table()


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_every_snippet_runs(snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_ROLLOUT_DIR", str(tmp_path))
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda provider: None)
    names: dict[str, object] = {"__name__": "snippet"}
    exec(compile(snippet, "README.md", "exec"), names)
    for name, value in names.items():
        if name.startswith("test_") and callable(value):
            value()


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) == 3

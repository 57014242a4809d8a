"""The documentation builds without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, python_of


def test_the_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")  # an advertisement of mkdocs-material's
    command = [python_of("docs"), "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in (ROOT / "docs").glob("*.md"):
        name = "" if page.stem == "index" else page.stem
        assert (tmp_path / name / "index.html").exists()
    site = "".join(path.read_text() for path in tmp_path.rglob("*.html"))
    assert 'src="http' not in site  # nothing is fetched from elsewhere

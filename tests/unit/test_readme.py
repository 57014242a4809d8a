"""What the README says is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest

import otel_rollout.local
from otel_rollout import settings
from tests import shell

README = Path(__file__).resolve().parents[2] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_the_table_of_settings_is_the_one_that_the_settings_make() -> None:
    found = re.search(r"<!-- settings:.*?-->\n(.*?)\n<!-- /settings -->", README.read_text(), re.S)
    assert found is not None
    assert found[1] == settings.table()


CONSOLE = [
    line
    for block in re.findall(r"```console\n(.*?)```", README.read_text(), flags=re.DOTALL)
    for line in block.splitlines()
]


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


class TestFromALoopToParquet:
    """A newcomer's way, by the README's own lines."""

    def test_each_step_does_what_it_says(self, tmp_path: Path) -> None:
        environ = shell.environment(BROWSER="true")
        (tmp_path / "loop.py").write_text(SNIPPETS[0])
        own = str(shell.free_port())  # not the page's: somebody may be at work there
        servers: list[subprocess.Popen[bytes]] = []
        said = ""
        try:
            for line in CONSOLE:
                words = line.partition("  #")[0].strip().replace("7799", own)
                if words.startswith("export "):
                    environ.update(word.split("=", 1) for word in words.split()[1:])
                elif " view " in words:
                    servers.append(self.serve(words.rstrip("& "), tmp_path, environ))
                else:
                    said += shell.run(words, tmp_path, environ).stdout
        finally:
            for server in servers:
                shell.stop(server)
        assert len(servers) == 2
        assert "execute_tool lookup" in said
        table = pyarrow.parquet.read_table(tmp_path / "rollouts.parquet")
        rewards = {(one["sample_index"], one["reward"]) for one in table.to_pylist()}
        assert rewards == {(0, 1.0), (1, 0.0)}
        with otel_rollout.local.open(tmp_path / "team") as team:
            assert team.count() == table.num_rows == 8

    @staticmethod
    def serve(line: str, folder: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a viewer as the line says, and wait until its page is there."""
        asked = re.search(r"--port (\d+)", line)
        port = int(asked[1]) if asked else shell.free_port()
        if not asked:
            line += f" --port {port} --no-browser"
        server, status = shell.serve(line, folder, environ, port)
        assert status == 200
        return server

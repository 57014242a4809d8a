"""Every command line of the documentation is run: here, or by the test that is named here."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rollout.local
from tests.unit import documents

ROOT = documents.ROOT
VERL = r".*opentelemetry-instrument python -m verl\.trainer\.main_ppo …"
ELSEWHERE = {
    r"export \w": "with the lines behind it",
    r"pip install 'otel-rollout": "dev/release/dist.sh",
    r"pip install otel-rollout": "dev/release/dist.sh",
    r'pip install "otel-rollout\[(vllm|sglang)\]"': "dev/envs.py",
    r'pip install "verl==': "dev/envs.py",
    r"make (test|test-engines|docs)\b": ".ci/run",
    r"(BENCH_QUICK=1 )?make bench": "tests/unit/test_benchmarks.py",
    r"make demo": "noxfile.py",
    VERL: "tests/e2e/test_verl_rollout.py",
    r".*opentelemetry-instrument python examples/openai_loop/loop\.py": "tests/engines/vllm",
}
"""What is run elsewhere: the form of the line, and where."""
LOOPS = ("loop.py", "your_program.py", "after.py")

LINES = sorted({line for page in documents.PAGES for line in documents.block_commands(page)})
HERE = [line for line in LINES if not any(re.match(form, line) for form in ELSEWHERE)]


def test_what_is_run_elsewhere_is() -> None:
    for form, place in ELSEWHERE.items():
        assert any(re.match(form, line) for line in LINES), f"{form}: no such line any more"
        assert " " in place or (ROOT / place).exists(), place


def test_most_lines_are_run_here() -> None:
    assert len([line for line in HERE if "otel-rollout " in line]) >= 9


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the loop of the five minutes has run, with the names that the pages use."""
    made = tmp_path_factory.mktemp("docs")
    (code,) = documents.blocks(documents.DOCS / "start.md", "python")
    for name in LOOPS:
        (made / name).write_text(code)
    environ = {**_clean(), "OTEL_TRACES_EXPORTER": "weave", "OTEL_ROLLOUT_DIR": str(made / "store")}
    run("opentelemetry-instrument python loop.py", made, environ)
    (made / ".demo").symlink_to("store")
    return made


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it, since what is delivered leaves the store."""
    return shutil.copytree(prepared, tmp_path / "docs", symlinks=True)


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """A server that speaks Weave's protocol."""
    port = free_port()
    serving = serve(f"otel-rollout view team --no-browser --port {port}", folder, _clean(), port)
    yield f"http://127.0.0.1:{port}"
    stop(serving)


@pytest.mark.parametrize("line", HERE)
def test_it_runs(line: str, folder: Path, server: str) -> None:
    environ = {
        **_clean(),
        "OTEL_ROLLOUT_DIR": str(folder / "store"),
        "OTEL_EXPORTER_WEAVE_ENDPOINT": server,
    }
    typed = as_typed(line, folder)
    typed = re.sub(r"OTEL_EXPORTER_WEAVE_ENDPOINT=\S+ ", "", typed)
    if re.search(r"otel-rollout view\b", typed):
        port = free_port()
        typed = f"{re.sub(r'--port [0-9]+', '', typed)} --port {port}"
        stop(serve(typed, folder, environ, port))
        return
    run(typed, folder, environ)
    if "export" in typed:
        (written,) = re.findall(r"-o (\S+)", typed)
        assert (folder / written).stat().st_size
    if "push" in typed:
        with otel_rollout.local.open(folder / "team") as team:
            assert team.count() >= 24


def as_typed(line: str, folder: Path) -> str:
    """The line with something real in its placeholders."""
    line = re.sub(r"\[(--\S+) FILE\]", "", line.rstrip("& "))
    line = re.sub(r"\[DIR(ECTORY)?\]|/data/rollouts", "store", line)
    line = line.replace("[", "").replace("]", "")
    return line if "view" not in line or "--no-browser" in line else f"{line} --no-browser"


def run(line: str, folder: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, (line, done.stderr)


def serve(line: str, folder: Path, environ: dict[str, str], port: int) -> subprocess.Popen[bytes]:
    """Start a server and wait until it answers, be it that one has to show a token."""
    serving = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=folder, env=environ)
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30):
                return serving
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return serving
            raise
        except OSError:
            assert serving.poll() is None, line
            time.sleep(0.1)
    stop(serving)
    raise AssertionError(f"{line}: no answer")


def stop(serving: subprocess.Popen[bytes]) -> None:
    serving.send_signal(signal.SIGINT)  # Ctrl-C, as the pages say
    assert serving.wait(30) in (0, 130, -signal.SIGINT)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _clean() -> dict[str, str]:
    names = ("OTEL_", "WANDB_", "WF_", "WEAVE_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(names)}
    return {**clean, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"}

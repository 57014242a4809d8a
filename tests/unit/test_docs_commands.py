"""Every shell block of the documentation is run: here, or by the test that is named here."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_rollout.local
from tests import shell
from tests.unit import documents

ROOT, DOCS = documents.ROOT, documents.DOCS
ELSEWHERE = {
    ("README.md", "pip install otel-rollout\n"): "tests/verl/test_docs.py",
    ("README.md", "export OTEL_TRACES_EXPORTER=weave"): "tests/unit/test_readme.py",
    ("README.md", "otel-rollout view team"): "tests/unit/test_readme.py",
    ("docs/otlp.md", "pip install"): "tests/verl/test_docs.py",
    ("docs/otlp.md", "export OTEL_TRACES_EXPORTER=weave,otlp\n"): "tests/backends/test_phoenix.py",
    ("docs/sampling.md", "export"): "tests/unit/test_docs_commands.py",
    ("docs/start.md", "export OTEL_TRACES_EXPORTER"): "tests/unit/test_docs.py",
    ("docs/verl.md", "pip install"): "tests/verl/test_docs.py",
    ("examples/from_weave_op/README.md", "python"): "tests/e2e/test_examples.py",
    ("examples/openai_loop/README.md", "vllm serve"): "tests/engines/vllm/test_openai_loop.py",
    ("examples/verl_calculator/README.md", "pip install"): "tests/verl/test_docs.py",
}
"""Page and start of a block, and the test that runs it."""
IN_CI = ("make test",)
NOT_RUN = {
    r"make demo\b": "writes .demo of the clone; the command in it, `otel-rollout demo`, is run by "
    "the verl sessions of noxfile.py",
    r"(BENCH_QUICK=1 )?make bench\b|dev/bench_other_python\.sh": "minutes of measuring; "
    "tests/unit/test_benchmarks.py holds the page to the results that it wrote",
    r'pip install "otel-rollout\[(vllm|sglang)\]"|pip install "verl==': "builds for GPUs and their "
    "drivers, some GB; dev/envs.py installs those for a CPU in their place",
}
"""What no test runs, line by line, and why."""
NOWHERE = "http://127.0.0.1:9"
LOOPS = ("loop.py", "your_program.py")  # a loop without an engine stands for those with one

BLOCKS = [
    (str(page.relative_to(ROOT)), text)
    for page in documents.PAGES
    for language, text in documents.all_blocks(page)
    if language in documents.SHELL
]


def is_elsewhere(page: str, text: str) -> bool:
    return any(page == name and text.startswith(start) for name, start in ELSEWHERE)


def lines_of(text: str) -> list[str]:
    """The lines to be run here: without comments, and without what is in the tables above.

    Our own package is installed by the lines of the pages in tests/e2e/test_docs_install.py.
    """
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    return [
        line
        for line in lines
        if not line.startswith((*IN_CI, "pip install otel", "pip install 'otel"))
        and not any(re.match(form, line) for form in NOT_RUN)
    ]


HERE = [
    pytest.param(lines_of(text), id=f"{page}: {text.splitlines()[0]}"[:80])
    for page, text in BLOCKS
    if lines_of(text) and not is_elsewhere(page, text)
]


def test_what_is_run_elsewhere_is() -> None:
    for (page, start), test in ELSEWHERE.items():
        found = [text for name, text in BLOCKS if name == page and text.startswith(start)]
        assert len(found) == 1, (page, start)
        path = Path(page)
        named = path.parent.name if path.parts[0] == "examples" else path.name
        assert named in (ROOT / test).read_text(), (page, test)


def test_what_is_not_run_is_still_there() -> None:
    lines = [line for _, text in BLOCKS for line in text.splitlines()]
    for form in NOT_RUN:
        assert any(re.match(form, line) for line in lines), f"{form}: no such line any more"


def test_ci_makes_what_a_newcomer_makes() -> None:
    for line in IN_CI:
        assert f"step {line}\n" in (ROOT / ".ci" / "run").read_text()


def test_most_blocks_are_run_here() -> None:
    assert len(HERE) >= 9


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the loop of the five minutes has run, with the names that the pages use."""
    made = tmp_path_factory.mktemp("docs")
    (code,) = documents.blocks(DOCS / "start.md", "python")
    for name in LOOPS:
        (made / name).write_text(code)
    environ = {**_clean(), **exported(), "OTEL_ROLLOUT_DIR": str(made / "store")}
    shell.run("opentelemetry-instrument python loop.py", made, environ)
    (made / ".demo").symlink_to("store")
    policy = ROOT / "examples" / "verl_calculator" / "policy" / "tokenizer.json"
    shutil.copy(policy, made / "FILE")
    return made


def exported() -> dict[str, str]:
    """What the five minutes say to export before the loop runs: it holds for the rest of them."""
    (console,) = documents.blocks(DOCS / "start.md", "console")
    (line,) = re.findall(r"^export (.+)$", console, flags=re.M)
    return dict(word.split("=", 1) for word in shlex.split(line))


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it, since what is delivered leaves the store."""
    return shutil.copytree(prepared, tmp_path / "docs", symlinks=True)


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """A server that speaks Weave's protocol."""
    port = shell.free_port()
    line = f"otel-rollout view team --no-browser --port {port}"
    serving, _ = shell.serve(line, folder, _clean(), port)
    yield f"http://127.0.0.1:{port}"
    shell.stop(serving)


@pytest.mark.parametrize("lines", HERE)
def test_it_runs(lines: list[str], folder: Path, server: str) -> None:
    project = exported()["OTEL_EXPORTER_WEAVE_PROJECT"]
    environ = {
        **_clean(),
        "OTEL_EXPORTER_WEAVE_PROJECT": project,
        "OTEL_ROLLOUT_DIR": str(folder / "store"),
        "WF_TRACE_SERVER_URL": server,
        "WANDB_BASE_URL": server,
    }
    for line in lines:
        typed = as_typed(line)
        if typed.startswith("export "):
            environ |= (word.split("=", 1) for word in shlex.split(typed)[1:])
        elif re.search(r"otel-rollout view\b", typed):
            port = shell.free_port()
            typed = f"{re.sub(r'--port [0-9]+', '', typed)} --port {port}"
            serving, _ = shell.serve(typed, folder, environ, port)
            shell.stop(serving)
        else:
            shell.run(typed, folder, environ)
        if "otel-rollout export" in typed:
            (written,) = re.findall(r"-o (\S+)", typed)
            assert (folder / written).stat().st_size
        if "otel-rollout push" in typed:
            with otel_rollout.local.open(folder / "team") as team:
                assert team.count() == 24
                assert {one["project"] for one in team.trajectories()}
    if any("push" in line for line in lines):  # the last line sends as it goes, 2 s at its end
        shell.run("otel-rollout push store", folder, environ)  # what a busy machine has left
        with otel_rollout.local.open(folder / "team") as team:
            assert team.count() == 48
            assert {one["project"] for one in team.trajectories()} == {f"local/{project}"}


KEPT = """
from otel_rollout import trajectory, record_reward
for index in range(2):
    try:
        with trajectory(step=1, sample_index=index):
            record_reward(1.0)
            if index:
                raise ValueError("no answer")
    except ValueError:
        pass
"""


def test_the_rules_of_the_page_keep_what_they_name(tmp_path: Path) -> None:
    (exports,) = documents.blocks(DOCS / "sampling.md", "sh")
    (tmp_path / "program.py").write_text(KEPT)
    environ = {**_clean(), "OTEL_TRACES_EXPORTER": "weave", "OTEL_ROLLOUT_DIR": "store"}
    line = f"{exports}opentelemetry-instrument python program.py"
    assert "OTEL_ROLLOUT_KEEP" not in shell.run(line, tmp_path, environ).stderr
    with otel_rollout.local.open(tmp_path / "store") as store:
        assert [one["sample_index"] for one in store.trajectories()] == [1]


def as_typed(line: str) -> str:
    """The line with something real in its placeholders."""
    line = re.sub(r"\[DIR(ECTORY)?\]|/data/rollouts", "store", line.rstrip("& "))
    line = line.replace("[", "").replace("]", "").replace("=…", f"={'k' * 40}")
    return line if "view" not in line or "--no-browser" in line else f"{line} --no-browser"


def _clean() -> dict[str, str]:
    """Nothing of the developer's settings, and W&B's hosts out of reach."""
    return shell.environment(WF_TRACE_SERVER_URL=NOWHERE, WANDB_BASE_URL=NOWHERE)

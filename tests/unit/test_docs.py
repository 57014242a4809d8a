"""What the documentation says is so: its code runs, its commands exist, its tables are made."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import click
import pytest

import otel_rollout.local
from otel_rollout import environment_variables, semconv, trajectory
from otel_rollout.cli import main
from otel_rollout.testing import captured
from tests import shell
from tests.unit import documents

ROOT, DOCS, PAGES = documents.ROOT, documents.DOCS, documents.PAGES
CODE = [
    pytest.param(page, code, id=f"{page.stem}-{number}")
    for page in documents.PAGES
    if page != ROOT / "README.md"  # test_readme.py
    for number, code in enumerate(documents.blocks(page, "python"))
    # Run elsewhere: with the openai package, and as modules of an instrumentor below.
    if "import AsyncOpenAI" not in code and not code.startswith("# otel_rollout/")
]
COMMANDS = [
    pytest.param(command, id=f"{page.parent.name}/{page.stem}: {command}"[:80])
    for page in documents.PAGES
    for command in documents.commands(page)
]


NEITHER_CODE_NOR_COMMANDS = {
    ("otlp.md", "yaml"): "tests/alongside/test_docs.py",
    ("instrumentors.md", "toml"): "tests/unit/test_docs.py",
    ("README.md", "text"): "tests/e2e/test_verl_rollout.py",
    ("delivery.md", "text"): "tests/unit/test_docs.py",
    ("reference.md", "text"): "tests/unit/test_docs.py",
}
"""What holds such a block to be true."""


def test_there_is_code_and_there_are_commands() -> None:
    assert len(CODE) >= 9
    assert len(COMMANDS) >= 20


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    found = {(page.name, language) for page in PAGES for language, _ in documents.all_blocks(page)}
    others = {one for one in found if one[1] not in ("python", *documents.SHELL)}
    assert others == set(NEITHER_CODE_NOR_COMMANDS)
    for (name, language), test in NEITHER_CODE_NOR_COMMANDS.items():
        assert f'"{language}"' in (ROOT / test).read_text(), (name, test)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_no_code_stands_outside_the_fences(page: Path) -> None:
    assert re.findall(r"(?<=\n\n)    \S.*", documents.prose(page)) == []


@pytest.mark.parametrize(("page", "code"), CODE)
def test_every_snippet_runs(
    page: Path, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_ROLLOUT_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # for those that make their settings
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda provider: None)
    if '".demo"' in code:  # the store of `make demo`; here one that a loop of the pages left
        make_store(tmp_path / ".demo")
        monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with captured():
        exec(compile(code, page.name, "exec"), names)
    for name, value in names.items():
        if name.startswith("test_") and callable(value):
            value()


def make_store(folder: Path) -> None:
    """Run the loop of the five minutes, traced into a folder."""
    (code,) = documents.blocks(DOCS / "start.md", "python")
    environ = {**os.environ, "OTEL_TRACES_EXPORTER": "weave", "OTEL_ROLLOUT_DIR": str(folder)}
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    command = [str(instrument), sys.executable, "-c", code]
    subprocess.run(command, env={**environ, "WANDB_API_KEY": ""}, check=True, timeout=120)


def test_the_five_minutes(tmp_path: Path) -> None:
    page = DOCS / "start.md"
    (code,) = documents.blocks(page, "python")
    (console,) = documents.blocks(page, "console")
    (tmp_path / "loop.py").write_text(code)
    done = shell.run(console, tmp_path, shell.environment(WANDB_API_KEY=""))
    assert "rollout capitals" in done.stdout
    assert (tmp_path / "rollouts.jsonl").exists()
    with otel_rollout.local.open(tmp_path / "store") as store:
        assert store.count() == 24
        assert {one["step"] for one in store.trajectories()} == {0, 1, 2}


class TestCommands:
    """Every command is one that there is, with the options that it has."""

    @pytest.mark.parametrize("command", COMMANDS)
    def test_it_exists(self, command: str) -> None:
        words = [word for word in shlex.split(command) if word not in ("&", "…")]
        while words and re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", words[0]):
            self.is_variable(words.pop(0))
        if not words:
            return
        name, *rest = words
        if name == "export":
            for one in rest:
                self.is_variable(one)
        elif name == "make":
            self.is_target(rest)
        elif name == "otel-rollout":
            self.is_ours(rest)
        elif name == "pip":
            self.is_installed(rest)
        elif name == "opentelemetry-instrument":
            assert rest[0] == "python"
        else:
            assert name in ("python", "vllm", "dev/bench_other_python.sh"), command

    def is_variable(self, assignment: str) -> None:
        name = assignment.partition("=")[0]
        ours = ("OTEL_ROLLOUT_", "OTEL_EXPORTER_WEAVE_")
        assert not name.startswith(ours) or name in vars(environment_variables), name

    def is_target(self, words: list[str]) -> None:
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert words[0] in targets

    def is_ours(self, words: list[str]) -> None:
        if words[0] not in main.commands:
            pytest.fail(f"otel-rollout {words[0]} is no command")
        command = main.commands[words[0]]
        known = {name for option in command.params for name in option.opts}
        for word in words[1:]:
            word = word.strip("[]")
            if word.startswith("-"):
                assert word.partition("=")[0] in known, word
        takes = sum(isinstance(one, click.Argument) for one in command.params)
        assert takes <= 1

    def is_installed(self, words: list[str]) -> None:
        assert words[0] == "install"
        extras = re.search(r"otel-rollout\[(.*?)\]", " ".join(words))
        if extras:
            project = (ROOT / "pyproject.toml").read_text()
            for extra in extras[1].split(","):
                assert re.search(rf"^{extra} = \[", project, flags=re.M), extra


def test_variables_in_the_text_are_there() -> None:
    known = {name for name in vars(environment_variables) if name.startswith("OTEL_")}
    for page in documents.PAGES:
        named = set(re.findall(r"OTEL_(?:ROLLOUT|EXPORTER_WEAVE)_[A-Z0-9_]+", page.read_text()))
        assert named <= known | {"OTEL_ROLLOUT_KEEP"}, page.name


def test_the_reference_is_the_one_that_the_source_makes() -> None:
    made = runpy.run_path(str(ROOT / "dev" / "reference.py"))["page"]()
    assert (DOCS / "reference.md").read_text() == made, "make docs writes it anew"


def test_every_name_is_in_the_reference() -> None:
    page = (DOCS / "reference.md").read_text()
    for name, value in vars(semconv).items():
        if name.isupper() and "." in str(value) and value != semconv.PREFIX:
            assert f"| `{value}` |" in page, name


def test_what_doctor_finds_is_what_the_page_of_symptoms_says() -> None:
    source = "".join(path.read_text() for path in (ROOT / "otel_rollout" / "commands").glob("*.py"))
    of_findings = r'Finding\(\s*(?:ERROR|WARNING),\s*f?"([a-z-]+)'
    losses = re.findall(r'\(\s*state\.[a-z_]+,\s*"([a-z-]+)"', source)
    says = {*re.findall(of_findings, source), *losses}
    page = (DOCS / "troubleshooting.md").read_text()
    rows = " ".join(re.findall(r"^\| (.*?) \|", page, flags=re.M))
    named = set(re.findall(r"`([a-z-]+)(?::[a-z]+)?`", rows))
    assert len(says) > 15
    assert says <= named
    assert named <= says | {"no-credentials", "content"}


def test_the_instrumentor_of_the_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for code in documents.blocks(DOCS / "instrumentors.md", "python"):
        path = code.splitlines()[0].removeprefix("# ").removesuffix(".py")
        name = path.replace("/", ".").removesuffix(".__init__")
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, path, "exec"), vars(module))

    class Client:
        async def generate(self, prompt_ids: list[int]) -> list[int]:
            return [len(prompt_ids)]

    library = types.ModuleType("mylib.client")
    library.Client = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mylib", types.ModuleType("mylib"))
    monkeypatch.setitem(sys.modules, "mylib.client", library)
    (toml,) = documents.blocks(DOCS / "instrumentors.md", "toml")
    (name, value) = re.findall(r'^(\w+) = "(.*)"$', toml, flags=re.M)[0]
    point = importlib.metadata.EntryPoint(name, value, "opentelemetry_instrumentor")
    instrumentor = point.load()()
    with captured() as rollouts, contextlib.ExitStack() as stack:
        instrumentor.instrument()
        stack.callback(instrumentor.uninstrument)
        with trajectory(step=1):
            assert asyncio.run(Client().generate([1, 2, 3])) == [3]
    (turn,) = rollouts.only().generations
    assert (turn.prompt_ids, turn.response_ids) == ([1, 2, 3], [3])


def test_the_entry_point_of_the_page_is_like_ours() -> None:
    (toml,) = documents.blocks(DOCS / "instrumentors.md", "toml")
    assert toml.splitlines()[0] in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("page", ["delivery.md", "reference.md"])
def test_a_record_of_a_segment_is_as_the_page_shows_it(page: str, tmp_path: Path) -> None:
    (shown,) = documents.blocks(DOCS / page, "text")
    pattern = re.sub(r"\s*(TAB|LF)\s*", lambda found: {"TAB": "\t", "LF": "\n"}[found[1]], shown)
    pattern = re.sub(r"(0x1E|RS)\s+", "\x1e", pattern)
    pattern = re.sub(r"crc32 ?\(8 hex( digits)?\)", "([0-9a-f]{8})", pattern)
    pattern = re.sub(r"meta( \(JSON\)|-json)", r"({[^\\n]*})", pattern)
    pattern = re.sub(r"body( \(JSON\)|-json)", r"([^\\n]*)", pattern)
    make_store(tmp_path)
    (segment,) = (tmp_path / "spool").glob("*.spool")
    data = segment.read_text()
    found = list(re.finditer(pattern, data))
    assert "".join(one[0] for one in found) == data
    for one in found:
        crc, meta, body = one.groups()
        assert int(crc, 16) == zlib.crc32(f"\t{meta}\t{body}".encode())
        json.loads(body)
    kinds = {json.loads(one[2])["kind"] for one in found}
    assert kinds == {"header", "call", "feedback"}

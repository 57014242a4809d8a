"""A library that is not as we know it: what fits is instrumented, the rest is one line.

The libraries here are small stand-ins, made from the table of places: modules with classes that
have methods of those names and do nothing. The real classes are in `tests/versions/test_fit.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.instrumentors import fit, patching
from otel_rollout.instrumentors.hooking import HookingInstrumentor
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.places import PLACES, Place
from otel_rollout.instrumentors.ray import RayInstrumentor
from otel_rollout.instrumentors.sglang import SglangInstrumentor
from otel_rollout.instrumentors.verl import VerlInstrumentor
from otel_rollout.instrumentors.vllm import VllmInstrumentor
from tests import fitting

KINDS: dict[str, type[HookingInstrumentor]] = {
    kind.library: kind
    for kind in (VerlInstrumentor, RayInstrumentor, VllmInstrumentor, SglangInstrumentor)
}
NAMES = [(place.names[0], library) for library, places in PLACES.items() for place in places]


def _does_nothing() -> Any:
    async def method(self: Any, *args: Any, **kwargs: Any) -> None: ...

    return method


def stand_in(library: str, version: str | None = "99.0") -> dict[str, ModuleType]:
    """Modules with every place of a library, of a version that nobody knows."""
    modules: dict[str, ModuleType] = {}

    def module(name: str) -> ModuleType:
        return modules.setdefault(name, ModuleType(name))

    package = module(library)
    package.__path__ = []
    if version is not None:
        package.__version__ = version  # type: ignore[attr-defined]
    for place in PLACES[library]:
        module_name, _, qualified = place.names[0].partition(":")
        owner: Any = module(module_name)
        *owners, last = qualified.split(".")
        for part in owners:
            if not hasattr(owner, part):
                setattr(owner, part, type(part, (), {"__module__": module_name}))
            owner = getattr(owner, part)
        made = type(last, (), {}) if last[0].isupper() else _does_nothing()
        setattr(owner, last, made)
    return modules


@pytest.fixture
def loaded() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


def load(context: pytest.MonkeyPatch, library: str, modules: dict[str, ModuleType]) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == library]:
        context.delitem(sys.modules, name)
    for name, module in modules.items():
        context.setitem(sys.modules, name, module)


def run(library: str, modules: dict[str, ModuleType], patches: Patches | None = None) -> list[str]:
    with pytest.MonkeyPatch.context() as context, fitting.lines() as lines:
        load(context, library, modules)
        fitting.patch(KINDS[library], list(modules.values()), patches or Patches())
        return lines.texts()


@given(
    library=st.sampled_from(sorted(KINDS)),
    gone=st.sets(st.sampled_from(NAMES)),
    whole=st.booleans(),
    modules_gone=st.booleans(),
)
def test_whatever_is_missing_the_rest_is_instrumented_and_one_line_names_exactly_what_is_not(
    library: str, gone: set[tuple[str, str]], whole: bool, modules_gone: bool
) -> None:
    modules = stand_in(library)
    for name in [name for name, of in gone if of == library]:
        if modules_gone and name.partition(":")[0] != library:
            modules.pop(name.partition(":")[0], None)
        else:
            fitting.drop(modules.values(), name, whole)
    absent = {place.gives for place in fitting.absent(library, list(modules.values()))}
    said = run(library, modules)
    for place in PLACES[library]:
        found = fitting.target(modules.values(), place.names[0])
        if place.gives not in absent and not isinstance(found, type):
            assert patching.is_ours(found), place.names
    if not absent:
        assert said == []
        return
    (line,) = said
    assert fitting.named_in(library, line) == absent
    assert f"{library} 99.0" in line
    for place in PLACES[library]:
        still = line.partition("still instrumented: ")[2]
        assert (place.gives in still.split(";")[0].split(", ")) == (place.gives not in absent)


@given(library=st.sampled_from(sorted(KINDS)), broken=st.sets(st.sampled_from(NAMES), min_size=1))
def test_a_patch_that_raises_stops_no_other_and_is_named(
    library: str, broken: set[tuple[str, str]]
) -> None:
    modules = stand_in(library)
    refused = {name for name, of in broken if of == library and not name.endswith("TQ")}

    class Refusing(Patches):
        def _set(self, owner: Any, name: str, value: Any) -> None:
            if patching._full_name(owner, name) in refused:
                raise TypeError("can not be set")
            super()._set(owner, name, value)

    said = run(library, modules, Refusing())
    for place in PLACES[library]:
        found = fitting.target(modules.values(), place.names[0])
        if not isinstance(found, type):
            assert patching.is_ours(found) == (place.names[0] not in refused)
    actors = tuple(f"{module}:{name}." for module, name in KINDS[library].actors)
    at_import = {name for name in refused if not name.startswith(actors)}
    assert len(said) == bool(at_import)
    assert all("TypeError: can not be set" in line for line in said)


def test_a_hook_that_raises_reaches_nobody_who_imports(loaded: pytest.MonkeyPatch) -> None:
    modules = stand_in("verl")

    def refuse(*_: Any) -> None:
        raise RuntimeError("no")

    from otel_rollout.instrumentors.verl import trajectories

    loaded.setattr(trajectories, "patch_rollout_trace", refuse)
    (line,) = run("verl", modules)
    assert "verl.trajectories:patch_rollout_trace (RuntimeError: no)" in line
    trace = modules["verl.utils.rollout_trace"]
    assert not patching.is_ours(trace.rollout_trace_attr)
    assert patching.is_ours(trace.rollout_trace_op)


def test_a_package_that_only_bears_the_name_is_no_news() -> None:
    assert run("sglang", {"sglang": stand_in("sglang", version=None)["sglang"]}) == []


def test_a_stub_older_than_any_version_that_we_know_is_no_news() -> None:
    assert run("vllm", {"vllm": stand_in("vllm", version="0.0.0+stub")["vllm"]}) == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.5.0", False), ("0.8.0.dev1", True), ("0.10.0", True), (None, True), ("main", True)],
)
def test_a_place_is_expected_from_the_version_that_has_it_first(
    version: str | None, expected: bool
) -> None:
    assert Place("function tools", ("verl:call",), since="0.8.0").expected_in(version) is expected


def test_a_place_that_has_gone_is_not_expected_again() -> None:
    place = Place("old", ("verl:old",), until="0.8.0")
    assert place.expected_in("0.7.1")
    assert not any(map(place.expected_in, ("0.8.0", "1.0", None)))


def test_the_version_is_what_the_library_says(loaded: pytest.MonkeyPatch) -> None:
    load(loaded, "verl", stand_in("verl", version="12.5"))
    assert fit.version_of("verl") == "12.5"


def test_in_a_process_of_its_own_one_line_is_said_however_many_modules_lack_something(
    tmp_path: Path,
) -> None:
    modules = {
        "verl/__init__.py": "__version__ = '99.1'",
        "verl/utils/__init__.py": "",
        "verl/utils/rollout_trace.py": "def rollout_trace_op(function): return function",
        "verl/tools/__init__.py": "",
        "verl/tools/base_tool.py": "class BaseTool: ...",
        "verl/tools/function_tool.py": "class FunctionTool:\n    async def call(self): ...",
    }
    for name, source in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    program = (
        "import verl.utils.rollout_trace, verl.tools.base_tool, verl.tools.function_tool as last\n"
        "from otel_rollout.instrumentors.patching import is_ours\n"
        "assert is_ours(last.FunctionTool.call)"
    )
    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "OTEL_ROLLOUT_DIR": str(tmp_path / "store"),
        "OTEL_TRACES_EXPORTER": "weave",
    }
    environment.pop("WANDB_API_KEY", None)
    done = subprocess.run(
        [str(folder / "opentelemetry-instrument"), sys.executable, "-c", program],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "not instrumented" in line]
    assert "verl 99.1" in line
    assert "tools (no verl.tools.base_tool:BaseTool.execute)" in line
    assert "still instrumented: rollout_trace_op functions, function tools;" in line

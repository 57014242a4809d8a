"""The pages' lines that install our package, run as they are: a new environment, no network.

The package's wheel is where pip looks; what it depends on is in the environment already, as in one
that people have.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import shell
from tests.conftest import ROOT
from tests.unit import documents

LINES = sorted(
    {
        line
        for page in documents.PAGES
        for line in documents.block_commands(page)
        if line.startswith(("pip install otel-rollout", "pip install 'otel-rollout"))
    }
)


def envs() -> Any:
    """dev/envs.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("envs", ROOT / "dev" / "envs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], check=True, timeout=120)
    return folder


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """The commands of a new environment that has everything but our package."""
    building = envs()
    base = building.ensure_cached(building.ENVIRONMENTS["dev"])
    made = tmp_path / "venv"
    python = base / "bin" / "python"
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(made)], check=True)
    building.see_packages_of([base], made)
    building.take_commands_of(base, made)
    assert not (made / "bin" / "otel-rollout").exists()
    return made / "bin"


def test_there_are_such_lines() -> None:
    assert len(LINES) == 3


@pytest.mark.parametrize("line", LINES)
def test_it_installs_a_package_that_runs(
    line: str, commands: Path, wheels: Path, tmp_path: Path
) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    environ = {
        **clean,
        "PATH": f"{commands}{os.pathsep}{clean['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }
    script = (
        f"{line}\notel-rollout --version\npython -c 'import otel_rollout as o; print(o.__file__)'"
    )
    done = shell.run(script, tmp_path, environ)
    assert done.stderr == ""  # an extra that is not there would be a warning
    assert "Successfully installed otel-rollout" in done.stdout
    assert str(tmp_path / "venv") in done.stdout.splitlines()[-1]

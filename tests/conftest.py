"""Fixtures for every kind of test: real servers, and the other environments' Pythons.

Only the standard library and pytest are needed here: each environment's pytest reads this file,
and not every one of them has Hypothesis.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers.otlp_receiver import OtlpReceiver
    from tests.servers.weave_process import WeaveServer

if importlib.util.find_spec("hypothesis"):
    import hypothesis

    # Times on a machine that others use say nothing; each property is fast enough as a whole.
    hypothesis.settings.register_profile("untimed", deadline=None, max_examples=60)
    hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent
#: Of the developer's own settings, tests keep those that say where environments are.
KEPT = frozenset({"OTEL_ROLLOUT_CACHE", "OTEL_ROLLOUT_PYTHON"})


@pytest.fixture(scope="session", autouse=True)
def no_settings_from_outside() -> Iterator[None]:
    """No test reads the developer's settings or writes with the developer's W&B credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("OTEL_", "WANDB_", "WEAVE_", "WF_")) and name not in KEPT:
                patch.delenv(name)
        patch.setenv("NETRC", os.devnull)
        yield


def python_of(environment: str) -> Path:
    """The Python of an environment in `dev/envs.py`, which is built when it is not there."""
    command = [sys.executable, str(ROOT / "dev" / "envs.py"), "python", environment]
    return Path(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    )


@pytest.fixture(scope="session")
def verl_python() -> Path:
    """`.venv-verl/bin/python`: beside it are opentelemetry-instrument and ray.

    `TEST_VERL_PYTHON` names another one, with other versions (see `noxfile.py`).
    """
    chosen = os.environ.get("TEST_VERL_PYTHON")
    return Path(chosen) if chosen else python_of("verl")


@pytest.fixture(scope="session")
def weave_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeaveServer]:
    """W&B's trace server with a fresh database; give each test a project of its own."""
    from tests.servers.weave_process import WeaveServer

    server = WeaveServer(str(python_of("weave-server")), tmp_path_factory.mktemp("weave-server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """An OTLP/HTTP endpoint whose spans the test reads."""
    from tests.servers.otlp_receiver import OtlpReceiver

    with OtlpReceiver() as receiver:
        yield receiver

"""The versions that people have: each session is this package beside one of them.

A session's environment stands on a cached one (`dev/envs.py`) and replaces in it what it is about.
`make matrix` runs all of them and writes `docs/matrix.md`; `make matrix ARGS="-s 'wrapt(2.0.1)'"`
runs one.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "dev"))

import envs  # noqa: E402 - beside the environments, not in them
from matrix_table import NOT_ROLLED_OUT  # noqa: E402

nox.options.reuse_venv = "yes"
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

SDK = {"1.30.0": "0.51b0", "1.36.0": "0.57b0", "1.40.0": "0.61b0", "1.45.2": "0.66b2"}
WRAPT = ("1.16.0", "1.17.3", "2.0.1", "2.5.2")
#: Before 0.53 it used another httpx than the newest gql.
WEAVE = {"0.52.43": ("gql<4.4",), "0.53.13": (), "0.54.0": ()}
RAY = ("2.43.0", "2.60.0")
#: What each verl needs in place of what is newest.
VERL = {
    "0.5.0": ("transformers<5", "datasets<4.5", "huggingface_hub<1", "openai<2"),
    "0.6.1": ("transformers<5", "datasets<4.5", "huggingface_hub<1", "openai<2"),
    "0.7.1": (),
    "0.8.0": (),
    "0.9.1": (),
}
COUNTS = ROOT / "build" / "matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def stand_on(session: nox.Session, name: str, *wanted: str, exactly: tuple[str, ...] = ()) -> None:
    """Give the session the packages of a cached environment, with `wanted` in place of theirs.

    `exactly`: installed as they are, whatever they say that they need.
    """
    base = envs.ensure_cached(envs.ENVIRONMENTS[name])
    folder = Path(session.virtualenv.location)
    envs.see_packages_of([base], folder)
    if wanted:
        session.install(*wanted, silent=True)
    if exactly:
        session.install("--no-deps", *exactly, silent=True)
    session.install("--no-deps", "--no-build-isolation", "--editable", ".", silent=True)
    envs.take_commands_of(base, folder)


def run_tests(session: nox.Session, *paths: str, **variables: str) -> None:
    """Run tests with the session's Python."""
    counts = COUNTS / (re.sub(r"[^a-z0-9.]+", "-", session.name).strip("-") + ".xml")
    session.run(
        *("python", "-m", "pytest", "-q", "--timeout", "600", f"--junit-xml={counts}"),
        *paths,
        *session.posargs,
        env=variables,
    )


@nox.session
@nox.parametrize("version", list(SDK), ids=list(SDK))
def sdk(session: nox.Session, version: str) -> None:
    """opentelemetry-sdk: the unit tests."""
    instrumentation = SDK[version]
    stand_on(
        session,
        "dev",
        f"opentelemetry-api=={version}",
        f"opentelemetry-sdk=={version}",
        f"opentelemetry-exporter-otlp-proto-http=={version}",
        f"opentelemetry-instrumentation=={instrumentation}",
    )
    run_tests(session, "tests/unit")


@nox.session
@nox.parametrize("version", WRAPT, ids=WRAPT)
def wrapt(session: nox.Session, version: str) -> None:
    """wrapt: the unit tests."""
    stand_on(session, "dev", f"wrapt=={version}")
    run_tests(session, "tests/unit")


@nox.session
@nox.parametrize("version", list(WEAVE), ids=list(WEAVE))
def weave(session: nox.Session, version: str) -> None:
    """weave: what its client reads from W&B's server code, and its views."""
    stand_on(session, "dev", f"weave=={version}", *WEAVE[version])
    run_tests(session, "tests/e2e/test_weave_server.py", "tests/e2e/test_view_weave.py")


@nox.session
@nox.parametrize("version", list(VERL), ids=list(VERL))
def verl(session: nox.Session, version: str) -> None:
    """verl: its real classes, driven as it drives them; the example's rollout where it can be."""
    stand_on(session, "verl", *VERL[version], exactly=(f"verl=={version}",))
    run_tests(session, "tests/versions")
    if version not in NOT_ROLLED_OUT:
        # Not in the session's own folder for such: Ray's workers refuse one below a venv.
        with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
            session.run("otel-rollout", "demo", "--path", "classic", f"{folder}/store")


@nox.session
@nox.parametrize("version", RAY, ids=RAY)
def ray(session: nox.Session, version: str) -> None:
    """Ray: a local and an existing cluster, actors and tasks of every kind."""
    stand_on(session, "verl", f"ray[default]=={version}")
    python = Path(session.virtualenv.location) / "bin" / "python"
    fit = "tests/versions/test_fit.py"
    run_tests(session, "tests/e2e/test_ray.py", fit, TEST_VERL_PYTHON=str(python))


@nox.session
def phoenix(session: nox.Session) -> None:
    """Arize Phoenix: its real server receives rollouts over OTLP."""
    stand_on(session, "phoenix")
    run_tests(session, "tests/backends")


@nox.session(python=PYTHONS)
def python(session: nox.Session) -> None:
    """Python: everything of the development environment, the unit tests."""
    session.install("-r", str(envs.ENVIRONMENTS["dev"].wishes), silent=True)
    session.install("--no-deps", "--no-build-isolation", "--editable", ".", silent=True)
    run_tests(session, "tests/unit")

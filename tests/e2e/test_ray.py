"""Ray: workers are instrumented, and the trajectory's context crosses every kind of call."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout.startup import is_ray_service
from tests.e2e.rollouts import runs
from tests.shell import free_port

PROGRAM = Path(__file__).parent / "ray_programs" / "contexts.py"
CALLS = (
    "async",
    "inherited",
    "sync method",
    "sync actor",
    "keywords",
    "task",
    "task with keywords",
)


def run_program(python: Path, folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    out = folder / "seen.json"
    done = subprocess.run(
        [
            str(python.with_name("opentelemetry-instrument")),
            str(python),
            str(PROGRAM),
            str(out),
            *arguments,
        ],
        env=runs.environment(python, folder / "store", OTEL_TRACES_EXPORTER="weave", **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return {**json.loads(out.read_text()), "output": done.stdout}


@pytest.fixture(scope="module")
def local(verl_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A cluster that the driver starts, with a hook of the user's own."""
    folder = tmp_path_factory.mktemp("local")
    return run_program(verl_python, folder, WITH_USER_HOOK="1", WANDB_API_KEY="k" * 40)


@pytest.fixture(scope="module")
def existing(
    verl_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A cluster that was started before, in an environment without any of our variables."""
    folder = tmp_path_factory.mktemp("existing")
    short = tempfile.mkdtemp(prefix="ray")  # Ray's sockets below it must fit 107 bytes
    port = free_port()
    plain = {
        name: value
        for name, value in runs.environment(verl_python, folder).items()
        if not name.startswith("OTEL_")
    }
    command = [verl_python.with_name("ray"), "start", "--head", "--block", f"--port={port}"]
    options = ["--num-cpus=4", "--include-dashboard=false", f"--temp-dir={short}"]
    with (folder / "ray.log").open("w") as log:
        cluster = subprocess.Popen(
            [str(part) for part in [*command, *options]], env=plain, stdout=log, stderr=log
        )
    try:
        wait_for_port(port)
        yield run_program(
            verl_python,
            folder,
            f"127.0.0.1:{port}",
            WANDB_API_KEY="k" * 40,
            OTEL_EXPORTER_OTLP_HEADERS="authorization=secret",
        )
    finally:
        cluster.terminate()
        cluster.wait(60)
        shutil.rmtree(short, ignore_errors=True)


def wait_for_port(port: int, timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@pytest.fixture(params=["local", "existing"])
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.getfixturevalue(request.param)
    return found


class TestWorkers:
    """Every worker is set up as the driver is."""

    def test_workers_have_the_sdk_and_the_variables(self, seen: dict[str, Any]) -> None:
        for call in CALLS:
            assert seen[call]["provider"] == "TracerProvider", call
            assert seen[call]["exporter"] == "weave"
            assert seen[call]["pid"] != seen["driver"]["pid"]

    def test_the_user_s_runtime_env_is_kept(self, seen: dict[str, Any]) -> None:
        assert {seen[call]["mine"] for call in CALLS} == {"kept"}

    def test_the_user_s_hook_runs_as_well(self, local: dict[str, Any]) -> None:
        assert {local[call]["hooked"] for call in CALLS} == {"yes"}

    def test_keys_do_not_go_into_the_runtime_env_and_that_is_said_once(
        self, existing: dict[str, Any]
    ) -> None:
        assert {existing[call]["secret"] for call in CALLS} == {None}
        warnings = existing["output"].count("is not handed to the workers of this cluster")
        assert warnings == 1
        assert "OTEL_EXPORTER_OTLP_HEADERS, WANDB_API_KEY" in existing["output"]

    def test_ray_s_own_services_are_recognised(self, local: dict[str, Any]) -> None:
        # workers have taken other names by now: see `ray::Actor` in a list of processes
        services = [argv for argv in local["services"] if "default_worker.py" not in str(argv)]
        assert services
        assert [argv for argv in services if not is_ray_service(argv)] == []
        assert not is_ray_service(["python", "…/ray/_private/workers/default_worker.py", "--x"])


class TestContext:
    """Trace and baggage are the caller's, wherever a method takes them."""

    @pytest.mark.parametrize("call", CALLS)
    def test_methods_and_tasks_run_in_the_caller_s_trajectory(
        self, seen: dict[str, Any], call: str
    ) -> None:
        assert seen[call]["trace_id"] == seen["driver"]["trace_id"]
        assert seen[call]["sampled"]
        assert seen[call]["step"] == "5"

    def test_and_so_do_actors_that_they_start(self, seen: dict[str, Any]) -> None:
        for inner in seen["nested"]:
            assert inner["trace_id"] == seen["driver"]["trace_id"]
            assert inner["step"] == "5"
        assert len({inner["pid"] for inner in seen["nested"]}) == 2

    def test_a_call_outside_is_outside(self, seen: dict[str, Any]) -> None:
        assert seen["outside"]["step"] is None
        assert seen["outside"]["trace_id"] != seen["driver"]["trace_id"]

    def test_nothing_breaks_where_no_context_can_go(self, seen: dict[str, Any]) -> None:
        assert seen["static"] == "static"
        assert seen["generator"] == [0, 1, 2]
        assert seen["task generator"] == [0, 1, 2]
        assert seen["async generator"] == [0, 1, 2]
        assert seen["keyword names"] == ["a", "b"]
        assert seen["sync actor"]["value"] == 7

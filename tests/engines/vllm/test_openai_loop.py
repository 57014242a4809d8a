"""examples/openai_loop on vLLM's own OpenAI-compatible server: each of its commands, as told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.examples import check, line_of, rollouts_of
from tests.engines.vllm.conftest import ENVIRONMENT
from tests.shell import free_port

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server as the example's README starts it, on a free port."""
    port = free_port()
    log = tmp_path_factory.mktemp("vllm") / "log"
    line = line_of("openai_loop", "vllm serve").removesuffix("&")
    line += f"--dtype float32 --enforce-eager --host 127.0.0.1 --port {port}"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=ROOT,
            env={**environ, **ENVIRONMENT, "PATH": f"{BIN}{os.pathsep}{environ['PATH']}"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the server did not come up: {log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def rollouts(server: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    store = tmp_path_factory.mktemp("store")
    options = ("--base-url", server, "--steps", "1", "--prompts", "3", "--n", "4")
    return rollouts_of("openai_loop", store, {}, *options)


def test_every_rollout_is_there(rollouts: list[dict[str, Any]]) -> None:
    check(rollouts, 3, 4)


def test_tokens_are_those_of_the_server(rollouts: list[dict[str, Any]]) -> None:
    for one in rollouts:
        made = [
            logprob
            for logprob, mask in zip(one["response_logprobs"], one["response_mask"], strict=True)
            if mask
        ]
        assert all(logprob <= 0 for logprob in made)


def test_texts_and_tools(rollouts: list[dict[str, Any]]) -> None:
    tools = [tool for one in rollouts for tool in one["tools"]]
    assert {tool["name"] for tool in tools} == {"calculator"}
    assert all(one["prompt_text"] for one in rollouts)
    assert all("answer" in one["response_text"] or one["reward"] == 0 for one in rollouts)

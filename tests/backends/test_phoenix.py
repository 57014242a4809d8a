"""Arize Phoenix, as one that takes OTLP over HTTP and knows the GenAI conventions."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shell import free_port
from tests.unit import documents

PROGRAM = Path(__file__).with_name("rollouts.py")
STARTS_WITHIN_S = 120


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of its server, with an empty database."""
    folder = tmp_path_factory.mktemp("phoenix")
    port, grpc = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    command = [str(Path(sys.executable).with_name("phoenix")), "serve"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, env={**clean, **settings}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not reachable(f"{url}/healthz"):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def reachable(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def spans_of(url: str, count: int) -> list[dict[str, Any]]:
    """All spans of the default project, once there are as many."""
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"{url}/v1/projects/default/spans?limit=1000") as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, [span["name"] for span in found]
        time.sleep(0.5)


@pytest.fixture(scope="module")
def traces(phoenix: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """The spans of each trace that Phoenix has of the rollouts, sent as the page says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "WANDB_"))}
    exports = documents.block(
        documents.DOCS / "otlp.md", "sh", "export OTEL_TRACES_EXPORTER=weave,otlp\n"
    )
    assert "http://127.0.0.1:6006\n" in exports
    exports = exports.replace("http://127.0.0.1:6006", phoenix)
    instrument = Path(sys.executable).with_name("opentelemetry-instrument")
    line = shlex.join([str(instrument), sys.executable, str(PROGRAM)])
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{exports}\n{line}"],
        env={
            **clean,
            "OTEL_ROLLOUT_DIR": str(tmp_path_factory.mktemp("store")),
            "WANDB_API_KEY": "",
            "NETRC": os.devnull,
        },
        check=True,
        timeout=120,
    )
    by_trace = defaultdict(list)
    for span in spans_of(phoenix, 18):
        by_trace[span["context"]["trace_id"]].append(span)
    return list(by_trace.values())


def test_each_rollout_is_a_trace(traces: list[list[dict[str, Any]]]) -> None:
    assert len(traces) == 6
    for spans in traces:
        (root,) = [span for span in spans if span["parent_id"] is None]
        assert root["name"] == "rollout calculator"
        below = {span["name"] for span in spans if span["parent_id"] == root["context"]["span_id"]}
        assert below == {"chat policy", "execute_tool calculator"}


def test_every_span_carries_the_trajectory(traces: list[list[dict[str, Any]]]) -> None:
    seen = set()
    for spans in traces:
        (identity,) = {
            tuple(span["attributes"][f"rollout.{name}"] for name in ("sample_index", "rollout_n"))
            for span in spans
        }
        seen.add(identity)
        assert {span["attributes"]["rollout.step"] for span in spans} == {1}
    assert seen == {(sample, number) for sample in range(2) for number in range(3)}


def test_the_reward_is_on_the_root(traces: list[list[dict[str, Any]]]) -> None:
    for spans in traces:
        (root,) = [span for span in spans if span["parent_id"] is None]
        reward = root["attributes"]["rollout.reward"]
        assert reward == float(root["attributes"]["rollout.rollout_n"] > 0)
        (event,) = [one for one in root["events"] if one["name"] == "gen_ai.evaluation.result"]
        assert event["attributes"]["gen_ai.evaluation.score.value"] == reward


def test_kinds_texts_and_errors_are_understood(traces: list[list[dict[str, Any]]]) -> None:
    spans = [span for spans in traces for span in spans]
    for span in spans:
        if span["name"] == "chat policy":
            assert span["span_kind"] == "LLM"
            (message,) = json.loads(span["attributes"]["gen_ai.input.messages"])
            assert message["parts"] == [{"type": "text", "content": "What is 8 / 2?"}]
        elif span["name"] == "execute_tool calculator":
            assert span["span_kind"] == "TOOL"
            failed = span["attributes"]["rollout.rollout_n"] == 0
            assert (span["status_code"] == "ERROR") is failed

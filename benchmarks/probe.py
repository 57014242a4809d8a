"""A process in which one way of tracing is set up, and which measures what it is told to.

python -m benchmarks.probe TRACER URL

Reads one JSON object a line, ``{"measure": NAME, ...arguments}``, and answers with one: see
:mod:`benchmarks.measures`. What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks.tracers import environment

ROOT = Path(__file__).resolve().parent.parent


class Probe:
    """The process, from outside.

    Args:
        tracer: one of :data:`benchmarks.tracers.NAMES`.
        url: of the stub server that gets everything.
        venv: the environment whose Python it runs; by default the one that this runs in.
    """

    def __init__(self, tracer: str, url: str, venv: str = sys.prefix) -> None:
        self.tracer = tracer
        self._folder = tempfile.TemporaryDirectory(prefix="otel-rollout-bench-")
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("OTEL_", "WANDB_", "WEAVE_", "MLFLOW_"))
        }
        command = [f"{venv}/bin/python", "-m", "benchmarks.probe", tracer, url]
        if tracer == "ours":
            command.insert(0, f"{venv}/bin/opentelemetry-instrument")
        quiet = {"RAY_DISABLE_DOCKER_CPU_WARNING": "1", "VERL_LOGGING_LEVEL": "ERROR"}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**clean, **quiet, **environment(tracer, url, Path(self._folder.name))},
        )
        self._answer()  # it is ready

    def measure(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Have something measured; raises ``RuntimeError`` with what went wrong there."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"measure": name, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"probe {self.tracer} ended with {self._process.wait(30)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"probe {self.tracer}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._folder.cleanup()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tracer_name, url = sys.argv[1:3]

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        from benchmarks import measures

        bench = measures.Bench(tracer_name, url)
    except Exception:
        answer({"error": traceback.format_exc()})
        return
    answer({"ready": tracer_name})
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            answer(getattr(bench, arguments.pop("measure"))(**arguments))
        except Exception:
            answer({"error": traceback.format_exc()})


if __name__ == "__main__":
    main()

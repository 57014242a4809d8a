"""Command lines as a person types them: run to their end, or served until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

_SETTINGS = ("OTEL_", "WANDB_", "WF_", "WEAVE_")


def environment(**more: str) -> dict[str, str]:
    """The tests' own without a developer's settings and keys, this Python's commands first."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(_SETTINGS)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    return {**clean, "PATH": path, "NETRC": os.devnull, **more}


def run(
    script: str, folder: Path, environ: Mapping[str, str], *, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run lines to their good end, without a traceback on the way."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, (script, done.stderr)
    return done


def serve(
    line: str, folder: Path, environ: Mapping[str, str], port: int
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server; return it with its first answer's status, 401 and 403 among them."""
    serving = subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=folder, env=environ)
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                return serving, answer.status
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return serving, error.code
            stop(serving)
            raise
        except OSError:
            assert serving.poll() is None, line
            time.sleep(0.1)
    stop(serving)
    raise AssertionError(f"{line}: no answer")


def stop(serving: subprocess.Popen[bytes]) -> None:
    """End a server as the pages say, by Ctrl-C."""
    serving.send_signal(signal.SIGINT)
    assert serving.wait(30) in (0, 130, -signal.SIGINT)


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port

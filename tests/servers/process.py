"""A server in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path


class ServerProcess:
    """Runs a command that prints its address when it can be reached, and ends with its stdin."""

    def __init__(self, command: Sequence[str], log: Path | None = None) -> None:
        self.command = list(command)
        self.log = log
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running
        errors = self.log.open("a") if self.log else None
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Not the tests' own: their instrumentation would reach into the server.
                env={k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTHON"))},
            )
        finally:
            if errors:
                errors.close()
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            status = self._process.wait(30)
            said = self.log.read_text()[-2000:] if self.log else "see its standard error"
            raise RuntimeError(f"{self.command[:2]} ended with {status}: {said}")

    def stop(self) -> None:
        """End the process; what it stored stays."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()

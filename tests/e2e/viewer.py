"""The viewer's server on a thread of the tests, and a browser to look at it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import uvicorn

from otel_rollout.local.server.app import application
from otel_rollout.local.server.serving import _listening
from otel_rollout.local.server.state import State
from tests.servers.weave_process import WeaveServer


class Viewer(WeaveServer):
    """`otel-rollout view` without its command; asked like the Weave server that it also is."""

    def __init__(self, directory: Path, token: str | None = None) -> None:
        self.directory = directory
        self.token = token
        self.url = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        listening = _listening("127.0.0.1", 0)
        app = application(State.of(self.directory), self.token)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self._server.started

    def stop(self) -> None:
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join(20)
            self._thread = None

"""A proxy on loopback that stands for the network: it passes requests on, or lets them fail.

It runs in a thread of the test process and keeps its address whatever happens behind it.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

UP: Final = "up"
DOWN: Final = "down"
BUSY: Final = "503"
LIMITED: Final = "429"
RESET: Final = "reset"
SLOW: Final = "slow"
TOO_LARGE: Final = "413"
ANSWER_LOST: Final = "answer lost"
STATES: Final = (UP, DOWN, BUSY, LIMITED, RESET, SLOW, TOO_LARGE, ANSWER_LOST)

_SLOW_BYTES_PER_S: Final = 10_000
_LARGEST: Final = 1 << 20
_SENT_TO = ("/calls/complete", "/feedback", "/file/create")


@dataclass
class Seen:
    """A request that arrived: when, how large, and what was done with it."""

    path: str
    bytes: int
    time: float
    outcome: str


@dataclass
class FaultProxy:
    """Use as a context manager; `state` may be changed at any time.

    `down`: connections are refused. `503`, `429` (Retry-After: `retry_after` seconds): answered
    so. `reset`: the connection is cut in the middle of the body. `slow`: the body is read at 10
    kB/s. `413`: above 1 MiB. `answer lost`: every other request is carried out, but its answer
    does not come back.
    """

    target: str
    state: str = UP
    retry_after: float = 1.0
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> FaultProxy:
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._losses = 0
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def set(self, state: str) -> None:
        """Go into another state; what is under way ends as it began."""
        assert state in STATES
        self.state = state
        if state == DOWN:
            self._close()
        elif self._server is None:
            self._open()

    def _open(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), self._handler())
        self._port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def is_to_lose(self) -> bool:
        self._losses += 1
        return self._losses % 2 == 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(_Handler):
            def do_POST(self) -> None:
                self.serve(proxy)

            def do_GET(self) -> None:
                self.serve(proxy)

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients die in these tests: that is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def serve(self, proxy: FaultProxy) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        state = proxy.state
        seen = Seen(self.path, length, time.monotonic(), state)
        proxy.seen.append(seen)
        if state == DOWN:  # a connection from before
            self._cut()
        elif state == RESET and length > 1:
            self.rfile.read(length // 2)
            self._cut()
        else:
            self._answer(proxy, state, self._read(length, slowly=state == SLOW))

    def _answer(self, proxy: FaultProxy, state: str, body: bytes) -> None:
        if state == BUSY:
            self._reply(503, b'{"reason": "busy"}')
        elif state == LIMITED:
            after = f"{proxy.retry_after:g}"
            self._reply(429, b'{"reason": "slow down"}', {"Retry-After": after})
        elif state == TOO_LARGE and len(body) > _LARGEST:
            self._reply(413, b'{"reason": "too large"}')
        else:
            status, answer = self._pass_on(proxy, body)
            is_sending = any(part in self.path for part in _SENT_TO)
            if state == ANSWER_LOST and is_sending and proxy.is_to_lose():
                self._cut()
            else:
                self._reply(status, answer)

    def _read(self, length: int, *, slowly: bool) -> bytes:
        if not slowly:
            return self.rfile.read(length)
        parts = []
        while length > 0:
            parts.append(self.rfile.read(min(length, 1000)))
            length -= len(parts[-1])
            if not parts[-1]:
                break
            time.sleep(len(parts[-1]) / _SLOW_BYTES_PER_S)
        return b"".join(parts)

    def _pass_on(self, proxy: FaultProxy, body: bytes) -> tuple[int, bytes]:
        target = urlsplit(proxy.target)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError:
            return 502, b"{}"
        finally:
            connection.close()

    def _reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _cut(self) -> None:
        """Reset the connection."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""

"""A server that says yes to all that a Weave client sends, and counts it: for benchmarks.

It runs in a process of its own, so that its work is not measured with the client's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypedDict

if __package__:
    from .process import ServerProcess


class Tally(TypedDict):
    requests: int
    bytes: int


SERVER_INFO = {"min_required_weave_python_version": "0.0.1", "trace_server_version": "9.9.9"}
GRAPHQL = {
    "data": {
        "project": {"name": "bench", "id": "1"},
        "upsertModel": {"model": {"name": "bench"}},
        "viewer": {"username": "bench", "defaultEntity": {"name": "local"}},
    }
}


@dataclass
class AcceptAll:
    """The server as a context manager."""

    url: str = ""

    def __enter__(self) -> AcceptAll:
        self._process = ServerProcess([sys.executable, __file__])
        self._process.start()
        self.url = self._process.url
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def tallies(self) -> dict[str, Tally]:
        """Requests and bytes for each path so far."""
        with urllib.request.urlopen(f"{self.url}/tallies", timeout=30) as answer:
            found: dict[str, Tally] = json.load(answer)
        return found

    def tally(self, path: str) -> Tally:
        """Requests and bytes for all paths that contain `path`."""
        of_path = [tally for name, tally in self.tallies().items() if path in name]
        return Tally(
            requests=sum(tally["requests"] for tally in of_path),
            bytes=sum(tally["bytes"] for tally in of_path),
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    tallies: defaultdict[str, Tally] = defaultdict(lambda: Tally(requests=0, bytes=0))
    lock = threading.Lock()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        with self.lock:
            tally = self.tallies[self.path]
            tally["requests"] += 1
            tally["bytes"] += length
        self._answer(
            GRAPHQL
            if self.path == "/graphql"
            else {"digest": "none", "id": "none"}
            if self.path.endswith("/create")
            else {}
        )

    def do_GET(self) -> None:
        self._answer(dict(self.tallies) if self.path == "/tallies" else SERVER_INFO)

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()

"""A server that says yes to all that clients of Weave, MLflow and OTLP send, and counts it.

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
from pathlib import Path
from typing import Any, TypedDict

if __package__:
    from tests.servers.process import ServerProcess


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
MLFLOW_VERSION = "3.17.2"
MLFLOW_EXPERIMENT = {
    "experiment": {
        "experiment_id": "1",
        "name": "bench",
        "artifact_location": "mlflow-artifacts:/1",
        "lifecycle_stage": "active",
    }
}
MLFLOW_TRACES = "/api/3.0/mlflow/traces"


@dataclass
class StubServer:
    """The server as a context manager."""

    url: str = ""

    def __enter__(self) -> StubServer:
        self._process = ServerProcess([sys.executable, str(Path(__file__))])
        self._process.start()
        self.url = self._process.url
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()


def tallies(url: str) -> dict[str, Tally]:
    """Requests and bytes for each path so far."""
    with urllib.request.urlopen(f"{url}/tallies", timeout=30) as answer:
        found: dict[str, Tally] = json.load(answer)
    return found


def bytes_taken(url: str) -> int:
    """Bytes of all bodies so far."""
    return sum(tally["bytes"] for tally in tallies(url).values())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    tallies: defaultdict[str, Tally] = defaultdict(lambda: Tally(requests=0, bytes=0))
    lock = threading.Lock()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = self.path.partition("?")[0]
        with self.lock:
            tally = self.tallies[path]
            tally["requests"] += 1
            tally["bytes"] += length
        if path == "/graphql":
            self._answer(GRAPHQL)
        elif path == MLFLOW_TRACES:
            self._answer(_stored_trace(json.loads(body)))
        elif path.endswith("/create"):
            self._answer({"digest": "none", "id": "none"})
        else:
            self._answer({})

    def do_PATCH(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/tallies":
            self._answer(dict(self.tallies))
        elif path == "/version":
            self._answer_bytes(MLFLOW_VERSION.encode(), "text/plain")
        elif path.endswith("/experiments/get-by-name"):
            self._answer(MLFLOW_EXPERIMENT)
        else:
            self._answer(SERVER_INFO)

    def _answer(self, content: object) -> None:
        self._answer_bytes(json.dumps(content).encode(), "application/json")

    def _answer_bytes(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


def _stored_trace(given: Any) -> Any:
    """MLflow's trace, whose spans this server has taken already."""
    info = given.get("trace", {}).get("trace_info", {})
    info.setdefault("tags", {})["mlflow.trace.spansLocation"] = "TRACKING_STORE"
    return {"trace": {"trace_info": info}}


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()

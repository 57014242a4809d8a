"""Where calls go, and whom we ask for the entity, by the variables alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from otel_rollout.exporters.weave.client import Client, Destination, ServerError, destination
from otel_rollout.exporters.weave.projects import Projects
from otel_rollout.settings import Settings

KEY = {"WANDB_API_KEY": "k" * 40}


@pytest.mark.parametrize(
    ("endpoint", "environ", "expected"),
    [
        (None, KEY, ("https://trace.wandb.ai", "https://api.wandb.ai")),
        ("https://trace.wandb.ai", KEY, ("https://trace.wandb.ai", "https://api.wandb.ai")),
        ("http://127.0.0.1:7799", {}, ("http://127.0.0.1:7799", "http://127.0.0.1:7799")),
        ("http://127.0.0.1:7799", KEY, ("http://127.0.0.1:7799", "http://127.0.0.1:7799")),
        ("https://w.example/traces", KEY, ("https://w.example/traces", "https://w.example")),
        ("https://notwandb.ai", KEY, ("https://notwandb.ai", "https://notwandb.ai")),
        (
            "http://proxy:8080",
            {**KEY, "WANDB_BASE_URL": "https://api.wandb.ai/"},
            ("http://proxy:8080", "https://api.wandb.ai"),
        ),
        (
            None,
            {**KEY, "WANDB_BASE_URL": "https://w.example"},
            ("https://w.example/traces", "https://w.example"),
        ),
    ],
)
def test_server_and_api(
    endpoint: str | None, environ: dict[str, str], expected: tuple[str, str], tmp_path: Path
) -> None:
    settings = Settings(weave_endpoint=endpoint)
    where = destination(settings, {"NETRC": str(tmp_path / "none"), **environ})
    assert where is not None
    assert (where.trace_server, where.api) == expected


def test_a_key_of_another_host_in_netrc_stays_there(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    netrc.chmod(0o600)
    where = destination(Settings(weave_endpoint="http://collector:1"), {"NETRC": str(netrc)})
    assert where is not None
    assert where.api_key is None


class _NoApi(BaseHTTPRequestHandler):
    """A trace server that has no API of W&B's."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(404)
        self.end_headers()
        self.wfile.write(json.dumps({"detail": "Not Found"}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def no_api() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _NoApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_without_an_api_the_entity_must_be_named_and_that_is_enough(no_api: str) -> None:
    projects = Projects(Client(Destination(no_api, no_api, "key")), "p")
    assert projects.resolve("me/p") == "me/p"
    with pytest.raises(ServerError, match="OTEL_EXPORTER_WEAVE_PROJECT=entity/project") as caught:
        projects.resolve("p")
    assert not caught.value.about_the_content

"""The Weave trace server of `weave_server.py` as tests use it: started, asked, and read from."""

from __future__ import annotations

import base64
import json
import os
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .process import ServerProcess

if TYPE_CHECKING:
    from weave.trace.weave_client import WeaveClient

PROGRAM = Path(__file__).with_name("weave_server.py")
#: The client takes nothing shorter.
API_KEY = "test" * 10
ENTITY = "local"


class WeaveServer:
    """One server process and its database. It can be stopped and started again at its address."""

    def __init__(self, python: str, folder: Path) -> None:
        self._command = [python, str(PROGRAM), str(folder / "calls.sqlite")]
        self._process = ServerProcess(self._command, folder / "server.log")
        self.url = ""

    def start(self) -> None:
        port = urlsplit(self.url).port or 0
        self._process.command = [*self._command, "--port", str(port)]
        self._process.start()
        self.url = self._process.url

    def stop(self) -> None:
        self._process.stop()

    def environ(self) -> dict[str, str]:
        """The variables with which a process writes here, and nowhere else."""
        return {
            "WANDB_API_KEY": API_KEY,
            "WANDB_BASE_URL": self.url,
            "WF_TRACE_SERVER_URL": self.url,
            "WEAVE_PRINT_CALL_LINK": "false",
            # A cache in the temporary folder would keep objects from a fresh server.
            "WEAVE_USE_SERVER_CACHE": "false",
        }

    def client(self, project: str) -> WeaveClient:
        """The real Weave client on `project` (of the entity `local`) or `entity/project`."""
        os.environ["WEAVE_USE_SERVER_CACHE"] = "false"
        from weave.trace.weave_client import WeaveClient
        from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

        entity, _, name = project.rpartition("/")
        server = RemoteHTTPTraceServer(self.url, should_batch=False)
        server.set_auth(_credentials())
        return WeaveClient(entity or ENTITY, name, server, ensure_project_exists=False)

    def feedback(self, project: str) -> list[dict[str, Any]]:
        """All feedback of a project of the entity `local`, as the client's queries get it."""
        fields = ["id", "weave_ref", "feedback_type", "payload", "created_at"]
        query = {"project_id": f"{ENTITY}/{project}", "fields": fields}
        found: list[dict[str, Any]] = self.request("/feedback/query", query)["result"]
        return found

    def request(self, path: str, body: Any = None, *, authorized: bool = True) -> Any:
        """A plain HTTP request: POST with a JSON body (or bytes), GET without. Raises HTTPError."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if authorized:
            credentials = base64.b64encode(f"api:{API_KEY}".encode()).decode()
            headers["Authorization"] = f"Basic {credentials}"
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    # What the server saw: see weave_server.py.

    def requests(self, path: str = "") -> list[dict[str, Any]]:
        """Every request since the start whose path contains `path`."""
        seen: list[dict[str, Any]] = self.request("/debug/requests")
        return [one for one in seen if path in one["path"]]

    def counts(self) -> dict[str, int]:
        """`requests`, `calls`, `duplicates`, and `changed`: calls that came again with changes."""
        counts: dict[str, int] = self.request("/debug/counts")
        return counts

    def posted(self, call_id: str) -> list[dict[str, Any]]:
        """Each version of a call as it was on the wire."""
        versions: list[dict[str, Any]] = self.request(f"/debug/posted/{call_id}")
        return versions

    def fail_next(
        self,
        path: str,
        status: int,
        *,
        times: int = 1,
        after: bool = False,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer coming requests at `path` with `status`; `after`: though they are carried out."""
        failure = {"path": path, "status": status, "times": times, "after": after}
        self.request("/debug/failures", [{**failure, "headers": headers or {}}])


def _credentials() -> Any:
    """What the client takes: weave 0.53 wants an object of its own, those around it a pair."""
    import weave

    if not weave.__version__.startswith("0.53."):
        return "api", API_KEY
    from weave.wandb_interface.auth import ApiKeyCredentials

    return ApiKeyCredentials(API_KEY)

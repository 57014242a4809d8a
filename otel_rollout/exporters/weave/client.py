"""A thin client of Weave's trace server: its HTTP contract, nothing else.

Hosts and credentials are found as the ``weave`` package finds them, from the same variables and
netrc; the package itself is not imported into a training process (it takes seconds, and patches
what it finds).
"""

from __future__ import annotations

import base64
import netrc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

from otel_rollout._version import __version__
from otel_rollout.settings import Settings

WANDB_API: Final = "https://api.wandb.ai"
WANDB_TRACE_SERVER: Final = "https://trace.wandb.ai"
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Destination:
    """Where calls go: trace server, W&B's API (for entity and project), and the key, if any."""

    trace_server: str
    api: str
    api_key: str | None


def destination(settings: Settings, environ: Mapping[str, str] = os.environ) -> Destination | None:
    """Return where calls go; ``None`` without credentials: then they stay in the local store.

    A server named by ``OTEL_EXPORTER_WEAVE_ENDPOINT`` may be one that asks for no key.
    """
    api = (environ.get("WANDB_BASE_URL") or WANDB_API).rstrip("/")
    trace_server = settings.weave_endpoint or (environ.get("WF_TRACE_SERVER_URL") or "").rstrip("/")
    if not trace_server:
        trace_server = WANDB_TRACE_SERVER if api == WANDB_API else api + "/traces"
    key = environ.get("WANDB_API_KEY") or _netrc_key(api, environ)
    if not key and settings.weave_endpoint is None:
        return None
    if settings.weave_endpoint is not None and "WANDB_BASE_URL" not in environ and not key:
        api = trace_server
    return Destination(trace_server, api, key or None)


def _netrc_key(api: str, environ: Mapping[str, str]) -> str | None:
    host = urlsplit(api).hostname or ""
    path = environ.get("NETRC") or os.path.join(os.path.expanduser("~"), ".netrc")
    try:
        entry = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return entry[2] if entry is not None else None


class ServerError(Exception):
    """The server did not take a request; ``status`` is 0 when it could not be reached."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class Client:
    """Speaks to one destination over a connection that is kept open. For one thread."""

    def __init__(self, where: Destination, timeout: float = TIMEOUT_S) -> None:
        import urllib3

        self.where = where
        self._http = urllib3.PoolManager(
            maxsize=2,
            retries=False,
            timeout=urllib3.Timeout(connect=min(10.0, timeout), read=timeout),
            headers={"User-Agent": f"otel-rollout/{__version__}"},
        )

    def complete_calls(self, project_id: str, calls: Sequence[bytes]) -> None:
        """Send calls, each the bytes of a JSON object without ``project_id``."""
        head = b'{"project_id":' + orjson.dumps(project_id) + b","
        body = b'{"batch":[' + b",".join(head + call[1:] for call in calls) + b"]}"
        entity, project = project_id.split("/", 1)
        path = f"/v2/{quote(entity, safe='')}/{quote(project, safe='')}/calls/complete"
        self._post(self.where.trace_server + path, body)

    def create_feedback(self, project_id: str, feedback: Mapping[str, Any]) -> None:
        """Send one feedback of a call."""
        call_id = feedback["call_id"]
        body = {
            "id": feedback["id"],
            "project_id": project_id,
            "weave_ref": f"weave:///{project_id}/call/{call_id}",
            "feedback_type": feedback["feedback_type"],
            "payload": feedback["payload"],
        }
        self._post(self.where.trace_server + "/feedback/create", orjson.dumps(body))

    def default_entity(self) -> str:
        """Return the entity that W&B holds for this key."""
        data = self._graphql("query Viewer { viewer { defaultEntity { name } } }", {})
        try:
            return str(data["viewer"]["defaultEntity"]["name"])
        except (KeyError, TypeError):
            raise ServerError(0, f"{self.where.api} names no default entity for this key") from None

    def ensure_project(self, entity: str, project: str) -> None:
        """Create the project where it does not exist."""
        self._graphql(
            "mutation UpsertModel($entity: String!, $project: String!) {"
            " upsertModel(input: {entityName: $entity, name: $project}) { model { name } } }",
            {"entity": entity, "project": project},
        )

    def _graphql(self, query: str, variables: Mapping[str, Any]) -> Any:
        body = orjson.dumps({"query": query, "variables": variables})
        answer = orjson.loads(self._post(self.where.api + "/graphql", body))
        if answer.get("errors"):
            raise ServerError(0, str(answer["errors"])[:500])
        return answer.get("data") or {}

    def _post(self, url: str, body: bytes) -> bytes:
        import urllib3

        headers = {"Content-Type": "application/json"}
        if self.where.api_key:
            token = base64.b64encode(f"api:{self.where.api_key}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        try:
            response = self._http.request("POST", url, body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise ServerError(0, f"{type(error).__name__}: {error}") from error
        if response.status >= 300:
            raise ServerError(
                response.status,
                f"{response.status} {response.data[:500].decode('utf-8', 'replace')}",
                _seconds(response.headers.get("Retry-After")),
            )
        return bytes(response.data)

    def close(self) -> None:
        """Close the connections."""
        self._http.clear()


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None

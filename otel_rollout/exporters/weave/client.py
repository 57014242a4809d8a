"""A thin client of Weave's trace server: its HTTP contract, nothing else.

Hosts and credentials are found as the ``weave`` package finds them, from the same variables and
netrc; the package itself is not imported into a training process (it takes seconds, and patches
what it finds).
"""

from __future__ import annotations

import base64
import email.utils
import io
import netrc
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

from otel_rollout._version import __version__
from otel_rollout.settings import Settings

WANDB_API: Final = "https://api.wandb.ai"
WANDB_TRACE_SERVER: Final = "https://trace.wandb.ai"
TIMEOUT_S: Final = 30.0
_TRACES: Final = "/traces"
_CONNECT_S: Final = 10.0
_BLOCK: Final = 1 << 16
"""Bytes that go out at a time; the time limit holds for each block of them."""
_REASON_LENGTH: Final = 500
_NO_SUCH_ROUTE: Final = frozenset({404, 405})
_NOT_ABOUT_THE_CONTENT: Final = frozenset({401, 403, 404, 405, 407, 408, 421, 425, 426, 429})


@dataclass(frozen=True)
class Destination:
    """Where calls go: trace server, W&B's API (for entity and project), and the key, if any."""

    trace_server: str
    api: str
    api_key: str | None

    def __repr__(self) -> str:
        return f"Destination({self.shown})"

    @property
    def shown(self) -> str:
        """The trace server for people to read: without a password that its URL may hold."""
        parts = urlsplit(self.trace_server)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"


def destination(settings: Settings, environ: Mapping[str, str] = os.environ) -> Destination | None:
    """Return where calls go; ``None`` without credentials: then they stay in the local store.

    A server named by ``OTEL_EXPORTER_WEAVE_ENDPOINT`` may be one that asks for no key. Where it is
    not W&B's own, W&B's API is not asked either, unless ``WANDB_BASE_URL`` names it: whoever has
    a key of W&B in the environment may be where W&B cannot be reached.
    """
    endpoint = settings.weave_endpoint
    api = (environ.get("WANDB_BASE_URL") or "").rstrip("/")
    if not api:
        api = WANDB_API if endpoint is None or _is_wandb(endpoint) else _without_path(endpoint)
    trace_server = endpoint or (environ.get("WF_TRACE_SERVER_URL") or "").rstrip("/")
    if not trace_server:
        trace_server = WANDB_TRACE_SERVER if api == WANDB_API else api + _TRACES
    key = environ.get("WANDB_API_KEY") or _netrc_key(api, environ)
    if not key and endpoint is None:
        return None
    return Destination(trace_server, api, key or None)


def _is_wandb(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "wandb.ai" or host.endswith(".wandb.ai")


def _without_path(trace_server: str) -> str:
    """Return where the API of a server is that has both, as W&B's dedicated ones do."""
    return trace_server.removesuffix(_TRACES)


def _netrc_key(api: str, environ: Mapping[str, str]) -> str | None:
    host = urlsplit(api).hostname or ""
    path = environ.get("NETRC") or os.path.join(os.path.expanduser("~"), ".netrc")
    try:
        entry = netrc.netrc(path).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return entry[2] if entry is not None else None


class ServerError(Exception):
    """The server did not take a request.

    Attributes:
        status: of the answer; 0 when there was none, or when W&B's API answered with errors.
        retry_after: seconds that the server asks to wait.
        sent: whether the request may have reached the server, and been carried out.
        answered: whether there was an answer at all.
    """

    def __init__(
        self,
        status: int,
        message: str,
        retry_after: float | None = None,
        *,
        sent: bool = True,
        answered: bool = True,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.sent = sent
        self.answered = answered

    @property
    def refuses_credentials(self) -> bool:
        """Whether the key is not accepted."""
        return self.status in {401, 403}

    @property
    def about_the_content(self) -> bool:
        """Whether the same content will be refused whenever it is sent."""
        return 400 <= self.status < 500 and self.status not in _NOT_ABOUT_THE_CONTENT

    @property
    def in_doubt(self) -> bool:
        """Whether the request may have been carried out in spite of this error."""
        return self.sent and (not self.answered or self.status >= 500 or self.status == 408)


class Client:
    """Speaks to one destination over a connection that is kept open. For one thread."""

    def __init__(self, where: Destination, timeout: float = TIMEOUT_S) -> None:
        import urllib3

        self.where = where
        self._secrets = _secrets(where)
        self._batches_feedback = True
        self._http = urllib3.PoolManager(
            maxsize=2,
            retries=False,
            blocksize=_BLOCK,
            timeout=urllib3.Timeout(connect=min(_CONNECT_S, timeout), read=timeout),
        )

    def complete_calls(self, project_id: str, calls: Sequence[bytes]) -> None:
        """Send calls, each the bytes of a JSON object without ``project_id``."""
        head = b'{"project_id":' + orjson.dumps(project_id) + b","
        parts: list[bytes | memoryview] = []
        for call in calls:
            parts += (b",", head, memoryview(call)[1:])
        body = b"".join((b'{"batch":[', *parts[1:], b"]}"))
        entity, project = project_id.split("/", 1)
        path = f"/v2/{quote(entity, safe='')}/{quote(project, safe='')}/calls/complete"
        self._post(self.where.trace_server + path, body)

    def create_feedback(self, project_id: str, feedback: Sequence[Mapping[str, Any]]) -> None:
        """Send feedback of calls."""
        bodies = [
            {
                "id": one["id"],
                "project_id": project_id,
                "weave_ref": f"weave:///{project_id}/call/{one['call_id']}",
                "feedback_type": one["feedback_type"],
                "payload": one["payload"],
            }
            for one in feedback
        ]
        if self._batches_feedback and len(bodies) > 1:
            try:
                self._post_json("/feedback/batch/create", {"batch": bodies})
            except ServerError as error:
                if error.status not in _NO_SUCH_ROUTE:
                    raise
                self._batches_feedback = False  # an older server
            else:
                return
        for body in bodies:
            self._post_json("/feedback/create", body)

    def create_file(self, project_id: str, name: str, content: bytes) -> str:
        """Store a file, under its content's digest, and return the digest."""
        import urllib3

        fields: list[tuple[str, str | bytes | tuple[str, str | bytes, str]]] = [
            ("project_id", project_id),
            ("file", (name, content, "application/octet-stream")),
        ]
        body, content_type = urllib3.encode_multipart_formdata(fields)
        answer = self._post(self.where.trace_server + "/file/create", body, content_type)
        return str(_loaded(answer)["digest"])

    def stored_calls(self, project_id: str, ids: Collection[str]) -> set[str]:
        """Return which of these calls the server has."""
        body = {
            "project_id": project_id,
            "filter": {"call_ids": list(ids)},
            "columns": ["id"],
            "limit": len(ids),
        }
        answer = self._post_json("/calls/stream_query", body)
        found = (_loaded(line) for line in answer.splitlines() if line.strip())
        return {one["id"] for one in found if "id" in one}.intersection(ids)

    def stored_feedback(self, project_id: str, ids: Collection[str]) -> set[str]:
        """Return which of these feedbacks the server has."""
        among = {"$in": [{"$getField": "id"}, [{"$literal": one} for one in ids]]}
        body = {"project_id": project_id, "fields": ["id"], "query": {"$expr": among}}
        answer = self._post_json("/feedback/query", body)
        found = _loaded(answer).get("result") or ()
        return {one["id"] for one in found if "id" in one}.intersection(ids)

    def default_entity(self) -> str:
        """Return the entity that W&B holds for this key."""
        try:
            data = self._graphql("query Viewer { viewer { defaultEntity { name } } }", {})
        except ServerError as error:
            if error.status not in _NO_SUCH_ROUTE:
                raise
            raise ServerError(
                0,
                f"{self.where.api} has no API of W&B's to ask for the entity: "
                "OTEL_EXPORTER_WEAVE_PROJECT=entity/project, or WANDB_BASE_URL",
            ) from None
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

    def _post_json(self, path: str, body: Mapping[str, Any]) -> bytes:
        return self._post(self.where.trace_server + path, orjson.dumps(body))

    def _graphql(self, query: str, variables: Mapping[str, Any]) -> Any:
        body = orjson.dumps({"query": query, "variables": variables})
        answer = _loaded(self._post(self.where.api + "/graphql", body))
        if answer.get("errors"):
            raise ServerError(0, self._without_secrets(str(answer["errors"])))
        return answer.get("data") or {}

    def _post(self, url: str, body: bytes, content_type: str = "application/json") -> bytes:
        import urllib3
        from urllib3 import exceptions

        headers = {
            "User-Agent": f"otel-rollout/{__version__}",
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
        }
        if self.where.api_key:
            token = base64.b64encode(f"api:{self.where.api_key}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        try:
            # As a file it goes out in blocks, and the time limit holds for each of them: a slow
            # line is not taken for a dead one.
            response: urllib3.BaseHTTPResponse = self._http.request(
                "POST", url, body=io.BytesIO(body), headers=headers, redirect=False
            )
        except exceptions.HTTPError as error:
            sent = not isinstance(
                error,
                (
                    exceptions.NewConnectionError,
                    exceptions.ConnectTimeoutError,
                    exceptions.ProxyError,
                ),
            )
            message = self._without_secrets(f"{type(error).__name__}: {error}")
            raise ServerError(0, message, sent=sent, answered=False) from None
        if response.status >= 300:
            said = response.data[:_REASON_LENGTH].decode("utf-8", "replace")
            raise ServerError(
                response.status,
                self._without_secrets(f"{response.status} {said.strip()}"),
                seconds_of(response.headers.get("Retry-After")),
            )
        return response.data

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:_REASON_LENGTH]

    def close(self) -> None:
        """Close the connections."""
        self._http.clear()


def _secrets(where: Destination) -> list[str]:
    found = []
    if where.api_key:
        found += [where.api_key, base64.b64encode(f"api:{where.api_key}".encode()).decode()]
    for url in (where.trace_server, where.api):
        password = urlsplit(url).password
        if password:
            found.append(password)
    return found


def _loaded(answer: bytes) -> Any:
    try:
        loaded = orjson.loads(answer)
    except orjson.JSONDecodeError:
        loaded = None
    if not isinstance(loaded, dict):
        raise ServerError(0, "the answer is no JSON object", answered=False)
    return loaded


def seconds_of(text: str | None) -> float | None:
    """Return the seconds that a ``Retry-After`` header asks for: a number of them, or a date."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None

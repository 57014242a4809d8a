"""Weave's HTTP protocol, as much of it as its client and our exporter need.

So that one machine can serve a cluster without W&B: exporters send their calls here, the ``weave``
package reads and queries them. Whatever else is asked gets 404, as from an older server.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from otel_rollout.local.server.state import State
from otel_rollout.local.server.weave_calls import USER, Refused, WeaveCalls
from otel_rollout.local.server.weave_files import WeaveFiles
from otel_rollout.local.server.weave_query import QueryError

MAX_BODY: Final = 32 << 20
ENTITY: Final = "local"
SERVER_VERSION: Final = "0.0.1"
_OBJECT: Final = re.compile(r"weave:///[^/]+/[^/]+/(?:op|object)/([^:/]+):([^/]+)\Z")

Endpoint = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Any, Request], Any]


class WeaveApi:
    """The protocol's endpoints."""

    def __init__(self, state: State) -> None:
        self._calls = WeaveCalls(state)
        self._files = WeaveFiles(state.directory)

    def routes(self) -> list[Route]:
        """Return the routes."""
        answers: dict[str, Answer] = {
            "/v2/{entity}/{project}/calls/complete": self.complete,
            "/v2/{entity}/{project}/call/start": self.start,
            "/v2/{entity}/{project}/call/end": self.end,
            "/call/start": self.start,
            "/call/end": self.end,
            "/call/read": self.read,
            "/call/upsert_batch": self.upsert,
            "/calls/query_stats": self.stats,
            "/feedback/create": self.feedback,
            "/feedback/batch/create": self.feedback_batch,
            "/feedback/query": self.feedback_query,
            "/obj/create": self.object_create,
            "/obj/read": self.object_read,
            "/refs/read_batch": self.refs_read,
            "/projects_info": self.projects,
            "/service/projects_info": self.projects,
            "/graphql": self.graphql,
        }
        return [
            *(Route(path, _endpoint(answer), methods=["POST"]) for path, answer in answers.items()),
            Route("/calls/stream_query", self.stream, methods=["POST"]),
            Route("/file/create", self.file_create, methods=["POST"]),
            Route("/file/content", self.file_content, methods=["POST"]),
            Route("/files/content", self.file_content, methods=["POST"]),
            Route("/server_info", self.server_info),
            Route("/health", self.server_info),
        ]

    # --- calls -----------------------------------------------------------------------------------

    def complete(self, body: Any, request: Request) -> Any:
        """Store completed calls."""
        project_id = "{entity}/{project}".format(**request.path_params)
        batch = body.get("batch")
        if not isinstance(batch, list):
            raise Refused("batch is missing")
        self._calls.complete(batch, project_id)
        return {}

    def start(self, body: Any, request: Request) -> Any:
        """Take the start of a call."""
        return self._calls.start(_part(body, "start"))

    def end(self, body: Any, request: Request) -> Any:
        """Take the end of a call."""
        self._calls.end(_part(body, "end"))
        return {}

    def upsert(self, body: Any, request: Request) -> Any:
        """Take starts and ends of calls, as older clients send them."""
        results = []
        for item in body.get("batch") or ():
            given = _part(item, "req")
            if item.get("mode") == "start":
                results.append(self._calls.start(_part(given, "start")))
            else:
                self._calls.end(_part(given, "end"))
                results.append({})
        return {"res": results}

    def read(self, body: Any, request: Request) -> Any:
        """Return one call."""
        asked = {"project_id": body.get("project_id"), "filter": {"call_ids": [body.get("id")]}}
        return {"call": next(self._calls.query(asked), None)}

    async def stream(self, request: Request) -> Response:
        """Return calls, a line each."""
        try:
            asked = await _body(request)
            found = self._calls.query(asked)
            first = await run_in_threadpool(next, found, None)  # so that what is wrong is said
        except (Refused, QueryError) as error:
            return JSONResponse({"reason": str(error)}, 422)
        except TooLarge:
            return JSONResponse({"reason": "request too large"}, 413)
        return StreamingResponse(_lines(first, found), media_type="application/jsonl")

    def stats(self, body: Any, request: Request) -> Any:
        """Count calls."""
        return {"count": self._calls.count(body), "has_more": False}

    # --- feedback --------------------------------------------------------------------------------

    def feedback(self, body: Any, request: Request) -> Any:
        """Store feedback."""
        return self._calls.create_feedback(body)

    def feedback_batch(self, body: Any, request: Request) -> Any:
        """Store several feedbacks."""
        return {"res": [self._calls.create_feedback(one) for one in body.get("batch") or ()]}

    def feedback_query(self, body: Any, request: Request) -> Any:
        """Return feedback."""
        return {"result": self._calls.feedback(body)}

    # --- files and objects -----------------------------------------------------------------------

    async def file_create(self, request: Request) -> Response:
        """Store a file."""
        if int(request.headers.get("content-length") or MAX_BODY) > MAX_BODY:
            return JSONResponse({"reason": "request too large"}, 413)
        async with request.form() as form:
            upload = form.get("file")
            if not isinstance(upload, UploadFile):
                return JSONResponse({"reason": "file is missing"}, 422)
            content = await upload.read()
        return JSONResponse({"digest": await run_in_threadpool(self._files.put, content)})

    async def file_content(self, request: Request) -> Response:
        """Return a file."""
        asked = await _body(request)
        content = await run_in_threadpool(self._files.get, str(asked.get("digest")))
        if content is None:
            return JSONResponse({"reason": "no such file"}, 404)
        return Response(content, media_type="application/octet-stream")

    def object_create(self, body: Any, request: Request) -> Any:
        """Store an object (an op's code, say)."""
        given = _part(body, "obj")
        digest = self._files.put_value(given.get("val"))
        return {"digest": digest, "object_id": given.get("object_id")}

    def object_read(self, body: Any, request: Request) -> Any:
        """Return an object."""
        value = self._files.value(str(body.get("digest")))
        return {
            "obj": {
                "project_id": body.get("project_id"),
                "object_id": body.get("object_id"),
                "digest": body.get("digest"),
                "created_at": "1970-01-01T00:00:00+00:00",
                "version_index": 0,
                "is_latest": 1,
                "kind": "object",
                "base_object_class": None,
                "val": value,
            }
        }

    def refs_read(self, body: Any, request: Request) -> Any:
        """Return what references stand for."""
        found = [_OBJECT.match(str(ref)) for ref in body.get("refs") or ()]
        return {"vals": [self._files.value(ref[2]) if ref else None for ref in found]}

    # --- what clients ask around it --------------------------------------------------------------

    def projects(self, body: Any, request: Request) -> Any:
        """Every project exists."""
        names = body.get("project_ids") or ()
        return [{"external_project_id": n, "internal_project_id": n} for n in names]

    async def server_info(self, request: Request) -> Response:
        """Say what this is."""
        return JSONResponse(
            {
                "min_required_weave_python_version": "0.0.1",
                "trace_server_version": SERVER_VERSION,
            }
        )

    def graphql(self, body: Any, request: Request) -> Any:
        """Answer what the client asks W&B itself: who am I, and make me a project."""
        query, variables = str(body.get("query")), body.get("variables") or {}
        name = variables.get("project") or variables.get("projectName") or variables.get("name")
        data: dict[str, Any] = {}
        if "upsertModel" in query:
            data = {"upsertModel": {"model": {"name": name}}}
        elif "viewer" in query:
            viewer = {"username": USER, "email": "", "id": "1", "teams": {"edges": []}}
            data = {"viewer": {**viewer, "defaultEntity": {"name": ENTITY}}}
        elif "project(" in query:
            data = {"project": {"name": name, "id": "1"}}
        elif "serverInfo" in query:
            data = {"serverInfo": {"frontendHost": ""}}
        return {"data": data}


class TooLarge(ValueError):
    """A request over :data:`MAX_BODY`."""


def _endpoint(answer: Answer) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request)
            return JSONResponse(await run_in_threadpool(answer, body, request))
        except TooLarge:
            return JSONResponse({"reason": "request too large"}, 413)
        except (Refused, QueryError) as error:
            return JSONResponse({"detail": str(error), "reason": str(error)}, 422)
        except OSError as error:  # a full disk: the sender is to try again
            return JSONResponse({"reason": f"cannot be stored: {error}"}, 503)

    return endpoint


async def _body(request: Request) -> dict[str, Any]:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY:
            raise TooLarge
    try:
        body = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError as error:
        raise Refused(f"this is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused("an object is wanted")
    return body


def _part(body: Any, name: str) -> dict[str, Any]:
    part = body.get(name) if isinstance(body, dict) else None
    if not isinstance(part, dict):
        raise Refused(f"{name} is missing")
    return part


def _lines(first: dict[str, Any] | None, found: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    if first is not None:
        yield orjson.dumps(first, option=orjson.OPT_APPEND_NEWLINE)
        for call in found:
            yield orjson.dumps(call, option=orjson.OPT_APPEND_NEWLINE)

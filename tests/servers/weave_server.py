"""W&B's own trace server code (`SqliteTraceServer`), behind the HTTP routes of the hosted service.

Runs in the `weave-server` environment, not in the tests' own (see `weave_process.py`): the code was
in the `weave` wheel up to 0.52.42. It stores and queries as W&B wrote it; ours are the routes, and
where the hosted service differs from sqlite, its behaviour:

* a call or feedback posted again under its id replaces what was there, as in W&B's own tables
  (sqlite alone would refuse the call and double the feedback);
* a request without credentials gets 401, one over 31 MiB gets 413.

For tests there are also, with JSON answers and no credentials:

* `GET /debug/requests`: each request's method, path, bytes, and whether it was authorized;
* `GET /debug/counts`: calls stored, posted again, and posted again with other content;
* `GET /debug/posted/{call_id}`: every version of a call as it was on the wire;
* `POST /debug/failures`: let coming requests fail.

    python weave_server.py DATABASE [--port PORT]

prints its address once it can be reached, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextvars
import functools
import gzip
import json
import socket
import sqlite3
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from weave.trace_server import trace_server_interface as tsi
from weave.trace_server.errors import handle_server_exception
from weave.trace_server.external_to_internal_trace_server_adapter import (
    ExternalTraceServer,
    IdConverter,
)
from weave.trace_server.sqlite_trace_server import SqliteTraceServer, get_conn_cursor

MAX_REQUEST_BYTES = 31 * 2**20
USER = "local-user"
ENTITY = "local"

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")
Endpoint = Callable[[Request], Awaitable[Response]]


class Base64Ids(IdConverter):
    """Stands for W&B's tables of entities, projects and users: internal ids are names, encoded."""

    def ext_to_int_project_id(self, project_id: str) -> str:
        return _encoded(project_id)

    def int_to_ext_project_id(self, project_id: str) -> str | None:
        try:
            return _decoded(project_id)
        except ValueError:
            return None

    def ext_to_int_run_id(self, run_id: str) -> str:
        entity, project, run = run_id.split("/")
        return f"{_encoded(f'{entity}/{project}')}:{run}"

    def int_to_ext_run_id(self, run_id: str) -> str:
        project, run = run_id.split(":")
        return f"{_decoded(project)}/{run}"

    def ext_to_int_user_id(self, user_id: str) -> str:
        return _encoded(user_id)

    def int_to_ext_user_id(self, user_id: str) -> str:
        return _decoded(user_id)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(text: str) -> str:
    return base64.b64decode(text.encode(), validate=True).decode()


class Storage:
    """The trace server on one thread, in one context.

    SqliteTraceServer keeps its connection in a ContextVar and never rolls back: were there several,
    one failed insert would leave the others with "database is locked".
    """

    def __init__(self, database: str) -> None:
        self.database = database
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="storage")
        self._context = contextvars.copy_context()
        self._server = SqliteTraceServer(database)
        self._thread.submit(self._context.run, self._server.setup_tables).result()
        self.trace_server = ExternalTraceServer(self._server, Base64Ids())

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        guarded = functools.partial(self._rolling_back, function, *arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._context.run, guarded)

    def _rolling_back(self, function: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return function(*arguments)
        except sqlite3.Error:
            get_conn_cursor(self.database)[0].rollback()
            raise

    def put_calls(self, request: tsi.CallsUpsertCompleteReq) -> tsi.CallsUpsertCompleteRes:
        """Store completed calls; the last of those with one id stays."""
        last = {call.id: call for call in request.batch}
        cursor = get_conn_cursor(self.database)[1]
        cursor.executemany("DELETE FROM calls WHERE id = ?", [(id_,) for id_ in last])
        return self.trace_server.calls_complete(
            tsi.CallsUpsertCompleteReq(batch=list(last.values()))
        )

    def put_feedback(self, request: tsi.FeedbackCreateReq) -> tsi.FeedbackCreateRes:
        """Store feedback in place of what has its id."""
        cursor = get_conn_cursor(self.database)[1]
        cursor.execute("DELETE FROM feedback WHERE id = ?", (request.id,))
        return self.trace_server.feedback_create(request)


@dataclass
class SeenRequest:
    method: str
    path: str
    bytes: int
    authorized: bool
    content_type: str
    content_encoding: str
    user_agent: str
    status: int = 0


@dataclass
class Failure:
    """What the next `times` requests with `path` in their path get instead of their answer."""

    path: str
    status: int
    times: int = 1
    after: bool = False  # the request is carried out, and only its answer is lost
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Journal:
    """What came in, for tests to look at, and what is to go wrong."""

    requests: list[SeenRequest] = field(default_factory=list)
    posted: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    failures: list[Failure] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        versions = self.posted.values()
        return {
            "requests": len(self.requests),
            "calls": len(self.posted),
            "duplicates": sum(len(seen) - 1 for seen in versions),
            "changed": sum(any(other != seen[0] for other in seen) for seen in versions),
        }

    def next_failure(self, path: str) -> Failure | None:
        for failure in self.failures:
            if failure.path in path and failure.times > 0:
                failure.times -= 1
                return failure
        return None


class WeaveApp:
    """The HTTP routes over one storage."""

    #: path: (method of the trace server, model of its request)
    SIMPLE: dict[str, tuple[str, type[BaseModel]]] = {
        "/call/start": ("call_start", tsi.CallStartReq),
        "/call/end": ("call_end", tsi.CallEndReq),
        "/call/upsert_batch": ("call_start_batch", tsi.CallCreateBatchReq),
        "/call/read": ("call_read", tsi.CallReadReq),
        "/call/update": ("call_update", tsi.CallUpdateReq),
        "/calls/delete": ("calls_delete", tsi.CallsDeleteReq),
        "/calls/stream_query": ("calls_query_stream", tsi.CallsQueryReq),
        "/calls/query_stats": ("calls_query_stats", tsi.CallsQueryStatsReq),
        "/obj/create": ("obj_create", tsi.ObjCreateReq),
        "/obj/read": ("obj_read", tsi.ObjReadReq),
        "/objs/query": ("objs_query", tsi.ObjQueryReq),
        "/table/create": ("table_create", tsi.TableCreateReq),
        "/table/query": ("table_query", tsi.TableQueryReq),
        "/refs/read_batch": ("refs_read_batch", tsi.RefsReadBatchReq),
        "/feedback/batch/create": ("feedback_create_batch", tsi.FeedbackCreateBatchReq),
        "/feedback/query": ("feedback_query", tsi.FeedbackQueryReq),
        "/feedback/purge": ("feedback_purge", tsi.FeedbackPurgeReq),
        "/cost/create": ("cost_create", tsi.CostCreateReq),
        "/cost/query": ("cost_query", tsi.CostQueryReq),
        "/threads/stream_query": ("threads_query_stream", tsi.ThreadsQueryReq),
    }
    STREAMED = frozenset({"/calls/stream_query", "/threads/stream_query"})

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.server = storage.trace_server
        self.journal = Journal()

    def starlette(self) -> Starlette:
        def post(path: str, endpoint: Endpoint) -> Route:
            return Route(path, self._served(endpoint), methods=["POST"])

        return Starlette(
            routes=[
                *(post(path, self.simple) for path in self.SIMPLE),
                post("/feedback/create", self.feedback_create),
                post("/v2/{entity}/{project}/calls/complete", self.calls_complete),
                post("/v2/{entity}/{project}/call/start", self.call_start),
                post("/v2/{entity}/{project}/call/end", self.call_end),
                post("/file/create", self.file_create),
                post("/file/content", self.file_content),
                post("/files/content", self.file_content),
                post("/otel/v1/traces", self.otel_traces),
                post("/projects_info", self.projects_info),
                post("/graphql", self._without_credentials(self.graphql)),
                Route("/server_info", self._served(self._without_credentials(self.server_info))),
                Route("/debug/requests", self.debug_requests),
                Route("/debug/counts", self.debug_counts),
                Route("/debug/posted/{call_id}", self.debug_posted),
                Route("/debug/failures", self.debug_failures, methods=["POST"]),
                Route(
                    "/{rest:path}",
                    self._served(self.not_found),
                    methods=["GET", "POST", "PUT", "DELETE"],
                ),
            ]
        )

    # ------------------------------------------------------------------- around every endpoint

    @staticmethod
    def _without_credentials(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def open_to_all(request: Request) -> Response:
            return await endpoint(request)

        open_to_all.open_to_all = True  # type: ignore[attr-defined]
        return open_to_all

    def _served(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint with its request noted, its limits kept and its errors answered."""

        async def served(request: Request) -> Response:
            body = await request.body()
            headers = request.headers
            seen = SeenRequest(
                method=request.method,
                path=request.url.path,
                bytes=len(body),
                authorized="authorization" in headers,
                content_type=headers.get("content-type", ""),
                content_encoding=headers.get("content-encoding", ""),
                user_agent=headers.get("user-agent", ""),
            )
            self.journal.requests.append(seen)
            failure = self.journal.next_failure(seen.path)
            if failure is None or failure.after:
                response = await self._answer(endpoint, request, seen)
            if failure is not None:
                reason = {"reason": f"asked to fail with {failure.status}"}
                response = JSONResponse(reason, failure.status, headers=failure.headers)
            seen.status = response.status_code
            return response

        return served

    async def _answer(self, endpoint: Endpoint, request: Request, seen: SeenRequest) -> Response:
        if not seen.authorized and not hasattr(endpoint, "open_to_all"):
            return JSONResponse({"reason": "no credentials"}, 401)
        if seen.bytes > MAX_REQUEST_BYTES:
            return JSONResponse({"reason": "request too large"}, 413)
        try:
            return await endpoint(request)
        except (ValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
            return JSONResponse({"detail": str(error)[:2000]}, 422)
        except Exception as error:
            traceback.print_exc()
            known = handle_server_exception(error)
            return JSONResponse(known.message, known.status_code)

    # --------------------------------------------------------------------------- Weave's routes

    async def simple(self, request: Request) -> Response:
        """A route that is one method of the trace server."""
        path = request.url.path
        name, model = self.SIMPLE[path]
        query = _read_leniently(model, await request.body())
        for item in (query, *getattr(query, "batch", ())):
            if "wb_user_id" in type(item).model_fields:
                item.wb_user_id = USER
        method = getattr(self.server, name)
        if path in self.STREAMED:
            rows = await self.storage.run(
                lambda: [json.dumps(_plain(row)) for row in method(query)]
            )
            lines = "".join(f"{row}\n" for row in rows)
            return Response(lines, media_type="application/x-ndjson")
        return JSONResponse(_plain(await self.storage.run(method, query)))

    async def feedback_create(self, request: Request) -> Response:
        query = tsi.FeedbackCreateReq.model_validate_json(await request.body())
        query.wb_user_id = USER
        return JSONResponse(_plain(await self.storage.run(self.storage.put_feedback, query)))

    async def calls_complete(self, request: Request) -> Response:
        body = await request.body()
        batch = tsi.CallsUpsertCompleteReq.model_validate_json(body)
        addressed = "{entity}/{project}".format(**request.path_params)
        for call in batch.batch:
            if call.project_id != addressed:
                detail = f"call {call.id} is of {call.project_id}, posted to {addressed}"
                return JSONResponse({"detail": detail}, 422)
            call.wb_user_id = USER
        answer = await self.storage.run(self.storage.put_calls, batch)
        for call in json.loads(body)["batch"]:
            self.journal.posted[call["id"]].append(call)
        return JSONResponse(_plain(answer))

    async def call_start(self, request: Request) -> Response:
        start = tsi.CallStartV2Req.model_validate_json(await request.body())
        return JSONResponse(_plain(await self.storage.run(self.server.call_start_v2, start)))

    async def call_end(self, request: Request) -> Response:
        end = tsi.CallEndV2Req.model_validate_json(await request.body())
        return JSONResponse(_plain(await self.storage.run(self.server.call_end_v2, end)))

    async def file_create(self, request: Request) -> Response:
        form = await request.form()
        upload = form["file"]
        file = tsi.FileCreateReq(
            project_id=form["project_id"], name=upload.filename, content=await upload.read()
        )
        return JSONResponse(_plain(await self.storage.run(self.server.file_create, file)))

    async def file_content(self, request: Request) -> Response:
        wanted = tsi.FileContentReadReq.model_validate_json(await request.body())
        found = await self.storage.run(self.server.file_content_read, wanted)
        return Response(found.content, media_type="application/octet-stream")

    async def otel_traces(self, request: Request) -> Response:
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        spans = ExportTraceServiceRequest.FromString(body)
        processed = []
        project_id = request.headers.get("project_id", "")
        for resource_spans in spans.resource_spans:
            resource = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
            named = f"{resource.get('wandb.entity', '')}/{resource.get('wandb.project', '')}"
            entity, project = (request.headers.get("project_id") or named).split("/")
            project_id = f"{entity}/{project}"
            processed.append(
                tsi.ProcessedResourceSpans(
                    entity=entity, project=project, run_id=None, resource_spans=resource_spans
                )
            )
        export = tsi.OTelExportReq(
            project_id=project_id, processed_spans=processed, wb_user_id=USER
        )
        return JSONResponse(_plain(await self.storage.run(self.server.otel_export, export)))

    async def projects_info(self, request: Request) -> Response:
        names = json.loads(await request.body())["project_ids"]
        return JSONResponse(
            [{"external_project_id": n, "internal_project_id": _encoded(n)} for n in names]
        )

    async def server_info(self, request: Request) -> Response:
        return JSONResponse(
            {
                "min_required_weave_python_version": "0.0.1",
                "trace_server_version": "0.52.42-sqlite",
            }
        )

    async def graphql(self, request: Request) -> Response:
        """What the clients ask W&B itself: who am I, and make me a project."""
        asked = json.loads(await request.body())
        query, variables = asked["query"], asked.get("variables") or {}
        data: dict[str, Any] = {}
        if "upsertModel" in query:
            name = variables.get("project") or variables.get("name")
            data = {"upsertModel": {"model": {"name": name}}}
        elif "viewer" in query:
            viewer = {"username": USER, "email": "user@example.org", "id": "1"}
            data = {
                "viewer": {
                    **viewer,
                    "defaultEntity": {"name": ENTITY},
                    "teams": {"edges": []},
                }
            }
        elif "project(" in query:
            name = variables.get("projectName") or variables.get("name")
            data = {"project": {"name": name, "id": "1"}}
        elif "serverInfo" in query:
            data = {"serverInfo": {"frontendHost": ""}}
        return JSONResponse({"data": data})

    async def not_found(self, request: Request) -> Response:
        print("no such route:", request.method, request.url.path, file=sys.stderr, flush=True)
        return JSONResponse({"reason": "not found"}, 404)

    # -------------------------------------------------------------------------------- for tests

    async def debug_requests(self, request: Request) -> Response:
        return JSONResponse([asdict(seen) for seen in self.journal.requests])

    async def debug_counts(self, request: Request) -> Response:
        return JSONResponse(self.journal.counts())

    async def debug_posted(self, request: Request) -> Response:
        return JSONResponse(self.journal.posted.get(request.path_params["call_id"], []))

    async def debug_failures(self, request: Request) -> Response:
        self.journal.failures = [Failure(**one) for one in json.loads(await request.body())]
        return JSONResponse({})


def _plain(answer: Any) -> Any:
    if isinstance(answer, BaseModel):
        return answer.model_dump(mode="json", by_alias=True)
    return answer


def _read_leniently(model: type[Model], body: bytes) -> Model:
    """Newer clients send keys that this older server forbids: drop them where they say nothing."""
    fields = json.loads(body or b"{}")
    while True:
        try:
            return model.model_validate(fields)
        except ValidationError as error:
            unknown = list(_saying_nothing(error))
            if not unknown:
                raise
        for *parents, key in unknown:
            holder = functools.reduce(lambda inner, name: inner[name], parents, fields)
            del holder[key]


def _saying_nothing(error: ValidationError) -> Iterator[tuple[int | str, ...]]:
    for problem in error.errors():
        empty = not problem["input"] or problem["input"] == "UNSET"
        if problem["type"] == "extra_forbidden" and empty:
            yield problem["loc"]


class AnnouncingServer(uvicorn.Server):
    """Prints its address when it is listening, and ends when its standard input does.

    So it is not left behind when the tests that started it are killed.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()
            print(f"http://{host}:{port}", flush=True)
            threading.Thread(target=self._end_with_standard_input, daemon=True).start()

    def _end_with_standard_input(self) -> None:
        sys.stdin.buffer.read()
        self.should_exit = True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("database")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", arguments.port))
    app = WeaveApp(Storage(arguments.database)).starlette()
    AnnouncingServer(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()

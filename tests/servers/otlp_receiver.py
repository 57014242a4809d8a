"""An OTLP/HTTP receiver in a thread of the test process, which keeps spans as plain Python."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

Attributes = dict[str, Any]


@dataclass(frozen=True)
class Event:
    name: str
    time: int
    attributes: Attributes


@dataclass(frozen=True)
class Link:
    trace_id: str
    span_id: str
    attributes: Attributes


@dataclass(frozen=True)
class Span:
    """A span as it arrived: ids in hex, times in nanoseconds, `parent_id` None for a root."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_time: int
    end_time: int
    status: str  # UNSET, OK or ERROR
    status_message: str
    scope: str
    attributes: Attributes = field(default_factory=dict)
    resource: Attributes = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)


@dataclass(frozen=True)
class Export:
    """One export request: its bytes on the wire and when decompressed."""

    wire_bytes: int
    bytes: int
    spans: int


class OtlpReceiver:
    """Use as a context manager; point exporters to `endpoint` or `traces_endpoint`.

    `status` is what exports are answered with: set it to 503 to play an outage. Spans count only
    while it is 200.
    """

    def __init__(self) -> None:
        self.status = 200
        self.exports: list[Export] = []
        self._spans: list[Span] = []
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def traces_endpoint(self) -> str:
        """For an exporter's `endpoint` argument."""
        return f"{self.endpoint}/v1/traces"

    @property
    def spans(self) -> list[Span]:
        with self._changed:
            return list(self._spans)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def clear(self) -> None:
        with self._changed:
            self._spans.clear()
            self.exports.clear()

    def wait_for(self, count: int, timeout: float = 10) -> list[Span]:
        """The spans, once there are at least `count`; fails when there are not in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._spans) >= count, timeout):
                names = [span.name for span in self._spans]
                raise AssertionError(f"{len(names)} of {count} spans in {timeout} s: {names}")
            return list(self._spans)

    def _receive(self, wire: bytes, encoding: str) -> int:
        if self.status != 200:
            return self.status
        body = _decompressed(wire, encoding)
        spans = decode(body)
        with self._changed:
            self.exports.append(Export(len(wire), len(body), len(spans)))
            self._spans += spans
            self._changed.notify_all()
        return 200

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status = 404
                if self.path == "/v1/traces":
                    status = receive(body, self.headers.get("Content-Encoding", ""))
                answer = ExportTraceServiceResponse().SerializeToString() if status == 200 else b""
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Keep quiet."""

        return Handler


def decode(body: bytes) -> list[Span]:
    """The spans of an ExportTraceServiceRequest."""
    spans = []
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                spans.append(_span(span, resource, of_scope.scope.name))
    return spans


def _span(span: trace_pb2.Span, resource: Attributes, scope: str) -> Span:
    return Span(
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
        status=trace_pb2.Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        status_message=span.status.message,
        scope=scope,
        attributes=_attributes(span.attributes),
        resource=resource,
        events=[Event(e.name, e.time_unix_nano, _attributes(e.attributes)) for e in span.events],
        links=[
            Link(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes))
            for link in span.links
        ],
    )


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_value(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return getattr(value, which)


def _decompressed(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "deflate":
        return zlib.decompress(body)
    return body

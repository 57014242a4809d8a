"""The ways to trace that are compared. Each is set up once, in a process of its own.

``ours`` is this package, zero-code: its process is started by ``opentelemetry-instrument``.
``weave`` and ``mlflow`` are verl's own tracing with its two back ends. ``bare`` is a plain
OpenTelemetry span with six attributes, ``floor`` that and a copy of the prompt's and the answer's
ids, ``ints`` a span that carries the token ids as lists of ints and is sent as OTLP.
``untraced`` is the same work without any.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

NAMES = ("untraced", "bare", "floor", "ints", "ours", "weave", "mlflow")
PROJECT = "local/bench"


class Tracer(Protocol):
    """One way to trace."""

    def client(self, client: Any) -> Any:
        """verl's client, as this way of tracing has it."""

    def flush(self) -> None:
        """Deliver everything."""


def environment(name: str, url: str, folder: Path) -> dict[str, str]:
    """What the process needs in its environment before it starts."""
    if name == "ours":
        return {
            "OTEL_TRACES_EXPORTER": "weave",
            "OTEL_EXPORTER_WEAVE_ENDPOINT": url,
            "OTEL_EXPORTER_WEAVE_PROJECT": PROJECT,
            "OTEL_ROLLOUT_DIR": str(folder),
            "WANDB_API_KEY": "x" * 40,
        }
    if name == "weave":
        return {
            "WANDB_BASE_URL": url,
            "WF_TRACE_SERVER_URL": url,
            "WANDB_API_KEY": "x" * 40,
            "WEAVE_PRINT_CALL_LINK": "false",
            "WEAVE_USE_SERVER_CACHE": "false",
            "WANDB_ERROR_REPORTING": "false",  # to a host that is not ours to ask
        }
    if name == "mlflow":
        return {"MLFLOW_TRACKING_URI": url, "MLFLOW_DISABLE_TELEMETRY": "true"}
    return {"OTEL_SDK_DISABLED": "false"}


class Untraced:
    def client(self, client: Any) -> Any:
        return client

    def flush(self) -> None:
        """Nothing is held."""


class Ours(Untraced):
    def __init__(self) -> None:
        from opentelemetry import trace

        from benchmarks.vocabulary import tokenizer
        from otel_rollout import register_tokenizer

        self._provider: Any = trace.get_tracer_provider()
        assert hasattr(self._provider, "force_flush"), "not started by opentelemetry-instrument"
        register_tokenizer(tokenizer())  # as a worker of verl's has it registered

    def flush(self) -> None:
        assert self._provider.force_flush(60_000)

    def writer(self) -> Any:
        """The exporter's writer of the spool."""
        (behind,) = self._processor()._behind
        return behind._exporter._writer

    @contextlib.contextmanager
    def with_idle_worker(self) -> Iterator[None]:
        """Meanwhile the worker thread throws away what it takes from the queue."""
        worker = self._processor()._worker
        handle, worker._handle = worker._handle, lambda items: None
        try:
            yield
        finally:
            worker._handle = handle

    def _processor(self) -> Any:
        (processor,) = self._provider._active_span_processor._span_processors
        return processor


class BuiltIn(Untraced):
    """verl's own, with one of its back ends."""

    def __init__(self, backend: str, *, token2text: bool) -> None:
        from verl.utils.rollout_trace import RolloutTraceConfig

        RolloutTraceConfig.init("bench", "bench", backend, token2text=token2text)
        self._config = RolloutTraceConfig.get_instance()
        self._backend = backend

    def flush(self) -> None:
        if self._backend == "weave":
            self._config.client.flush()
        else:
            self._config.client.flush_trace_async_logging()


class Spans(Untraced):
    """A plain span around each generation."""

    def __init__(self, processor: Any, *, with_ids: bool = False, copies: bool = False) -> None:
        from opentelemetry.sdk.trace import TracerProvider

        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("bench")
        self._with_ids = with_ids
        self._copies = copies
        self._kept: list[Any] = []

    def client(self, client: Any) -> Any:
        return _SpanAround(self, client)

    def flush(self) -> None:
        self._provider.force_flush(60_000)
        self._kept.clear()

    async def generate(self, inner: Callable[..., Any], request_id: str, **given: Any) -> Any:
        attributes = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": "policy",
            "gen_ai.conversation.id": request_id,
            "gen_ai.usage.input_tokens": len(given["prompt_ids"]),
            "rollout.step": 1,
            "rollout.sample_index": 7,
        }
        span = self._tracer.start_span("generate", attributes=attributes)
        output = await inner(request_id, **given)
        if self._with_ids:
            span.set_attribute("prompt_ids", given["prompt_ids"])
            span.set_attribute("response_ids", output.token_ids)
            span.set_attribute("logprobs", output.log_probs)
        if self._copies:
            self._kept.append((given["prompt_ids"].copy(), output.token_ids.copy()))
        span.end()
        return output


class _SpanAround:
    def __init__(self, spans: Spans, client: Any) -> None:
        self._spans = spans
        self._client = client

    async def generate(self, request_id: str, **given: Any) -> Any:
        return await self._spans.generate(self._client.generate, request_id, **given)


def bare(*, copies: bool = False) -> Spans:
    from opentelemetry.sdk.trace import SpanProcessor

    return Spans(SpanProcessor(), copies=copies)


def ints(url: str) -> Spans:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces")
    return Spans(BatchSpanProcessor(exporter, max_export_batch_size=32), with_ids=True)


def set_up(name: str, url: str, *, token2text: bool = True) -> Tracer:
    """Set up one way to trace, in this process, for good."""
    os.environ.pop("OTEL_RESOURCE_ATTRIBUTES", None)
    if name == "ours":
        return Ours()
    if name in ("weave", "mlflow"):
        return BuiltIn(name, token2text=token2text)
    if name in ("bare", "floor"):
        return bare(copies=name == "floor")
    if name == "ints":
        return ints(url)
    return Untraced()

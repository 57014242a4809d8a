"""One real SGLang on the CPU for all tests; it traces, so that its own spans are seen as well."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from otel_rollout.instrumentors.sglang import SglangInstrumentor
from tests.engines.watch import MODEL, Watch
from tests.servers.otlp_receiver import OtlpReceiver

if TYPE_CHECKING:
    from sglang.srt.entrypoints.engine import Engine

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "0",
    "OMP_NUM_THREADS": "1",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}


@pytest.fixture(scope="session")
def native() -> Iterator[OtlpReceiver]:
    """Where SGLang sends its own spans."""
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def session_watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(session_watch: Watch, native: OtlpReceiver) -> AsyncIterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        instrumentor = SglangInstrumentor()
        instrumentor.instrument()
        from sglang.srt.entrypoints.engine import Engine

        made = Engine(
            model_path=str(MODEL),
            device="cpu",
            dtype="float32",
            attention_backend="torch_native",
            sampling_backend="pytorch",
            grammar_backend="none",
            mem_fraction_static=0.1,
            max_total_tokens=8192,
            max_running_requests=32,
            disable_overlap_schedule=True,
            log_level="error",
            watchdog_timeout=3600,
            enable_metrics=True,
            enable_trace=True,
            otlp_traces_endpoint=native.traces_endpoint,
        )
        yield made
        made.shutdown()
        instrumentor.uninstrument()


@pytest.fixture
def watch(session_watch: Watch) -> Iterator[Watch]:
    """Nothing of an earlier test, and at the end nothing open."""
    session_watch.take()
    yield session_watch
    session_watch.take()


@pytest.fixture
def asking(engine: Engine) -> Any:
    """Ask for generations; `ask(ids, stream=…, n=…)` gives every item."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    def request(prompt: Any, **given: Any) -> GenerateReqInput:
        params = {"max_new_tokens": 16, "temperature": 1.0, "ignore_eos": True}
        for name in [name for name in given if name in {*params, "n", "top_k", "top_p", "stop"}]:
            params[name] = given.pop(name)
        field = "text" if isinstance(prompt, str) else "input_ids"
        given = {"return_logprob": True, "sampling_params": params, field: prompt, **given}
        return GenerateReqInput(**given)

    def generate(prompt: Any, **given: Any) -> Any:
        return engine.tokenizer_manager.generate_request(request(prompt, **given), None)

    async def ask(prompt: Any, **given: Any) -> list[Any]:
        return [item async for item in generate(prompt, **given)]

    ask.generate, ask.request, ask.engine = generate, request, engine  # type: ignore[attr-defined]
    return ask

"""One real vLLM on the CPU for all tests; it traces, so that its own spans are seen as well."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from otel_rollout.instrumentors.vllm import VllmInstrumentor
from tests.engines.watch import MODEL, Watch
from tests.servers.otlp_receiver import OtlpReceiver

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
}


@pytest.fixture(scope="session")
def native() -> Iterator[OtlpReceiver]:
    """Where vLLM sends its own spans."""
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def session_watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine(session_watch: Watch, native: OtlpReceiver) -> AsyncIterator[AsyncLLM]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        instrumentor = VllmInstrumentor()
        instrumentor.instrument()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        # float32: seeded requests give the same tokens however they are batched.
        arguments = AsyncEngineArgs(
            model=str(MODEL),
            dtype="float32",
            max_model_len=512,
            max_num_seqs=16,
            enforce_eager=True,
            disable_log_stats=False,
            otlp_traces_endpoint=native.traces_endpoint,
        )
        made = AsyncLLM.from_engine_args(arguments)
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
def asking(engine: AsyncLLM) -> Any:
    """Ask the engine for one prompt; gives every item."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    def parameters(kind: str = "FINAL_ONLY", **given: Any) -> SamplingParams:
        values = {"max_tokens": 16, "temperature": 1.0, "seed": 7, "ignore_eos": True, **given}
        return SamplingParams(output_kind=RequestOutputKind[kind], **values)

    def generate(prompt: list[int], kind: str = "FINAL_ONLY", **given: Any) -> Any:
        request_id = given.pop("request_id", None) or os.urandom(4).hex()
        return engine.generate(
            TokensPrompt(prompt_token_ids=prompt), parameters(kind, **given), request_id
        )

    async def ask(prompt: list[int], kind: str = "FINAL_ONLY", **given: Any) -> list[Any]:
        return [item async for item in generate(prompt, kind, **given)]

    ask.generate, ask.parameters = generate, parameters  # type: ignore[attr-defined]
    return ask

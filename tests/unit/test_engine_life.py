"""The life of a generation's span, whatever the engine and its caller do; on engines made up here.

The same on the real engines: `tests/engines`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry.trace import StatusCode

from otel_rollout import payload, semconv, trajectory
from otel_rollout.instrumentors import engine as engines
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.sglang import calls as sglang_instrumentor
from otel_rollout.instrumentors.vllm import calls as vllm_instrumentor
from otel_rollout.processor import sampling
from tests.unit.pipeline import Pipeline, attributes, loaded

Step = Any  # an item to yield, or an exception to raise


class FakeEngine:
    """What `AsyncLLM` is to us; `script` gives what a request yields or raises, in order."""

    model_config = SimpleNamespace(served_model_name=["org/m"], model="org/m")
    tracing = False

    def __init__(self) -> None:
        self.script: Callable[[str], list[Step]] = lambda _: [item("r", [1, 2], "stop")]
        self.open = 0
        self.contexts: list[Any] = []

    async def is_tracing_enabled(self) -> bool:
        return self.tracing

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: Any = None,
        trace_headers: Any = None,
        priority: int = 0,
    ) -> AsyncIterator[Any]:
        self.open += 1
        self.headers = trace_headers
        try:
            for step in self.script(request_id):
                self.contexts.append(otel_context.get_current())
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    yield step
        finally:
            self.open -= 1


def item(
    request_id: str,
    ids: Any,
    reason: str | None = None,
    *,
    index: int = 0,
    finished: bool | None = None,
    logprobs: Any = None,
    **more: Any,
) -> Any:
    output = SimpleNamespace(
        index=index, token_ids=ids, logprobs=logprobs, finish_reason=reason, **more
    )
    return SimpleNamespace(
        request_id=request_id,
        prompt_token_ids=[7, 8, 9],
        outputs=[output],
        finished=reason is not None if finished is None else finished,
        metrics=None,
        num_cached_tokens=2,
    )


def params(n: int = 1, kind: str = "CUMULATIVE", **more: Any) -> Any:
    return SimpleNamespace(n=n, output_kind=SimpleNamespace(name=kind), **more)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    patches = Patches()
    module = ModuleType("module")
    module.AsyncLLM = FakeEngine  # type: ignore[attr-defined]
    vllm_instrumentor.patch_v1(patches, module)
    yield FakeEngine()
    patches.undo()


def ask(engine: FakeEngine, name: str = "r", sampling_params: Any = None) -> Any:
    return engine.generate({"prompt_token_ids": [7, 8, 9]}, sampling_params or params(), name)


def outcome(pipeline: Pipeline) -> tuple[str, StatusCode]:
    (span,) = pipeline.spans()
    return str(attributes(span)[semconv.OUTCOME]), span.status.status_code


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["stop"], "stop"),
        (["length"], "length"),
        (["abort"], "abort"),
        (["stop", "length"], "length"),
        (["length", "abort"], "abort"),
        (["tool_calls"], "stop"),
    ],
)
async def test_outcome_of_finish_reasons(
    engine: FakeEngine, pipeline: Pipeline, reasons: list[str], expected: str
) -> None:
    last = len(reasons) - 1
    engine.script = lambda r: [
        item(r, [1], reason, index=number, finished=number == last)
        for number, reason in enumerate(reasons)
    ]
    async for _ in ask(engine, sampling_params=params(n=len(reasons))):
        pass
    assert outcome(pipeline) == (expected, StatusCode.UNSET)


async def test_the_span_is_over_before_the_last_item_is_handed_on(
    engine: FakeEngine, pipeline: Pipeline
) -> None:
    engine.script = lambda r: [item(r, [1]), item(r, [1, 2], "stop")]
    items = ask(engine)
    await anext(items)
    assert pipeline.spans() == []
    await anext(items)
    assert outcome(pipeline) == ("stop", StatusCode.UNSET)
    await items.aclose()
    assert len(pipeline.spans()) == 1


async def test_empty_outputs(engine: FakeEngine, pipeline: Pipeline) -> None:
    empty = item("r", [])
    empty.outputs, empty.finished = [], True
    engine.script = lambda _: [empty]
    assert [one async for one in ask(engine)] == [empty]
    assert outcome(pipeline) == ("abort", StatusCode.UNSET)
    assert semconv.RESPONSE_IDS not in attributes(pipeline.spans()[0])


async def test_no_items(engine: FakeEngine, pipeline: Pipeline) -> None:
    engine.script = lambda _: []
    assert [one async for one in ask(engine)] == []
    assert outcome(pipeline) == ("abort", StatusCode.UNSET)


async def test_an_engines_error(engine: FakeEngine, pipeline: Pipeline) -> None:
    engine.script = lambda r: [item(r, [1]), ValueError("broken")]
    with pytest.raises(ValueError, match="broken"):
        async for _ in ask(engine):
            pass
    (span,) = pipeline.spans()
    given = attributes(span)
    assert (given[semconv.OUTCOME], span.status.status_code) == ("error", StatusCode.ERROR)
    assert given[semconv.ERROR_TYPE] == "ValueError"
    assert payload.decode_ids(given[semconv.RESPONSE_IDS]) == [1]  # what came before it


async def test_an_error_as_finish_reason(engine: FakeEngine, pipeline: Pipeline) -> None:
    engine.script = lambda r: [item(r, [1], "error")]
    async for _ in ask(engine):
        pass
    assert outcome(pipeline) == ("error", StatusCode.ERROR)


async def test_a_context_is_never_attached(engine: FakeEngine, pipeline: Pipeline) -> None:
    engine.script = lambda r: [item(r, [1]), item(r, [1, 2], "stop")]
    with trajectory(step=1):
        around = otel_context.get_current()
        async for _ in ask(engine):
            assert otel_context.get_current() == around
    assert engine.contexts == [around, around]


async def test_the_callers_context_is_that_of_the_call(
    engine: FakeEngine, pipeline: Pipeline
) -> None:
    with trajectory(step=1) as handle:
        items = ask(engine)
    async for _ in items:
        pass
    (span,) = [span for span in pipeline.spans() if span.name == "text_completion m"]
    assert span.parent is not None
    assert span.parent.span_id == handle.recording.span_id


async def test_closed_in_another_task(
    engine: FakeEngine, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = lambda r: [item(r, [1]), 10.0]
    items = ask(engine)
    await anext(items)
    with caplog.at_level(logging.ERROR, "opentelemetry.context"):
        await asyncio.create_task(items.aclose())
    assert outcome(pipeline) == ("abandoned", StatusCode.UNSET)
    assert engine.open == 0
    assert caplog.records == []


def test_dropped_after_its_loop_has_ended(engine: FakeEngine, pipeline: Pipeline) -> None:
    engine.script = lambda r: [item(r, [1]), 10.0]
    loop = asyncio.new_event_loop()
    items = ask(engine)
    loop.run_until_complete(anext(items))
    loop.close()
    del items
    gc.collect()
    assert outcome(pipeline) == ("abandoned", StatusCode.UNSET)


async def test_ten_thousand_mixed_calls(
    engine: FakeEngine, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(5)
    ways = ("all", "one", "break", "drop", "cancel", "abort", "error", "empty")
    of_call = [draw.choice(ways) for _ in range(10_000)]
    empty = item("r", [])
    empty.outputs, empty.finished = [], True
    scripts: dict[str, Callable[[str], list[Step]]] = {
        "abort": lambda r: [item(r, [1]), item(r, [1], "abort")],
        "error": lambda r: [item(r, [1]), RuntimeError("engine")],
        "empty": lambda r: [0.0, empty],
        "one": lambda r: [0.0, item(r, [1, 2], "length")],
        "cancel": lambda r: [5.0],
    }
    usual: Callable[[str], list[Step]] = lambda r: [item(r, [1]), 0.0, item(r, [1, 2], "stop")]  # noqa: E731
    engine.script = lambda r: scripts.get(of_call[int(r)], usual)(r)

    async def call(number: int) -> None:
        way = of_call[number]
        items = ask(engine, str(number))
        if way in ("one", "drop"):
            await anext(items)
        elif way == "break":
            async for _ in items:
                break
            await items.aclose()
        elif way == "cancel":
            task = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            try:
                async for _ in items:
                    pass
            except RuntimeError:
                pass

    with caplog.at_level(logging.WARNING):
        for start in range(0, len(of_call), 100):
            with trajectory(step=start):
                await asyncio.gather(*(call(number) for number in range(start, start + 100)))
        gc.collect()
        await asyncio.sleep(0.05)
    found = Counter(
        str(attributes(span)[semconv.OUTCOME])
        for span in pipeline.spans()
        if span.name == "text_completion m"
    )
    asked = Counter(of_call)
    assert found == {
        "stop": asked["all"],
        "length": asked["one"],
        "abandoned": asked["break"] + asked["drop"],
        "cancelled": asked["cancel"],
        "abort": asked["abort"] + asked["empty"],
        "error": asked["error"],
    }
    assert sum(found.values()) == 10_000
    assert engine.open == 0
    assert not [record for record in caplog.records if record.name.startswith("opentel")]
    assert not [record for record in caplog.records if record.name == "otel_rollout"]


# --- what is kept ---------------------------------------------------------------------------------


async def test_a_list_that_grows_is_cut_to_what_came(
    engine: FakeEngine, pipeline: Pipeline
) -> None:
    shared = [1]
    engine.script = lambda r: [item(r, shared), 10.0]
    items = ask(engine)
    await anext(items)
    shared += [2, 3]
    await items.aclose()
    assert payload.decode_ids(attributes(pipeline.spans()[0])[semconv.RESPONSE_IDS]) == [1]


async def test_flat_logprobs(engine: FakeEngine, pipeline: Pipeline) -> None:
    flat = SimpleNamespace(start_indices=[0, 2], logprobs=[-1.0, -9.0, -2.0, -8.0])
    flat = type("Flat", (), {**vars(flat), "__len__": lambda self: 2})()
    engine.script = lambda r: [item(r, [5, 6], "stop", logprobs=flat)]
    async for _ in ask(engine):
        pass
    given = attributes(pipeline.spans()[0])
    assert payload.decode_floats(given[semconv.RESPONSE_LOGPROBS]) == [-1.0, -2.0]


async def test_weights_that_changed_meanwhile(engine: FakeEngine, pipeline: Pipeline) -> None:
    spans = [SimpleNamespace(version=v, start=s, end=e) for v, s, e in (("7", 0, 1), ("8", 1, 2))]
    engine.script = lambda r: [item(r, [5, 6], "stop", weight_versions=spans)]
    async for _ in ask(engine):
        pass
    (span,) = pipeline.spans()
    assert attributes(span)[semconv.WEIGHT_VERSION] == "8"
    assert loaded(span, semconv.WEIGHT_VERSIONS) == [
        {"version": "7", "start": 0, "end": 1},
        {"version": "8", "start": 1, "end": 2},
    ]


async def test_the_code_around_the_engine_may_know_the_weights_better(
    engine: FakeEngine, pipeline: Pipeline
) -> None:
    token = engines.serving_weights.set(lambda: 12)
    try:
        async for _ in ask(engine):
            pass
    finally:
        engines.serving_weights.reset(token)
    assert attributes(pipeline.spans()[0])[semconv.WEIGHT_VERSION] == 12


@pytest.mark.parametrize(("fails", "refers"), [(False, True), (True, False)])
async def test_ids_that_the_span_above_holds_are_not_repeated(
    engine: FakeEngine, pipeline: Pipeline, fails: bool, refers: bool
) -> None:
    from otel_rollout import recording

    if fails:
        engine.script = lambda r: [item(r, [1]), ValueError("broken")]
    client = recording.start(semconv.OP_TEXT_COMPLETION, "client")
    with recording.active(client, engines.holding_tokens(client)):
        try:
            async for _ in ask(engine):
                pass
        except ValueError:
            pass
    assert baggage.get_all() == {}
    (span,) = [span for span in pipeline.spans() if span.name == "text_completion m"]
    given = attributes(span)
    assert (given.get(semconv.TOKENS_SPAN) == f"{client.span_id:016x}") is refers
    assert (semconv.RESPONSE_IDS in given) is not refers
    assert given[semconv.INPUT_TOKENS] == 3


# --- sampling and headers -------------------------------------------------------------------------


async def test_an_unsampled_trajectory_tells_the_engine_so(
    engine: FakeEngine, pipeline: Pipeline
) -> None:
    engine.tracing = True
    sampling.use_sampler(sampling.Sampler(rate=0.0))
    with trajectory(step=1):
        assert len([one async for one in ask(engine)]) == 1
    assert engine.headers["traceparent"].endswith("-00")
    assert pipeline.spans() == []


async def test_no_header_where_the_engine_does_not_trace(
    engine: FakeEngine, pipeline: Pipeline
) -> None:
    async for _ in ask(engine):
        pass
    assert engine.headers is None
    assert len(pipeline.spans()) == 1


async def test_an_error_of_ours_stays_with_us(
    engine: FakeEngine, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    for owner, name in (
        (vllm_instrumentor._Call, "note"),
        (vllm_instrumentor._Generation, "describe"),
        (vllm_instrumentor, "_model"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            assert len([one async for one in ask(engine)]) == 1
    assert engine.open == 0
    # The call whose span could not be started has none; the others' spans are over.
    assert len(pipeline.spans()) == 2


# --- SGLang's older forms -------------------------------------------------------------------------


class GenerateReqInput:
    def __init__(self, **given: Any) -> None:
        self.stream = False
        vars(self).update({"input_ids": [1, 2], "sampling_params": {}, "rid": None, **given})


async def sglang_items(outputs: list[Any], obj: Any, **of_manager: Any) -> None:
    class TokenizerManager:
        served_model_name = "m"

        async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
            for output in outputs:
                yield output

    patches = Patches()
    module = ModuleType("module")
    module.TokenizerManager = TokenizerManager  # type: ignore[attr-defined]
    sglang_instrumentor.patch(patches, module)
    manager = TokenizerManager()
    vars(manager).update(of_manager)
    async for _ in manager.generate_request(obj):
        pass
    patches.undo()


def meta(**given: Any) -> dict[str, Any]:
    return {"id": "x", "prompt_tokens": 2, "completion_tokens": 2, "finish_reason": None, **given}


async def test_sglang_text_without_ids(pipeline: Pipeline) -> None:
    done = meta(finish_reason={"type": "stop"})
    await sglang_items([{"text": "hello", "meta_info": done}], GenerateReqInput())
    (span,) = pipeline.spans()
    (message,) = loaded(span, semconv.OUTPUT_MESSAGES)
    assert message["parts"][0]["content"] == "hello"
    assert attributes(span)[semconv.OUTPUT_TOKENS] == 2
    assert semconv.RESPONSE_IDS not in attributes(span)


async def test_sglang_ids_from_logprobs(pipeline: Pipeline) -> None:
    pairs = [(-1.0, 5, None), (-2.0, 6, None)]
    done = meta(finish_reason={"type": "length"}, output_token_logprobs=pairs)
    await sglang_items([{"text": "hello", "meta_info": done}], GenerateReqInput())
    given = attributes(pipeline.spans()[0])
    assert payload.decode_ids(given[semconv.RESPONSE_IDS]) == [5, 6]
    assert payload.decode_floats(given[semconv.RESPONSE_LOGPROBS]) == [-1.0, -2.0]


async def test_sglang_pieces_with_whole_logprobs(pipeline: Pipeline) -> None:
    pairs = [(-1.0, 5, None), (-2.0, 6, None)]
    items = [
        {"output_ids": [5], "meta_info": meta(output_token_logprobs=pairs[:1])},
        {
            "output_ids": [6],
            "meta_info": meta(output_token_logprobs=pairs, finish_reason={"type": "stop"}),
        },
    ]
    await sglang_items(
        items, GenerateReqInput(stream=True), server_args=SimpleNamespace(stream_output=True)
    )
    given = attributes(pipeline.spans()[0])
    assert payload.decode_ids(given[semconv.RESPONSE_IDS]) == [5, 6]
    assert payload.decode_floats(given[semconv.RESPONSE_LOGPROBS]) == [-1.0, -2.0]


async def test_sglang_streamed_error(pipeline: Pipeline) -> None:
    reason = {"type": "abort", "status_code": 400, "message": "too long"}
    item = {"output_ids": [], "meta_info": meta(finish_reason=reason)}
    await sglang_items([item], GenerateReqInput(stream=True))
    (span,) = pipeline.spans()
    assert attributes(span)[semconv.OUTCOME] == "error"
    assert span.status.description == "too long"


async def test_sglang_embeddings_as_prompt(pipeline: Pipeline) -> None:
    done = {"output_ids": [5], "meta_info": meta(finish_reason={"type": "stop"})}
    obj = GenerateReqInput(input_ids=None, input_embeds=[[0.5, 0.5]], sampling_params=None)
    await sglang_items([done], obj)
    given = attributes(pipeline.spans()[0])
    assert semconv.PROMPT_IDS not in given
    assert payload.decode_ids(given[semconv.RESPONSE_IDS]) == [5]

"""The SGLang instrumentor on a real engine."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import random
import time
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from otel_rollout import semconv, trajectory
from otel_rollout.instrumentors.patching import is_ours
from otel_rollout.instrumentors.sglang import SglangInstrumentor
from otel_rollout.processor import sampling
from tests.engines.watch import (
    MODEL,
    MODEL_NAME,
    PROMPT,
    Watch,
    answers_of,
    logprobs_of,
    prompt_of,
)
from tests.servers.otlp_receiver import OtlpReceiver
from tests.unit.pipeline import attributes, loaded

pytestmark = pytest.mark.asyncio(loop_scope="session")


def ids_of(output: dict[str, Any]) -> list[int]:
    return list(output["output_ids"])


def logprobs_in(output: dict[str, Any]) -> list[float]:
    return [one[0] for one in output["meta_info"]["output_token_logprobs"]]


def check(given: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
    """What is recorded is what came back, answer by answer."""
    assert answers_of(given) == [ids_of(output) for output in outputs]
    for recorded, output in zip(logprobs_of(given), outputs, strict=True):
        assert recorded == pytest.approx(logprobs_in(output), abs=1e-6)


async def quiet(engine: Any) -> None:
    """Wait until the engine has nothing left to do."""
    for _ in range(300):
        if not engine.tokenizer_manager.rid_to_state:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the engine has unfinished requests")


# --- what is recorded is what came back -----------------------------------------------------------


async def test_single(asking: Any, watch: Watch) -> None:
    await asking(PROMPT)
    watch.take()
    (output,) = await asking(PROMPT, temperature=0.7, top_p=0.9, top_k=40, stop=["zzz"], rid="mine")
    given = watch.take_one()
    check(given, [output])
    assert prompt_of(given) == PROMPT
    expected = {
        semconv.OPERATION: "text_completion",
        semconv.PROVIDER: "sglang",
        semconv.REQUEST_MODEL: MODEL_NAME,
        semconv.REQUEST_TEMPERATURE: 0.7,
        semconv.REQUEST_TOP_P: 0.9,
        semconv.REQUEST_TOP_K: 40,
        semconv.REQUEST_MAX_TOKENS: 16,
        semconv.REQUEST_CHOICES: 1,
        semconv.REQUEST_STOP: ("zzz",),
        semconv.RESPONSE_ID: "mine",
        semconv.OUTCOME: "length",
        semconv.FINISH_REASONS: ("length",),
        semconv.INPUT_TOKENS: len(PROMPT),
        semconv.OUTPUT_TOKENS: 16,
        semconv.NUM_PREEMPTED: 0,
        semconv.WEIGHT_VERSION: output["meta_info"]["weight_version"],
    }
    assert {key: given.get(key) for key in expected} == expected
    assert 0 < given[semconv.CACHED_TOKENS] < len(PROMPT)  # the prompt came a second time


async def test_several_answers(asking: Any, watch: Watch) -> None:
    (outputs,) = await asking(PROMPT, n=3)
    (span,) = watch.take()
    check(attributes(span), outputs)
    assert prompt_of(attributes(span)) == PROMPT
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    assert [
        message["parts"][0]["content"] for message in loaded(span, semconv.OUTPUT_MESSAGES)
    ] == [tokenizer.decode(ids_of(output)) for output in outputs]


async def test_a_batch_is_a_span_for_each_prompt(asking: Any, watch: Watch) -> None:
    prompts = [[*PROMPT, 100], [*PROMPT, 101], [*PROMPT, 102]]
    (outputs,) = await asking(prompts, n=2)
    spans = watch.take()
    assert [prompt_of(attributes(span)) for span in spans] == prompts
    for number, span in enumerate(spans):
        check(attributes(span), outputs[2 * number : 2 * number + 2])


async def test_a_batch_of_one_answer_each(asking: Any, watch: Watch) -> None:
    prompts = [[*PROMPT, 110], [*PROMPT, 111]]
    (outputs,) = await asking(prompts)
    spans = watch.take()
    for span, prompt, output in zip(spans, prompts, outputs, strict=True):
        assert prompt_of(attributes(span)) == prompt
        check(attributes(span), [output])


async def test_a_stream_shares_one_list(asking: Any, watch: Watch) -> None:
    items = await asking(PROMPT, stream=True)
    given = watch.take_one()
    assert len(items) > 1
    check(given, [items[-1]])
    assert given[semconv.TIME_TO_FIRST_TOKEN] > 0


async def test_a_stream_of_several_answers(asking: Any, watch: Watch) -> None:
    items = await asking(PROMPT, stream=True, n=2)
    given = watch.take_one()
    last = {item.get("index", 0): item for item in items}
    check(given, [last[0], last[1]])


async def test_a_stream_of_a_batch(asking: Any, watch: Watch) -> None:
    prompts = [[*PROMPT, 120], [*PROMPT, 121]]
    items = await asking(prompts, stream=True)
    last = {item["index"]: item for item in items}
    by_prompt = {tuple(prompt_of(attributes(span))): attributes(span) for span in watch.take()}
    for number, prompt in enumerate(prompts):
        check(by_prompt[tuple(prompt)], [last[number]])


async def test_a_stream_in_pieces(engine: Any, asking: Any, watch: Watch) -> None:
    manager = engine.tokenizer_manager
    manager.incremental_streaming_output = True
    try:
        items = await asking(PROMPT, stream=True)
    finally:
        manager.incremental_streaming_output = False
    given = watch.take_one()
    assert answers_of(given) == [[token for item in items for token in ids_of(item)]]
    assert logprobs_of(given)[0] == pytest.approx(
        [one for item in items for one in logprobs_in(item)], abs=1e-6
    )


async def test_a_text_prompt(asking: Any, watch: Watch) -> None:
    (output,) = await asking("What is 3 plus 4?")
    (span,) = watch.take()
    given = attributes(span)
    (message,) = loaded(span, semconv.INPUT_MESSAGES)
    assert message["parts"][0]["content"] == "What is 3 plus 4?"
    assert given[semconv.INPUT_TOKENS] == output["meta_info"]["prompt_tokens"]
    check(given, [output])


async def test_all_ways_in_go_through_the_one(engine: Any, watch: Watch) -> None:
    params = {"max_new_tokens": 4, "ignore_eos": True}
    output = await engine.async_generate(input_ids=PROMPT, sampling_params=params)
    assert answers_of(watch.take_one()) == [ids_of(output)]


async def test_results_are_identical_without_us(engine: Any, asking: Any, watch: Watch) -> None:
    # One sequence at a time: two may or may not share a batch, which changes the last digits of
    # what SGLang itself computes.
    async def results() -> list[Any]:
        found: list[Any] = []
        for number in range(4):
            prompt = [*PROMPT, 200 + number]
            (one,) = await asking(prompt, temperature=0.0)
            (several,) = await asking([prompt], temperature=0.0)
            streamed = await asking(prompt, temperature=0.0, stream=True)
            found += [(ids_of(o), logprobs_in(o)) for o in (one, *several, streamed[-1])]
            found.append(set(one) | set(one["meta_info"]))
        return found

    await results()  # so that the prefix cache is in the same state for both
    assert len(watch.take()) == 12
    traced = await results()
    watch.take()
    instrumentor = SglangInstrumentor()
    instrumentor.uninstrument()
    try:
        assert not is_ours(type(engine.tokenizer_manager).generate_request)
        untraced = await results()
    finally:
        instrumentor.instrument()
    assert watch.take() == []
    assert traced == untraced


# --- the life of the span -------------------------------------------------------------------------


async def test_as_verl_asks(asking: Any, watch: Watch) -> None:
    """One `__anext__()`, then the generator is dropped, suspended."""

    async def ask(number: int) -> dict[str, Any]:
        output: dict[str, Any] = await asking.generate([*PROMPT, number]).__anext__()
        return output

    outputs = await asyncio.gather(*(ask(130 + number) for number in range(20)))
    spans = watch.take()  # at once: each was over before its answer was handed on
    gc.collect()
    await asyncio.sleep(0.1)
    assert watch.take() == []
    assert {attributes(span)[semconv.OUTCOME] for span in spans} == {"length"}
    by_prompt = {tuple(prompt_of(attributes(span))): attributes(span) for span in spans}
    assert len(by_prompt) == 20
    for number, output in enumerate(outputs):
        check(by_prompt[(*PROMPT, 130 + number)], [output])


async def test_abort(engine: Any, asking: Any, watch: Watch) -> None:
    task = asyncio.create_task(asking(PROMPT, max_new_tokens=400, rid="abort-me"))
    await asyncio.sleep(0.15)
    engine.tokenizer_manager.abort_request("abort-me")
    (output,) = await task
    (span,) = watch.take()
    given = attributes(span)
    assert given[semconv.OUTCOME] == "abort"
    assert span.status.status_code is StatusCode.UNSET
    check(given, [output])
    await quiet(engine)


async def test_pause_and_resume(engine: Any, asking: Any, watch: Watch) -> None:
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    manager = engine.tokenizer_manager
    task = asyncio.create_task(asking(PROMPT, max_new_tokens=400))
    await asyncio.sleep(0.15)
    await manager.pause_generation(PauseGenerationReqInput(mode="abort"))
    (output,) = await task
    await manager.continue_generation(ContinueGenerationReqInput())
    given = watch.take_one()
    assert given[semconv.OUTCOME] == "abort"
    check(given, [output])
    await asking(PROMPT)
    assert watch.take_one()[semconv.OUTCOME] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_cancel(engine: Any, asking: Any, watch: Watch, stream: bool) -> None:
    task = asyncio.create_task(asking(PROMPT, max_new_tokens=400, stream=stream))
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = watch.take()
    given = attributes(span)
    assert given[semconv.OUTCOME] == "cancelled"
    assert span.status.status_code is StatusCode.ERROR
    assert given[semconv.ERROR_TYPE] == "CancelledError"
    assert prompt_of(given) == PROMPT
    await quiet(engine)


async def test_break(engine: Any, asking: Any, watch: Watch) -> None:
    items = asking.generate(PROMPT, max_new_tokens=400, stream=True)
    async for item in items:
        seen = ids_of(item)
        break
    await items.aclose()
    given = watch.take_one()
    assert given[semconv.OUTCOME] == "abandoned"
    assert answers_of(given) == [seen]  # not what the shared list has grown to since
    await quiet(engine)


async def test_drop(engine: Any, asking: Any, watch: Watch) -> None:
    items = asking.generate(PROMPT, max_new_tokens=400, stream=True)
    await anext(items)
    del items
    gc.collect()
    await quiet(engine)
    assert watch.take_one()[semconv.OUTCOME] == "abandoned"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_too_long(engine: Any, asking: Any, watch: Watch, stream: bool) -> None:
    with pytest.raises(ValueError, match=r"."):
        await asking([10] * 3000, stream=stream)
    (span,) = watch.take()
    assert attributes(span)[semconv.OUTCOME] == "error"
    assert span.status.status_code is StatusCode.ERROR
    await quiet(engine)


async def test_mixed_calls_leave_nothing_open(engine: Any, asking: Any, watch: Watch) -> None:
    """1,000 calls; ENGINE_TEST_CALLS=10000 for more."""
    draw = random.Random(1)
    calls = int(os.environ.get("ENGINE_TEST_CALLS", "1000"))
    gate = asyncio.Semaphore(32)

    async def call(number: int) -> None:
        way = draw.choice(("all", "all", "verl", "break", "drop", "cancel", "abort", "long"))
        stream = way in ("break", "drop") or draw.random() < 0.3
        async with gate:
            if way == "long":
                with pytest.raises(ValueError, match=r"."):
                    await asking([10] * 3000)
                return
            name = f"mixed-{number}"
            prompt = PROMPT[: 16 + number % 40]
            items = asking.generate(prompt, stream=stream, max_new_tokens=8, rid=name)
            if way == "all":
                async for _ in items:
                    pass
            elif way in ("verl", "drop"):
                await anext(items)
            elif way == "break":
                async for _ in items:
                    break
                await items.aclose()
            else:
                task = asyncio.ensure_future(anext(items))
                await asyncio.sleep(draw.random() * 0.03)
                if way == "abort":
                    engine.tokenizer_manager.abort_request(name)
                else:
                    task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await items.aclose()

    await asyncio.gather(*(call(number) for number in range(calls)))
    gc.collect()
    await quiet(engine)
    await asyncio.sleep(0.1)
    outcomes: dict[str, int] = {}
    spans = watch.take()
    for span in spans:
        outcome = str(attributes(span)[semconv.OUTCOME])
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert {"length", "abandoned", "cancelled", "error"} <= set(outcomes), outcomes
    assert 0.9 * calls < len(spans) <= calls  # a call cancelled before its first step has none


# --- times ----------------------------------------------------------------------------------------


async def test_times_add_up(asking: Any, watch: Watch) -> None:
    await asking(PROMPT, max_new_tokens=300)
    (span,) = watch.take()
    given = attributes(span)
    assert span.end_time is not None
    assert span.start_time is not None
    whole = (span.end_time - span.start_time) / 1e9
    parts = sum(
        float(str(given[key]))
        for key in (semconv.TIME_QUEUE, semconv.TIME_PREFILL, semconv.TIME_DECODE)
    )
    assert parts == pytest.approx(whole, rel=0.05)


# --- the engine's own spans -----------------------------------------------------------------------


async def below(native: OtlpReceiver, span_id: int) -> list[Any]:
    """SGLang's own spans whose parent is a span, once they had time to come."""
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        found = [span for span in native.spans if span.parent_id == f"{span_id:016x}"]
        if found:
            return found
    return []


async def test_native_spans_are_our_children(
    asking: Any, watch: Watch, native: OtlpReceiver
) -> None:
    request = asking.request(PROMPT, rid="native-child")
    with trajectory(step=1, sample_index=2):
        async for _ in asking.engine.tokenizer_manager.generate_request(request):
            pass
    (span,) = watch.take()
    assert span.context is not None
    children = await below(native, span.context.span_id)
    assert children
    assert children[0].trace_id == f"{span.context.trace_id:032x}"
    assert request.external_trace_header is None  # the caller's object is as it was


async def test_a_header_of_the_callers_wins(
    asking: Any, watch: Watch, native: OtlpReceiver
) -> None:
    theirs = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    request = asking.request(PROMPT, external_trace_header=copy.copy(theirs))
    async for _ in asking.engine.tokenizer_manager.generate_request(request):
        pass
    assert len(watch.take()) == 1
    assert await below(native, int("cd" * 8, 16))
    assert request.external_trace_header == theirs


async def test_an_unsampled_trajectory_has_no_spans(
    asking: Any, watch: Watch, native: OtlpReceiver
) -> None:
    await asyncio.sleep(1)
    native.clear()
    sampling.sampler().rate = 0.0
    try:
        with trajectory(step=1, sample_index=3):
            (output,) = await asking(PROMPT)
    finally:
        sampling.sampler().rate = 1.0
    assert len(ids_of(output)) == 16
    assert watch.take() == []
    await asyncio.sleep(2)
    assert native.spans == []


# --- instrumenting --------------------------------------------------------------------------------


async def test_instrumenting_twice_wraps_once_and_undoing_restores(engine: Any) -> None:
    manager = type(engine.tokenizer_manager)
    instrumentor = SglangInstrumentor()
    wrapped = manager.generate_request
    instrumentor.instrument()
    assert manager.generate_request is wrapped
    instrumentor.uninstrument()
    original, initializer = manager.generate_request, manager.__init__
    assert not is_ours(original)
    assert not is_ours(initializer)
    instrumentor.instrument()
    assert manager.generate_request.__wrapped__ is original

"""The vLLM instrumentor on a real engine."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from otel_rollout import semconv, trajectory
from otel_rollout.instrumentors.patching import is_ours
from otel_rollout.instrumentors.vllm import VllmInstrumentor
from otel_rollout.processor import sampling
from tests.engines.watch import (
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

KINDS = ("CUMULATIVE", "DELTA", "FINAL_ONLY")


def collected(items: list[Any], kind: str) -> dict[int, tuple[list[int], list[float], str]]:
    """What a user of vLLM makes of the items: each choice's ids, log-probabilities and reason."""
    made: dict[int, tuple[list[int], list[float], str]] = {}
    for item in items:
        for output in item.outputs:
            ids, logprobs = list(output.token_ids), []
            if output.logprobs is not None:
                logprobs = [
                    one[token].logprob for one, token in zip(output.logprobs, ids, strict=True)
                ]
            if kind == "DELTA" and output.index in made:
                before = made[output.index]
                ids, logprobs = before[0] + ids, before[1] + logprobs
            made[output.index] = (ids, logprobs, output.finish_reason)
    return made


async def quiet(engine: Any) -> None:
    """Wait until the engine has nothing left to do."""
    for _ in range(200):
        if not engine.output_processor.get_num_unfinished_requests():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the engine has unfinished requests")


# --- what is recorded is what came back -----------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
async def test_every_output_kind_gives_the_same_record(asking: Any, watch: Watch, n: int) -> None:
    records = []
    for kind in KINDS:
        items = await asking(PROMPT, kind, n=n, logprobs=0)
        given = watch.take_one()
        returned = collected(items, kind)
        assert prompt_of(given) == PROMPT
        assert answers_of(given) == [returned[index][0] for index in range(n)]
        for recorded, index in zip(logprobs_of(given), range(n), strict=True):
            assert recorded == pytest.approx(returned[index][1], abs=1e-6)
        assert given[semconv.OUTCOME] == "length"
        assert given[semconv.FINISH_REASONS] == ("length",) * n
        records.append((answers_of(given), given[semconv.OUTPUT_MESSAGES]))
    assert records[0] == records[1] == records[2]


async def test_attributes_of_a_request(engine: Any, asking: Any, watch: Watch) -> None:
    params = asking.parameters(
        temperature=0.7, top_p=0.9, top_k=40, max_tokens=8, seed=3, stop=["zzz"], ignore_eos=False
    )
    prompt = PROMPT * 3  # longer than a block of the cache
    await asking(prompt, max_tokens=1)
    watch.take()
    async for _ in engine.generate(
        prompt={"prompt_token_ids": prompt}, sampling_params=params, request_id="mine", priority=0
    ):
        pass
    given = watch.take_one()
    expected = {
        semconv.OPERATION: "text_completion",
        semconv.PROVIDER: "vllm",
        semconv.REQUEST_MODEL: MODEL_NAME,
        semconv.REQUEST_TEMPERATURE: 0.7,
        semconv.REQUEST_TOP_P: 0.9,
        semconv.REQUEST_TOP_K: 40,
        semconv.REQUEST_MAX_TOKENS: 8,
        semconv.REQUEST_SEED: 3,
        semconv.REQUEST_CHOICES: 1,
        semconv.REQUEST_STOP: ("zzz",),
        semconv.RESPONSE_ID: "mine",
        semconv.INPUT_TOKENS: len(prompt),
        semconv.PRIORITY: 0,
        semconv.NUM_PREEMPTED: 0,
    }
    assert {key: given.get(key) for key in expected} == expected
    assert given[semconv.OUTPUT_TOKENS] == len(answers_of(given)[0])
    assert 0 < given[semconv.CACHED_TOKENS] < len(prompt)  # the prompt came a second time
    assert given[semconv.TIME_TO_FIRST_TOKEN] > 0


async def test_a_text_prompt_and_the_weights_version(
    engine: Any, asking: Any, watch: Watch
) -> None:
    await engine.update_weight_version("step-8")
    items = [
        item async for item in engine.generate("What is 3 plus 4?", asking.parameters(), "text")
    ]
    (span,) = watch.take()
    assert prompt_of(attributes(span)) == items[-1].prompt_token_ids
    (message,) = loaded(span, semconv.INPUT_MESSAGES)
    assert message["parts"][0]["content"] == "What is 3 plus 4?"
    assert attributes(span)[semconv.WEIGHT_VERSION] == "step-8"


async def test_text_by_the_engines_own_tokenizer(asking: Any, watch: Watch) -> None:
    items = await asking(PROMPT, n=2)
    (span,) = watch.take()
    from transformers import AutoTokenizer

    from tests.engines.watch import MODEL

    tokenizer = AutoTokenizer.from_pretrained(str(MODEL))
    messages = loaded(span, semconv.OUTPUT_MESSAGES)
    assert [message["parts"][0]["content"] for message in messages] == [
        tokenizer.decode(output.token_ids) for output in items[-1].outputs
    ]
    assert [message["finish_reason"] for message in messages] == ["length", "length"]


async def test_many_at_once(asking: Any, watch: Watch) -> None:
    prompts = [[*PROMPT, 100 + number] for number in range(12)]
    answers = await asyncio.gather(
        *(
            asking(prompt, KINDS[number % 3], n=1 + number % 2, seed=number, logprobs=0)
            for number, prompt in enumerate(prompts)
        )
    )
    spans = {tuple(prompt_of(attributes(span))): attributes(span) for span in watch.take()}
    assert len(spans) == len(prompts)
    for number, (prompt, items) in enumerate(zip(prompts, answers, strict=True)):
        given = spans[tuple(prompt)]
        returned = collected(items, KINDS[number % 3])
        assert answers_of(given) == [returned[index][0] for index in sorted(returned)]
        for recorded, index in zip(logprobs_of(given), sorted(returned), strict=True):
            assert recorded == pytest.approx(returned[index][1], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
async def test_results_are_identical_without_us(
    engine: Any, asking: Any, watch: Watch, kind: str
) -> None:
    prompts = [[*PROMPT, 200 + number] for number in range(4)]

    async def results() -> list[Any]:
        return [
            collected(await asking(prompt, kind, n=2, logprobs=1, seed=11), kind)
            for prompt in prompts
        ]

    traced = await results()
    assert len(watch.take()) == len(prompts)
    instrumentor = VllmInstrumentor()
    instrumentor.uninstrument()
    try:
        assert not is_ours(type(engine).generate)
        untraced = await results()
    finally:
        instrumentor.instrument()
    assert watch.take() == []
    assert traced == untraced


# --- the life of the span -------------------------------------------------------------------------


async def test_the_span_ends_before_the_last_item(asking: Any, watch: Watch) -> None:
    items = asking.generate(PROMPT)
    await anext(items)
    (span,) = watch.take()
    assert attributes(span)[semconv.OUTCOME] == "length"
    await items.aclose()


async def test_stop(asking: Any, watch: Watch) -> None:
    items = await asking(PROMPT, max_tokens=4, ignore_eos=False, stop_token_ids=list(range(512)))
    given = watch.take_one()
    assert items[-1].outputs[0].finish_reason == "stop"
    assert (given[semconv.OUTCOME], given[semconv.FINISH_REASONS]) == ("stop", ("stop",))


@pytest.mark.parametrize("kind", KINDS)
async def test_abort(engine: Any, asking: Any, watch: Watch, kind: str) -> None:
    task = asyncio.create_task(asking(PROMPT, kind, max_tokens=400, request_id=f"abort-{kind}"))
    await asyncio.sleep(0.1)
    await engine.abort(f"abort-{kind}")
    returned = collected(await task, kind)
    given = watch.take_one()
    assert given[semconv.OUTCOME] == "abort"
    assert answers_of(given) == [returned[0][0]]
    await quiet(engine)


async def test_pause_and_resume(engine: Any, asking: Any, watch: Watch) -> None:
    task = asyncio.create_task(asking(PROMPT, n=2, max_tokens=400))
    await asyncio.sleep(0.1)
    await engine.pause_generation(mode="abort", clear_cache=True)
    returned = collected(await task, "FINAL_ONLY")
    await engine.resume_generation()
    (span,) = watch.take()
    given = attributes(span)
    assert given[semconv.OUTCOME] == "abort"
    assert span.status.status_code is StatusCode.UNSET
    assert answers_of(given) == [returned[index][0] for index in sorted(returned)]
    await asking(PROMPT)
    assert watch.take_one()[semconv.OUTCOME] == "length"


@pytest.mark.parametrize("kind", KINDS)
async def test_cancel(engine: Any, asking: Any, watch: Watch, kind: str) -> None:
    task = asyncio.create_task(asking(PROMPT, kind, max_tokens=400))
    await asyncio.sleep(0.1)
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
    items = asking.generate(PROMPT, "CUMULATIVE", max_tokens=400)
    async for item in items:
        seen = list(item.outputs[0].token_ids)
        break
    await items.aclose()
    (span,) = watch.take()
    given = attributes(span)
    assert given[semconv.OUTCOME] == "abandoned"
    assert answers_of(given) == [seen]  # not what the engine's list has grown to since
    await quiet(engine)


async def test_drop(engine: Any, asking: Any, watch: Watch) -> None:
    items = asking.generate(PROMPT, "DELTA", max_tokens=400)
    await anext(items)
    del items
    gc.collect()
    await quiet(engine)
    assert watch.take_one()[semconv.OUTCOME] == "abandoned"
    never_asked = asking.generate(PROMPT)
    del never_asked
    gc.collect()
    await asyncio.sleep(0)
    assert watch.take() == []


async def test_a_prompt_too_long(engine: Any, asking: Any, watch: Watch) -> None:
    with pytest.raises(Exception, match=r"."):
        await asking([10] * 600)
    (span,) = watch.take()
    given = attributes(span)
    assert given[semconv.OUTCOME] == "error"
    assert span.status.status_code is StatusCode.ERROR
    assert semconv.RESPONSE_IDS not in given
    await quiet(engine)


async def test_mixed_calls_leave_nothing_open(engine: Any, asking: Any, watch: Watch) -> None:
    """1,000 calls; ENGINE_TEST_CALLS=10000 for more."""
    draw = random.Random(1)
    calls = int(os.environ.get("ENGINE_TEST_CALLS", "1000"))
    gate = asyncio.Semaphore(64)

    async def call(number: int) -> None:
        kind = draw.choice(KINDS)
        way = draw.choice(("all", "all", "break", "drop", "cancel", "abort", "long"))
        async with gate:
            if way == "long":
                with pytest.raises(Exception, match=r"."):
                    await asking([10] * 600)
                return
            name = f"mixed-{number}"
            n = draw.choice((1, 1, 2))
            items = asking.generate(PROMPT[: 16 + number % 40], kind, n=n, request_id=name)
            if way == "all":
                async for _ in items:
                    pass
            elif way == "break":
                async for _ in items:
                    break
                await items.aclose()
            elif way == "drop":
                await anext(items)
            else:
                task = asyncio.ensure_future(anext(items))
                await asyncio.sleep(draw.random() * 0.02)
                if way == "abort":
                    await engine.abort(name)
                else:
                    task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await items.aclose()

    await asyncio.gather(*(call(number) for number in range(calls)))
    gc.collect()
    await quiet(engine)
    await asyncio.sleep(0.1)
    spans = watch.take()
    outcomes: dict[str, int] = {}
    for span in spans:
        outcome = str(attributes(span)[semconv.OUTCOME])
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert {"length", "abandoned", "abort", "error"} <= set(outcomes), outcomes
    assert 0.9 * calls < len(spans) <= calls  # a call cancelled before its first step has none


# --- times ----------------------------------------------------------------------------------------


async def test_times_add_up(asking: Any, watch: Watch) -> None:
    await asking(PROMPT, max_tokens=300)
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
    assert given[semconv.TIME_PER_OUTPUT_TOKEN] == pytest.approx(given[semconv.TIME_DECODE] / 299)


# --- the engine's own spans -----------------------------------------------------------------------


async def native_spans(native: OtlpReceiver, request_id: str) -> list[Any]:
    """vLLM's own spans of one request, once they had time to come."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        found = [
            span
            for span in native.named("llm_request")
            if str(span.attributes.get("gen_ai.request.id", "")).startswith(request_id)
        ]
        if found:
            return found
    return []


async def test_native_spans_are_our_children(
    asking: Any, watch: Watch, native: OtlpReceiver
) -> None:
    with trajectory(step=1, sample_index=2):
        await asking(PROMPT, request_id="native-child")
    (span,) = watch.take()
    assert span.context is not None
    (child,) = await native_spans(native, "native-child")
    assert child.parent_id == f"{span.context.span_id:016x}"
    assert child.trace_id == f"{span.context.trace_id:032x}"


async def test_a_header_of_the_callers_wins(
    engine: Any, asking: Any, watch: Watch, native: OtlpReceiver
) -> None:
    theirs = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    async for _ in engine.generate(
        {"prompt_token_ids": PROMPT}, asking.parameters(), "native-theirs", trace_headers=theirs
    ):
        pass
    assert len(watch.take()) == 1
    (span,) = await native_spans(native, "native-theirs")
    assert (span.trace_id, span.parent_id) == ("ab" * 16, "cd" * 8)


async def test_an_unsampled_trajectory_has_no_spans(
    asking: Any, watch: Watch, native: OtlpReceiver
) -> None:
    sampling.sampler().rate = 0.0
    try:
        with trajectory(step=1, sample_index=3):
            items = await asking(PROMPT, request_id="native-unsampled")
    finally:
        sampling.sampler().rate = 1.0
    assert len(items[-1].outputs[0].token_ids) == 16
    assert watch.take() == []
    assert await native_spans(native, "native-unsampled") == []


# --- in a trajectory ------------------------------------------------------------------------------


async def test_turns_of_a_trajectory(asking: Any, watch: Watch) -> None:
    with trajectory(step=4, sample_index=5, rollout_n=1, weight_version=9):
        first = await asking(PROMPT)
        answer = list(first[-1].outputs[0].token_ids)
        await asking([*PROMPT, *answer, 20, 21])
    one, two = watch.take()
    assert one.parent is not None
    assert two.parent is not None
    assert one.parent.span_id == two.parent.span_id
    given = attributes(two)
    assert given[semconv.STEP] == 4
    assert given[semconv.WEIGHT_VERSION] in (9, "step-8")
    assert one.context is not None
    assert given[semconv.PROMPT_PREFIX_SPAN] == f"{one.context.span_id:016x}"
    assert given[semconv.PROMPT_PREFIX_LENGTH] == len(PROMPT) + len(answer)


# --- instrumenting --------------------------------------------------------------------------------


async def test_instrumenting_twice_wraps_once_and_undoing_restores(engine: Any) -> None:
    from vllm.engine.async_llm_engine import AsyncLLMEngine
    from vllm.v1.engine.async_llm import AsyncLLM

    instrumentor = VllmInstrumentor()
    wrapped = AsyncLLM.generate
    instrumentor.instrument()
    assert AsyncLLM.generate is wrapped
    instrumentor.uninstrument()
    original, initializer = AsyncLLM.generate, AsyncLLM.__init__
    assert not is_ours(original)
    assert not is_ours(initializer)
    instrumentor.instrument()
    assert is_ours(AsyncLLM.generate)
    assert AsyncLLMEngine.generate is AsyncLLM.generate
    assert AsyncLLM.generate.__wrapped__ is original

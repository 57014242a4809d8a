"""The instrumentors fit the engines of many releases, as their sources stand in the wheels.

What the sources say is kept in `engine_signatures.json`; `engine_signatures.py` reads it anew.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from otel_rollout import payload, semconv
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.sglang import calls as sglang_instrumentor
from otel_rollout.instrumentors.vllm import calls as vllm_instrumentor
from tests.unit.engine_signatures import FOUND
from tests.unit.pipeline import Pipeline, attributes

SIGNATURES = json.loads(FOUND.read_text())
VLLM, SGLANG = SIGNATURES["vllm"], SIGNATURES["sglang"]
ENGINES = [
    (version, name)
    for version, found in VLLM.items()
    for name in ("AsyncLLM", "AsyncLLMEngine")
    if found[name] is not None
]


def test_the_range_of_releases() -> None:
    assert len(VLLM) >= 6
    assert {"0.8.5.post2", "0.32.0"} <= set(VLLM)
    assert len(SGLANG) >= 6
    assert {"0.4.6", "0.5.23"} <= set(SGLANG)


def engine_of(parameters: str, items: list[Any], tracing: bool = True) -> tuple[type, list[Any]]:
    """A class with `generate` of these parameters, which notes what it is called with."""
    calls: list[Any] = []
    names = list(inspect.signature(eval(f"lambda {parameters}: 0")).parameters)
    body = f"async def generate({parameters}):\n    calls.append(dict(locals()))\n"
    scope: dict[str, Any] = {"calls": calls, "items": items}
    exec(body + "    for item in items:\n        yield item\n", scope)

    async def is_tracing_enabled(self: Any) -> bool:
        return tracing

    made = type("AsyncLLM", (), {"generate": scope["generate"]})
    made.is_tracing_enabled = is_tracing_enabled  # type: ignore[attr-defined]
    assert names[:4] == ["self", "prompt", "sampling_params", "request_id"]
    return made, calls


def finished() -> Any:
    output = SimpleNamespace(index=0, token_ids=[5, 6], logprobs=None, finish_reason="stop")
    return SimpleNamespace(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        outputs=[output],
        finished=True,
        metrics=None,
        num_cached_tokens=None,
    )


@pytest.mark.parametrize(("version", "name"), ENGINES)
@pytest.mark.parametrize("form", ["positional", "keyword", "mixed", "their header"])
async def test_vllm_is_called_as_the_user_called_it(
    pipeline: Pipeline, version: str, name: str, form: str
) -> None:
    assert VLLM[version][name]["is_async_generator"]
    parameters = VLLM[version][name]["parameters"]
    engine_class, calls = engine_of(parameters, [finished()])
    signature = inspect.signature(engine_class.generate)  # type: ignore[attr-defined]
    patches = Patches()
    module = ModuleType("module")
    module.AsyncLLM = engine_class  # type: ignore[attr-defined]
    vllm_instrumentor.patch_v1(patches, module)
    given = {key: object() for key in list(signature.parameters)[1:]}
    given["prompt"] = {"prompt_token_ids": [1, 2, 3]}
    given["sampling_params"] = SimpleNamespace(n=1, temperature=0.5, output_kind=None)
    given["request_id"] = "r"
    given["priority"] = 3
    given["trace_headers"] = {"traceparent": "theirs"} if form == "their header" else None
    keyword_only = [
        key
        for key, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    args: list[Any] = []
    kwargs = dict(given)
    if form != "keyword":
        free = [key for key in given if key not in keyword_only]
        for key in free if form != "mixed" else free[:2]:
            args.append(kwargs.pop(key))
    items = [item async for item in engine_class().generate(*args, **kwargs)]  # type: ignore[attr-defined]
    patches.undo()
    (received,) = calls
    header = received.pop("trace_headers")
    received.pop("self")
    del given["trace_headers"]
    assert {key: received[key] for key in given} == given
    (span,) = pipeline.spans()
    assert span.context is not None
    if form == "their header":
        assert header == {"traceparent": "theirs"}
    else:
        assert f"{span.context.span_id:016x}" in header["traceparent"]
    assert len(items) == 1
    recorded = attributes(span)
    assert recorded[semconv.OUTCOME] == "stop"
    assert recorded[semconv.PRIORITY] == 3
    assert recorded[semconv.REQUEST_TEMPERATURE] == 0.5
    assert payload.decode_ids(recorded[semconv.RESPONSE_IDS]) == [5, 6]


@pytest.mark.parametrize("version", VLLM)
def test_what_is_read_of_vllms_results_is_there(version: str) -> None:
    found = VLLM[version]
    output = {"request_id", "prompt_token_ids", "outputs", "finished", "metrics"}
    assert output <= set(found["RequestOutput"])
    assert {"index", "token_ids", "logprobs", "finish_reason"} <= set(found["CompletionOutput"])
    times = {"queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"}
    assert times <= set(found["RequestStateStats"])
    assert found["is_tracing_enabled"]
    # Where it is no class of its own it is the other one, under a second name.
    assert found["AsyncLLMEngine"] is not None or found["AsyncLLMEngine is AsyncLLM"]
    if found["AsyncLLMEngine"] is not None:
        assert {"first_scheduled_time", "time_in_queue"} <= set(found["RequestMetrics"])


@pytest.mark.parametrize("version", SGLANG)
def test_what_is_read_of_sglang_is_there(version: str) -> None:
    found = SGLANG[version]
    assert found["generate_request"]["parameters"] == "self, obj, request=None"
    assert found["generate_request"]["is_async_generator"]
    request = {"text", "input_ids", "sampling_params", "rid", "stream"}
    assert request <= set(found["GenerateReqInput"])
    meta = {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens"}
    assert meta | {"output_token_logprobs"} <= set(found["meta_info"])
    assert {"tokenizer", "model_path", "server_args"} & set(found["TokenizerManager"])
    assert found["answers in order of prompts"]


@pytest.mark.parametrize("form", ["positional", "keyword", "one"])
async def test_sglang_is_called_as_the_user_called_it(pipeline: Pipeline, form: str) -> None:
    calls: list[Any] = []

    class GenerateReqInput:
        input_ids = [1, 2, 3]
        sampling_params = {"max_new_tokens": 2}
        rid = "r"
        stream = False
        external_trace_header: Any = None

    class TokenizerManager:
        served_model_name = "some/where/m"
        enable_trace = True

        async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
            calls.append((obj, request, dict(obj.external_trace_header or {})))
            meta = {"id": "r", "finish_reason": {"type": "stop"}, "prompt_tokens": 3}
            yield {"output_ids": [5, 6], "meta_info": meta}

    patches = Patches()
    module = ModuleType("module")
    module.TokenizerManager = TokenizerManager  # type: ignore[attr-defined]
    sglang_instrumentor.patch(patches, module)
    obj, request = GenerateReqInput(), SimpleNamespace(headers={})
    manager = TokenizerManager()
    items = {
        "positional": lambda: manager.generate_request(obj, request),
        "keyword": lambda: manager.generate_request(obj=obj, request=request),
        "one": lambda: manager.generate_request(obj),
    }[form]()
    assert len([item async for item in items]) == 1
    patches.undo()
    (received,) = calls
    assert received[:2] == (obj, None if form == "one" else request)
    (span,) = pipeline.spans()
    assert span.name == "text_completion m"
    assert span.context is not None
    assert f"{span.context.span_id:016x}" in received[2]["traceparent"]
    assert obj.external_trace_header is None
    assert payload.decode_ids(attributes(span)[semconv.PROMPT_IDS]) == [1, 2, 3]


async def test_sglangs_embeddings_are_left_alone(pipeline: Pipeline) -> None:
    class EmbeddingReqInput:
        pass

    class TokenizerManager:
        async def generate_request(self, obj: Any, request: Any = None) -> AsyncIterator[Any]:
            yield obj

    patches = Patches()
    module = ModuleType("module")
    module.TokenizerManager = TokenizerManager  # type: ignore[attr-defined]
    sglang_instrumentor.patch(patches, module)
    assert len([i async for i in TokenizerManager().generate_request(EmbeddingReqInput())]) == 1
    patches.undo()
    assert pipeline.spans() == []

"""verl's own single-turn agent loop: root, agent and generation, with text and ids."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rollout import payload, register_tokenizer
from otel_rollout.processor.token2text import tokenizers
from tests.verl.conftest import Spans


class Characters:
    """A tokenizer whose ids are code points."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return list(map(ord, text))


def loop_without_servers(kind: type, prompt: list[int], response: list[int]) -> Any:
    """The real loop and the real client class; templates and the server are answered from here."""
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    class Client(LLMServerClient):
        def __init__(self) -> None:
            self.config = SimpleNamespace()

        async def generate(self, request_id: str, **kwargs: Any) -> Any:
            assert kwargs["prompt_ids"] == prompt
            return TokenOutput(token_ids=response, log_probs=[-0.5] * len(response))

    async def nothing(messages: Any) -> dict[str, Any]:
        return {}

    async def build(messages: Any, **kwargs: Any) -> list[int]:
        return prompt

    async def merge(given: list[int], answer: list[int], *rest: Any, **kwargs: Any) -> Any:
        mask = [1] * len(answer)
        return SimpleNamespace(token_ids=[*given, *answer]), mask, kwargs["assistant_logprobs"]

    loop: Any = kind.__new__(kind)
    loop.server_manager = Client()
    loop.rollout_config = SimpleNamespace(full_determinism=False)
    loop.prompt_length = loop.response_length = 100
    # what would load a model's chat template and its processor
    loop.process_multi_modal_info = nothing
    loop.ct_build_initial_tokens = build
    loop.ct_merge_assistant_token = merge
    loop._get_mm_processor_kwargs = lambda audios: None
    loop._assert_mm_supported = lambda wanted: None
    loop.build_sglang_video_payload = lambda videos, inputs: None
    return loop


@pytest.fixture(autouse=True)
def tokenizer() -> Any:
    register_tokenizer(Characters())
    yield
    tokenizers.clear()


async def test_verl_s_own_single_turn_loop_is_traced(spans: Spans) -> None:
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.utils.rollout_trace import rollout_trace_attr

    loop = loop_without_servers(SingleTurnAgentLoop, ids("2+2?"), ids("4."))
    messages = [{"role": "user", "content": "2+2?"}]
    with rollout_trace_attr(sample_index=3, step=1, rollout_n=0):
        output = await loop.run({"temperature": 1.0}, raw_prompt=messages)

    assert output.response_ids == ids("4.")
    found: list[Any] = spans.named("")
    generation, agent, root = found
    assert [span.name.split()[0] for span in found] == [
        "text_completion",
        "invoke_agent",
        "rollout",
    ]
    assert generation.parent.span_id == agent.context.span_id
    assert agent.parent.span_id == root.context.span_id
    assert payload.decode_ids(generation.attributes["rollout.prompt.token_ids"]) == ids("2+2?")
    assert payload.decode_ids(generation.attributes["rollout.response.token_ids"]) == ids("4.")
    (answer,) = json.loads(generation.attributes["gen_ai.output.messages"])
    assert answer["parts"] == [{"type": "text", "content": "4."}]
    # the chat messages beside the exact ids
    (asked,) = json.loads(agent.attributes["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "2+2?"}]}
    assert all(span.attributes["rollout.sample_index"] == 3 for span in found)

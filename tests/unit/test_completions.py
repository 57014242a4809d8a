"""``rollout_op(kind="llm")`` knows the forms in which language models are called and answer."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout import rollout_op, semconv, trajectory
from otel_rollout.testing import CapturedTrajectory, captured

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 times 7?"}]
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "policy",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "42"},
            "finish_reason": "stop",
            "logprobs": {"content": [{"token": "42", "logprob": -0.25}]},
            "token_ids": [42],
        }
    ],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
    "prompt_token_ids": [1, 2, 3],
}


def asked(answer: Any, *, capture: Any = True, **arguments: Any) -> CapturedTrajectory:
    """A trajectory with one call of a model that answers so."""

    @rollout_op(kind="llm", name="policy", capture=capture)
    def ask(messages: Any, temperature: float = 1.0, note: str = "") -> Any:
        return answer

    @rollout_op(kind="llm", name="policy", capture=capture)
    async def generate(prompt_ids: Any) -> Any:
        return answer

    with captured() as rollouts, trajectory(step=1):
        if "prompt_ids" in arguments:
            assert asyncio.run(generate(**arguments)) is answer
        else:
            assert ask(**arguments) is answer
    return rollouts.only()


def as_objects(value: Any) -> Any:
    """The same with attributes in place of items, as clients give it."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_objects(item) for key, item in value.items()})
    return [as_objects(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("form", [lambda answer: answer, as_objects], ids=["dict", "object"])
def test_a_chat_completion(form: Any) -> None:
    one = asked(form(CHAT), messages=MESSAGES, temperature=0.5, note="x")
    (turn,) = one.generations
    assert turn.prompt_ids == [1, 2, 3]
    assert turn.response_ids == [42]
    assert turn.logprobs == [-0.25]
    assert turn.response_text == "42"
    assert turn.call["inputs"]["messages"] == MESSAGES
    assert turn.call["inputs"]["note"] == "x"
    assert turn.call["output"]["choices"][0]["finish_reason"] == "stop"
    (span,) = one.spans_of("chat")
    attributes = span.attributes or {}
    assert attributes[semconv.RESPONSE_MODEL] == "policy"
    assert attributes[semconv.RESPONSE_ID] == "chatcmpl-1"
    assert attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert attributes[semconv.INPUT_TOKENS] == 3
    assert attributes[semconv.OUTPUT_TOKENS] == 1
    assert attributes[semconv.CACHED_TOKENS] == 2
    assert semconv.OUTPUT not in attributes


def test_an_answer_without_a_reason_has_none() -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "42"}}]}
    (turn,) = asked(answer, messages=MESSAGES).generations
    assert semconv.FINISH_REASONS.rsplit(".", 1)[1] not in str(turn.call["attributes"])


class TestAChatThatRepeatsItself:
    """Chats send all of their messages each time; shown and exported is what is new."""

    @staticmethod
    def rollout(*asked_with: list[dict[str, str]]) -> CapturedTrajectory:
        @rollout_op(kind="llm", name="policy")
        def ask(messages: Any) -> Any:
            said = f"answer {len(messages)}"
            return {"choices": [{"message": {"role": "assistant", "content": said}}]}

        with captured() as rollouts, trajectory(step=1):
            for messages in asked_with:
                ask(messages)
        return rollouts.only()

    @given(st.lists(st.booleans(), min_size=1, max_size=5))
    def test_each_turn_tells_its_own_messages(self, answers_kept: list[bool]) -> None:
        messages = [{"role": "user", "content": "the question"}]
        calls, new = [list(messages)], ["the question"]
        for number, kept in enumerate(answers_kept):
            if kept:
                said = f"answer {len(messages)}"
                messages.append({"role": "assistant", "content": said})
            messages.append({"role": "tool", "content": f"result {number}"})
            calls.append(list(messages))
            new.append(f"result {number}")
        assert [turn.prompt_text for turn in self.rollout(*calls).generations] == new

    @pytest.mark.parametrize(
        "second",
        [
            [{"role": "user", "content": "another"}, {"role": "user", "content": "more"}],
            [{"role": "user", "content": "the question"}],  # asked again
        ],
    )
    def test_one_that_is_no_continuation_is_shown_whole(self, second: Any) -> None:
        first = [{"role": "user", "content": "the question"}]
        turns = self.rollout(first, second).generations
        assert turns[1].prompt_text == "\n".join(one["content"] for one in second)

    def test_an_edited_answer_is_new(self) -> None:
        question = {"role": "user", "content": "the question"}
        edited = {"role": "assistant", "content": "not what was said"}
        turns = self.rollout([question], [question, edited]).generations
        assert turns[1].prompt_text == "not what was said"


def test_a_tool_call_in_the_answer() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    for form in (answer, as_objects(answer)):
        (turn,) = asked(form, messages=MESSAGES).generations
        (choice,) = turn.call["output"]["choices"]
        assert choice["message"]["tool_calls"][0]["function"] == call["function"]


def test_a_text_completion() -> None:
    choice = {
        "text": " 42",
        "finish_reason": "length",
        "prompt_token_ids": [1, 2],
        "token_ids": [4, 2],
        "logprobs": {"token_logprobs": [-1.0, -2.0]},
    }
    (turn,) = asked({"choices": [choice]}, messages=MESSAGES).generations
    assert (turn.prompt_ids, turn.response_ids, turn.logprobs) == ([1, 2], [4, 2], [-1.0, -2.0])
    assert turn.response_text == " 42"


def test_several_choices() -> None:
    choices = [{"text": str(n), "token_ids": [n], "finish_reason": "stop"} for n in range(3)]
    one = asked({"choices": choices}, messages=MESSAGES)
    (span,) = one.spans_of("chat")
    attributes = span.attributes or {}
    assert len(attributes[semconv.CHOICES_IDS]) == 3  # type: ignore[arg-type]
    assert attributes[semconv.FINISH_REASONS] == ("stop",) * 3
    assert semconv.RESPONSE_IDS not in attributes


@dataclasses.dataclass
class TokenOutput:
    """As verl's."""

    token_ids: list[int]
    log_probs: list[float] | None = None
    stop_reason: str | None = None


@pytest.mark.parametrize("prompt", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3])])
@pytest.mark.parametrize(
    "answer",
    [
        TokenOutput([4, 5], [-0.5, -1.5], "completed"),
        {"token_ids": [4, 5], "logprobs": [-0.5, -1.5], "finish_reason": "completed"},
    ],
    ids=["object", "dict"],
)
def test_token_ids_in_and_out(prompt: Any, answer: Any) -> None:
    one = asked(answer, prompt_ids=prompt)
    (turn,) = one.generations
    assert turn.prompt_ids == [1, 2, 3]
    assert turn.response_ids == [4, 5]
    assert turn.logprobs == [-0.5, -1.5]
    attributes = one.spans_of("chat")[0].attributes or {}
    assert attributes[semconv.INPUT_TOKENS] == 3
    assert attributes[semconv.FINISH_REASONS] == ("completed",)


def test_capture_holds_for_messages_and_ids() -> None:
    for capture in (False, "inputs", "output", ()):
        attributes = asked(CHAT, messages=MESSAGES, capture=capture).spans_of("chat")[0].attributes
        assert (semconv.INPUT_MESSAGES in (attributes or {})) == (capture == "inputs")
        assert (semconv.RESPONSE_IDS in (attributes or {})) == (capture in ("output", ()))


@pytest.mark.parametrize(
    "answer",
    ["42", None, {"text": "42"}, {"choices": []}, {"choices": "none"}, {"token_ids": "a"}, [1, 2]],
)
def test_any_other_answer_is_recorded_as_it_is(answer: Any) -> None:
    one = asked(answer, messages="6 times 7?")
    attributes = one.spans_of("chat")[0].attributes or {}
    assert semconv.OUTPUT in attributes
    assert semconv.INPUT in attributes
    assert semconv.OUTPUT_MESSAGES not in attributes


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "text", "token_ids", "logprobs", "content", "usage"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON, _JSON)
def test_whatever_comes_the_call_is_unchanged_and_its_span_ends(answer: Any, messages: Any) -> None:
    one = asked(answer, messages=messages)
    assert len(one.spans_of("chat")) == 1
    assert one.errors == []

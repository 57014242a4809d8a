"""Several answers to one prompt, from the payload to a span's attributes and a call's choices."""

from __future__ import annotations

import pytest

from otel_rollout import payload, recording, register_tokenizer, semconv, trajectory
from otel_rollout.exporters.weave.calls import call_of
from otel_rollout.payload import Choice
from otel_rollout.processor import deltas
from tests.unit.pipeline import Pipeline, attributes, loaded


class Letters:
    """A tokenizer of 26 tokens."""

    vocab_size = 26

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + token) for token in ids)


def record(prompt: list[int], *choices: Choice) -> recording.Recording:
    made = recording.start(semconv.OP_TEXT_COMPLETION, "m")
    made.payload.prompt_ids = prompt
    made.payload.choices = choices
    made.end()
    return made


def test_ids_logprobs_and_text_of_each(pipeline: Pipeline) -> None:
    register_tokenizer(Letters())
    record([0, 1], Choice([2, 3], [-1.0, -2.0], "stop"), Choice([4], [-3.0], "length"))
    (span,) = pipeline.spans()
    given = attributes(span)
    assert [payload.decode_ids(text) for text in given[semconv.CHOICES_IDS]] == [[2, 3], [4]]
    logprobs = [payload.decode_floats(text) for text in given[semconv.CHOICES_LOGPROBS]]
    assert logprobs == [[-1.0, -2.0], [-3.0]]
    assert semconv.RESPONSE_IDS not in given
    messages = loaded(span, semconv.OUTPUT_MESSAGES)
    assert [message["parts"][0]["content"] for message in messages] == ["cd", "e"]
    assert [message["finish_reason"] for message in messages] == ["stop", "length"]
    choices = call_of(span)["output"]["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["cd", "e"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "length"]


def test_one_wide_id_widens_them_all(pipeline: Pipeline) -> None:
    record([1], Choice([2]), Choice([2**40]))
    given = attributes(pipeline.spans()[0])
    assert given[semconv.IDS_ENCODING] == payload.INT64
    decoded = [payload.decode_ids(t, payload.INT64) for t in given[semconv.CHOICES_IDS]]
    assert decoded == [[2], [2**40]]
    assert payload.decode_ids(given[semconv.PROMPT_IDS], payload.INT64) == [1]


def test_turns_of_which_no_end_is_seen_stay_cheap(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine's process sees generations of many traces whose roots end elsewhere."""
    looks = 0

    class Counted(deltas.Turns):
        held = 0

        @property
        def bytes(self) -> int:
            nonlocal looks
            looks += 1
            return self.held

        @bytes.setter  # noqa: A003
        def bytes(self, value: int) -> None:
            self.held = value

    monkeypatch.setattr(deltas, "Turns", Counted)
    turns = 3000
    for number in range(turns):
        with recording.active(recording.start(semconv.OP_TEXT_COMPLETION, "m")) as made:
            made.payload.prompt_ids = [number]
            made.payload.response_ids = [1]
    assert len(pipeline.spans()) == turns
    assert turns < looks < 40 * turns  # each turn looking at all others: 1,500 times as many


def test_a_later_turn_refers_to_the_prompt(pipeline: Pipeline) -> None:
    """Which of the answers went on is not known: a later prompt shares the prompt with it."""
    prompt = list(range(100))
    with trajectory(step=1):
        first = record(prompt, Choice([2]), Choice([3]))
        record([*prompt, 3, 4], Choice([5]))
    two = attributes(pipeline.spans()[1])
    assert two[semconv.PROMPT_PREFIX_SPAN] == f"{first.span_id:016x}"
    assert two[semconv.PROMPT_PREFIX_LENGTH] == 100
    assert payload.decode_ids(two[semconv.PROMPT_IDS]) == [3, 4]

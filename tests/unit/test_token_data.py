"""Token data of generations: packed, as deltas that rebuild the prompt, and decoded."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits

from otel_rollout import register_tokenizer, semconv, trajectory
from otel_rollout.payload import decode_floats, decode_ids, decode_mask
from tests.unit import vocabularies
from tests.unit.pipeline import Memory, Pipeline, attributes, generation, loaded, text_of


def ids_of(span: ReadableSpan, key: str) -> list[int]:
    found = attributes(span)
    return decode_ids(found[key], found[semconv.IDS_ENCODING])


def rebuilt(span: ReadableSpan, spans: Sequence[ReadableSpan]) -> list[int]:
    """The whole prompt of a generation, as a reader of the spans gets it."""
    own = ids_of(span, semconv.PROMPT_IDS)
    prefix = attributes(span).get(semconv.PROMPT_PREFIX_SPAN)
    if prefix is None:
        return own
    (before,) = [s for s in spans if f"{s.context.span_id:016x}" == prefix]
    whole = rebuilt(before, spans) + ids_of(before, semconv.RESPONSE_IDS)
    length = attributes(span)[semconv.PROMPT_PREFIX_LENGTH]
    assert 0 < length <= len(whole)
    return whole[:length] + own


IDS = st.lists(st.integers(0, 5) | st.integers(-1, 2**40), max_size=12)
SOURCE = st.integers(0, 100)


class TestDeltas:
    """A later prompt is what is new in it, and can be rebuilt exactly."""

    @settings(max_examples=60)
    @given(data=st.data(), mode=st.booleans())
    def test_any_history_can_be_rebuilt(self, data: Any, mode: bool) -> None:
        pipeline = Pipeline(prompt_deltas=mode)
        turns: list[tuple[list[int], list[int]]] = []
        with trajectory(step=1):
            for _ in range(data.draw(st.integers(1, 12))):
                prompt: list[int] = []
                if turns:  # extends, edits or cuts any turn before; or starts anew
                    before = turns[data.draw(SOURCE) % len(turns)]
                    whole = before[0] + before[1]
                    prompt = whole[: data.draw(st.integers(0, len(whole)))]
                    if data.draw(st.booleans()):
                        prompt = whole
                prompt = prompt + data.draw(IDS) * data.draw(st.sampled_from([0, 1, 5]))
                response = data.draw(IDS)
                generation(prompt, response)
                turns.append((prompt, response))
        spans = pipeline.spans()
        generations = [s for s in spans if s.name != "rollout"]
        for span, (prompt, response) in zip(generations, turns, strict=True):
            assert rebuilt(span, spans) == prompt
            assert ids_of(span, semconv.RESPONSE_IDS) == response
        root = pipeline.named("rollout")
        turns_of_root = [f"{s.context.span_id:016x}" for s in generations]
        assert attributes(root)[semconv.TURNS] == turns_of_root
        assert semconv.PROMPT_IDS not in attributes(root)
        pipeline.close()

    def test_an_extension_costs_only_what_is_new(self, pipeline: Pipeline) -> None:
        history: list[int] = list(range(1000))
        with trajectory(step=1):
            for turn in range(5):
                generation(history, [turn] * 50)
                history = history + [turn] * 50 + [7, 8, 9]
        first, *later, _ = pipeline.spans()
        assert len(ids_of(first, semconv.PROMPT_IDS)) == 1000
        assert [ids_of(span, semconv.PROMPT_IDS) for span in later] == [[7, 8, 9]] * 4

    def test_parallel_trajectories_do_not_refer_to_each_other(self, pipeline: Pipeline) -> None:
        prompt = list(range(100))
        blocks = [trajectory(sample_index=number) for number in range(3)]
        for block in blocks:
            with block:
                generation(prompt, [1])
        for span in pipeline.spans():
            assert semconv.PROMPT_PREFIX_SPAN not in attributes(span)

    def test_a_nested_trajectory_refers_to_its_own_turns(self, pipeline: Pipeline) -> None:
        prompt = list(range(100))
        with trajectory(sample_index=1, agent="outer"):
            generation(prompt, [1], name="o1")
            with trajectory(agent="inner", role="sub"):
                generation(prompt, [2], name="i1")
                generation([*prompt, 2, 3], [4], name="i2")
            generation([*prompt, 1, 5], [6], name="o2")
        ids = {s.name.split()[-1]: f"{s.context.span_id:016x}" for s in pipeline.spans()}
        outer, inner = pipeline.named("rollout outer"), pipeline.named("rollout inner")
        assert attributes(outer)[semconv.TURNS] == [ids["o1"], ids["o2"]]
        assert attributes(inner)[semconv.TURNS] == [ids["i1"], ids["i2"]]
        assert (
            attributes(pipeline.named("text_completion o2"))[semconv.PROMPT_PREFIX_SPAN]
            == (ids["o1"])
        )

    def test_nothing_of_an_ended_trajectory_is_kept(self, pipeline: Pipeline) -> None:
        for number in range(20):
            with trajectory(sample_index=number), trajectory(role="sub"):
                generation(list(range(100)), [1])
        pipeline.spans()
        known = pipeline.processor._assembler._trajectories
        assert not known._turns
        assert not known._in_trace

    def test_text_level_says_what_the_text_continues(self) -> None:
        text_only = Memory("text")
        pipeline = Pipeline(text_only)
        register_tokenizer(vocabularies.made(vocabularies.byte_level()))
        with trajectory(step=1):
            generation([70] * 40, [71])
            generation([70] * 40 + [71, 72], [73])
        assert pipeline.processor.force_flush()
        second = text_only.get_finished_spans()[1]
        assert attributes(second)[semconv.PROMPT_PREFIX_LENGTH] == 41
        assert semconv.PROMPT_IDS not in attributes(second)
        pipeline.close()


class TestPacking:
    """Ids, log-probabilities and masks of any origin, exact, in an encoding that is said."""

    @pytest.mark.parametrize(
        ("prompt", "response"),
        [
            ([1, 2], [3]),
            ((1, 2), (3,)),
            (array("i", [1, 2]), array("q", [3])),
            (array("H", [1, 2]), array("l", [3])),
            (np.array([1, 2]), np.array([[3]], dtype=np.uint8)),
            ([np.int64(1), True + 1], range(3, 4)),
            ([1.0, 2.0], [3]),
        ],
    )
    def test_any_kind_of_sequence(self, pipeline: Pipeline, prompt: Any, response: Any) -> None:
        with trajectory(step=1):
            generation(prompt, response)
        span = pipeline.named("text_completion m")
        assert ids_of(span, semconv.PROMPT_IDS) == [1, 2]
        assert ids_of(span, semconv.RESPONSE_IDS) == [3]

    @pytest.mark.parametrize("wide", [2**31, -(2**31) - 1, 2**32, 2**63 - 1, -(2**63)])
    def test_wide_ids_are_int64(self, pipeline: Pipeline, wide: int) -> None:
        register_tokenizer(vocabularies.made(vocabularies.byte_level()))
        with trajectory(step=1):
            generation([70, 71], [wide, 72])
        span = pipeline.named("text_completion m")
        assert attributes(span)[semconv.IDS_ENCODING] == "base64/int64-le"
        assert ids_of(span, semconv.PROMPT_IDS) == [70, 71]
        assert ids_of(span, semconv.RESPONSE_IDS) == [wide, 72]
        assert f"<|id:{wide}|>" in text_of(span, semconv.OUTPUT_MESSAGES)
        assert str(wide) in attributes(span)[semconv.DECODE_ERROR]
        assert semconv.OMITTED not in attributes(span)

    @pytest.mark.parametrize("bad", [[2**63], [2**70], ["x"], [None], [1.5], [[1, 2], [3, 4]]])
    def test_what_is_no_id_is_said_and_the_rest_stays(
        self, pipeline: Pipeline, bad: list[Any]
    ) -> None:
        register_tokenizer(vocabularies.made(vocabularies.byte_level()))
        with trajectory(step=1):
            generation([70, 71], bad, logprobs=[-0.5])
            generation([70, 71], [72])
        broken, fine, _ = pipeline.spans()
        assert semconv.RESPONSE_IDS in attributes(broken)[semconv.OMITTED]
        assert ids_of(broken, semconv.PROMPT_IDS) == [70, 71]
        assert text_of(broken, semconv.INPUT_MESSAGES)
        assert decode_floats(attributes(broken)[semconv.RESPONSE_LOGPROBS]) == [-0.5]
        assert semconv.OMITTED not in attributes(fine)

    def test_logprobs_and_mask(self, pipeline: Pipeline) -> None:
        logprobs = [-0.5, None, float("-inf"), np.float32(-1.5)]
        with trajectory(step=1):
            generation([1], [1, 2, 3, 4], logprobs=logprobs, mask=[True, 0, 1.0, np.int64(1)])
        span = pipeline.named("text_completion m")
        found = decode_floats(attributes(span)[semconv.RESPONSE_LOGPROBS])
        assert found[0] == -0.5
        assert math.isnan(found[1])
        assert found[2:] == [float("-inf"), -1.5]
        assert decode_mask(attributes(span)[semconv.RESPONSE_MASK]) == [1, 0, 1, 1]

    @pytest.mark.parametrize("parts", [{"mask": [300]}, {"mask": "x"}, {"logprobs": ["x"]}])
    def test_a_bad_mask_or_logprob_leaves_ids_and_text(
        self, pipeline: Pipeline, parts: dict[str, Any]
    ) -> None:
        register_tokenizer(vocabularies.made(vocabularies.byte_level()))
        with trajectory(step=1):
            generation([70], [71], **parts)
        span = pipeline.named("text_completion m")
        assert ids_of(span, semconv.RESPONSE_IDS) == [71]
        assert text_of(span, semconv.OUTPUT_MESSAGES)
        assert semconv.OMITTED in attributes(span)

    def test_empty_is_not_absent(self, pipeline: Pipeline) -> None:
        with trajectory(step=1):
            generation([], None)
        span = pipeline.named("text_completion m")
        assert ids_of(span, semconv.PROMPT_IDS) == []
        assert semconv.RESPONSE_IDS not in attributes(span)

    def test_the_list_may_change_meanwhile(self, pipeline: Pipeline) -> None:
        ids = list(range(100))
        with trajectory(step=1):
            generation(ids, ids)
            ids.clear()
        assert ids_of(pipeline.named("text_completion m"), semconv.PROMPT_IDS) == list(range(100))


class TestText:
    """Decoding happens on the span's own ids; whatever fails is said and costs nothing else."""

    def test_emoji_split_between_prompt_and_response(self, pipeline: Pipeline) -> None:
        tokenizer = vocabularies.made(vocabularies.byte_level())
        register_tokenizer(tokenizer)
        ids = tokenizer.encode("the 🦀 answer").ids
        cut = len(tokenizer.encode("the ").ids) + 1
        with trajectory(step=1):
            generation(ids[:cut], ids[cut:])
        span = pipeline.named("text_completion m")
        assert text_of(span, semconv.OUTPUT_MESSAGES) == "🦀 answer"

    @pytest.mark.parametrize("error", [IndexError("x"), KeyError(1), OverflowError("y")])
    def test_a_tokenizer_that_raises(self, pipeline: Pipeline, error: Exception) -> None:
        class Broken:
            vocab_size = 100

            def decode(self, ids: list[int]) -> str:
                raise error

        register_tokenizer(Broken())
        with trajectory(step=1):
            generation([1], [2])
        span = pipeline.named("text_completion m")
        assert type(error).__name__ in attributes(span)[semconv.DECODE_ERROR]
        assert ids_of(span, semconv.RESPONSE_IDS) == [2]

    def test_a_tokenizers_panic_does_not_end_the_worker(self, pipeline: Pipeline) -> None:
        class Panic(BaseException): ...

        class Panicking:
            vocab_size = 100

            def decode(self, ids: list[int]) -> str:
                raise Panic

        register_tokenizer(Panicking())
        for _ in range(3):
            with trajectory(step=1):
                generation([1], [2])
        assert len(pipeline.spans()) == 6

    def test_a_tokenizer_whose_text_has_surrogates(self, pipeline: Pipeline) -> None:
        class Odd:
            vocab_size = 100

            def decode(self, ids: list[int]) -> str:
                return "\ud800" * len(ids)

        register_tokenizer(Odd())
        with trajectory(step=1):
            generation([1], [2])
        span = pipeline.named("text_completion m")
        assert text_of(span, semconv.OUTPUT_MESSAGES) == "\\ud800"

    def test_token2text_off(self) -> None:
        pipeline = Pipeline(token2text=False)
        register_tokenizer(vocabularies.made(vocabularies.byte_level()))
        with trajectory(step=1):
            generation([70], [71])
        span = pipeline.named("text_completion m")
        assert semconv.OUTPUT_MESSAGES not in attributes(span)
        assert semconv.RESPONSE_IDS in attributes(span)
        pipeline.close()


class TestMessages:
    """Chat messages become GenAI messages; what is malformed is shown as it is."""

    @pytest.mark.parametrize(
        ("message", "parts"),
        [
            ({"role": "user", "content": "x"}, [{"type": "text", "content": "x"}]),
            ({"role": "user", "content": None}, []),
            (
                {"role": "user", "content": [{"type": "text", "text": "a"}, "b", 3]},
                [{"type": "text", "content": t} for t in ("a", "b", "3")],
            ),
            (
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}],
                },
                [
                    {"type": "text", "content": ""},
                    {"type": "tool_call", "name": "f", "arguments": "{", "id": "1"},
                ],
            ),
            (
                {"role": "assistant", "tool_calls": ["?", {"function": "g"}, {"function": None}]},
                [
                    {"type": "tool_call", "name": None, "arguments": call}
                    for call in ("?", {"function": "g"}, {"function": None})
                ],
            ),
            ({"role": "assistant", "tool_calls": 7}, []),
        ],
    )
    def test_message(self, pipeline: Pipeline, message: Any, parts: Any) -> None:
        from otel_rollout import recording

        with trajectory(step=1), recording.active(recording.start("chat", "m")) as made:
            made.keep(semconv.INPUT_MESSAGES, [message, {"role": "user", "content": "next"}])
        first, second = loaded(pipeline.named("chat m"), semconv.INPUT_MESSAGES)
        assert first == {"role": message["role"], "parts": parts}
        assert second["parts"] == [{"type": "text", "content": "next"}]


class TestLimits:
    """A user's limit of attribute length leaves payload out, and says so."""

    def test_payload_is_omitted_and_never_cut(self) -> None:
        pipeline = Pipeline(limits=SpanLimits(max_span_attribute_length=100))
        register_tokenizer(vocabularies.made(vocabularies.byte_level()))
        with trajectory(step=1):
            generation([70] * 200, [71])
        span = pipeline.named("text_completion m")
        assert semconv.PROMPT_IDS not in attributes(span)
        assert ids_of(span, semconv.RESPONSE_IDS) == [71]
        omitted = attributes(span)[semconv.OMITTED]
        assert semconv.PROMPT_IDS in omitted
        assert "100" in omitted
        pipeline.close()

    def test_payload_does_not_count_against_the_number_of_attributes(self) -> None:
        pipeline = Pipeline(limits=SpanLimits(max_span_attributes=8))
        with trajectory(step=1, sample_index=2, experiment_name="e"):
            generation([70], [71], logprobs=[-1.0], mask=[1])
        span = pipeline.named("text_completion m")
        wanted = {semconv.STEP, semconv.EXPERIMENT_NAME, semconv.RESPONSE_IDS, semconv.PROMPT_IDS}
        assert wanted <= attributes(span).keys()
        pipeline.close()


class TestRoot:
    """A long rollout's root shows the ends of its texts; the turns have all of them."""

    @staticmethod
    def rollout(pipeline: Pipeline, tokens: int, *, turns: bool = True) -> tuple[list[int], str]:
        vocabulary = vocabularies.made(vocabularies.byte_level())
        register_tokenizer(vocabulary, "m")
        ids = vocabulary.encode("kind words 🙂, " * tokens).ids[:tokens]
        with trajectory(step=1) as handle:
            if turns:
                generation([1], ids, model="m")
            handle.recording.payload.model = "m"
            handle.recording.payload.prompt_ids = [1]
            handle.recording.payload.response_ids = ids
        return ids, pipeline.processor._decoder("m").text(array("i", ids))[0]  # type: ignore[union-attr]

    @staticmethod
    def answered(pipeline: Pipeline) -> str:
        root = pipeline.named("rollout")
        (message,) = loaded(root, semconv.OUTPUT_MESSAGES)
        text: str = message["parts"][0]["content"]
        return text

    @pytest.mark.parametrize("tokens", [769, 1600, 5000])
    def test_start_and_end(self, pipeline: Pipeline, tokens: int) -> None:
        _, whole = self.rollout(pipeline, tokens)
        start, said, end = self.answered(pipeline).split("\n")
        assert said == f"… ({tokens - 768} tokens: see the turns) …"
        # a character that the cut goes through is shown as such
        assert whole.startswith(start.rstrip("\ufffd"))
        assert whole.endswith(end.lstrip("\ufffd"))
        assert len(start) > 384
        assert len(end) > 384
        assert attributes(pipeline.named("rollout"))[semconv.TEXT_CUT] is True

    def test_short_or_without_turns_it_is_whole(self, pipeline: Pipeline) -> None:
        _, whole = self.rollout(pipeline, 768)
        assert self.answered(pipeline) == whole
        assert semconv.TEXT_CUT not in attributes(pipeline.named("rollout"))

    def test_without_turns_it_is_whole(self, pipeline: Pipeline) -> None:
        _, whole = self.rollout(pipeline, 3000, turns=False)
        assert self.answered(pipeline) == whole

    def test_with_redaction_it_is_whole(self) -> None:
        pipeline = Pipeline(redact="nothing that is there")
        _, whole = self.rollout(pipeline, 3000)
        assert self.answered(pipeline) == whole
        pipeline.close()

"""What must not be seen is in no text, no attribute, no event, and not in the token ids either."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout import diagnostics, record_reward, recording, register_tokenizer, trajectory
from otel_rollout.processor.redaction import REPLACEMENT, Redaction, parse
from otel_rollout.processor.token2text import tokenizers
from tests.unit.pipeline import Pipeline

SECRET = "sk-12345"
PATTERN = r"sk-\d+"


class Characters:
    """A tokenizer whose ids are code points."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return list(map(ord, text))


@pytest.fixture
def pipelines() -> Iterator[Callable[..., Pipeline]]:
    diagnostics.forget_said()
    register_tokenizer(Characters())
    yield Pipeline
    tokenizers.clear()
    recording.use_tracer_provider(None)


def everything(pipeline: Pipeline) -> str:
    return "\n".join(span.to_json() for span in pipeline.spans())


def generate(prompt: str, response: str) -> None:
    span = recording.start("text_completion", "policy")
    with recording.active(span):
        span.payload.prompt_ids = ids(prompt)
        span.payload.response_ids = ids(response)
        span.payload.logprobs = [-0.5] * len(response)


def act_with_the_secret(pipeline: Pipeline) -> None:
    with trajectory(step=1, sample_index=2):
        span = recording.start("execute_tool", "search")
        with recording.active(span):
            span.keep("rollout.input", {"key": SECRET, "nested": [{SECRET: f'"{SECRET}"\n'}]})
            span.keep_text("gen_ai.tool.call.result", f"found {SECRET}")
        record_reward(1.0, comment=f"because of {SECRET}")
        with pipeline.foreign.start_as_current_span("foreign") as foreign:
            foreign.set_attribute("input.value", json.dumps({"q": f"é {SECRET}"}))
            foreign.set_attribute("list", [SECRET, "b"])
            foreign.add_event("log", {"line": SECRET})
        raise ValueError(f"no access with {SECRET}")


class TestATraceWithASecret:
    """Wherever the secret comes in, it does not come out."""

    def test_messages_arguments_results_errors_events_and_other_instrumentations(
        self, pipelines: Callable[..., Pipeline]
    ) -> None:
        pipeline = pipelines(redact=PATTERN)
        with pytest.raises(ValueError, match="sk"):
            act_with_the_secret(pipeline)
        shown = everything(pipeline)
        assert SECRET not in shown
        assert shown.count(REPLACEMENT) >= 9
        assert pipeline.named("foreign").attributes["rollout.step"] == 1

    def test_token_ids_go_where_their_text_held_it_and_stay_elsewhere(
        self, pipelines: Callable[..., Pipeline]
    ) -> None:
        pipeline = pipelines(redact=PATTERN)
        with trajectory(step=1):
            generate("a harmless question, long enough", "an answer")
            generate("a harmless question, long enough an answer", f"with {SECRET} in it")
        first, second, _ = pipeline.spans()
        assert {"rollout.prompt.token_ids", "rollout.response.token_ids"} <= set(first.attributes)
        assert "rollout.response.token_ids" not in second.attributes
        assert "rollout.response.logprobs" not in second.attributes
        assert "rollout.prompt.token_ids" in second.attributes
        assert "redacted" in second.attributes["rollout.payload.omitted"]
        assert SECRET not in everything(pipeline)

    @pytest.mark.parametrize("deltas", [True, False])
    def test_every_later_prompt_that_holds_it(
        self, pipelines: Callable[..., Pipeline], deltas: bool
    ) -> None:
        pipeline = pipelines(redact=PATTERN, prompt_deltas=deltas)
        history = f"the key is {SECRET}, remember it well"
        with trajectory(step=1):
            for turn in range(3):
                generate(history, f"answer {turn}")
                history += f"answer {turn} and then"
        assert SECRET not in everything(pipeline)

    def test_without_a_tokenizer_there_is_nothing_to_look_at_and_no_ids(
        self, pipelines: Callable[..., Pipeline]
    ) -> None:
        pipeline = pipelines(redact=PATTERN, token2text=False)
        with trajectory(step=1):
            generate("question", "answer")
        span = pipeline.named("text_completion policy")
        assert not [key for key in span.attributes if key.endswith("token_ids")]


class TestSettings:
    """Patterns, a function of the user's, and what cannot be used."""

    def test_a_function(self, pipelines: Callable[..., Pipeline]) -> None:
        pipeline = pipelines(redact="tests.unit.test_redaction:upper")
        with trajectory(step=1) as handle:
            handle.recording.keep("rollout.input", {"a": "text"})
        assert '{"A":"TEXT"}' in pipeline.named("rollout").attributes["rollout.input"]

    def test_a_function_that_raises_lets_nothing_through(
        self, pipelines: Callable[..., Pipeline]
    ) -> None:
        pipeline = pipelines(redact="tests.unit.test_redaction:failing")
        with trajectory(step=1) as handle:
            handle.recording.keep("rollout.input", "text")
        assert pipeline.named("rollout").attributes["rollout.input"] == f'"{REPLACEMENT}"'

    @pytest.mark.parametrize("setting", ["(unclosed", "no.such:function", "json:nothing", " \n "])
    def test_what_cannot_be_used_fails_closed_and_is_said(
        self,
        pipelines: Callable[..., Pipeline],
        setting: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with caplog.at_level(logging.WARNING, "otel_rollout"):
            pipeline = pipelines(redact=setting)
        with trajectory(step=1):
            generate("question", "answer")
        shown = everything(pipeline)
        assert "question" not in shown
        assert "token_ids" not in shown
        (line,) = [r.message for r in caplog.records if "OTEL_ROLLOUT_REDACT" in r.message]
        assert repr(setting) in line
        assert "module:function" in line


def upper(text: str) -> str:
    return text.upper()


def failing(text: str) -> Any:
    raise RuntimeError("cannot")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text() | st.just(f"x {SECRET}"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_stays_json_and_loses_the_secret(value: Any) -> None:
    redacted = parse(PATTERN).value(json.dumps(value))
    assert SECRET not in redacted
    json.loads(redacted)


@given(st.text())
def test_text_without_a_match_is_unchanged(text: str) -> None:
    assert Redaction(lambda given: given).value(text) == text

"""A span becomes a Weave call: its shape, its limits, and the same bytes each time."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from otel_rollout import record_reward, register_tokenizer, rollout_op, semconv, trajectory
from otel_rollout.exporters.weave.calls import (
    belongs_to_trajectory,
    call_of,
    feedback_of,
    project_of,
)
from tests.unit import vocabularies
from tests.unit.pipeline import Pipeline, generation

CONTEXT = SpanContext(0xAB, 0xCD, is_remote=False, trace_flags=TraceFlags(1))
PARENT = SpanContext(0xAB, 0xEF, is_remote=False)
IDENTITY = {
    "rollout.sampled": True,
    "rollout.step": 3,
    "rollout.sample_index": "7",
    "rollout.rollout_n": 0,
    "rollout.validate": False,
    "rollout.experiment_name": "e",
    "rollout.project": "team/p",
}


def span(name: str = "n", attributes: Any = None, **more: Any) -> ReadableSpan:
    return ReadableSpan(
        name,
        context=CONTEXT,
        attributes={**IDENTITY, **(attributes or {})},
        start_time=1_700_000_000_123_456_789,
        end_time=1_700_000_001_123_456_789,
        **{"parent": PARENT, "resource": Resource({}), **more},
    )


def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
    made = call_of(span(*args, **kwargs))
    found: dict[str, Any] = orjson.loads(orjson.dumps(made))
    return found


class TestShape:
    """What Weave requires is there, within its limits."""

    def test_ids_and_times(self) -> None:
        found = call()
        assert found["id"] == "00000000000000cd"
        assert found["trace_id"] == found["thread_id"] == f"{0xAB:032x}"
        assert found["parent_id"] == "00000000000000ef"
        assert found["turn_id"] is None
        assert found["started_at"] == "2023-11-14T22:13:20.123456+00:00"
        assert found["ended_at"] == "2023-11-14T22:13:21.123456+00:00"
        assert found["summary"]["weave"]["latency_ms"] == 1000
        root = call(parent=None)
        assert root["parent_id"] is None
        assert root["turn_id"] == root["id"]

    def test_an_end_before_the_start(self) -> None:
        made = ReadableSpan("n", context=CONTEXT, start_time=2_000_000_000, end_time=1_000_000_000)
        assert call_of(made)["ended_at"] == call_of(made)["started_at"]

    @pytest.mark.parametrize("name", ["x" * 5000, "", "\ud800" * 3000, "🙂" * 300])
    def test_names_are_within_limits(self, name: str) -> None:
        found = call(name)
        assert 0 < len(found["op_name"]) <= 128 * 6
        assert len(call("x" * 5000)["op_name"]) == 128
        assert len(call("x" * 5000)["display_name"]) == 1024

    def test_the_trajectorys_values_are_flat_with_their_own_types(self) -> None:
        found = call(attributes={"rollout.group_id": "g", "rollout.extra": 0.5})["attributes"]
        assert {k: found[k] for k in ("step", "sample_index", "rollout_n", "group_id")} == {
            "step": 3,
            "sample_index": "7",
            "rollout_n": 0,
            "group_id": "g",
        }
        assert found["validate"] is False
        assert found["experiment_name"] == "e"
        assert found["rollout"] == {"extra": 0.5}
        assert project_of(span()) == "team/p"
        assert project_of(ReadableSpan("n")) is None

    def test_what_belongs_to_no_trajectory(self) -> None:
        assert belongs_to_trajectory(span())
        assert not belongs_to_trajectory(ReadableSpan("n", attributes={"rollout.step": 1}))

    @pytest.mark.parametrize(
        ("operation", "kind"),
        [
            ("rollout", "agent"),
            ("invoke_agent", "agent"),
            ("text_completion", "llm"),
            ("chat", "llm"),
            ("execute_tool", "tool"),
            ("evaluate", "scorer"),
            ("my function", None),
            (None, None),
        ],
    )
    def test_kind(self, operation: str | None, kind: str | None) -> None:
        given_attributes = {} if operation is None else {semconv.OPERATION: operation}
        assert call(attributes=given_attributes)["attributes"].get("weave", {}).get("kind") == kind

    def test_process_and_links(self) -> None:
        found = call(
            attributes={"process.command": "python"},
            resource=Resource({"process.pid": 5, "host.name": "h", "service.name": "s"}),
            links=[Link(PARENT)],
        )["attributes"]
        assert found["process"] == {"command": "python", "pid": 5, "host": "h", "service": "s"}
        assert found["links"] == [{"trace_id": f"{0xAB:032x}", "span_id": "00000000000000ef"}]


class TestNesting:
    """Dotted names nest; nothing is lost where they are in each other's way."""

    @pytest.mark.parametrize(
        ("given_attributes", "expected"),
        [
            ({"a.b.c": 1, "a.b.d": 2}, {"a": {"b": {"c": 1, "d": 2}}}),
            ({"a": 1, "a.b": 2}, {"a": 1, "a.b": 2}),
            ({"a.b": 2, "a": 1}, {"a": {"b": 2, "value": 1}}),
            ({"a.b": 1, "a.b.c.d": 2}, {"a": {"b": 1, "b.c.d": 2}}),
            ({"": 1, ".": 2, "a.": 3}, None),
        ],
    )
    def test_names(self, given_attributes: dict[str, Any], expected: Any) -> None:
        found = call(attributes=given_attributes)["attributes"]
        if expected is not None:
            assert {k: found[k] for k in expected} == expected

    def test_weave_and_process_of_the_users_own(self) -> None:
        found = call(
            attributes={"weave": "mine", "process": "mine", semconv.OPERATION: "chat"},
            resource=Resource({"process.pid": 1}),
        )["attributes"]
        assert found["weave"] == {"value": "mine", "kind": "llm"}
        assert found["process"]["value"] == "mine"

    def test_a_mapping_attribute_is_not_written_into(self) -> None:
        mine = {"b": 1}
        made = ReadableSpan("n", context=CONTEXT, attributes={"a": mine, "a.c": 2})  # type: ignore[dict-item]
        call_of(made)
        assert mine == {"b": 1}

    @given(st.dictionaries(st.text("ab.", max_size=6), st.integers(), max_size=8))
    def test_any_names_give_json(self, given_attributes: dict[str, Any]) -> None:
        call(attributes=given_attributes)


BYTES = {
    "type": "bytes",
    "size": 3,
    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
}


class TestAnyAttribute:
    """Attributes of other instrumentations may be anything: the call is JSON all the same."""

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (float("nan"), None),
            (float("inf"), None),
            (2**70, str(2**70)),
            ("\ud800x", "\\ud800x"),
            (b"abc", BYTES),
            ((1, 2.5, "x", True), [1, 2.5, "x", True]),
            ({"a": (1, b"abc")}, {"a": [1, BYTES]}),
            (None, None),
        ],
    )
    def test_value(self, value: Any, expected: Any) -> None:
        assert call(attributes={"x": value})["attributes"]["x"] == expected
        event = call(events=[Event("e", {"x": value}, 1)])["attributes"]["events"][0]
        assert event["attributes"]["x"] == expected

    @pytest.mark.parametrize("key", [semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES])
    @pytest.mark.parametrize("operation", ["rollout", "chat", "execute_tool", "x"])
    @pytest.mark.parametrize(
        "text",
        [
            "not json",
            "5",
            "null",
            "[]",
            "{}",
            "[1]",
            '[{"role": "user"}]',
            '[{"role": "user", "parts": null}]',
            '[{"role": "user", "parts": [1, {}, {"type": "text"}]}]',
            '[{"role": "user", "parts": {"a": 1}}]',
            "[" * 300 + "]" * 300,
            '[{"parts": [{"type": "tool_call", "arguments": ' + "[" * 300 + "]" * 300 + "}]}]",
            "\ud800",
        ],
        ids=lambda text: text[:20] if text.isascii() else "surrogate",
    )
    def test_messages_of_any_form(self, key: str, operation: str, text: str) -> None:
        call(attributes={key: text, semconv.OPERATION: operation, semconv.FINISH_REASONS: "stop"})

    def test_messages_in_the_older_form_keep_their_text(self) -> None:
        messages = json.dumps([{"role": "user", "content": "hello"}])
        found = call(attributes={semconv.INPUT_MESSAGES: messages, semconv.OPERATION: "chat"})
        assert found["inputs"]["messages"] == [{"role": "user", "content": "hello"}]


class TestChat:
    """Messages stand as Weave's chat view reads them."""

    def test_chat(self) -> None:
        given_messages = [
            {"role": "user", "parts": [{"type": "text", "content": "2+3?"}]},
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "id": "1", "name": "add", "arguments": {"a": 2}}],
            },
        ]
        answer = [{"role": "assistant", "parts": [{"type": "text", "content": "5"}]}]
        found = call(
            attributes={
                semconv.OPERATION: "chat",
                semconv.INPUT_MESSAGES: json.dumps(given_messages),
                semconv.OUTPUT_MESSAGES: json.dumps(answer),
                semconv.FINISH_REASONS: ("stop",),
            }
        )
        assert found["inputs"]["messages"][0] == {"role": "user", "content": "2+3?"}
        (tool_call,) = found["inputs"]["messages"][1]["tool_calls"]
        assert tool_call["function"] == {"name": "add", "arguments": '{"a":2}'}
        assert found["output"]["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "5"},
                "finish_reason": "stop",
            }
        ]

    def test_usage_only_where_tokens_are_made(self) -> None:
        usage = {semconv.INPUT_TOKENS: 5, semconv.OUTPUT_TOKENS: 7, semconv.REQUEST_MODEL: "m"}
        llm = call(attributes={**usage, semconv.OPERATION: "text_completion"})
        assert llm["summary"]["usage"] == {
            "m": {"requests": 1, "input_tokens": 5, "output_tokens": 7}
        }
        for operation in ("rollout", "invoke_agent", "execute_tool"):
            found = call(attributes={**usage, semconv.OPERATION: operation})
            assert "usage" not in found["summary"]


class TestErrors:
    """A failed span has its exception as JSON; others have none."""

    def test_success(self) -> None:
        found = call(status=Status(StatusCode.UNSET))
        assert found["exception"] is None
        assert found["summary"]["status_counts"] == {"success": 1, "error": 0}
        assert found["summary"]["weave"]["status"] == "success"

    @pytest.mark.parametrize(
        ("more", "expected"),
        [
            ({"attributes": {semconv.ERROR_TYPE: "ToolError"}}, "ToolError"),
            ({"events": [Event("exception", {"exception.type": "ValueError"}, 1)]}, "ValueError"),
            ({}, "Error"),
        ],
    )
    def test_error(self, more: dict[str, Any], expected: str) -> None:
        found = call(status=Status(StatusCode.ERROR, "no\ud800"), **more)
        assert json.loads(found["exception"]) == {"type": expected, "message": "no\\ud800"}
        assert found["summary"]["status_counts"] == {"success": 0, "error": 1}


class TestWhole:
    """The calls of a real trajectory."""

    def test_a_trajectory(self, pipeline: Pipeline) -> None:
        tokenizer = vocabularies.made(vocabularies.byte_level())
        register_tokenizer(tokenizer)

        @rollout_op(kind="tool", name="add")
        def add(a: int, b: int) -> int:
            return a + b

        prompt, answer = tokenizer.encode("2 + 3?").ids, tokenizer.encode("5").ids
        with trajectory(step=1, sample_index=2, agent="a") as handle:
            generation(prompt, answer)
            add(2, b=3)
            handle.recording.payload.prompt_ids = prompt
            handle.recording.payload.response_ids = answer
            record_reward({"score": 1.0, "acc": True}, why="right")
        made = {s.name: call_of(s) for s in pipeline.spans()}
        root = made["rollout a"]
        assert root["output"] == {"prompt_text": "2 + 3?", "response_text": "5", "reward": 1.0}
        assert made["execute_tool add"]["inputs"] == {"a": 2, "b": 3}
        assert made["execute_tool add"]["output"] == 5
        llm = made["text_completion m"]
        assert llm["inputs"]["messages"] == [{"role": "user", "content": "2 + 3?"}]
        assert llm["output"]["choices"][0]["message"]["content"] == "5"
        for found in made.values():
            assert found["attributes"]["step"] == 1
            assert found["attributes"]["sample_index"] == 2

    def test_the_same_span_is_byte_for_byte_the_same_call(self, pipeline: Pipeline) -> None:
        with trajectory(step=1, sample_index=2, x="y"):
            record_reward(1, a={"b": 1})
            generation([1], [2])
        for made in pipeline.spans():
            assert orjson.dumps(call_of(made)) == orjson.dumps(call_of(made))
            assert orjson.dumps(feedback_of(made)) == orjson.dumps(feedback_of(made))

    def test_rewards_are_feedback(self, pipeline: Pipeline) -> None:
        with trajectory(step=1):
            record_reward(1.0, acc=True)
            record_reward(float("nan"), name="format")
        root = pipeline.named("rollout")
        one, two = orjson.loads(orjson.dumps(feedback_of(root)))
        assert one["payload"] == {"name": "reward", "value": 1.0, "acc": True}
        assert two["payload"] == {"name": "format", "value": None, "detail.value": "nan"}
        assert one["feedback_type"] == "reward"
        assert one["call_id"] == f"{root.context.span_id:016x}"
        assert one["id"] != two["id"]

    def test_feedback_of_any_attributes(self) -> None:
        event = Event(semconv.EVALUATION_EVENT, {semconv.EVALUATION_NAME: b"x", "y": 2**70}, 1)
        orjson.dumps(feedback_of(span(events=[event])))

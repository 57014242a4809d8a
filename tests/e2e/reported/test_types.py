"""Values of every type: kept with their type where JSON has it, described where it has not."""

from __future__ import annotations

import base64
import contextlib
import enum
import hashlib
import io
import json
import threading
from typing import Any

import numpy as np
import pydantic
from opentelemetry import trace
from PIL import Image

from otel_rollout import record_reward, recording, register_tokenizer, rollout_op, trajectory
from tests.e2e.reported.test_tokens import TOKENIZER, ids, rebuilt, said
from tests.e2e.reported.whole_way import Arrived, Delivery, check_all, generate

TOOL = "execute_tool probe"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"


def through_a_tool(arguments: Any, result: Any) -> Any:
    """Call a tool with these arguments, which returns this result."""

    @rollout_op(kind="tool", name="probe")
    def probe(**arguments: Any) -> Any:
        return result

    return probe(**arguments)


def chat(given: Any, answered: Any = None) -> None:
    """Record a generation of chat messages."""
    with recording.active(recording.start("chat", "m")) as made:
        made.keep("gen_ai.input.messages", given)
        if answered is not None:
            made.keep("gen_ai.output.messages", answered)


def both(arrived: Arrived) -> list[tuple[Any, Any]]:
    """Arguments and result of the tool, as Weave and as OTLP have them."""
    call, attributes = arrived.call(TOOL), arrived.span(TOOL).attributes
    of_otlp = json.loads(attributes[ARGUMENTS])
    return [
        (call.inputs.get("arguments", call.inputs), call.output),
        (of_otlp.get("arguments", of_otlp), json.loads(attributes[RESULT])),
    ]


class TestNumpyNumbers:
    """numpy's ints stay ints, its floats floats, its booleans booleans."""

    @staticmethod
    def roll_out() -> None:
        with trajectory(
            sample_index=np.int64(41), validate=np.bool_(True), temperature=np.float32(0.5)
        ) as inner:
            inner.set("rollout.best", np.int32(3))
            through_a_tool(
                {"count": np.int64(3), "flag": np.bool_(False), "scale": np.float16(0.25)},
                {"ids": np.array([1, 2]), "zero": np.array(7), "mean": np.float64(0.5)},
            )
            record_reward(np.float32(0.5), best_of=np.int64(4), length=np.uint8(9))

    def test_identity(self, arrived: Arrived) -> None:
        attributes = arrived.call(TOOL).attributes
        assert attributes["sample_index"] == 41
        assert type(attributes["sample_index"]) is int
        assert attributes["validate"] is True
        assert attributes["rollout"]["temperature"] == 0.5
        span = arrived.span(TOOL).attributes
        assert (span["rollout.sample_index"], span["rollout.validate"]) == (41, True)
        assert type(span["rollout.sample_index"]) is int

    def test_arguments_and_results(self, arrived: Arrived) -> None:
        for arguments, result in both(arrived):
            assert arguments == {"count": 3, "flag": False, "scale": 0.25}
            assert [type(value) for value in arguments.values()] == [int, bool, float]
            assert result == {"ids": [1, 2], "zero": 7, "mean": 0.5}

    def test_rewards(self, arrived: Arrived) -> None:
        inner = next(call for call in arrived.calls if call.output and "reward" in call.output)
        assert inner.output["reward"] == 0.5
        (reward,) = inner.rewards
        assert reward == {"name": "reward", "value": 0.5, "best_of": 4, "length": 9}
        assert inner.attributes["rollout"]["best"] == 3


class TestLoneSurrogates:
    """Half a character, as a tokenizer may give it: shown as an escape, in every place."""

    @staticmethod
    def roll_out() -> None:
        half = "half \ud83d"
        with trajectory(agent=half, note=half):
            record_reward(0.0, comment=half, **{half: half})
            through_a_tool({"text": half, half: 1}, [half, {half: half}])
            chat([{"role": half, "content": half}])

            @rollout_op(name=half)
            def named() -> None:
                raise ValueError(half)

            with contextlib.suppress(ValueError):
                named()
            trace.get_current_span().set_attribute("foreign", half)

    def test_everything_arrives_with_an_escape(self, arrived: Arrived, delivery: Delivery) -> None:
        assert len(arrived.calls) == len(arrived.spans) == 5
        for arguments, result in both(arrived):
            assert arguments == {"text": "half \\ud83d", "half \\ud83d": 1}
            assert result == ["half \\ud83d", {"half \\ud83d": "half \\ud83d"}]
        (failed,) = [call for call in arrived.calls if call.exception]
        assert json.loads(failed.exception or "")["message"] == "half \\ud83d"
        assert arrived.call("rollout half \\ud83d").attributes["rollout"]["note"] == "half \\ud83d"
        for call in arrived.calls:
            delivery.bodies[call.id].decode("utf-8")


class TestHugeInts:
    """Beyond 64 bits: their digits."""

    @staticmethod
    def roll_out() -> None:
        with trajectory(big=2**70, bigger=10**5000):
            through_a_tool({"big": 2**70, "inside": [2**63 - 1, -(2**63)]}, 10**5000)
            record_reward(2**70, big=2**80)
            trace.get_current_span().set_attribute("foreign", 2**70)
            record_reward(10**400, name="beyond floats")

    def test_the_digits_arrive(self, arrived: Arrived) -> None:
        for arguments, result in both(arrived):
            assert arguments == {"big": str(2**70), "inside": [2**63 - 1, -(2**63)]}
            assert isinstance(result, str)
        inner = next(call for call in arrived.calls if call.rewards)
        assert inner.attributes["rollout"]["big"] == str(2**70)
        assert inner.attributes["foreign"] == str(2**70)
        by_name = {reward["name"]: reward for reward in inner.rewards}
        assert by_name["reward"]["value"] == float(2**70)
        assert by_name["reward"]["big"] == str(2**80)
        assert by_name["beyond floats"]["value"] is None


class TestNanAndInfinities:
    """No JSON has them: text in values, null as a score, and the score is left out."""

    @staticmethod
    def roll_out() -> None:
        nan, inf = float("nan"), float("inf")
        register_tokenizer(TOKENIZER)
        generate([1], [2, 3, 4], logprobs=[nan, -inf, None])
        with trajectory(temperature=inf):
            through_a_tool({"nan": nan, "all": [inf, -inf, np.float32("nan")]}, {"loss": nan})
            record_reward(nan, margin=inf)
            trace.get_current_span().set_attribute("foreign", nan)

    def test_values(self, arrived: Arrived) -> None:
        for arguments, result in both(arrived):
            assert arguments == {"nan": "nan", "all": ["inf", "-inf", "nan"]}
            assert result == {"loss": "nan"}

    def test_a_reward_that_is_no_number_is_none(self, arrived: Arrived) -> None:
        inner = next(call for call in arrived.calls if call.rewards)
        assert "reward" not in (inner.output or {})
        assert inner.rewards[0]["value"] is None or inner.rewards[0]["value"] == "nan"
        assert inner.attributes["foreign"] is None

    def test_logprobs_keep_them(self, arrived: Arrived) -> None:
        from otel_rollout.payload import decode_floats

        (call,) = arrived.generations()
        first, second, third = decode_floats(call.attributes["rollout"]["response"]["logprobs"])
        assert first != first  # NaN
        assert third != third
        assert second == -float("inf")


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


class TestToolCallsAsJsonStrings:
    """Arguments stay the text that the model wrote; calls that are text themselves are read."""

    @staticmethod
    def roll_out() -> None:
        chat(
            [
                {"role": "user", "content": "1 + 2?"},
                {"role": "assistant", "content": None, "tool_calls": [json.dumps(CALL)]},
                {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
        )
        with recording.active(recording.start("execute_tool", "probe")) as made:
            made.keep_text(ARGUMENTS, '{"a": 1, "b": [2]}')
            made.keep_text(RESULT, '{"sum": 3}')

    def test_each_is_a_tool_call_of_the_chat_view(self, arrived: Arrived) -> None:
        call = arrived.call("chat m")
        user, first, second, tool = call.inputs["messages"]
        (choice,) = call.output["choices"]
        for message in (first, second, choice["message"]):
            assert message["tool_calls"] == [CALL]
        assert (user["content"], tool["content"]) == ("1 + 2?", "3")

    def test_otlp_has_them_as_parts(self, arrived: Arrived) -> None:
        messages = json.loads(arrived.span("chat m").attributes["gen_ai.input.messages"])
        part = {"type": "tool_call", "name": "add", "arguments": '{"a": 1}', "id": "c1"}
        assert messages[1]["parts"] == [part]
        assert messages[2]["parts"][-1] == part

    def test_arguments_that_are_json_are_the_call_s_inputs(self, arrived: Arrived) -> None:
        assert both(arrived) == [({"a": 1, "b": [2]}, {"sum": 3})] * 2


MALFORMED: list[Any] = [
    "<tool_call>{'name': add}",
    None,
    7,
    [],
    {"function": "add"},
    {"function": None},
    {"function": {"name": None, "arguments": None}},
    {"function": {"name": ["add"], "arguments": {"a": 1}}},
    {"function": {"name": "add", "arguments": '{"a": 1'}},
]


class TestMalformedToolCalls:
    """What the model wrote is shown as it wrote it."""

    @staticmethod
    def roll_out() -> None:
        chat([{"role": "assistant", "content": "x", "tool_calls": MALFORMED}], [MALFORMED, 3, "y"])
        for calls in (7, "no JSON", {"a": 1}):
            chat([{"role": "assistant", "tool_calls": calls}, "no message", None])
        with recording.active(recording.start("execute_tool", "probe")) as made:
            made.keep_text(ARGUMENTS, '{"a": 1')
            made.failed("InvalidArguments", "the arguments are no JSON")

    def test_each_is_there(self, arrived: Arrived) -> None:
        first = next(call for call in arrived.calls if call.op_name == "chat m")
        (message,) = first.inputs["messages"]
        shown = message["tool_calls"]
        assert len(shown) == len(MALFORMED)
        assert shown[0]["function"]["arguments"] == MALFORMED[0]
        assert shown[-1]["function"] == {"name": "add", "arguments": '{"a": 1'}

    def test_arguments_that_are_no_json_stay_text(self, arrived: Arrived) -> None:
        call = arrived.call(TOOL)
        assert call.inputs == {"arguments": '{"a": 1'}
        assert json.loads(call.exception or "")["type"] == "InvalidArguments"
        assert arrived.span(TOOL).attributes[ARGUMENTS] == '{"a": 1'


class Colour(enum.Enum):
    RED = "red"


class Unreadable:
    def __getattr__(self, name: str) -> Any:
        raise OSError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class TestWhatCannotBeSerialised:
    """It is described, and its neighbours are what they are."""

    @staticmethod
    def roll_out() -> None:
        cycle: list[Any] = [1]
        cycle.append(cycle)
        through_a_tool(
            {
                "lock": threading.Lock(),
                "unreadable": Unreadable(),
                "function": len,
                "generator": (number for number in range(3)),
                "colour": Colour.RED,
                "set": {1},
                "cycle": cycle,
                "beside": "kept",
            },
            [ValueError("x"), b"\xff\xfe", {(1, 2): "tuple as key"}],
        )

    def test_it_is_described(self, arrived: Arrived) -> None:
        for arguments, (error, data, mapping) in both(arrived):
            assert "lock" in arguments["lock"]
            assert arguments["unreadable"].startswith("<Unreadable: cannot be ")
            assert "built-in function len" in arguments["function"]
            assert "generator object" in arguments["generator"]
            assert arguments["colour"] == "red"
            assert arguments["set"] == [1]
            assert arguments["cycle"] == [1, "<list: contains itself>"]
            assert arguments["beside"] == "kept"
            assert error == {"type": "ValueError", "message": "x"}
            assert (data["type"], data["size"]) == ("bytes", 2)
            assert mapping == {"(1, 2)": "tuple as key"}


def png(size: int = 64) -> bytes:
    """A picture that does not compress."""
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


class TestLazyImages:
    """An image whose stream is closed is described, not read."""

    @staticmethod
    def roll_out() -> None:
        stream = io.BytesIO(png())
        image = Image.open(stream)
        stream.close()
        chat([{"role": "user", "content": [{"type": "image", "image": image}]}])
        through_a_tool({"image": image}, image)

    def test_size_and_mode_are_there(self, arrived: Arrived) -> None:
        described = {"type": "image", "width": 64, "height": 64, "mode": "RGB"}
        for arguments, result in both(arrived):
            assert arguments == {"image": described}
            assert result == described
        messages = json.loads(arrived.span("chat m").attributes["gen_ai.input.messages"])
        assert messages[0]["parts"] == [{"type": "image", "image": described}]


class Item(pydantic.BaseModel):
    name: str
    price: Any = None
    parts: list[Item] = []


class TestPydantic:
    """A model's fields, with their types."""

    @staticmethod
    def roll_out() -> None:
        item = Item(name="a", price=np.int64(2), parts=[Item(name="b", price=float("nan"))])
        unmade = Item.model_construct(name=Unreadable())
        through_a_tool({"item": item, "unmade": unmade}, [item])

    def test_fields(self, arrived: Arrived) -> None:
        shown = {
            "name": "a",
            "price": 2,
            "parts": [{"name": "b", "price": "nan", "parts": []}],
        }
        for arguments, result in both(arrived):
            assert arguments["item"] == shown
            assert arguments["unmade"]["name"].startswith("<Unreadable: cannot be ")
            assert result == [shown]


PICTURE = png(256)
URL = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"


class TestBase64Images:
    """Images in messages are kind, size and hash; the pixels stay where they are."""

    @staticmethod
    def roll_out() -> None:
        content = [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": URL}},
            {"type": "image", "source": {"type": "base64", "data": URL.partition(",")[2]}},
            {"type": "image", "image": Image.open(io.BytesIO(PICTURE)).copy()},
        ]
        for _ in range(8):
            chat([{"role": "user", "content": content}], [{"role": "assistant", "content": URL}])
        through_a_tool({"page": f"<img src='{URL}'>", "raw": PICTURE}, f"![]({URL})")

    def test_no_base64_arrives_anywhere(self, arrived: Arrived, delivery: Delivery) -> None:
        stretch = URL[1000:1100]
        assert len(arrived.calls) == len(arrived.spans) == 10
        for call in arrived.calls:
            body = delivery.bodies[call.id].decode()
            assert stretch not in body
            assert len(body) < 4096
        for span in arrived.spans:
            assert stretch not in str(span.attributes)

    def test_hash_size_and_kind_tell_which_image_it_was(self, arrived: Arrived) -> None:
        digest = hashlib.sha256(PICTURE).hexdigest()
        said = f"… ({len(PICTURE)} bytes cut, sha256 {digest})"
        span = next(span for span in arrived.spans if span.name == "chat m")
        (message,) = json.loads(span.attributes["gen_ai.input.messages"])
        text, of_url, of_source, of_pil = message["parts"]
        assert text["content"] == "what is this?"
        assert of_url["image_url"]["url"] == f"data:image/png;base64,{said}"
        assert of_source["source"]["data"] == f"image/png;base64,{said}"
        pixels = Image.open(io.BytesIO(PICTURE)).tobytes()
        assert of_pil["image"]["sha256"] == hashlib.sha256(pixels).hexdigest()
        call = next(call for call in arrived.calls if call.op_name == "chat m")
        shown = call.inputs["messages"][0]["content"]
        assert shown.startswith("what is this?\n{")
        assert shown.count(said) == 2
        for arguments, result in both(arrived):
            assert arguments["page"] == f"<img src='data:image/png;base64,{said}'>"
            assert arguments["raw"]["sha256"] == digest
            assert result == f"![](data:image/png;base64,{said})"


class TestRawPromptBesideIds:
    """The chat messages that a prompt was made of stand beside its exact ids."""

    @staticmethod
    def roll_out() -> None:
        register_tokenizer(TOKENIZER)
        with recording.active(recording.start("text_completion", "policy")) as made:
            made.keep("gen_ai.input.messages", [{"role": "system", "content": "Add."}])
            made.payload.prompt_ids = ids("<|im_start|>Add.<|im_end|>")
            made.payload.response_ids = ids("42")

    def test_messages_and_ids(self, arrived: Arrived) -> None:
        (call,) = arrived.generations()
        assert call.inputs["messages"] == [{"role": "system", "content": "Add."}]
        assert said(call) == "42"
        assert rebuilt([call]) == [(ids("<|im_start|>Add.<|im_end|>"), ids("42"))]
        messages = json.loads(
            arrived.span("text_completion policy").attributes["gen_ai.input.messages"]
        )
        assert messages == [{"role": "system", "parts": [{"type": "text", "content": "Add."}]}]


def test_every_span_arrived_once_with_its_identity(delivery: Delivery) -> None:
    check_all(delivery)

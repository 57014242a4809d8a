"""Any value, anywhere that a user can put one: nothing raised, nothing lost, always JSON and UTF-8.

Through the real processor to the real spool and to the real OTLP encoding.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._internal import _encode_value
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_rollout import (
    IdGenerator,
    RolloutSpanProcessor,
    WeaveSpanExporter,
    record_reward,
    recording,
    rollout_op,
    snapshot,
    trajectory,
)
from otel_rollout.exporters import spool
from otel_rollout.exporters.spool import SegmentReader
from otel_rollout.settings import Settings
from tests.servers.otlp_receiver import Span, decode
from tests.unit.odd_values import NAMES, RECIPES, made, names_in

#: numpy's casts of what is too large for them
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

IDENTITY = {
    "step": 3,
    "sample_index": 4,
    "validate": True,
    "experiment_name": "odd values",
    "group_id": "g",
}


#: Up to 1.40 at least: its encoder has to be told to take None, and for spans it is not.
OLD_EXPORTER = "allow_null" in inspect.signature(_encode_value).parameters


class Encoding(SpanExporter):
    """The OTLP exporter up to its bytes, which are read again."""

    rollout_payload = "full"

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.errors: list[Exception] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            self.spans += decode(encode_spans(spans).SerializeToString())
        except Exception as error:
            self.errors.append(error)
        return SpanExportResult.SUCCESS


class Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = self.format(record)
        # Old exporters leave out an attribute that has None in a list, and say so.
        if not ("Failed to encode key" in said and "<class 'NoneType'>" in said and OLD_EXPORTER):
            self.said.append(said)


class Laboratory:
    """A provider whose spans go into a spool and through OTLP's encoding."""

    def __init__(self, folder: Path) -> None:
        configuration = Settings(directory=folder)
        self.otlp = Encoding()
        self.processor = RolloutSpanProcessor(
            WeaveSpanExporter(configuration), self.otlp, configuration=configuration
        )
        self.provider = TracerProvider(id_generator=IdGenerator(), shutdown_on_exit=False)
        self.provider.add_span_processor(self.processor)
        self.complaints = Complaints()
        self._folder = configuration.spool
        self._reader: SegmentReader | None = None

    def records(self) -> list[Any]:
        """The bodies that came since the last time, read as strictly as JSON can be."""
        if self._reader is None:
            (segment,) = spool.segments(self._folder)
            self._reader = SegmentReader(segment)
        return [strictly(record.body) for record in self._reader if record.kind == spool.CALL]

    def check(self, names: list[str]) -> None:
        """Every span that was made is in both outputs, whole."""
        assert self.processor.force_flush(20_000)
        assert self.complaints.said == []
        assert self.otlp.errors == []
        calls, spans = self.records(), self.otlp.spans[:]
        self.otlp.spans.clear()
        assert sorted(call["op_name"] for call in calls) == sorted(names)
        assert sorted(span.name for span in spans) == sorted(names)
        for call in calls:
            for name, value in IDENTITY.items():
                assert call["attributes"][name] == value
                assert type(call["attributes"][name]) is type(value)
        for span in spans:
            for name, value in IDENTITY.items():
                assert span.attributes[f"rollout.{name}"] == value
                assert type(span.attributes[f"rollout.{name}"]) is type(value)
            for key in span.attributes:
                if key.endswith((".arguments", ".result", "rollout.input", "rollout.output")):
                    strictly(span.attributes[key].encode())


def strictly(body: bytes) -> Any:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(body.decode("utf-8"), parse_constant=refuse)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    made = Laboratory(tmp_path_factory.mktemp("store"))
    yield made
    made.provider.shutdown()


@pytest.fixture
def laboratory(shared: Laboratory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laboratory]:
    monkeypatch.setattr(snapshot, "MAX_NODES", 300)  # of what has no end
    recording.use_tracer_provider(shared.provider)
    logger = logging.getLogger()
    logger.addHandler(shared.complaints)
    yield shared
    logger.removeHandler(shared.complaints)
    shared.complaints.said.clear()


def is_as_good(got: Any, result: Any) -> bool:
    """Whether it is the function's result itself; a generator, whether it gives the same."""
    if type(result) is types.GeneratorType:
        return list(got) == [0, 1, 2]
    return got is result


MANY = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@MANY
@given(first=RECIPES, second=RECIPES)
def test_a_tool_s_arguments_and_result(laboratory: Laboratory, first: Any, second: Any) -> None:
    argument, result = made(first), made(second)

    @rollout_op(kind="tool", name="odd")
    def tool(one: Any, *rest: Any, **named: Any) -> Any:
        return result

    with trajectory(**IDENTITY):
        assert is_as_good(tool(argument, argument, key=argument), result)
    laboratory.check(["execute_tool odd", "rollout"])


@MANY
@given(first=RECIPES, second=RECIPES)
def test_inputs_and_outputs_of_a_function(laboratory: Laboratory, first: Any, second: Any) -> None:
    argument, result = made(first), made(second)

    @rollout_op(name="plain")
    def plain(value: Any) -> Any:
        return result

    @rollout_op(name="items")
    def items(value: Any) -> Any:
        yield value
        return result

    with trajectory(**IDENTITY):
        assert is_as_good(plain(argument), result)
        (item,) = items(argument)
        assert item is argument
    laboratory.check(["items", "plain", "rollout"])


@MANY
@given(recipes=st.dictionaries(NAMES, RECIPES, max_size=3))
def test_values_of_a_trajectory(laboratory: Laboratory, recipes: dict[str, Any]) -> None:
    values = {f"x{name}": made(recipe) for name, recipe in recipes.items()}
    with trajectory(**IDENTITY, **values) as opened:
        for name, value in values.items():
            opened.set(f"mine.{name}", value)
        with recording.active(recording.start("inside")):
            pass
    laboratory.check(["inside", "rollout"])


@MANY
@given(recipe=RECIPES, recipes=st.dictionaries(NAMES, RECIPES, max_size=3))
def test_a_reward_and_its_detail(
    laboratory: Laboratory, recipe: Any, recipes: dict[str, Any]
) -> None:
    value = made(recipe)
    detail = {name: made(part) for name, part in recipes.items()}
    with trajectory(**IDENTITY):
        record_reward(value, **{f"d{name}": part for name, part in detail.items()})
        record_reward({"score": value, **detail})
    laboratory.check(["rollout"])


@MANY
@given(recipe=RECIPES)
def test_an_attribute_of_a_span(laboratory: Laboratory, recipe: Any) -> None:
    value = made(recipe)
    with trajectory(**IDENTITY), recording.active(recording.start("inside")) as span:
        span.keep("kept", value)
        span.keep_text("text", value)
        if not {"Endless", "range"} & names_in(recipe):  # which OpenTelemetry's API would walk
            with contextlib.suppress(Exception):  # what that API raises
                span.span.set_attribute("theirs", value)
            with contextlib.suppress(Exception):
                span.span.add_event("happened", {"theirs": value})
    laboratory.check(["inside", "rollout"])


@MANY
@given(recipe=RECIPES)
def test_an_exception(laboratory: Laboratory, recipe: Any) -> None:
    value = made(recipe)
    error = ValueError(value)
    with pytest.raises(ValueError) as raised, trajectory(**IDENTITY):  # noqa: PT011
        raise error
    assert raised.value is error
    laboratory.check(["rollout"])


@MANY
@given(recipes=st.lists(RECIPES, max_size=3), recipe=RECIPES)
def test_chat_messages(laboratory: Laboratory, recipes: list[Any], recipe: Any) -> None:
    content = made(recipe)
    messages = [made(one) for one in recipes]
    shaped = [
        {"role": "user", "content": content},
        {"role": content, "content": [content], "tool_calls": content},
        {"role": "assistant", "tool_calls": [content, {"function": content}]},
        {"role": "assistant", "parts": content},
    ]
    with trajectory(**IDENTITY):
        for given_messages in (content, messages, shaped):
            with recording.active(recording.start("chat")) as span:
                span.keep("gen_ai.input.messages", given_messages)
                span.keep("gen_ai.output.messages", given_messages)
    laboratory.check(["chat", "chat", "chat", "rollout"])


@MANY
@given(recipes=st.lists(RECIPES, max_size=3))
def test_token_ids(laboratory: Laboratory, recipes: list[Any]) -> None:
    """A list of what is no ids is omitted, and said."""
    ids = [made(recipe) for recipe in recipes]
    with trajectory(**IDENTITY), recording.active(recording.start("text_completion")) as span:
        span.payload.prompt_ids = ids
        span.payload.response_ids = ids
        span.payload.logprobs = ids
        span.payload.mask = ids
    laboratory.check(["rollout", "text_completion"])

"""verl's own classes and functions, as users call, override and decorate them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy
import pytest

from otel_rollout.processor import sampling
from tests.verl.conftest import Spans


def make_output(**changes: Any) -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    given: dict[str, Any] = {
        "prompt_ids": [1, 2, 3],
        "response_ids": [4, 5],
        "response_mask": [1, 0],
        "num_turns": 2,
        "metrics": AgentLoopMetrics(),
    }
    return AgentLoopOutput(**{**given, **changes})


def without_init(kind: type) -> Any:
    return kind.__new__(kind)


class TestAgentLoops:
    """One span for each run, however the loop was written."""

    async def test_a_loop_that_overrides_run_without_a_decorator(self, spans: Spans) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase

        class Mine(AgentLoopBase):
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                return make_output()

        await without_init(Mine).run({}, raw_prompt=[{"role": "user", "content": "hi"}])
        assert spans.names() == ["invoke_agent Mine"]

    async def test_an_override_that_calls_super_is_one_span(self, spans: Spans) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase

        class Base(AgentLoopBase):
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                return make_output()

        class Derived(Base):
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                return await super().run(sampling_params, **kwargs)

        await without_init(Derived).run({})
        assert spans.names() == ["invoke_agent Derived"]

    async def test_an_override_that_bears_verl_s_decorator_is_one_span(self, spans: Spans) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase
        from verl.utils.rollout_trace import rollout_trace_op

        class Decorated(AgentLoopBase):
            @rollout_trace_op
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                return make_output()

        await without_init(Decorated).run({})
        assert spans.names() == ["invoke_agent Decorated"]

    async def test_a_list_of_outputs(self, spans: Spans) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase
        from verl.utils.rollout_trace import rollout_trace_attr

        class Several(AgentLoopBase):
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                return [make_output(), make_output(num_turns=6)]

        with rollout_trace_attr(sample_index=1, step=2, rollout_n=0):
            outputs = await without_init(Several).run({})
        assert len(outputs) == 2
        (root,) = spans.named("rollout")
        assert root.attributes["rollout.num_outputs"] == 2  # type: ignore[attr-defined]
        assert root.attributes["rollout.num_turns"] == 6  # type: ignore[attr-defined]

    async def test_what_run_raises_is_raised_and_recorded(self, spans: Spans) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase

        class Failing(AgentLoopBase):
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                raise LookupError("no such thing")

        with pytest.raises(LookupError, match="no such thing"):
            await without_init(Failing).run({})
        (span,) = spans.named("invoke_agent")
        assert span.attributes["error.type"] == "LookupError"  # type: ignore[attr-defined]

    async def test_a_prompt_that_cannot_be_copied_is_no_error_of_the_run(
        self, spans: Spans
    ) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase

        class Mine(AgentLoopBase):
            async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
                return kwargs["raw_prompt"]

        assert await without_init(Mine).run({}, raw_prompt=7) == 7
        assert spans.names() == ["invoke_agent Mine"]


class Sequence:
    """Has a length and cannot be gone through."""

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("prompt_ids", [None, Sequence(), 7, "text"])
async def test_whatever_a_client_is_given_reaches_it(spans: Spans, prompt_ids: Any) -> None:
    from verl.workers.rollout.llm_server import LLMServerClient

    class Client(LLMServerClient):
        async def generate(self, request_id: str, **given: Any) -> Any:  # type: ignore[override]
            return given["prompt_ids"]

    client = without_init(Client)
    assert await client.generate("r", prompt_ids=prompt_ids) is prompt_ids
    assert spans.names() == ["text_completion"]


class TestDecoratedFunctions:
    """Functions that users decorate with verl's ``rollout_trace_op`` are spans of ours."""

    async def test_methods_with_inputs_and_output(self, spans: Spans) -> None:
        from verl.utils.rollout_trace import rollout_trace_attr, rollout_trace_op

        class Helper:
            @rollout_trace_op
            async def search(self, query: str, top: int = 3) -> list[str]:
                return [query] * top

            @rollout_trace_op
            def count(self, text: str) -> int:
                return len(text)

        with rollout_trace_attr(sample_index=0, step=1, rollout_n=0):
            assert await Helper().search("q", top=2) == ["q", "q"]
            assert Helper().count("abc") == 3
        search, count, root = spans.named("")
        assert search.name.endswith("Helper.search")  # type: ignore[attr-defined]
        assert json.loads(search.attributes["rollout.input"]) == {  # type: ignore[attr-defined]
            "query": "q",
            "top": 2,
        }
        assert search.attributes["rollout.step"] == 1  # type: ignore[attr-defined]
        assert count.attributes["rollout.output"] == "3"  # type: ignore[attr-defined]
        assert root.name == "rollout"  # type: ignore[attr-defined]


class TestTools:
    """One span for each call, and why it failed."""

    @staticmethod
    def loop_with(tool: Any) -> Any:
        from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

        loop = without_init(ToolAgentLoop)
        loop.tools = {tool.name: tool} if tool is not None else {}
        loop.max_tool_response_length = 100
        loop.tool_response_truncate_side = "left"
        return loop

    @staticmethod
    async def call(loop: Any, name: str, arguments: str) -> Any:
        from verl.experimental.agent_loop.tool_parser import FunctionCall

        tool_call = FunctionCall(name=name, arguments=arguments)
        return await loop._call_tool(tool_call, {}, agent_data=object())

    @staticmethod
    def function_tool(function: Any) -> Any:
        from verl.tools.function_tool import FunctionTool

        tool = without_init(FunctionTool)
        tool.name, tool.fn, tool.is_async = "probe", function, asyncio.iscoroutinefunction(function)
        return tool

    async def test_a_function_tool(self, spans: Spans) -> None:
        loop = self.loop_with(self.function_tool(lambda x: str(x * x)))
        response, _, _ = await self.call(loop, "probe", '{"x": 3}')
        assert response.text == "9"
        (span,) = spans.named("execute_tool")
        assert span.name == "execute_tool probe"  # type: ignore[attr-defined]
        assert span.attributes["gen_ai.tool.call.arguments"] == '{"x": 3}'  # type: ignore[attr-defined]
        assert span.attributes["gen_ai.tool.call.result"] == "9"  # type: ignore[attr-defined]
        assert span.status.is_unset  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("name", "arguments", "kind"),
        [
            ("other", "{}", "UnknownTool"),
            ("probe", "{not json", "InvalidArguments"),
            ("probe", "[1, 2]", "TypeError"),
            ("probe", '{"x": 0}', "ZeroDivisionError"),
        ],
    )
    async def test_what_verl_swallows_is_an_error_on_the_span(
        self, spans: Spans, name: str, arguments: str, kind: str
    ) -> None:
        loop = self.loop_with(self.function_tool(lambda x: 1 / x))
        response, _, _ = await self.call(loop, name, arguments)
        assert response.text
        (span,) = spans.named("execute_tool")
        assert span.attributes["error.type"] == kind  # type: ignore[attr-defined]
        assert not span.status.is_ok  # type: ignore[attr-defined]

    async def test_a_tool_used_outside_an_agent_loop_is_a_span_of_its_own(
        self, spans: Spans
    ) -> None:
        assert await self.function_tool(lambda x: x + 1).call({"x": 1}) == 2
        assert spans.names() == ["execute_tool probe"]


class TestSettings:
    """verl's ``trace.*`` settings are heeded."""

    @pytest.fixture(autouse=True)
    def fresh(self) -> Any:
        from verl.utils.rollout_trace import RolloutTraceConfig

        RolloutTraceConfig.reset()
        sampling.use_sampler(sampling.Sampler())
        yield
        RolloutTraceConfig.reset()
        sampling.use_sampler(None)

    def test_max_samples_becomes_the_quota_and_verl_keeps_its_own(self) -> None:
        from verl.utils.rollout_trace import RolloutTraceConfig

        RolloutTraceConfig.init("p", "e", None, False, 3)
        assert sampling.sampler().quota == 3
        # verl draws by it from numpy's generator: a traced run must draw as an untraced one
        assert RolloutTraceConfig.get_instance().max_samples_per_step_per_worker == 3

    def test_the_weave_back_end_is_taken_over_where_ours_exports(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from verl.utils.rollout_trace import RolloutTraceConfig

        monkeypatch.setattr("otel_rollout.exporters.weave.exporter.active_exporters", 1)
        RolloutTraceConfig.init("p", "e", "weave", True)
        assert RolloutTraceConfig.get_backend() is None
        assert RolloutTraceConfig.get_instance().experiment_name == "e"

    def test_the_experiment_is_on_every_span(self, spans: Spans) -> None:
        from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr

        RolloutTraceConfig.init("p", "e", None)
        with rollout_trace_attr(sample_index=numpy.int64(4), step=1, rollout_n=0, validate=True):
            pass
        (root,) = spans.named("rollout")
        attributes = dict(root.attributes)  # type: ignore[attr-defined]
        assert attributes["rollout.experiment_name"] == "e"
        assert attributes["rollout.project"] == "p"
        assert attributes["rollout.sample_index"] == 4
        assert attributes["rollout.validate"] is True

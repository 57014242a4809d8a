"""verl's real classes, of whatever version is installed, driven as verl drives them.

What answers `generate` is a stand-in for the inference server's actor handle: a model is not needed
to see whether the hooks of a version fit, and the oldest versions' servers do not start on a CPU.
"""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rollout import semconv
from otel_rollout.payload import decode_ids
from tests.verl.conftest import Spans

ANSWER = [7, 8, 9]


def without_init(kind: type) -> Any:
    return kind.__new__(kind)


def client_kind() -> Any:
    """The class by which an agent loop reaches the servers; it has moved with verl 0.8."""
    try:
        from verl.workers.rollout.llm_server import LLMServerClient

        return LLMServerClient
    except ImportError:
        from verl.experimental.agent_loop.agent_loop import AsyncLLMServerManager

        return AsyncLLMServerManager


def answer() -> Any:
    """`generate` of a server gives a list of ids in verl 0.5, later a TokenOutput."""
    try:
        from verl.workers.rollout.replica import TokenOutput
    except ImportError:
        return list(ANSWER)
    return TokenOutput(token_ids=list(ANSWER), log_probs=[-0.5, -0.25, -1.0])


def client() -> Any:
    async def remote(**_: Any) -> Any:
        return answer()

    server = SimpleNamespace(generate=SimpleNamespace(remote=remote))
    made = without_init(client_kind())
    rollout = SimpleNamespace(name="vllm")
    model = SimpleNamespace(path="/models/tiny")
    made.config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(model=model, rollout=rollout))

    async def acquire(request_id: str, **_: Any) -> tuple[str, Any]:
        return "0", server

    made._choose_server = lambda request_id: server
    made._acquire_server = acquire
    made._release_server = lambda *_, **__: None
    return made


def tool_loop() -> Any:
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.base_tool import BaseTool

    class Tool(BaseTool):
        name = "square"

        async def create(self, *args: Any, **kwargs: Any) -> Any:
            return "1" if _tools_give_strings() else ("1", None)

        async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
            text = str(parameters["x"] ** 2)
            if _tools_give_strings():
                return text, 0.5, {}
            from verl.tools.schemas import ToolResponse

            return ToolResponse(text=text), 0.5, {}

        async def release(self, instance_id: str, **_: Any) -> None: ...

    loop = without_init(ToolAgentLoop)
    loop.tools = {"square": without_init(Tool)}
    loop.max_tool_response_length = 100
    loop.tool_response_truncate_side = "left"
    return loop


def _tools_give_strings() -> bool:
    """Until verl 0.5."""
    from verl.tools import schemas

    return not hasattr(schemas, "ToolResponse")


async def call_tool(loop: Any, arguments: str) -> Any:
    from verl.experimental.agent_loop.tool_parser import FunctionCall

    call = FunctionCall(name="square", arguments=arguments)
    takes = len(inspect.signature(loop._call_tool).parameters)  # more with the versions
    return await loop._call_tool(call, *({}, SimpleNamespace())[: takes - 1])


def agent_loop() -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    class Mine(AgentLoopBase):
        async def run(self, *args: Any, **kwargs: Any) -> Any:
            output = await client().generate(
                "request", prompt_ids=[1, 2, 3], sampling_params={"temperature": 0.5}
            )
            await call_tool(tool_loop(), '{"x": 3}')
            return output

    return without_init(Mine)


async def test_a_rollout_is_one_tree(spans: Spans) -> None:
    from verl.utils.rollout_trace import rollout_trace_attr

    with rollout_trace_attr(sample_index=4, step=2, rollout_n=1, validate=True):
        output = await agent_loop().run(messages=[], sampling_params={})
    assert list(getattr(output, "token_ids", output)) == ANSWER
    found = {span.name: span for span in spans.named("")}  # type: ignore[attr-defined]
    root, agent = found["rollout"], found["invoke_agent Mine"]
    generation, tool = found["text_completion tiny"], found["execute_tool square"]
    assert root.parent is None
    assert agent.parent.span_id == root.context.span_id
    assert generation.parent.span_id == tool.parent.span_id == agent.context.span_id
    for span in found.values():
        attributes = dict(span.attributes)
        assert attributes[semconv.SAMPLE_INDEX] == 4
        assert attributes[semconv.STEP] == 2
        assert attributes[semconv.ROLLOUT_N] == 1
        assert attributes[semconv.VALIDATE] is True
    assert decode_ids(generation.attributes[semconv.PROMPT_IDS]) == [1, 2, 3]
    assert decode_ids(generation.attributes[semconv.RESPONSE_IDS]) == ANSWER
    assert generation.attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert json.loads(tool.attributes[semconv.TOOL_ARGUMENTS]) == {"x": 3}
    assert "9" in tool.attributes[semconv.TOOL_RESULT]
    assert len(found) == len(spans.named(""))


async def test_a_tool_that_fails_is_an_error_on_its_span(spans: Spans) -> None:
    await call_tool(tool_loop(), '{"y": 3}')
    (span,) = spans.named("execute_tool")
    assert span.attributes["error.type"] == "KeyError"  # type: ignore[attr-defined]


def test_workers_and_loops_pickle() -> None:
    from ray import cloudpickle
    from verl.experimental.agent_loop import agent_loop as module

    for name in ("AgentLoopWorker", "AgentLoopBase", "AgentLoopManager"):
        kind = getattr(module, name, None)
        if kind is not None and isinstance(kind, type):
            assert cloudpickle.loads(cloudpickle.dumps(kind)) is not None
    assert cloudpickle.loads(cloudpickle.dumps(client_kind())) is not None


@pytest.mark.parametrize("what", ["run", "generate"])
async def test_what_is_raised_is_raised_and_recorded(spans: Spans, what: str) -> None:
    if what == "generate":
        broken = client()
        broken._choose_server = None
        broken._acquire_server = None
        with pytest.raises(TypeError):
            await broken.generate("request", prompt_ids=[1], sampling_params={})
    else:
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase

        class Failing(AgentLoopBase):
            async def run(self, *args: Any, **kwargs: Any) -> Any:
                raise TypeError("mine")

        with pytest.raises(TypeError, match="mine"):
            await without_init(Failing).run()
    (span,) = spans.named("")
    assert span.attributes["error.type"] == "TypeError"  # type: ignore[attr-defined]

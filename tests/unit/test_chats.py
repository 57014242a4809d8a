"""Chats are read as people had them: who said what, which tools were called, each thing once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from otel_rollout import record_reward, rollout_op, trajectory
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.local import chats
from otel_rollout.local.conversation import entries
from otel_rollout.local.server.app import application
from otel_rollout.local.server.state import State
from otel_rollout.local.trajectory import put_together
from otel_rollout.testing import captured

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query":"tea"}'},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Where does tea grow?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "in Assam"},
    {"role": "assistant", "content": "Assam"},
]


@rollout_op(kind="llm", name="policy")
def policy(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"choices": [{"message": MESSAGES[len(messages)]}]}


def chat() -> Any:
    with captured() as rollouts:
        with trajectory(step=1, sample_index=0):
            policy(MESSAGES[:2])
            policy(MESSAGES[:4])
            record_reward(1.0)
        return rollouts.only()


def test_the_tree_has_each_message_once_and_the_tools_that_are_called() -> None:
    shown = str(chat())
    said = [line.strip("│ ") for line in shown.splitlines() if line.strip("│ ")[:1] in "<>"]
    assert said == [
        "> Be short.",
        "> Where does tea grow?",
        '< search({"query":"tea"})',
        "> in Assam",
        "< Assam",
    ]


def test_the_text_of_a_chat_has_its_messages_on_lines_of_their_own() -> None:
    one = chat()
    assert one.prompt_text == "Be short.\nWhere does tea grow?"
    assert one.response_text == "in Assam\nAssam"


def test_the_conversation_has_the_roles_and_the_calls() -> None:
    calls = [
        generation("a", 0, MESSAGES[:2], MESSAGES[2]),
        generation("b", 2, MESSAGES[:4], MESSAGES[4]),
    ]
    talk = entries(put_together({"reward": 1.0}, calls, []))
    assert [(one.role, part.kind, part.text) for one in talk for part in one.parts] == [
        ("system", "text", "Be short."),
        ("user", "text", "Where does tea grow?"),
        ("assistant", "tool_call", 'search({"query":"tea"})'),
        ("tool", "tool_response", "in Assam"),
        ("assistant", "text", "Assam"),
    ]


@pytest.mark.parametrize(
    "message",
    [None, "text", {}, {"tool_calls": "none"}, {"tool_calls": [None, {}, {"function": "f"}]}],
)
def test_what_calls_no_tool_is_no_call(message: Any) -> None:
    assert chats.tool_calls(message) == []


class TestPages:
    """What the viewer says of chats, which have texts and no token ids."""

    @pytest.fixture
    def pages(self, tmp_path: Path) -> Iterator[TestClient]:
        writer = SegmentWriter(tmp_path / "spool")
        for n, said in enumerate(("in Assam", "in Norway <b>")):
            turn = generation(f"turn{n}", 0, MESSAGES[:2], {"role": "assistant", "content": said})
            root = generation(f"root{n}", 0, [], {})
            root |= {"parent_id": None, "op_name": "rollout", "inputs": {}}
            root |= {"output": {"reward": 1.0 - n}}
            root["attributes"] = {"step": 1, "sample_index": 0, "rollout_n": n, "weave": {}}
            turn["parent_id"] = root["id"]
            for call in (turn, root):
                call["trace_id"] = str(n) * 32
                writer.append(
                    {"kind": "call", "id": call["id"], "project": "p"}, orjson.dumps(call)
                )
        writer.close()
        app = application(State.of(tmp_path))
        with TestClient(app, base_url="http://127.0.0.1:7788") as client:
            deadline = time.monotonic() + 30
            while client.get("/changes").json()["progress"] is not None:  # it is being indexed
                assert time.monotonic() < deadline
            yield client

    def test_side_by_side_their_texts_part(self, pages: TestClient) -> None:
        page = pages.get("/compare", params={"t": ["0" * 32, "1" * 32]}).text
        assert "share <b>3</b> characters" in page
        assert '<span class="dim">in </span><mark>Norway &lt;b&gt;</mark>' in page

    def test_in_their_group_the_worse_leaves_the_best(self, pages: TestClient) -> None:
        found = re.search(r"/group/\w+", pages.get("/trajectories").text)
        assert found is not None
        page = pages.get(found[0]).text
        assert "character 3</a> of n 0" in page
        assert '<span class="dim">in </span><mark>Norway' in page

    def test_that_there_are_no_token_ids_is_said(self, pages: TestClient) -> None:
        page = pages.get(f"/t/{'0' * 32}", params={"view": "tokens"}).text
        assert "No token ids are stored" in page
        assert "log-probabilities" not in page


def generation(
    name: str, second: int, asked: list[dict[str, Any]], answered: dict[str, Any]
) -> dict[str, Any]:
    """A stored call of one turn of a chat."""
    return {
        "id": name,
        "parent_id": "root",
        "op_name": "chat policy",
        "started_at": f"2026-01-01T00:00:{second:02d}+00:00",
        "ended_at": f"2026-01-01T00:00:{second + 1:02d}+00:00",
        "attributes": {"gen_ai": {"operation": {"name": "chat"}}, "weave": {"kind": "llm"}},
        "inputs": {"messages": asked},
        "output": {"choices": [{"message": answered}]},
        "exception": None,
    }

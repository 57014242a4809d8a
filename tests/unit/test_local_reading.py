"""A store read by programs: prompts whole again, masks and log-probabilities in their places."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

import otel_rollout.local
from benchmarks.synthetic_store import write_store
from otel_rollout.cli import main
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.local.comparison import common_text, first_difference, parting
from otel_rollout.local.conversation import entries, messages, parts
from otel_rollout.local.expression import FilterError
from otel_rollout.local.timeline import of as timeline_of
from otel_rollout.local.trajectory import load
from otel_rollout.local.vocabulary import Vocabularies
from otel_rollout.payload import encode_array, pack_floats, pack_ids


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    write_store(directory, 32, samples=4, rollouts=4)
    return directory


def generation(
    name: str, second: int, prompt: list[int], response: list[int], prefix: Any = None
) -> dict[str, Any]:
    """A stored call of one turn."""
    asked: dict[str, Any] = {"token_ids": encode_array(pack_ids(prompt))}
    if prefix is not None:
        asked["prefix"] = {"span_id": prefix[0], "length": prefix[1]}
    logprobs = encode_array(pack_floats([-0.5] * len(response)))
    answered = {"token_ids": encode_array(pack_ids(response)), "logprobs": logprobs}
    return {
        "id": name,
        "trace_id": "t",
        "parent_id": "root",
        "op_name": "chat m",
        "started_at": f"2026-01-01T00:00:{second:02d}+00:00",
        "ended_at": f"2026-01-01T00:00:{second + 1:02d}+00:00",
        "attributes": {
            "weave": {"kind": "llm"},
            "rollout": {"prompt": asked, "response": answered},
        },
        "inputs": {},
        "output": None,
        "exception": None,
    }


def stored(directory: Path, *calls: dict[str, Any]) -> dict[str, Any]:
    writer = SegmentWriter(directory / "spool")
    for call in calls:
        writer.append({"kind": "call", "id": call["id"], "project": "p"}, orjson.dumps(call))
    writer.close()
    with otel_rollout.local.open(directory) as opened:
        return opened.trajectory("t")


def test_each_trajectory_as_plain_values(store: Path) -> None:
    with otel_rollout.local.open(store) as opened:
        found = list(opened.trajectories())

    assert len(found) == 32
    for one in found:
        length = len(one["response_ids"])
        assert length == len(one["response_mask"]) == len(one["response_logprobs"]) > 20
        for made, logprob in zip(one["response_mask"], one["response_logprobs"], strict=True):
            assert math.isnan(logprob) is not bool(made)
        assert one["prompt_text"].startswith("<|im_start|>system")
        assert one["tools"][0]["name"] == "calculator"
    json.dumps(found[0], allow_nan=True)


def test_ids_and_text_are_the_same_thing(store: Path) -> None:
    words = Vocabularies(store)
    with otel_rollout.local.open(store) as opened:
        for one in opened.trajectories("step == 1"):
            for ids, text in (("prompt_ids", "prompt_text"), ("response_ids", "response_text")):
                pieces = words.pieces("policy", one[ids])
                assert pieces is not None
                assert "".join(pieces) == one[text]


def test_filters_and_order(store: Path) -> None:
    with otel_rollout.local.open(store) as opened:
        low = list(opened.trajectories("reward < 0.5", sort="reward"))
        assert opened.count("reward < 0.5") == len(low)
        assert [one["reward"] for one in low] == sorted(one["reward"] for one in low)
        with pytest.raises(FilterError, match="no field"):
            list(opened.trajectories("nothing == 1"))
        with pytest.raises(KeyError):
            opened.trajectory("unknown")


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no store"):
        otel_rollout.local.open(tmp_path / "none")


def test_a_prompt_is_whole_again(tmp_path: Path) -> None:
    one = stored(
        tmp_path,
        generation("b", 2, [7, 8], [9], prefix=("a", 5)),
        generation("a", 0, [1, 2, 3], [4, 5]),
        generation("c", 4, [10], [11], prefix=("b", 8)),
    )

    assert one["prompt_ids"] == [1, 2, 3]
    assert one["response_ids"] == [4, 5, 7, 8, 9, 10, 11]
    assert one["response_mask"] == [1, 1, 0, 0, 1, 0, 1]
    assert one["context_breaks"] == []


def test_a_context_that_was_rewritten_is_marked(tmp_path: Path) -> None:
    one = stored(
        tmp_path,
        generation("a", 0, [1, 2, 3], [4, 5]),
        generation("b", 2, [8], [9], prefix=("a", 4)),
    )

    assert one["response_ids"] == [4, 5, 8, 9]
    assert one["context_breaks"] == [2]


def test_a_turn_that_is_missing(tmp_path: Path) -> None:
    one = stored(tmp_path, generation("b", 2, [8], [9], prefix=("gone", 4)))

    assert one["response_ids"] == [9]


def test_what_is_damaged_in_a_call_is_left_out(tmp_path: Path) -> None:
    broken = generation("a", 0, [1], [2])
    broken["attributes"]["rollout"]["response"]["token_ids"] = "!!"
    broken["attributes"]["rollout"]["prompt"] = "nonsense"
    broken["inputs"], broken["output"] = ["?"], {"choices": ["?"]}
    one = stored(tmp_path, broken)

    assert one["response_ids"] == []
    assert one["turns"] == 1


def test_where_trajectories_part(store: Path) -> None:
    with otel_rollout.local.open(store) as opened:
        (name,) = opened.index.query("SELECT grp FROM groups LIMIT 1")[0]
        rows = opened.index.query("SELECT * FROM trajectories WHERE grp = ?", [name])
        first, second = (load(opened.index, row) for row in rows[:2])
        found = parting(first, second, Vocabularies(store))
        textual = parting(first, second, Vocabularies(store / "no tokenizers"))

    assert found is not None
    assert textual is not None
    a, b = first.tokens().ids, second.tokens().ids
    assert a[: found.position] == b[: found.position]
    assert found.ids == (a[found.position], b[found.position])
    assert found.here != found.there
    assert first.response_text.find(found.shared + found.here) >= 0
    assert textual.position == found.position
    assert parting(first, first, Vocabularies(store)) is None


def test_the_first_difference() -> None:
    assert first_difference([[1, 2, 3], [1, 2, 4]]) == 2
    assert first_difference([[1, 2], [1, 2, 3]]) == 2
    assert first_difference([[1], [1], [2]]) == 0
    assert first_difference([[1, 2], [1, 2]]) is None
    assert first_difference([[], [1]]) is None
    assert common_text("abcd", "abxd") == 2
    assert common_text("", "a") == 0


def test_templates_are_taken_apart() -> None:
    text = (
        "<|im_start|>system\nbe good<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    llama = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"

    assert messages(text) == [("system", "be good"), ("user", "hi")]
    assert messages(llama) == [("user", "hi")]
    assert messages("no marks") == [("prompt", "no marks")]
    assert messages(" ") == []
    assert [(p.kind, p.text) for p in parts("<think>a</think>b<tool_call>{}")] == [
        ("reasoning", "a"),
        ("text", "b"),
        ("tool_call", "{}"),
    ]


def test_a_conversation_and_its_timeline(store: Path) -> None:
    with otel_rollout.local.open(store) as opened:
        row = opened.index.query("SELECT * FROM trajectories LIMIT 1")[0]
        one = load(opened.index, row)
        talk = entries(one)
        lanes = timeline_of(one).lanes

    roles = [entry.role for entry in talk]
    assert roles == ["system", "user", "assistant", "tool", "user", "assistant", "score"]
    kinds = {bar.kind for lane in lanes for bar in lane.bars}
    assert kinds >= {"queue", "prefill", "decode", "tool", "scorer", "agent"}
    assert len({lane.process for lane in lanes}) == 2
    assert all(0 <= bar.start <= 1 and bar.length >= 0 for lane in lanes for bar in lane.bars)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_export(store: Path, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"out.{ending}"
    command = ["export", str(store), "-o", str(target), "--filter", "reward < 1"]
    result = CliRunner().invoke(main, command)

    assert result.exit_code == 0, result.output
    if ending == "jsonl":
        rows = [orjson.loads(line) for line in target.read_bytes().splitlines()]
    else:
        from pyarrow import parquet

        rows = parquet.read_table(target).to_pylist()
    with otel_rollout.local.open(store) as opened:
        expected = list(opened.trajectories("reward < 1"))
    assert [row["trace_id"] for row in rows] == [one["trace_id"] for one in expected]
    for row, one in zip(rows, expected, strict=True):
        for name in ("prompt_ids", "response_ids", "response_mask", "reward", "response_text"):
            assert row[name] == one[name], name
        assert row["response_logprobs"][0] == pytest.approx(one["response_logprobs"][0])
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("name", "extra", "said"),
    [
        ("out.csv", [], ".parquet or .jsonl"),
        ("out.jsonl", ["--filter", "nothing"], "no field"),
        ("no/such/folder.jsonl", [], "No such file"),
    ],
)
def test_an_export_that_cannot_be(
    store: Path, tmp_path: Path, name: str, extra: list[str], said: str
) -> None:
    result = CliRunner().invoke(main, ["export", str(store), "-o", str(tmp_path / name), *extra])

    assert result.exit_code == 1
    assert said in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_traced_process_leaves_its_tokenizer_in_the_store(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    from otel_rollout import WeaveSpanExporter, register_tokenizer, trajectory
    from otel_rollout.processor.token2text import tokenizers
    from otel_rollout.settings import Settings
    from tests.unit import pipeline

    known = Tokenizer(models.WordLevel({"a": 0, " b": 1}, unk_token="a"))
    known.decoder = decoders.Fuse()
    register_tokenizer(known)
    running = pipeline.Pipeline(WeaveSpanExporter(Settings(directory=tmp_path)))
    try:
        with trajectory(step=1):
            pipeline.generation([0, 1], [1, 0], model="org/policy")
        running.spans()
    finally:
        tokenizers.clear()

    assert Vocabularies(tmp_path).pieces("org/policy", [0, 1]) == ["a", " b"]


@pytest.mark.parametrize("cut", [True, False])
def test_a_root_that_has_the_ends_of_its_texts_only(tmp_path: Path, cut: bool) -> None:
    turn = generation("a", 0, [1], [2])
    turn["inputs"] = {"messages": [{"role": "user", "content": "all of the prompt"}]}
    turn["output"] = {"choices": [{"message": {"role": "assistant", "content": "all of it"}}]}
    root = {**generation("root", 0, [], []), "parent_id": None, "op_name": "rollout"}
    root["attributes"] = {"rollout": {"text_cut": True} if cut else {}}
    root["output"] = {"prompt_text": "all … prompt", "response_text": "all … it"}
    one = stored(tmp_path, root, turn)

    expected = ("all of the prompt", "all of it") if cut else ("all … prompt", "all … it")
    assert (one["prompt_text"], one["response_text"]) == expected

"""The index of a store follows its segments, whoever writes them and whatever befalls them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.synthetic_store import write_store
from otel_rollout.exporters import spool
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.local.index import FILE_NAME, Index, advantage

EVERYTHING = "SELECT * FROM trajectories ORDER BY trace"
FACTS = """SELECT trace, step, grp, reward, advantage, turns, tokens, tools, tool_errors, errors
    FROM trajectories ORDER BY trace"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path, 16, samples=2, rollouts=4)
    return tmp_path


@pytest.fixture
def index(store: Path) -> Iterator[Index]:
    made = Index(store)
    made.update()
    yield made
    made.close()


def rows(index: Index, sql: str = FACTS) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in index.query(sql)]


def append(store: Path, kind: str, body: dict[str, Any]) -> None:
    writer = SegmentWriter(store / "spool")
    writer.append({"kind": kind, "id": body["id"], "project": "p"}, orjson.dumps(body))
    writer.close()


def test_a_row_a_trajectory(index: Index) -> None:
    found = index.query(EVERYTHING)

    assert len(found) == 16
    assert {row["experiment"] for row in found} == {"grpo-base", "grpo-lr2"}
    assert all(row["done"] and row["turns"] == 2 and row["tools"] == 1 for row in found)
    assert len({row["grp"] for row in found}) == 4
    assert all(row["tool_names"] == ",calculator," for row in found)


def test_nothing_new_is_nothing_to_do(index: Index) -> None:
    version = index.version()

    assert not index.update()
    assert index.version() == version


def test_segments_are_followed_while_they_are_written(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "spool")
    index = Index(tmp_path)
    call = {"id": "c", "trace_id": "t", "parent_id": "r", "attributes": {"step": 3}}
    writer.append({"kind": "call"}, orjson.dumps(call))
    index.update()
    (before,) = index.query(EVERYTHING)
    root = {**call, "id": "r", "parent_id": None, "output": {"reward": 1.0}}
    writer.append({"kind": "call"}, orjson.dumps(root))
    index.update()
    (after,) = index.query(EVERYTHING)
    writer.close()

    assert (before["step"], before["done"], before["reward"]) == (3, 0, None)
    assert (after["calls"], after["done"], after["reward"]) == (2, 1, 1.0)


def test_a_record_that_is_half_written_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    record = spool.encode_record(
        {"kind": "call"}, orjson.dumps({"id": "c", "trace_id": "t", "parent_id": None})
    )
    path = tmp_path / "spool" / "0000000000000000001-host-1-0.spool"
    path.parent.mkdir()
    path.write_bytes(record[:40])
    index = Index(tmp_path)
    index.update()
    assert rows(index) == []

    path.write_bytes(record)
    index.update()

    assert len(rows(index)) == 1
    assert index.query("SELECT damaged FROM segments")[0]["damaged"] == 0


def test_a_later_reward_is_folded_in(index: Index, store: Path) -> None:
    root = index.query("SELECT id, trace FROM calls WHERE root LIMIT 1")[0]
    late = {
        "id": "later",
        "call_id": root["id"],
        "feedback_type": "reward",
        "payload": {"name": "reward", "value": -2.5},
        "created_at": "2100-01-01T00:00:00+00:00",
    }
    append(store, "feedback", late)
    index.update()

    (row,) = index.query("SELECT * FROM trajectories WHERE trace = ?", [root["trace"]])
    (step,) = index.query(
        "SELECT low FROM steps WHERE experiment = ? AND step = ?", [row["experiment"], row["step"]]
    )
    assert row["reward"] == step["low"] == -2.5
    assert row["advantage"] < -1


def test_feedback_before_its_call(tmp_path: Path) -> None:
    reward = {"id": "f", "call_id": "c", "feedback_type": "reward", "payload": {"value": 0.5}}
    append(tmp_path, "feedback", reward)
    index = Index(tmp_path)
    index.update()
    append(tmp_path, "call", {"id": "c", "trace_id": "t", "parent_id": None})
    index.update()

    assert index.query(EVERYTHING)[0]["reward"] == 0.5


def test_a_call_that_came_twice_counts_once(tmp_path: Path) -> None:
    call = {"id": "c", "trace_id": "t", "parent_id": None, "output": {"reward": 0}}
    append(tmp_path, "call", call)
    append(tmp_path, "call", {**call, "output": {"reward": 1}})
    index = Index(tmp_path)
    index.update()

    (row,) = index.query(EVERYTHING)
    assert (row["calls"], row["reward"]) == (1, 1.0)


def test_damage_is_skipped_and_counted(store: Path) -> None:
    path = spool.segments(store / "spool")[0]
    content = bytearray(path.read_bytes())
    second = content.index(b"\x1e", content.index(b"\x1e") + 1)
    content[second + 200] ^= 1
    path.write_bytes(bytes(content))
    index = Index(store)
    index.update()

    found = index.query("SELECT sum(damaged) AS damaged FROM segments")
    assert found[0]["damaged"] == 1
    assert index.query("SELECT count(*) AS n FROM calls")[0]["n"] == 16 * 6 - 1


def test_what_is_no_call_does_not_hide_what_follows(tmp_path: Path) -> None:
    append(tmp_path, "call", {"id": "no trace"})
    append(tmp_path, "from-the-future", {"id": "x"})
    append(tmp_path, "call", {"id": "c", "trace_id": "t", "attributes": "?", "output": [1]})
    index = Index(tmp_path)
    index.update()

    assert len(rows(index)) == 1
    assert index.query("SELECT sum(unreadable) AS n FROM segments")[0]["n"] == 1


@pytest.mark.parametrize("spoil", [lambda f: f.write_bytes(b"not a database" * 99), Path.unlink])
def test_an_index_that_is_lost_or_damaged_is_made_anew(store: Path, spoil: Any) -> None:
    first = Index(store)
    first.update()
    before = rows(first)
    first.close()
    spoil(store / FILE_NAME)

    second = Index(store)
    second.update()

    assert rows(second) == before


def test_an_index_that_is_damaged_within_is_made_anew(tmp_path: Path) -> None:
    write_store(tmp_path, 64, samples=4, rollouts=8)
    first = Index(tmp_path)
    first.update()
    before = rows(first)
    first.close()
    content = bytearray((tmp_path / FILE_NAME).read_bytes())
    content[3 * 4096 :] = b"\xff" * (len(content) - 3 * 4096)
    (tmp_path / FILE_NAME).write_bytes(bytes(content))

    second = Index(tmp_path)
    write_store(tmp_path, 8, samples=1, rollouts=4, seed=99)
    second.update()

    assert len(before) == 64
    assert len(rows(second)) == 72


def test_segments_that_are_gone_take_their_trajectories_along(index: Index, store: Path) -> None:
    for path in spool.segments(store / "spool"):
        path.unlink()
    index.update()

    assert rows(index) == []
    assert index.query("SELECT * FROM steps") == []


def test_two_indexers_of_one_file(index: Index, store: Path) -> None:
    other = Index(store)
    write_store(store, 8, samples=1, rollouts=4, seed=99)

    assert index.update() is True
    assert other.update() is False
    assert len(rows(other)) == len(rows(index)) == 24


def test_a_store_that_cannot_be_written_is_still_read(store: Path, tmp_path: Path) -> None:
    index = Index(store, tmp_path / "elsewhere.sqlite")
    index.update()

    assert len(rows(index)) == 16
    assert not (store / FILE_NAME).exists()


def test_advantage_is_that_of_grpo() -> None:
    assert advantage(1.0, [1.0, 0.0]) == pytest.approx(0.7071, abs=1e-3)
    assert advantage(1.0, [1.0, 1.0]) == 0.0
    assert advantage(1.0, [1.0]) is None
    assert advantage(None, [1.0, 0.0]) is None

"""The disk limit: what goes first, and that no trajectory goes by halves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from otel_rollout.exporters import retention, spool
from otel_rollout.exporters.claims import claim
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.spool import DroppedTrajectories

KB = b'"' + b"x" * 998 + b'"'


def segment(directory: Path, *traces: str) -> Path:
    """A closed segment with one call of 1 kB for each trace."""
    writer = SegmentWriter(directory)
    for number, trace in enumerate(traces):
        writer.append({"kind": "call", "id": f"{trace}.{number}", "trace": trace}, KB)
    writer.close()
    assert writer.path is not None
    return writer.path


def deliver(path: Path, records: int | None = None) -> None:
    ours = claim(path)
    assert ours is not None
    ends = [record.end for record in spool.read(path)]
    ours.note(ends[-1] if records is None else ends[records])
    ours.release()


def traces(path: Path) -> list[str]:
    return [record.trace for record in spool.read(path) if record.kind == spool.CALL]


def make_room(directory: Path, kilobytes: int) -> Counter[str]:
    counters: Counter[str] = Counter()
    retention.make_room(directory, kilobytes * 1000, counters)
    return counters


def test_within_the_limit_everything_stays(tmp_path: Path) -> None:
    path = segment(tmp_path, *"abc")

    assert make_room(tmp_path, 10) == Counter()
    assert traces(path) == ["a", "b", "c"]


def test_the_oldest_delivered_segments_go_first(tmp_path: Path) -> None:
    waiting = segment(tmp_path, *"abc")
    first = segment(tmp_path, *"def")
    second = segment(tmp_path, *"ghi")
    deliver(first)
    deliver(second)

    counters = make_room(tmp_path, 9)

    assert spool.segments(tmp_path) == [waiting, second]
    assert counters["dropped_disk_limit"] == 0


def test_then_the_oldest_trajectories_go_whole(tmp_path: Path) -> None:
    segment(tmp_path, "a", "b")
    second = segment(tmp_path, "b", "c", "d")

    counters = make_room(tmp_path, 5)

    assert spool.segments(tmp_path) == [second]
    assert counters["dropped_disk_limit"] == 2
    dropped = DroppedTrajectories(tmp_path)
    dropped.refresh()
    # The rest of b is still in the second segment, and is not to be delivered.
    assert [trace for trace in "abcd" if trace in dropped] == ["a", "b"]


def test_a_trajectory_that_is_delivered_in_part_is_kept(tmp_path: Path) -> None:
    elsewhere = segment(tmp_path, "c", "x")
    deliver(elsewhere, records=1)
    path = segment(tmp_path, "a", "b", "a", "c", "d", "d")
    deliver(path, records=1)
    segment(tmp_path, "y")
    held = claim(elsewhere)

    counters = make_room(tmp_path, 8)

    assert held is not None
    assert traces(path) == ["a", "c"]
    assert spool.sent_offset(path) == 0
    assert counters["dropped_disk_limit"] == 3
    assert traces(elsewhere) == ["c", "x"]


def test_what_is_being_written_or_delivered_stays(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.append({"kind": "call", "id": "a", "trace": "a"}, KB)
    delivering = segment(tmp_path, "b")
    held = claim(delivering)

    make_room(tmp_path, 1)

    assert held is not None
    assert len(spool.segments(tmp_path)) == 2
    writer.close()


def test_the_size_of_segments_follows_the_limit() -> None:
    assert retention.segment_bytes(10 << 30) == 64 << 20
    assert retention.segment_bytes(64 << 20) == 1 << 20
    assert retention.segment_bytes(1) == 256 << 10

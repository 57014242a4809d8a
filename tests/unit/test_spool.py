"""The spool's format: what is written is read back, whatever happens to the bytes around it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from otel_rollout.exporters import spool
from otel_rollout.exporters.claims import claim
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.exporters.spool import SegmentReader


def body(number: int, size: int = 20) -> bytes:
    return b'{"n":%d,"text":"%s"}' % (number, b"x" * size)


def written(directory: Path, count: int, size: int = 20) -> Path:
    writer = SegmentWriter(directory)
    for number in range(count):
        writer.append({"kind": "call", "id": str(number)}, body(number, size))
    writer.close()
    assert writer.path is not None
    return writer.path


def ids(path: Path, start: int = 0) -> list[str]:
    return [r.id for r in spool.read(path, start) if r.kind == spool.CALL]


def test_records_are_read_back(tmp_path: Path) -> None:
    path = written(tmp_path, 3)

    header, *records = spool.read(path)

    assert header.meta["format"] == spool.FORMAT
    assert header.meta["pid"] == os.getpid()
    assert [record.body for record in records] == [body(0), body(1), body(2)]
    assert records[-1].end == path.stat().st_size
    assert ids(path, records[0].end) == ["1", "2"]


def test_records_larger_than_a_chunk(tmp_path: Path) -> None:
    path = written(tmp_path, 3, size=3 << 20)

    assert [len(r.body) > 3 << 20 for r in spool.read(path)] == [False, True, True, True]


def test_reading_goes_on_where_the_segment_grows(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    whole = spool.encode_record({"kind": "call", "id": "later"}, body(9))
    with SegmentReader(path) as reader, path.open("ab", buffering=0) as file:
        assert len(list(reader)) == 2
        for byte in whole:
            assert reader.next() is None
            file.write(bytes([byte]))
        record = reader.next()
        assert record is not None
        assert record.id == "later"
        assert record.end == path.stat().st_size
        assert reader.damaged == 0


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    whole = path.read_bytes()
    ends = [record.end for record in spool.read(path)]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = [record.end for record in spool.read(path)]
        assert found == [end for end in ends if end <= length]


def test_whole_records_behind_a_torn_one(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    whole = path.read_bytes()
    *_, last = spool.read(path)
    record = spool.encode_record({"kind": "call", "id": "torn"}, body(7))
    for length in range(len(record)):
        path.write_bytes(whole + record[:length] + record)
        assert ids(path) == ["0", "1", "torn"]
    assert last.end == len(whole)


@pytest.mark.parametrize("value", [0x1E, 0x0A, 0x09, 0x00, 0xFF, 0x30, 0x22])
def test_every_byte_flipped(tmp_path: Path, value: int) -> None:
    path = written(tmp_path, 3)
    whole = path.read_bytes()
    records = list(spool.read(path))
    for position in range(len(whole)):
        if whole[position] == value:
            continue
        path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
        found = {record.body for record in spool.read(path)}
        starts = [0, *(record.end for record in records)]
        expected = {
            record.body
            for record, start in zip(records, starts, strict=False)
            if not start <= position < record.end
        }
        assert expected <= found
        assert found <= {r.body for r in records}


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    for content in (b"", b"\x1e", b"not a segment\n", os.urandom(1000), b"\x1e" * 1000):
        path = tmp_path / "x.spool"
        path.write_bytes(content)
        assert list(spool.read(path)) == []


def test_random_damage_never_invents_records(tmp_path: Path) -> None:
    path = written(tmp_path, 50)
    whole = path.read_bytes()
    genuine = {record.body for record in spool.read(path)}
    chance = random.Random(1)
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 20)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        assert {record.body for record in spool.read(path)} <= genuine


def test_a_checksum_of_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.spool"
    content = b'\t["no","object"]\t{}'
    path.write_bytes(b"\x1e%08x" % zlib.crc32(content) + content + b"\n")

    assert list(spool.read(path)) == []


def test_segments_rotate_by_size(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, segment_bytes=1000)
    for number in range(40):
        writer.append({"kind": "call", "id": str(number)}, body(number, 100))
    writer.close()

    paths = spool.segments(tmp_path)

    assert len(paths) > 3
    assert [one for path in paths for one in ids(path)] == [str(n) for n in range(40)]


def test_a_removed_segment_is_begun_again(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "spool")
    writer.append({"kind": "call", "id": "a"}, body(1))
    for path in spool.segments(tmp_path / "spool"):
        path.unlink()
    (tmp_path / "spool").rmdir()
    writer.append({"kind": "call", "id": "b"}, body(2))

    (path,) = spool.segments(tmp_path / "spool")

    assert ids(path) == ["b"]


def test_a_segment_is_locked_while_its_writer_lives(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from otel_rollout.exporters.segments import SegmentWriter\n"
        "w = SegmentWriter(Path(sys.argv[1])); w.append({'kind': 'call', 'id': '1'}, b'{}')\n"
        "print('written', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    (path,) = spool.segments(tmp_path)

    assert spool.is_being_written(path)
    assert spool.is_of_this_host(path)
    assert spool.writer_of(path) == (spool.host_name(), child.pid)
    child.kill()
    child.communicate()
    assert not spool.is_being_written(path)
    assert ids(path) == ["1"]


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.append({"kind": "call", "id": "parent"}, body(1))
    parents = writer.path
    release, hold = os.pipe()
    begun, begin = os.pipe()
    child = os.fork()
    if child == 0:
        writer.append({"kind": "call", "id": "child"}, body(2))
        os.close(hold)
        os.write(begin, b"!")
        os.read(release, 1)
        os._exit(0)
    os.close(release)
    os.read(begun, 1)
    writer.append({"kind": "call", "id": "parent again"}, body(3))
    writer.close()
    assert parents is not None
    try:
        assert not spool.is_being_written(parents)
    finally:
        os.close(hold)
        os.waitpid(child, 0)
    assert sorted(map(ids, spool.segments(tmp_path))) == [["child"], ["parent", "parent again"]]


def test_one_at_a_time_delivers(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    ours = claim(path)
    assert ours is not None
    assert not ours.taken_up
    assert claim(path) is None
    ours.note(33)
    ours.release()

    again = claim(path)
    assert again is not None
    assert again.taken_up
    assert again.offset == spool.sent_offset(path) == 33
    again.forget()
    assert claim(path) is None
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_raises_and_the_rest_is_read(tmp_path: Path) -> None:
    """As with a full disk, by a limit on the size of files: the record is written in part."""
    program = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from otel_rollout.exporters.segments import SegmentWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "w = SegmentWriter(Path(sys.argv[1])); w.append({'kind': 'call', 'id': '1'}, b'{}')\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (w.size + 100, hard))\n"
        "try: w.append({'kind': 'call', 'id': '2'}, b'\"' + b'x' * 1000 + b'\"')\n"
        "except OSError: print('refused')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))\n"
        "w.append({'kind': 'call', 'id': '3'}, b'{}')\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)

    assert done.stdout == "refused\n"
    assert [one for path in spool.segments(tmp_path) for one in ids(path)] == ["1", "3"]

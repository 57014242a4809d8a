"""The index of a store: an SQLite file made from the spool's segments, as far as they are written.

It holds nothing of its own: where it is lost, damaged or of another version it is made anew. Each
segment is read from where it was left, so that a store which grows costs what is new; facts that
come later (a reward, an advantage) are folded into the trajectory that they are about. Several
processes may keep one index up to date; SQLite lets one of them write at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.exporters import spool
from otel_rollout.local import facts, schema
from otel_rollout.local.store import spool_folder

FILE_NAME: Final = "index.sqlite"
_RECORDS_A_TIME: Final = 20_000
_RECORD_FRAME: Final = 12
"""Bytes of a record beside its meta and its body: RS, checksum, two TABs, LF."""
_EPSILON: Final = 1e-6

Progress = Callable[[int, int], None]
"""Called with the bytes that are read and the bytes that there are."""


class Index:
    """The index of the store in ``directory``. For several threads.

    Args:
        directory: ``OTEL_ROLLOUT_DIR`` of the traced processes.
        file: where the index is kept; by default in the store, or, where that cannot be written,
            in a temporary folder.
    """

    def __init__(self, directory: Path, file: Path | None = None) -> None:
        self.directory = directory
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.file = file or self._usual_file()
        self._local = threading.local()
        self._writing = threading.Lock()
        self._generation = 0
        self._writer = self._opened()

    def _usual_file(self) -> Path:
        if os.access(self.directory, os.W_OK):
            return self.directory / FILE_NAME
        return self._temporary_file()

    def _temporary_file(self) -> Path:
        self._temporary = tempfile.TemporaryDirectory(prefix="otel-rollout-")
        return Path(self._temporary.name) / FILE_NAME

    def _opened(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.OperationalError:  # a file system without locks or shared memory, say
            self.file = self._temporary_file()
        except sqlite3.DatabaseError:  # damaged, or not one of ours
            remove(self.file)
        return self._connected()

    def _make_anew(self) -> None:
        """Throw the index away: a part of it that was read only now is damaged."""
        with contextlib.suppress(sqlite3.Error):
            self._writer.close()
        remove(self.file)
        self._writer = self._connected()
        self._generation += 1

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.file, timeout=60, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # it can be made anew
            connection.execute("PRAGMA cache_size = -131072")
            connection.create_function("group_name", 5, group_name, deterministic=True)
            with _transaction(connection):
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version not in (0, schema.VERSION):
                    raise sqlite3.DatabaseError(f"index of version {version}")
                if version == 0:
                    for statement in schema.TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {schema.VERSION}")
            connection.execute(schema.DIRTY)
            connection.execute(schema.DIRTY_STEPS)
            connection.execute(schema.DIRTY_GROUPS)
        except BaseException:
            connection.close()
            raise
        os.chmod(self.file, 0o600)
        return connection

    @property
    def spool(self) -> Path:
        """The folder of the segments, which may come later than the index."""
        return spool_folder(self.directory)

    # --- reading the segments --------------------------------------------------------------------

    def update(self, progress: Progress | None = None) -> bool:
        """Take in what the segments hold beyond what is known; return whether that was anything.

        Raises ``sqlite3.Error`` where the index cannot be written.
        """
        with self._writing:
            try:
                return self._update(progress)
            except sqlite3.OperationalError:  # a full disk, say; the index is as it was
                raise
            except sqlite3.DatabaseError:
                self._make_anew()
                return self._update(progress)

    def _update(self, progress: Progress | None) -> bool:
        known = {
            name: (number, offset, size)
            for number, name, offset, size in self._writer.execute(
                "SELECT number, name, offset, size FROM segments"
            )
        }
        present = {path.name: path for path in spool.segments(self.spool)}
        changed = self._forget([known[name][0] for name in known.keys() - present.keys()])
        grown = []
        for name, path in present.items():
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                number, offset, before = known.get(name, (None, 0, -1))
                if number is not None and size < offset:  # another file by this name
                    self._forget([number])
                    number, offset, before = None, 0, -1
                if size != before:
                    grown.append((path, size, offset))
        whole = sum(size - offset for _, size, offset in grown)
        done = 0
        for path, size, offset in grown:
            for end in self._read_on(path, size, offset):
                changed = True
                if progress is not None:
                    progress(done + end - offset, whole)
            done += size - offset
        return changed

    def _read_on(self, path: Path, size: int, offset: int) -> Iterator[int]:
        """Take in a segment from ``offset`` on, in transactions; yield how far it has come."""
        begun = spool.begun_at(path)
        try:
            reader = spool.SegmentReader(path, offset)
        except OSError:
            return
        with reader:
            while True:
                with _transaction(self._writer):
                    batch = _Batch(self._writer, self._number_of(path), offset, begun)
                    count = 0
                    while count < _RECORDS_A_TIME and (record := reader.next()) is not None:
                        batch.take(record)
                        count += 1
                    at_end = count < _RECORDS_A_TIME
                    batch.write(size if at_end else batch.offset)
                    if count:
                        self._fold()
                if count:
                    yield batch.offset
                offset = batch.offset
                if at_end:
                    return

    def _number_of(self, path: Path) -> int:
        self._writer.execute(
            "INSERT OR IGNORE INTO segments (name, offset, size) VALUES (?, 0, 0)", (path.name,)
        )
        found = self._writer.execute("SELECT number FROM segments WHERE name = ?", (path.name,))
        return int(found.fetchone()[0])

    def _forget(self, segments: list[int]) -> bool:
        """Forget what was in segments that are no longer there."""
        for number in segments:
            with _transaction(self._writer):
                run = self._writer.execute
                run(
                    "INSERT OR IGNORE INTO dirty SELECT trace FROM calls WHERE segment = ?",
                    (number,),
                )
                run(
                    "INSERT OR IGNORE INTO dirty SELECT c.trace FROM feedback f "
                    "JOIN calls c ON c.id = f.call WHERE f.segment = ?",
                    (number,),
                )
                run("DELETE FROM calls WHERE segment = ?", (number,))
                run("DELETE FROM feedback WHERE segment = ?", (number,))
                run("DELETE FROM segments WHERE number = ?", (number,))
                self._fold()
        return bool(segments)

    def _fold(self) -> None:
        """Make the rows of the trajectories and steps anew that have something new."""
        run = self._writer.execute
        version = self.version(self._writer) + 1
        run("INSERT OR REPLACE INTO state VALUES ('version', ?)", (version,))
        before = """INSERT OR IGNORE INTO temp.dirty_steps SELECT DISTINCT project, experiment,
            step, validate FROM trajectories WHERE trace IN (SELECT trace FROM dirty)"""
        run(before)  # where a trajectory has been so far
        run(schema.TOUCH_GROUPS)
        run(schema.FOLD_TRAJECTORIES, {"version": version})
        run(
            "DELETE FROM trajectories WHERE trace IN (SELECT trace FROM dirty) "
            "AND trace NOT IN (SELECT trace FROM calls WHERE trace IN (SELECT trace FROM dirty))"
        )
        run(schema.NAME_GROUPS)
        run(schema.TOUCH_GROUPS)
        self._fold_groups()
        run(before)
        run(
            "DELETE FROM steps WHERE (project, experiment, step, validate) IN (SELECT project, "
            "experiment, coalesce(step, -1), validate FROM temp.dirty_steps)"
        )
        run(schema.FOLD_STEPS)
        run("DELETE FROM temp.dirty_steps")
        run("DELETE FROM dirty")

    def _fold_groups(self) -> None:
        rows = self._writer.execute(
            "SELECT number, grp, reward, given_advantage FROM trajectories "
            "WHERE grp IN (SELECT grp FROM temp.dirty_groups)"
        )
        groups: dict[str, list[tuple[int, float | None, float | None]]] = {}
        for number, group, reward, given in rows:
            groups.setdefault(group, []).append((number, reward, given))
        updates = []
        for members in groups.values():
            rewards = [reward for _, reward, _ in members if reward is not None]
            spread = max(rewards) - min(rewards) if len(rewards) > 1 else None
            for number, reward, given in members:
                value = given if given is not None else advantage(reward, rewards)
                updates.append((value, spread, number))
        self._writer.executemany(
            "UPDATE trajectories SET advantage = ?, spread = ? WHERE number = ?", updates
        )
        self._writer.execute(schema.FORGET_GROUPS)
        self._writer.execute(schema.FOLD_GROUPS)
        self._writer.execute("DELETE FROM temp.dirty_groups")

    # --- asking ----------------------------------------------------------------------------------

    def version(self, connection: sqlite3.Connection | None = None) -> int:
        """Return a number that grows whenever something new is taken in."""
        run = (connection or self.reader()).execute
        found = run("SELECT value FROM state WHERE name = 'version'").fetchone()
        return int(found[0]) if found is not None else 0

    def reader(self) -> sqlite3.Connection:
        """Return this thread's connection, which can only read."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None or self._local.generation != self._generation:
            self._local.generation = self._generation
            address = f"{self.file.absolute().as_uri()}?mode=ro"
            connection = sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA cache_size = -16384")
            connection.execute(f"PRAGMA mmap_size = {1 << 30}")  # scans, without copying pages
            connection.execute("PRAGMA query_only = ON")
            self._local.connection = connection
        return connection

    def query(self, sql: str, values: Any = ()) -> list[sqlite3.Row]:
        """Return the rows that a query finds."""
        return self.reader().execute(sql, values).fetchall()

    def body(self, segment: str, offset: int, size: int) -> bytes:
        """Return the JSON of a record by its place; raises ``OSError`` where it has gone."""
        with (self.spool / segment).open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def close(self) -> None:
        """Close the writing connection and remove a temporary index."""
        self._writer.close()
        if self._temporary is not None:
            self._temporary.cleanup()


class _Batch:
    """Records of one segment on their way into the tables."""

    def __init__(
        self, connection: sqlite3.Connection, segment: int, offset: int, begun: float
    ) -> None:
        self._connection = connection
        self._begun = begun
        self._segment = segment
        self.offset = offset
        self._calls: list[tuple[Any, ...]] = []
        self._feedback: list[tuple[Any, ...]] = []
        self._damaged = 0
        self._unreadable = 0

    def take(self, record: spool.Record) -> None:
        frame = _RECORD_FRAME + len(orjson.dumps(record.meta)) + len(record.body)
        self._damaged += record.end - frame > self.offset
        self.offset = record.end
        place = (self._segment, record.end - 1 - len(record.body), len(record.body))
        try:
            if record.kind == spool.CALL:
                project = str(record.meta.get("project") or "")
                self._calls.append((*facts.of_call(record.parsed(), project), *place))
            elif record.kind == spool.FEEDBACK:
                self._feedback.append((*_feedback(record.parsed(), self._begun), *place))
        except Exception:  # whatever it holds, the records behind it are read
            self._unreadable += 1

    def write(self, size: int) -> None:
        run = self._connection
        run.executemany(schema.PUT_CALL, self._calls)
        run.executemany(schema.PUT_FEEDBACK, self._feedback)
        run.executemany(
            "INSERT OR IGNORE INTO dirty VALUES (?)", {(call[1],) for call in self._calls}
        )
        run.executemany(
            "INSERT OR IGNORE INTO dirty SELECT trace FROM calls WHERE id = ?",
            {(one[1],) for one in self._feedback},
        )
        run.execute(
            "UPDATE segments SET offset = ?, size = ?, damaged = damaged + ?, "
            "unreadable = unreadable + ? WHERE number = ?",
            (self.offset, size, self._damaged, self._unreadable, self._segment),
        )


def _feedback(body: dict[str, Any], begun: float) -> tuple[Any, ...]:
    payload = body.get("payload")
    payload = payload if isinstance(payload, dict) else {"value": payload}
    kind = str(body.get("feedback_type"))
    name = payload.get("name")
    return (
        str(body["id"]),
        str(body["call_id"]),
        kind,
        str(name if name is not None else kind),
        facts.number(payload.get("value")),
        facts.seconds(body.get("created_at")) or begun,
    )


def group_name(project: str, experiment: str, step: Any, validate: int, member: Any) -> str | None:
    """Return the name of the group of rollouts of one prompt, the same in every index."""
    if member is None:
        return None
    key = orjson.dumps([project, experiment, step, validate, str(member)])
    return hashlib.blake2b(key, digest_size=8).hexdigest()


def advantage(reward: float | None, rewards: list[float]) -> float | None:
    """Return the reward normalized over its group as GRPO does: by mean and sample deviation."""
    if reward is None or len(rewards) < 2:
        return None
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return (reward - mean) / (deviation + _EPSILON)


def remove(file: Path) -> None:
    """Remove an index, with what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")

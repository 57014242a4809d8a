"""The shipper: reads this process's segments as they grow, and sends them to the trace server.

It holds nothing but an offset: what is not delivered when the process dies is in the spool. An
unreachable server is one warning, and tried again with growing pauses.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_rollout.diagnostics import logger, report_internal_error, say_once
from otel_rollout.exporters import spool
from otel_rollout.exporters.weave.client import Client, Destination, ServerError

BATCH_BYTES: Final = 4 << 20
BATCH_CALLS: Final = 200
_GATHER_S: Final = 0.2
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_REFUSED: Final = frozenset({401, 403})


class Projects:
    """Finds ``entity/project`` for a project's name, and creates projects, when they are needed."""

    def __init__(self, client: Client, fallback: str) -> None:
        self._client = client
        self._fallback = fallback
        self._entity: str | None = os.environ.get("WANDB_ENTITY")
        self._known: dict[str, str] = {}

    def resolve(self, name: str | None) -> str:
        """Return ``entity/project``; raises :class:`ServerError` when W&B cannot be asked."""
        name = name or self._fallback
        project_id = self._known.get(name)
        if project_id is None:
            entity, slash, project = name.partition("/")
            if not slash:
                project = name
                if self._entity is None:
                    self._entity = self._client.default_entity()
                entity = self._entity
            project_id = f"{entity}/{project}"
            if self._client.where.api_key:
                self._client.ensure_project(entity, project)
            self._known[name] = project_id
        return project_id


class Shipper:
    """One daemon thread that delivers the segments that :meth:`follow` names, in order.

    Args:
        where: the destination.
        fallback_project: for calls that name no project.
        counters: ``shipped``, ``shipped_feedback``, ``refused_by_server`` are counted here.
    """

    def __init__(self, where: Destination, fallback_project: str, counters: Counter[str]) -> None:
        self._where = where
        self._fallback = fallback_project
        self._counters = counters
        self._segments: list[Path] = []
        self._offset = -1
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._stopped = False
        self._thread: threading.Thread | None = None
        # Jitter has a generator of its own: the training's is neither read nor moved.
        self._random = random.Random(os.urandom(16))

    def follow(self, segment: Path) -> None:
        """Deliver what is and will be in ``segment``, after the segments named before."""
        if not self._segments or self._segments[-1] != segment:
            self._segments.append(segment)
        self._idle.clear()
        self._wake.set()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="otel-rollout-shipper", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down; `push` delivers
                return
            self._thread = thread

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until everything spooled is delivered; False after ``timeout`` seconds."""
        return self._thread is None or self._idle.wait(timeout)

    def stop(self, timeout: float) -> None:
        """Deliver for at most ``timeout`` seconds more, then leave the rest in the spool."""
        self.wait_until_idle(timeout)
        self._stopped = True
        self._wake.set()

    def _run(self) -> None:
        with suppress_instrumentation():
            client = Client(self._where)
            projects = Projects(client, self._fallback)
            pause = 0.0
            while not self._stopped:
                self._wake.wait(None if pause == 0.0 else pause)
                if pause == 0.0:
                    self._wake.wait(0)
                    time.sleep(_GATHER_S)
                self._wake.clear()
                try:
                    self._deliver_all(client, projects)
                    pause = 0.0
                except ServerError as error:
                    pause = self._next_pause(pause, error)
                except Exception as error:
                    report_internal_error("shipper", error)
                    pause = self._next_pause(pause, None)
            client.close()

    def _next_pause(self, pause: float, error: ServerError | None) -> float:
        if error is not None:
            self._say(error)
            if error.retry_after is not None:
                return min(max(error.retry_after, 0.1), 600.0)
        longer = min(max(pause * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return longer * (0.75 + self._random.random() / 2)

    def _say(self, error: ServerError) -> None:
        if error.status in _REFUSED:
            say_once(
                "refused",
                "Weave at %s refuses the credentials (%d): calls stay in the local store; deliver "
                "them with `otel-rollout push`",
                self._where.trace_server,
                error.status,
            )
        else:
            say_once(
                "unreachable",
                "Weave at %s does not take calls at present (%s): they are kept in the local store "
                "and tried again",
                self._where.trace_server,
                error,
            )

    def _deliver_all(self, client: Client, projects: Projects) -> None:
        while True:
            segment = self._segments[0]
            if self._offset < 0:
                self._offset = spool.sent_offset(segment)
            more = self._deliver_some(segment, client, projects)
            if self._stopped:
                return
            if not more:
                if len(self._segments) == 1:
                    if not self._wake.is_set():
                        self._idle.set()
                    return
                self._segments.pop(0)
                self._offset = -1

    def _deliver_some(self, segment: Path, client: Client, projects: Projects) -> bool:
        """Deliver one batch; False when the segment has nothing more at present."""
        calls: list[bytes] = []
        project: str | None = None
        size, end, any_record = 0, self._offset, False
        for record in spool.read(segment, self._offset):
            kind = record.meta.get("kind")
            if kind == "call":
                if calls and (
                    record.meta.get("project") != project
                    or size + len(record.body) > BATCH_BYTES
                    or len(calls) >= BATCH_CALLS
                ):
                    break
                project = record.meta.get("project")
                calls.append(record.body)
                size += len(record.body)
            elif kind == "feedback":
                if calls:
                    break
                client.create_feedback(
                    projects.resolve(record.meta.get("project")), record.parsed()
                )
                self._counters["shipped_feedback"] += 1
            any_record = True
            end = record.end
            if kind == "feedback":
                break
        if calls:
            self._send(calls, projects.resolve(project), client)
        if end != self._offset:
            self._offset = end
            spool.note_sent(segment, end)
        return any_record

    def _send(self, calls: list[bytes], project_id: str, client: Client) -> None:
        """Send calls; a call that the server will never take is counted and left out."""
        try:
            client.complete_calls(project_id, calls)
        except ServerError as error:
            if not 400 <= error.status < 500 or error.status in {401, 403, 404, 408, 429}:
                raise
            if len(calls) > 1:
                middle = len(calls) // 2
                self._send(calls[:middle], project_id, client)
                self._send(calls[middle:], project_id, client)
                return
            self._counters["refused_by_server"] += 1
            logger.warning("Weave refuses a call: %s", error)
            return
        self._counters["shipped"] += len(calls)

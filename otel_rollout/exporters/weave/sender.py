"""Sending records: batches that fit server and line, and what each kind of refusal means."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.exporters import spool
from otel_rollout.exporters.spool import MAX_BATCH_BYTES, Record
from otel_rollout.exporters.weave import oversize
from otel_rollout.exporters.weave.client import Client, ServerError
from otel_rollout.exporters.weave.projects import Projects, with_run

_FIRST_BATCH_BYTES: Final = 128 << 10
_SMALLEST_BATCH_BYTES: Final = 32 << 10
_SMALLEST_REQUEST_BYTES: Final = 8 << 10
_BATCH_S: Final = 5.0
"""How long a batch should take at most: on a slow line batches become smaller."""
_TOO_LARGE: Final = 413
_NOT_FOUND: Final = 404

PutAside = Callable[[Record, str, int, str], None]
"""Takes what the server will never take: record, project, status and reason."""


class Sender:
    """Sends records over one client, and knows which the server has.

    Args:
        client: to send with.
        projects: to find where each record goes.
        put_aside: for what the server will never take.
        counters: ``shipped``, ``shipped_bytes``, ``shipped_feedback``, ``dead_letters`` and
            ``offloaded`` (calls with fields moved to files) are counted here.
    """

    def __init__(
        self, client: Client, projects: Projects, put_aside: PutAside, counters: Counter[str]
    ) -> None:
        self.batch_bytes = _FIRST_BATCH_BYTES
        self.in_doubt = False
        """Whether a request may have been carried out though it failed: ask before sending."""
        self.put_aside = put_aside
        self._client = client
        self._projects = projects
        self._counters = counters
        self._request_limit: int | None = None
        self._stored: set[str] = set()

    def send(self, records: Sequence[Record]) -> None:
        """Send calls, then feedback; raises :class:`ServerError` when that has to wait.

        What was taken before the error is not sent again by the next call with these records.
        """
        for kind in (spool.CALL, spool.FEEDBACK):
            for project_id, those in self._by_project(records, kind).items():
                for batch in self._batches(those):
                    self._send_batch(project_id, batch)
        self._stored.difference_update(record.id for record in records if _is_sent(record))

    def ask(self, records: Iterable[Record]) -> None:
        """Ask the server which of these it has: they are not sent again."""
        records = [record for record in records if _is_sent(record)]
        try:
            missing = {id(record) for record in self.missing(records)}
        except ServerError as error:
            if error.about_the_content or error.status in {404, 405}:
                return  # a server that cannot be asked: what is sent again merges there
            raise
        self._took([record for record in records if id(record) not in missing])

    def missing(self, records: Iterable[Record]) -> list[Record]:
        """Return the calls and feedback among ``records`` that the server does not have."""
        gone: list[Record] = []
        records = list(records)
        for kind, asking in (
            (spool.CALL, self._client.stored_calls),
            (spool.FEEDBACK, self._client.stored_feedback),
        ):
            for project_id, those in self._by_project(records, kind).items():
                found = asking(project_id, [record.id for record in those])
                gone += [record for record in those if record.id not in found]
        return gone

    def _by_project(self, records: Iterable[Record], kind: str) -> dict[str, list[Record]]:
        found: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.kind == kind:
                found[self._projects.resolve(record.meta.get("project"))].append(record)
        return found

    def _batches(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        batch: list[Record] = []
        size = 0
        for record in records:
            if record.id in self._stored:
                continue
            if batch and size + len(record.body) > self.batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append(record)
            size += len(record.body)
        if batch:
            yield batch

    def _send_batch(self, project_id: str, batch: list[Record]) -> None:
        """Send records of one kind; those that are refused for good are found and put aside."""
        try:
            if batch[0].kind == spool.CALL:
                self._post(project_id, [self._body(project_id, record) for record in batch])
            else:
                self._client.create_feedback(project_id, [record.parsed() for record in batch])
        except ServerError as error:
            self.in_doubt = self.in_doubt or error.in_doubt
            if error.status == _NOT_FOUND:
                self._projects.forget()
            if not error.about_the_content:
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                self._send_batch(project_id, batch[:middle])
                self._send_batch(project_id, batch[middle:])
            elif error.status != _TOO_LARGE or not self._send_in_parts(project_id, batch[0]):
                self._put_aside(batch[0], project_id, error)
        else:
            self._took(batch)

    def _body(self, project_id: str, record: Record) -> bytes:
        body = with_run(record.body, project_id, record.meta.get("wandb"))
        limit = min(oversize.ROW_BYTES, self._request_limit or oversize.ROW_BYTES)
        if not oversize.is_oversize(body, limit):
            return body
        return self._shrunk(project_id, body, limit)

    def _shrunk(self, project_id: str, body: bytes, limit: int) -> bytes:
        def create_file(name: str, content: bytes) -> str:
            return self._client.create_file(project_id, name, content)

        self._counters["offloaded"] += 1
        file_bytes = min(oversize.FILE_BYTES, limit if self._request_limit else oversize.FILE_BYTES)
        return oversize.shrink(body, limit, file_bytes, create_file)

    def _send_in_parts(self, project_id: str, record: Record) -> bool:
        """Send one call that is too large, with more and more of it as smaller and smaller files.

        Returns False when that does not help.
        """
        if record.kind != spool.CALL:
            return False
        body = with_run(record.body, project_id, record.meta.get("wandb"))
        limit = min(len(body), self._request_limit or len(body)) // 2
        while limit >= _SMALLEST_REQUEST_BYTES:
            self._request_limit = limit
            try:
                self._post(project_id, [self._shrunk(project_id, body, limit)])
            except ServerError as error:
                if error.status == _TOO_LARGE:
                    limit //= 2
                elif error.about_the_content:
                    return False
                else:
                    raise
            else:
                self._took([record])
                return True
        self._request_limit = None
        return False

    def _post(self, project_id: str, bodies: list[bytes]) -> None:
        size = sum(map(len, bodies))
        started = time.monotonic()
        try:
            self._client.complete_calls(project_id, bodies)
        except ServerError as error:
            if error.status == _TOO_LARGE or (error.sent and not error.answered):
                self.batch_bytes = max(_SMALLEST_BATCH_BYTES, min(self.batch_bytes, size) // 2)
            raise
        taken = max(time.monotonic() - started, 0.001)
        if size / taken * _BATCH_S >= 2 * self.batch_bytes:
            self.batch_bytes = min(MAX_BATCH_BYTES, 2 * self.batch_bytes)
        elif taken > _BATCH_S:
            self.batch_bytes = max(_SMALLEST_BATCH_BYTES, int(size / taken * _BATCH_S))

    def _took(self, records: Sequence[Record]) -> None:
        """Note that the server has these."""
        new = [record for record in records if record.id not in self._stored]
        self._stored.update(record.id for record in new)
        for record in new:
            if record.kind == spool.CALL:
                self._counters["shipped"] += 1
                self._counters["shipped_bytes"] += len(record.body)
            else:
                self._counters["shipped_feedback"] += 1

    def _put_aside(self, record: Record, project_id: str, error: ServerError) -> None:
        self._counters["dead_letters"] += 1
        self._stored.add(record.id)  # done with, though not stored
        say_once(
            f"dead-letter:{error.status}",
            "Weave refuses a %s for good (%s): it is put aside beside its segment, and the rest "
            "goes on; `otel-rollout push` tries it again",
            record.kind,
            error,
        )
        try:
            self.put_aside(record, project_id, error.status, str(error))
        except OSError as failure:
            self._counters["dropped_dead_letters"] += 1
            report_internal_error("dead letters", failure)


def _is_sent(record: Record) -> bool:
    return record.kind in (spool.CALL, spool.FEEDBACK)

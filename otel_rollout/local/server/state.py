"""What all requests share: the index, kept up to date by a thread, and the tokenizers."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_rollout.exporters import retention
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.local.index import Index
from otel_rollout.local.vocabulary import Vocabularies
from otel_rollout.settings import SPOOL_FOLDER, settings

POLL_S: Final = 0.5
_logger = logging.getLogger("otel_rollout")


@dataclass
class Progress:
    """How far the indexing has come that is going on."""

    done: int = 0
    whole: int = 0
    first_done: bool = False

    @property
    def percent(self) -> int | None:
        """Per cent of the first indexing; ``None`` once it is done."""
        if self.first_done:
            return None
        return min(99, round(100 * self.done / self.whole)) if self.whole else 0


@dataclass
class State:
    """One viewer's state. :meth:`start` lets the index follow the store."""

    directory: Path
    index: Index
    vocabularies: Vocabularies
    writer: SegmentWriter
    progress: Progress = field(default_factory=Progress)
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Held around the writer, which is not for several threads at once."""
    dropped: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @classmethod
    def of(cls, directory: Path, tokenizer: Path | None = None) -> State:
        """Return the state for a store, which need not be there yet."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        index = Index(directory)
        writer = SegmentWriter(
            index.spool if index.spool != directory else directory / SPOOL_FOLDER,
            retention.segment_bytes(settings().max_disk),
        )
        return cls(directory, index, Vocabularies(directory, tokenizer), writer)

    def start(self) -> None:
        """Begin to follow the store."""
        self._thread = threading.Thread(target=self._follow, name="otel-rollout-index", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self.index.update(self._note)
                self.progress.first_done = True
                self._keep_within_limit()
            except sqlite3.Error as error:  # a full disk, say: what is indexed can be looked at
                _logger.warning("the index %s cannot be written: %s", self.index.file, error)
                self._stop.wait(5)
            self._stop.wait(POLL_S)

    def catch_up(self) -> None:
        """Take in what has just been written, unless the store is still indexed the first time."""
        if self.progress.first_done:
            try:
                self.index.update()
            except sqlite3.Error as error:
                _logger.warning("the index %s cannot be written: %s", self.index.file, error)

    def _keep_within_limit(self) -> None:
        """Hold the store to its disk limit where this process writes to it."""
        if self.writer.path is not None:
            retention.make_room(self.writer.directory, settings().max_disk, self.dropped)

    def _note(self, done: int, whole: int) -> None:
        self.progress.done, self.progress.whole = done, whole

    def stop(self) -> None:
        """Stop following, and close what is open."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        self.writer.close()
        self.index.close()

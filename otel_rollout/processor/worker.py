"""The worker thread: takes ended spans off the caller's hands, in order.

Putting something in never blocks on work or I/O. What waits is bounded in bytes; beyond the bound
it is dropped and counted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.forking import in_child_while_alive

_Item = TypeVar("_Item")

BATCH_ITEMS: Final = 8
"""How many are handled together. Not more than there is a use for: while many are half done, the
garbage collector starts again and again, and stops every thread."""
MANY_ITEMS: Final = 64
"""The same where each batch is a request to a server."""
BATCH_BYTES: Final = 8 << 20
LINGER_S: Final = 0.005
"""How long the thread lets more come before it sets to work, where nothing is urgent: a caller in
the middle of a burst is not to share the interpreter with what it has just queued."""


class _Barrier:
    def __init__(self) -> None:
        self.reached = threading.Event()


_Waiting = tuple[_Item | _Barrier, int]
"""An item, or a mark to wait for, and the bytes that it holds."""


class Worker(Generic[_Item]):
    """A queue in front of one daemon thread that calls ``handle`` with what was put in, in order.

    Args:
        name: of the thread.
        handle: called with one or more items at a time; an exception in it is logged and the
            thread goes on.
        compact: makes an item smaller that has to wait, and returns its bytes from then on.
        max_bytes: bound of what waits.
        counters: ``dropped_queue_full`` is counted here.
        batch_items: how many items are handled together, at most.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[Sequence[_Item]], None],
        compact: Callable[[_Item], int],
        max_bytes: int,
        counters: Counter[str],
        batch_items: int = BATCH_ITEMS,
    ) -> None:
        self._name = name
        self._batch_items = batch_items
        self._handle = handle
        self._compact = compact
        self._max_bytes = max_bytes
        self._counters = counters
        self._reset()
        in_child_while_alive(self._reset)

    def _reset(self) -> None:
        """Start empty: in a new process nothing of the parent's queue or thread is left."""
        # A span may be ended by the garbage collector, inside any call here and on any thread, the
        # worker's too: the queue and the lock are of the kinds that this cannot deadlock.
        self._items: SimpleQueue[_Waiting[_Item]] = SimpleQueue()
        self._backlog: deque[_Waiting[_Item]] = deque()  # compacted; the thread's own
        self._lock = threading.RLock()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._starting = False
        self._closed = False
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Number of items that wait."""
        return self._items.qsize() + len(self._backlog)

    @property
    def waiting_bytes(self) -> int:
        """Estimate of the bytes that wait."""
        return self._waiting_bytes

    def put(self, item: _Item, size: int, *, urgent: bool = False) -> bool:
        """Queue an item of ``size`` bytes; False when there is no room, or after :meth:`stop`.

        ``urgent``: the thread sets to work at once, on all that was put in before as well.
        """
        with self._lock:
            if self._closed or self._waiting_bytes + size > self._max_bytes:
                self._counters["dropped_queue_full"] += 1
                full = True
            else:
                self._waiting_bytes += size
                self._items.put((item, size))
                full = False
        if full:
            say_once(
                "queue-full",
                "the span queue is full (%d bytes) or closed: spans are dropped and counted",
                self._max_bytes,
            )
            return False
        self._ensure_thread()
        if urgent:
            self._hurry.set()
        return True

    def wait_for_all(self, timeout: float) -> bool:
        """Wait until all that was put in before is handled; False after ``timeout`` seconds."""
        if self._stopped or (self._thread is None and not self.waiting):
            return not self.waiting
        barrier = _Barrier()
        self._items.put((barrier, 0))
        self._hurry.set()
        self._ensure_thread()
        return barrier.reached.wait(timeout)

    def stop(self, timeout: float) -> bool:
        """Take nothing more, and handle what waits."""
        with self._lock:
            self._closed = True
        done = self.wait_for_all(timeout)
        if not self._stopped:
            self._stopped = True
            self._items.put((_Barrier(), 0))  # wakes the thread, which ends
            self._hurry.set()
        return done

    def _ensure_thread(self) -> None:
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is not None or self._starting:
                return
            self._starting = True
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError:  # the interpreter is shutting down: no new threads
                pass
            finally:
                self._starting = False
        self._drain()

    def _run(self) -> None:
        # An exporter's own HTTP must not be traced, or every batch makes the next one.
        with suppress_instrumentation():
            while not self._stopped:
                if self._backlog:
                    self._take(self._backlog.popleft())
                    continue
                first = self._items.get()
                if not isinstance(first[0], _Barrier):
                    self._hurry.wait(LINGER_S)
                self._hurry.clear()
                self._take(first)
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._take(self._next())

    def _next(self) -> _Waiting[_Item]:
        """Return what waits longest; raises ``Empty``."""
        return self._backlog.popleft() if self._backlog else self._items.get_nowait()

    def _take(self, first: _Waiting[_Item]) -> None:
        """Handle ``first`` and what waits behind it, up to a barrier or a batch's size."""
        batch: list[_Item] = []
        item, size = first
        with contextlib.suppress(Empty):
            while not isinstance(item, _Barrier):
                batch.append(item)
                if len(batch) >= self._batch_items or size >= BATCH_BYTES:
                    break
                item, item_size = self._next()
                size += item_size
        if self._items.qsize() > self._batch_items:
            self._compact_what_waits()
        if batch:
            try:
                self._handle(batch)
            except BaseException as error:  # an extension's panic is no Exception
                self._counters["failed_in_worker"] += len(batch)
                report_internal_error(f"worker {self._name}", error)
            with self._lock:
                self._waiting_bytes -= size
        if isinstance(item, _Barrier):
            item.reached.set()

    def _compact_what_waits(self) -> None:
        """Make room: more waits than the next batch will take."""
        gained = 0
        for _ in range(self._items.qsize()):
            item, size = self._items.get_nowait()
            smaller = size
            if not isinstance(item, _Barrier):
                try:
                    smaller = min(size, self._compact(item))
                except Exception as error:
                    report_internal_error(f"worker {self._name}", error)
            gained += size - smaller
            self._backlog.append((item, smaller))
        with self._lock:
            self._waiting_bytes -= gained


class QuietFlusher:
    """Calls ``flush`` soon after the last :meth:`touch`, at most once in ``interval`` seconds.

    Ray ends actors without running exit handlers; what other exporters hold back for a fuller
    batch would be lost with them. A flush may block, so it has a thread of its own.
    """

    def __init__(
        self, name: str, flush: Callable[[], None], quiet: float = 0.05, interval: float = 1.0
    ) -> None:
        self._name = name
        self._flush = flush
        self._quiet = quiet
        self._interval = interval
        self._reset()
        in_child_while_alive(self._reset)

    def _reset(self) -> None:
        self._touched = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def touch(self) -> None:
        """Say that something was handed to the exporters behind."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                return
        self._touched.set()

    def stop(self) -> None:
        """Flush no more."""
        self._stopped = True
        self._touched.set()

    def _run(self) -> None:
        with suppress_instrumentation():
            while True:
                self._touched.wait()
                started = time.monotonic()
                while self._touched.is_set() and time.monotonic() - started < self._interval:
                    self._touched.clear()
                    self._touched.wait(self._quiet)
                if self._stopped:
                    return
                try:
                    self._flush()
                except Exception as error:
                    report_internal_error("flush", error)

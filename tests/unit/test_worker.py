"""The worker's queue: in order, bounded in bytes, smaller while it waits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout.payload import Choice, Payload, pack_floats, pack_ids, pack_mask
from otel_rollout.processor import worker as workers
from otel_rollout.processor.worker import MANY_ITEMS, Worker


class Item:
    def __init__(self, number: int, fails: bool = False) -> None:
        self.number = number
        self.fails = fails
        self.bytes = 100

    def compact(self) -> int:
        if self.fails:
            raise ValueError("cannot be packed")
        self.bytes = 40
        return self.bytes


class Steps:
    """Handles a batch whenever it is told to."""

    def __init__(self) -> None:
        self.handled: list[Item] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, items: Sequence[Item]) -> None:
        self.begun.release()
        assert self.go.acquire(timeout=30)
        self.handled += items


def test_what_has_to_wait_is_compacted_and_leaves_room() -> None:
    counters: Counter[str] = Counter()
    steps = Steps()
    worker: Worker[Item] = Worker("w", steps, Item.compact, 100 * 300, counters, MANY_ITEMS)
    worker.put(Item(0), 100)
    assert steps.begun.acquire(timeout=30)
    items = [Item(number, fails=number == 200) for number in range(1, 300)]
    for item in items:
        assert worker.put(item, 100)
    assert not worker.put(Item(-1), 100)  # no room
    steps.go.release()
    assert steps.begun.acquire(timeout=30)  # a batch is being handled, the rest waits
    waiting = 299 - MANY_ITEMS
    assert worker.waiting == waiting
    assert worker.waiting_bytes == 100 * MANY_ITEMS + 40 * (waiting - 1) + 100
    for number in range(300, 400):
        assert worker.put(Item(number), 100)
    steps.go.release(1000)
    assert worker.wait_for_all(30)
    assert [item.number for item in steps.handled] == list(range(400))
    assert worker.waiting == worker.waiting_bytes == 0
    assert counters == {"dropped_queue_full": 1}
    assert worker.stop(30)


_ids = st.one_of(
    st.none(),
    st.lists(st.integers(0, 2**31 - 1)),
    st.lists(st.integers(-(2**70), 2**70)),
    st.lists(st.one_of(st.integers(), st.text(), st.none())),
)
_floats = st.one_of(st.none(), st.lists(st.one_of(st.floats(width=32), st.none())))


@given(_ids, _ids, _floats, st.one_of(st.none(), st.lists(st.integers(0, 1))), _ids)
def test_a_packed_payload_says_the_same(
    prompt: list[int] | None,
    response: list[int] | None,
    logprobs: list[float] | None,
    mask: list[int] | None,
    other: list[int] | None,
) -> None:
    def said(payload: Payload) -> list[str]:
        def one(pack: object, values: object) -> str:
            try:
                return repr(pack(values))  # type: ignore[operator]
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        return [
            one(pack_ids, payload.prompt_ids),
            one(pack_ids, payload.response_ids),
            one(pack_floats, payload.logprobs),
            one(pack_mask, payload.mask),
            *(one(pack_ids, choice.ids) for choice in payload.choices or ()),
        ]

    payload = Payload(prompt, response, logprobs, mask)
    payload.choices = [Choice(other)] if other is not None else None
    before, size = said(payload), payload.size()
    payload.pack()
    assert said(payload) == before
    assert payload.size() <= size
    payload.pack()
    assert said(payload) == before


class TestWaitingForABurst:
    @pytest.fixture(autouse=True)
    def lingers_for_good(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workers, "LINGER_S", 600.0)

    @staticmethod
    def worker() -> tuple[Worker[Item], list[list[int]], threading.Semaphore]:
        batches: list[list[int]] = []
        done = threading.Semaphore(0)

        def handle(items: Sequence[Item]) -> None:
            batches.append([item.number for item in items])
            done.release()

        return Worker("w", handle, Item.compact, 10**6, Counter()), batches, done

    def test_what_comes_together_is_handled_together_once_it_is_urgent(self) -> None:
        worker, batches, done = self.worker()
        for number in range(3):
            worker.put(Item(number), 100)
        worker.put(Item(3), 100, urgent=True)
        assert done.acquire(timeout=60)
        assert batches == [[0, 1, 2, 3]]
        assert worker.stop(60)

    def test_a_flush_does_not_wait(self) -> None:
        worker, batches, _ = self.worker()
        for number in range(3):
            worker.put(Item(number), 100)
        assert worker.wait_for_all(60)
        assert [number for batch in batches for number in batch] == [0, 1, 2]
        worker.put(Item(3), 100)
        assert worker.stop(60)
        assert [number for batch in batches for number in batch] == [0, 1, 2, 3]

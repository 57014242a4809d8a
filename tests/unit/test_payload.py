"""Payloads: private copies, exact encodings, and an honest estimate of their size."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rollout import recording, semconv, trajectory
from otel_rollout.payload import (
    Payload,
    copy_ids,
    decode_floats,
    decode_ids,
    decode_mask,
    encode_array,
    ids_encoding,
    pack_floats,
    pack_ids,
    pack_mask,
)
from otel_rollout.snapshot import take
from tests.unit.pipeline import Pipeline


class TestEncoding:
    """What is packed and encoded is decoded as it was."""

    @given(st.lists(st.integers(-(2**63), 2**63 - 1)))
    def test_ids(self, ids: list[int]) -> None:
        packed = pack_ids(ids)
        assert decode_ids(encode_array(packed), ids_encoding(packed)) == ids

    @given(st.lists(st.integers(-(2**31), 2**31 - 1)))
    def test_ordinary_ids_take_four_bytes(self, ids: list[int]) -> None:
        assert pack_ids(ids).itemsize == 4

    @given(st.lists(st.floats(width=32, allow_nan=False)))
    def test_floats(self, values: list[float]) -> None:
        assert decode_floats(encode_array(pack_floats(values))) == values

    @given(st.lists(st.integers(0, 255)))
    def test_mask(self, values: list[int]) -> None:
        assert decode_mask(encode_array(pack_mask(values))) == values


class TestCopies:
    """A copy is the user's own no longer, whatever it was copied from."""

    @pytest.mark.parametrize(
        "ids",
        [
            [1, 2, 3],
            (1, 2, 3),
            array("i", [1, 2, 3]),
            np.array([1, 2, 3]),
            np.array([[1, 2, 3]]),
            np.array([[[1, 2, 3]]]),
            range(1, 4),
            {1: 0, 2: 0, 3: 0}.keys(),
        ],
    )
    def test_any_sequence(self, ids: Any) -> None:
        copy = copy_ids(ids)
        assert copy is not ids or isinstance(ids, tuple)
        assert copy is not None
        assert list(copy) == [1, 2, 3]

    def test_one_number(self) -> None:
        assert copy_ids(np.array(5)) == [5]

    def test_nothing(self) -> None:
        assert copy_ids(None) is None


class TestSize:
    """The size that waits is estimated from all that is held."""

    @pytest.mark.parametrize(
        "payload",
        [
            Payload(prompt_ids=[1] * 200_000),
            Payload(logprobs=[0.5] * 200_000),
            Payload(texts={"a": "x" * 1_000_000}),
            Payload(values={"a": take("x" * 1_000_000)}),
            Payload(values={"a": take(["", *["x" * 10_000] * 300])}),
            Payload(values={"a": take([{"deep": [{"er": [{"and": [["x" * 1_000_000]]}]}]}])}),
            Payload(values={"a": take({"x" * 1_000_000: 1})}),
            Payload(values={"a": take([bytes(1_000_000)])}),
            Payload(values={"a": take(["data:image/png;base64," + "A" * 1_000_000])}),
            Payload(values={"a": take(list(range(200_000)))}),
        ],
    )
    def test_a_megabyte_counts_as_one(self, payload: Payload) -> None:
        assert 900_000 < payload.size() < 10_000_000

    def test_an_error_with_a_long_message_counts(self, pipeline: Pipeline) -> None:
        with trajectory(step=1):
            made = recording.start("chat", "m")
            made.fail(ValueError("x" * 1_000_000))
            assert made.payload.size() > 1_000_000
            made.end()
        span = pipeline.named("chat m")
        assert len(span.to_json()) < 200_000
        assert (span.attributes or {})[semconv.ERROR_TYPE] == "ValueError"

    def test_an_endless_recursion_is_short(self, pipeline: Pipeline) -> None:
        def recurse(n: int) -> int:
            return recurse(n + 1) + 1

        with pytest.raises(RecursionError), trajectory(step=1):
            recurse(0)
        (event,) = pipeline.named("rollout").events
        stack = str((event.attributes or {})["exception.stacktrace"])
        assert "RecursionError" in stack
        assert len(stack) < 1 << 16

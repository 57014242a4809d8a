"""Snapshots: of any value, never raising, JSON at all times, the value itself untouched."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import types
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from otel_rollout import media, snapshot
from otel_rollout.snapshot import take, text_of


class Colour(enum.Enum):
    RED = "red"
    NESTED = ("a", 1)


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


class Model(pydantic.BaseModel):
    name: Any
    child: Any = None


class Text(str):
    def __len__(self) -> int:
        raise RuntimeError("len")

    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("getitem")

    def __str__(self) -> str:
        raise RuntimeError("str")


class Hostile:
    """Raises at whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        raise OSError(name)

    def __len__(self) -> int:
        raise MemoryError

    def __iter__(self) -> Any:
        raise RecursionError


class BadMapping(collections.abc.Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("get")

    def __iter__(self) -> Any:
        return iter([1])

    def __len__(self) -> int:
        return 1


class Claims:
    """Says that it has everything: attributes that are asked for are there, and odd."""

    def __getattr__(self, name: str) -> Any:
        return Claims()

    def __call__(self, *args: Any) -> Any:
        return Claims()


def object_array(value: Any) -> Any:
    made = np.empty(2, dtype=object)
    made[0] = value
    return made


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.complex_numbers(),
    st.decimals(),
    st.fractions(),
    st.text(st.characters()),
    st.binary(),
    st.uuids(),
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
    st.sampled_from(Colour),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)),
    st.builds(np.longdouble, st.floats()),
    st.builds(np.array, st.lists(st.floats(), max_size=100)),
    st.builds(Hostile),
    st.builds(BadMapping),
    st.builds(Claims),
    st.builds(MagicMock),
    st.builds(Text, st.text()),
    st.builds(ValueError, st.text(st.characters())),
    st.sampled_from([int, Model, np.ndarray, len, object(), types, ..., range(10**9), Path("x")]),
    st.builds(io.StringIO),
    st.builds(array.array, st.just("i"), st.lists(st.integers(-5, 5))),
)
KEYS = st.one_of(st.text(st.characters()), st.integers(), st.none(), st.booleans(), st.uuids())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner),
        st.builds(Point, inner, inner),
        st.builds(Model, name=inner, child=inner),
        st.builds(collections.deque, st.lists(inner)),
        st.builds(types.SimpleNamespace, a=inner),
        st.builds(lambda v: {1: v}.values(), inner),
        st.builds(object_array, inner),
    ),
    max_leaves=20,
)


class TestAnything:
    """Whatever the value is, the snapshot is JSON and nothing is raised."""

    @given(VALUES)
    def test_it_is_json(self, value: Any) -> None:
        orjson.dumps(take(value), default=media.described)
        orjson.dumps(text_of(value))

    @given(
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda v: st.lists(v) | st.dictionaries(st.text(), v),
        )
    )
    def test_the_value_stays_as_it_is(self, value: Any) -> None:
        before = repr(value)
        take(value)
        assert repr(value) == before

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | st.text()
            | st.floats(allow_nan=False, allow_infinity=False),
            lambda v: st.lists(v) | st.dictionaries(st.text(), v),
            max_leaves=30,
        )
    )
    def test_plain_data_is_kept_exactly(self, value: Any) -> None:
        copy = take(value)
        assert copy == value
        assert repr(copy) == repr(value)

    def test_a_copy_does_not_follow_the_value(self) -> None:
        value = {"a": [1, {"b": 2}]}
        copy = take(value)
        value["a"][1]["b"] = 3  # type: ignore[index]
        assert copy == {"a": [1, {"b": 2}]}


class TestShown:
    """What each kind of value becomes."""

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (2**64, str(2**64)),
            (float("nan"), "nan"),
            (float("-inf"), "-inf"),
            ("\ud800", "\\ud800"),
            ({"\ud800": 1, 2: 3, None: 4}, {"\\ud800": 1, "2": 3, "None": 4}),
            (Colour.NESTED, ["a", 1]),
            (Point(1, Point(2)), {"x": 1, "y": {"x": 2, "y": None}}),
            (
                Model(name="n", child=Model(name=1)),
                {"name": "n", "child": {"name": 1, "child": None}},
            ),
            (np.float64(0.5), 0.5),
            (np.float32(0.5), 0.5),
            (np.longdouble(0.5), 0.5),
            (np.bool_(True), True),
            (np.array([[1, 2]]), [[1, 2]]),
            (np.zeros((100, 2)), {"type": "ndarray", "shape": [100, 2], "dtype": "float64"}),
            (ValueError("x"), {"type": "ValueError", "message": "x"}),
            (frozenset({1}), [1]),
            (collections.deque([1, 2]), [1, 2]),
            (array.array("q", [1, 2]), [1, 2]),
            ({1: 2}.values(), [2]),
            (range(3), [0, 1, 2]),
            (Path("/x/y"), "/x/y"),
            (uuid.UUID(int=1), str(uuid.UUID(int=1))),
            (datetime.date(2024, 1, 2), "2024-01-02"),
            (decimal.Decimal("1.5"), "Decimal('1.5')"),
            (fractions.Fraction(1, 2), 0.5),
            (np.ndarray, "<class 'numpy.ndarray'>"),
            (BadMapping(), "<BadMapping: cannot be read (RuntimeError)>"),
        ],
    )
    def test_value(self, value: Any, expected: Any) -> None:
        assert take(value) == expected

    def test_what_cannot_be_read(self) -> None:
        assert take([Hostile()]) == ["<Hostile: cannot be read (OSError)>"]

    def test_a_cycle(self) -> None:
        value: list[Any] = [1]
        value.append({"again": value})
        assert take(value) == [1, {"again": "<list: contains itself>"}]

    def test_the_same_object_twice_is_no_cycle(self) -> None:
        inner = [1]
        assert take([inner, inner]) == [[1], [1]]

    def test_a_lazy_image_whose_file_is_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "x.png"
        Image.new("RGB", (4, 3)).save(path)
        with path.open("rb") as file:
            image = Image.open(file)
        assert take({"image": image})["image"] == {
            "type": "image",
            "width": 4,
            "height": 3,
            "mode": "RGB",
        }

    def test_an_array_on_another_device_is_not_read(self) -> None:
        class Cuda:
            shape, dtype, device = (2,), "float32", "cuda:0"

            def tolist(self) -> Any:
                raise AssertionError("waits for the device")

        assert take(Cuda()) == {"type": "Cuda", "shape": [2], "dtype": "float32"}

    def test_text_of_a_subclass_that_is_hostile(self) -> None:
        assert "cannot be shown" in text_of(Text("abc"))
        assert take(Text("abc")) == "abc"


class TestBounds:
    """A snapshot is bounded, and says what was cut."""

    @pytest.mark.parametrize(
        "value",
        [
            ["x"] * 3_000_000,
            [0.5] * 3_000_000,
            list(range(3_000_000)),
            [None] * 3_000_000,
            [[1]] * 3_000_000,
            {i: i for i in range(1_000_000)},
            set(range(1_000_000)),
            range(10**12),
            ["y" * 100_000] * 3_000_000,
        ],
        ids=["text", "floats", "ints", "none", "lists", "dict", "set", "range", "much-text"],
    )
    def test_large_containers(self, value: Any) -> None:
        copy = take(value)
        assert len(orjson.dumps(copy)) < 24 << 20
        assert "cut" in str(copy[-1] if isinstance(copy, list) else copy["…"])

    def test_a_long_list_of_ids_is_whole(self) -> None:
        ids = list(range(100_000))
        assert take({"ids": ids, "logprobs": [-0.5] * 100_000}) == {
            "ids": ids,
            "logprobs": [-0.5] * 100_000,
        }

    def test_a_long_list_with_something_else_in_it(self) -> None:
        ids: list[Any] = [*range(1000), 2**70, None, float("nan"), "x"]
        assert take(ids)[1000:] == [str(2**70), None, "nan", "x"]

    def test_a_long_text(self) -> None:
        text = take("x" * (snapshot.MAX_TEXT + 5))
        assert text.endswith("… (5 more characters cut)")

    def test_a_deep_value(self) -> None:
        value: Any = 1
        for _ in range(10_000):
            value = [value]
        assert "nested too deeply" in str(take(value))

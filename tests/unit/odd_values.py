"""Values that nobody expects: odd types, objects that misbehave, all nested.

What is drawn is a recipe of plain values, since the tool that draws could not print or compare the
values themselves; :func:`made` makes one by its recipe.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pydantic
from hypothesis import strategies as st
from PIL import Image


class Hostile:
    """Raises at whatever is asked of it."""

    def _raise(self, *args: Any) -> Any:
        raise RuntimeError("hostile")

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __hash__ = __format__ = _raise  # type: ignore[assignment]
    __eq__ = __lt__ = __int__ = __float__ = __index__ = __getitem__ = _raise  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise OSError(name)


class NoClass:
    """Not even its class can be asked for."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("class")


class Claims:
    """Says that it has everything, and gives something odd."""

    def __getattr__(self, name: str) -> Any:
        return Claims()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Claims()


class Text(str):
    """Text whose every method fails."""

    def _raise(self, *args: Any) -> Any:
        raise RuntimeError("text")

    __len__ = __getitem__ = __str__ = __eq__ = __iter__ = __contains__ = _raise  # type: ignore[assignment]
    isascii = encode = startswith = partition = strip = _raise  # type: ignore[assignment]
    __hash__ = str.__hash__


class Number(int):
    """An int whose every method fails."""

    def _raise(self, *args: Any) -> Any:
        raise RuntimeError("number")

    __int__ = __float__ = __index__ = __str__ = __repr__ = __eq__ = _raise  # type: ignore[assignment]
    __hash__ = int.__hash__


class Real(float):
    def __float__(self) -> float:
        raise RuntimeError("float")

    __repr__ = __str__ = __float__  # type: ignore[assignment]


class Odd(dict[Any, Any]):
    """A dict that cannot be walked."""

    def items(self) -> Any:
        raise RuntimeError("items")

    __iter__ = keys = values = __len__ = items  # type: ignore[assignment]


class Endless(collections.abc.Mapping[Any, Any]):
    """A mapping that never ends, and says that it is empty."""

    def __getitem__(self, key: Any) -> Any:
        return key

    def __iter__(self) -> Any:
        number = 0
        while True:
            number += 1
            yield number

    def __len__(self) -> int:
        return 0


class Items(list[Any]):
    """A list that lies about its length."""

    def __len__(self) -> int:
        return 10**6


class Colour(enum.Enum):
    RED = "red"
    HALF = "\ud800"
    NESTED = ("a", {"b": 2**70})


class Flags(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Lazy:
    """A dataclass with a field that it has not set."""

    there: int = 1
    missing: int = dataclasses.field(init=False)


class Model(pydantic.BaseModel):
    name: Any
    child: Any = None


class Scalar:
    """As an array library's scalar: `item()` and a shape."""

    shape = ()
    dtype = "odd"

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value

    def tolist(self) -> Any:
        return self.value


def dead_proxy() -> Any:
    return weakref.proxy(threading.Event())


def cycle(value: Any) -> Any:
    made: dict[str, Any] = {"value": value}
    made["list"] = [made]
    return made


def deep(value: Any) -> Any:
    for number in range(500):
        value = [value] if number % 2 else {"deeper": value}
    return value


def object_array(value: Any) -> Any:
    made = np.empty(2, dtype=object)
    made[0] = value
    return made


def small_int(value: Any) -> int:
    return value % 100 if type(value) is int else 3


def text(value: Any) -> str:
    return value if type(value) is str else "text"


def real(value: Any) -> float:
    return value if type(value) is float else 0.5


#: By name, what makes a value of some others.
MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "Hostile": lambda a, b: Hostile(),
    "NoClass": lambda a, b: NoClass(),
    "Claims": lambda a, b: Claims(),
    "Text": lambda a, b: Text(text(a)),
    "Number": lambda a, b: Number(a if type(a) is int else 7),
    "Real": lambda a, b: Real(real(a)),
    "Odd": lambda a, b: Odd({1: 2}),
    "Endless": lambda a, b: Endless(),
    "Lazy": lambda a, b: Lazy(),
    "dead proxy": lambda a, b: dead_proxy(),
    "generator": lambda a, b: (number for number in range(3)),
    "object": lambda a, b: object(),
    "lock": lambda a, b: threading.Lock(),
    "huge": lambda a, b: 10**5000,
    "range": lambda a, b: range(10**12),
    "module": lambda a, b: types,
    "class": lambda a, b: Hostile,
    "function": lambda a, b: len,
    "ellipsis": lambda a, b: ...,
    "colour": lambda a, b: list(Colour)[small_int(a) % 3],
    "flags": lambda a, b: Flags(small_int(a) % 4),
    "float32": lambda a, b: np.float32(real(a)),
    "float16": lambda a, b: np.float16(real(a)),
    "longdouble": lambda a, b: np.longdouble(real(a)),
    "int64": lambda a, b: np.int64(small_int(a)),
    "uint64": lambda a, b: np.uint64(2**64 - 1 - small_int(a)),
    "bool_": lambda a, b: np.bool_(type(a) is int),
    "str_": lambda a, b: np.str_(text(a)),
    "datetime64": lambda a, b: np.datetime64(small_int(a), "s"),
    "array": lambda a, b: np.full(small_int(a), real(b)),
    "object array": lambda a, b: object_array(a),
    "Scalar": lambda a, b: Scalar(a),
    "bytes": lambda a, b: text(a).encode(errors="replace"),
    "bytearray": lambda a, b: bytearray(small_int(a)),
    "image": lambda a, b: Image.new("RGB", (4, 3)),
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "dict": lambda a, b: {"a": a, "b": b},
    "keys": lambda a, b: {key_of(a): b, None: a, (1, "x"): 1, Flags.A: 2, True: 3},
    "Point": lambda a, b: Point(a, b),
    "Model": lambda a, b: Model(name=a, child=b),
    "deque": lambda a, b: collections.deque([a, b]),
    "namespace": lambda a, b: types.SimpleNamespace(a=a),
    "proxy": lambda a, b: types.MappingProxyType({"a": a}),
    "values": lambda a, b: {1: a, 2: b}.values(),
    "Items": lambda a, b: Items([a, b]),
    "error": lambda a, b: ValueError(a, b),
    "cycle": lambda a, b: cycle(a),
    "deep": lambda a, b: deep(a),
    "message": lambda a, b: {"role": a, "content": [{"type": "text", "text": b}, b], "isError": a},
    "tool calls": lambda a, b: {"role": "assistant", "tool_calls": [{"function": a}, b]},
    "reward": lambda a, b: {"score": a, "acc": b},
}


def key_of(value: Any) -> Any:
    """The value, if it can be a key."""
    try:
        hash(value)
        return value if value == value else "nan"
    except Exception:
        return "no key"


def made(recipe: Any) -> Any:
    """Make a value by its recipe: a plain value, or a name in `MAKERS` with two recipes."""
    if isinstance(recipe, tuple):
        name, first, second = recipe
        return MAKERS[name](made(first), made(second))
    return recipe


def names_in(recipe: Any) -> set[str]:
    """The names of all makers that a recipe uses."""
    if not isinstance(recipe, tuple):
        return set()
    name, first, second = recipe
    return {name} | names_in(first) | names_in(second)


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400]),
    st.floats(),
    st.text(st.characters(), max_size=20),  # lone surrogates among them
    st.text('\x00\ud800\udfff\u2028"\\{}[]\ufeff\x7f', max_size=10),
    st.sampled_from(["nan", "7", "{", '{"a": NaN}', "null", "[1,", "data:;base64,AAAA"]),
    st.just("data:image/png;base64," + "A" * 2000),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
    st.uuids(),
    st.datetimes(),
    st.timedeltas(),
)
RECIPES = st.recursive(
    PLAIN | st.tuples(st.sampled_from(sorted(MAKERS)), PLAIN, PLAIN),
    lambda inner: st.tuples(st.sampled_from(sorted(MAKERS)), inner, inner),
    max_leaves=12,
)
NAMES = st.text("abcdefghij_.-", min_size=1, max_size=8)

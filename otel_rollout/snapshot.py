"""Snapshots of values a user may have: safe to keep, safe to write as JSON.

Taken on the caller's thread, because the user's object may change a moment later and must not be
shared with other threads. Containers are copied up to a bound, text and numbers are kept, and
everything else becomes a short description, images and other bytes one with a hash that the worker
thread makes (see :mod:`otel_rollout.media`). Never raises.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import numbers
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Set, ValuesView
from pathlib import PurePath
from typing import Any, Final

import orjson

from otel_rollout import media
from otel_rollout.identity import clean_text

MAX_DEPTH: Final = 16
MAX_NODES: Final = 20_000
"""Elements of all containers together; a long list of plain numbers counts for a 64th."""
MAX_TEXT: Final = 1 << 20
"""Characters of one text; what is beyond is cut, and the text says so."""
MAX_ALL_TEXT: Final = 8 << 20
"""Characters of all texts together."""
MAX_REFERRED: Final = 32 << 20
"""Bytes of all that is only referred to: what waits to be hashed."""
_PLAIN_LIST: Final = 256
_NUMBERS_PER_NODE: Final = 64
_MAX_DATA_URL: Final = 1024
_INT64: Final = range(-(2**63), 2**64)


def take(value: Any) -> Any:
    """Return a copy of ``value`` of dicts with text keys, lists, text, numbers, booleans, None.

    What was cut, and what could not be read, is said in its place. For images and bytes there are
    :class:`~otel_rollout.media.Reference` objects: dump it with ``default=media.described``.
    """
    return _Snapshot().of(value, 0)


def settled(value: Any) -> Any:
    """Return a snapshot of ``value`` without references, for threads that may hash."""
    return orjson.loads(orjson.dumps(take(value), default=media.described))


def text_of(value: Any) -> str:
    """Return ``value`` as clean text of bounded length; never raises."""
    try:
        return _bounded(str(value))
    except Exception as error:
        return f"<{type(value).__name__}: cannot be shown ({type(error).__name__})>"


def _bounded(text: str) -> str:
    text = str.__str__(text)  # of a subclass, the text itself
    if len(text) > _MAX_DATA_URL and text.startswith("data:"):  # an image in a message
        head, base64, data = text.partition(";base64,")
        if base64 and len(head) < _MAX_DATA_URL:
            text = f"{head}{base64}… ({len(data)} characters cut)"
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}… ({len(text) - MAX_TEXT} more characters cut)"
    return clean_text(text)


class _Snapshot:
    """One walk over a value; remembers what is being walked, and how much was taken."""

    def __init__(self) -> None:
        self.nodes = 0
        self.characters = 0
        self.referred = 0
        self.pixels = 0
        self.path: set[int] = set()

    def of(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int:
            return value if value in _INT64 else text_of(value)
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if depth > MAX_DEPTH:
            return f"<{kind.__name__}: nested too deeply>"
        if id(value) in self.path:
            return f"<{kind.__name__}: contains itself>"
        self.path.add(id(value))
        try:
            return self._container(value, kind, depth)
        except Exception as error:
            return f"<{kind.__name__}: cannot be read ({type(error).__name__})>"
        finally:
            self.path.discard(id(value))

    def _text(self, text: str) -> Any:
        text = str.__str__(text)
        if media.is_in(text):
            return self._referred(media.of_text(text, MAX_TEXT)) or _bounded(text)
        text = _bounded(text)
        if self.characters + len(text) > MAX_ALL_TEXT:
            return f"… ({len(text)} characters cut)"
        self.characters += len(text)
        return text

    def _referred(self, reference: media.Reference) -> media.Reference | None:
        """Return the reference, or ``None`` where too much waits already."""
        if self.referred + reference.size > MAX_REFERRED:
            return None
        self.referred += reference.size
        return reference

    def _bytes(self, value: bytes | bytearray | memoryview) -> Any:
        size = memoryview(value).nbytes
        if self.referred + size > MAX_REFERRED:
            return {"type": "bytes", "size": size}
        return self._referred(media.of_bytes(bytes(value)))

    def _image(self, image: Any) -> Any:
        made = media.of_image(image, media.MAX_PIXELS - self.pixels)
        if isinstance(made, media.Reference):
            self.pixels += made.size
        return made

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, (list, tuple, array, Set, deque, range, ValuesView)):
            return self._elements(value, depth)
        if isinstance(value, enum.Enum):
            return self.of(value.value, depth + 1)
        if isinstance(value, (bool, int)):
            return self.of(int(value), depth + 1)
        if isinstance(value, float):
            return self.of(float(value), depth + 1)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(value)
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, (uuid.UUID, PurePath)):
            return clean_text(str(value))
        if isinstance(value, BaseException):
            return {"type": kind.__qualname__, "message": self._text(text_of(value))}
        if isinstance(value, type):
            return text_of(value)
        if isinstance(value, numbers.Integral):  # numpy's scalars
            return self.of(int(value), depth + 1)
        if isinstance(value, numbers.Real):
            return self.of(float(value), depth + 1)
        if media.is_image(value) and not _is_array(value):
            return self._image(value)
        for test, describe in _FOREIGN:
            if test(value):
                return self.of(describe(value), depth + 1)
        if dataclasses.is_dataclass(value):
            names = [f.name for f in dataclasses.fields(value)]
            return self._mapping({name: getattr(value, name, None) for name in names}, depth)
        return self._text(_shown(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            self.nodes += 1
            if self.nodes > MAX_NODES:
                result["…"] = "more was cut"
                break
            result[str(self._text(text_of(key)))] = self.of(item, depth + 1)
        return result

    def _elements(self, value: Any, depth: int) -> list[Any]:
        if len(value) > _PLAIN_LIST and isinstance(value, (list, tuple, array, range)):
            numbers_ = self._numbers(value)
            if numbers_ is not None:
                return numbers_
        result: list[Any] = []
        for item in value:
            self.nodes += 1
            if self.nodes > MAX_NODES:
                result.append("… (more was cut)")
                break
            result.append(self.of(item, depth + 1))
        return result

    def _numbers(self, value: Any) -> list[Any] | None:
        """Return a list of plain numbers, token ids most likely, without a call for each."""
        room = max(0, MAX_NODES - self.nodes) * _NUMBERS_PER_NODE
        if type(value[0]) not in (int, float):
            return None
        taken = list(value[:room])
        kinds = set(map(type, taken))
        if kinds == {int}:
            plain = min(taken) in _INT64 and max(taken) in _INT64
        else:
            plain = kinds == {float} and all(map(math.isfinite, taken))
        if not plain:
            return None
        self.nodes += len(taken) // _NUMBERS_PER_NODE
        if len(value) > room:
            taken.append("… (more was cut)")
        return taken


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: cannot be shown ({type(error).__name__})>"
    return _bounded(shown if len(shown) <= 2000 else shown[:2000] + "…")


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "tolist")


def _array(value: Any) -> Any:
    size = math.prod(int(n) for n in value.shape)
    # reading an array on another device would wait for it
    if size <= 64 and str(getattr(value, "device", "cpu")) == "cpu":
        return value.tolist()
    return {
        "type": type(value).__name__,
        "shape": [int(n) for n in value.shape],
        "dtype": str(value.dtype),
    }


_FOREIGN: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...]] = (
    (_is_array, _array),
    (lambda v: hasattr(type(v), "model_fields"), lambda v: dict(v)),  # pydantic, v2
    (lambda v: hasattr(type(v), "__fields__") and hasattr(v, "dict"), lambda v: v.dict()),
)

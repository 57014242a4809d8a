"""What a span carries beside its attributes: token ids, log-probabilities, texts and values.

On the caller's thread a payload is only a snapshot: lists are copied as they are, nothing is
encoded. It travels beside the span (see :func:`beside`), and the processor's worker thread turns
it into attributes of a rebuilt span.
"""

from __future__ import annotations

import base64
import contextlib
import math
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import TracebackException
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_rollout.media import Reference

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, SpanKind

INT32: Final = "base64/int32-le"
INT64: Final = "base64/int64-le"
FLOAT32: Final = "base64/float32-le"
UINT8: Final = "base64/uint8"

_BYTES_PER_WAITING_ID: Final = 8
"""A list holds one reference an element; the ints themselves are shared with the user's list."""

_ERROR_BYTES: Final = 2048


@dataclass(slots=True, eq=False)
class Choice:
    """One of several answers to one prompt: a snapshot, like all of a payload."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    finish_reason: str | None = None


@dataclass(slots=True, eq=False)
class Payload:
    """Snapshot of what one span carries; every part may be absent.

    ``prompt_ids``, ``response_ids``, ``mask``: one int a token. ``logprobs``: one float for each
    response token. ``choices``: several answers, in place of ``response_ids`` and ``logprobs``.
    ``attributes``: of the span, where nobody looks at them before the worker thread does.
    ``values``: attribute name to a snapshot (:func:`otel_rollout.snapshot.take`)
    that becomes JSON. ``texts``: attribute name to text that is put on the span as it is.
    ``errors``: time in ns since the epoch, and the exception as it was.
    """

    prompt_ids: Sequence[int] | None = None
    response_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    mask: Sequence[int] | None = None
    choices: Sequence[Choice] | None = None
    model: str | None = None
    is_root: bool = False
    attributes: dict[str, Any] | None = None
    values: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    errors: Sequence[tuple[int, TracebackException]] = ()

    def pack(self) -> None:
        """Put packed arrays in the place of lists; what cannot be packed stays as it is."""
        self.prompt_ids = _packed(self.prompt_ids, pack_ids)
        self.response_ids = _packed(self.response_ids, pack_ids)
        self.logprobs = _packed(self.logprobs, pack_floats)
        self.mask = _packed(self.mask, pack_mask)
        for choice in self.choices or ():
            choice.ids = _packed(choice.ids, pack_ids) or choice.ids
            choice.logprobs = _packed(choice.logprobs, pack_floats)

    def size(self) -> int:
        """Return an estimate of the bytes that this payload holds while it waits."""
        size = 0
        for part in (self.prompt_ids, self.response_ids, self.logprobs, self.mask):
            if part is not None:
                size += _held_by(part)
        for choice in self.choices or ():
            size += _held_by(choice.ids) + _held_by(choice.logprobs or ())
        for text in self.texts.values():
            size += len(text)
        if self.values:
            size += sum(_estimate(value) for value in self.values.values())
        for _, error in self.errors:
            size += _ERROR_BYTES + len(str(error))
        return size


def _held_by(part: Sequence[Any]) -> int:
    size = part.itemsize if isinstance(part, array) else _BYTES_PER_WAITING_ID
    return len(part) * size


def _estimate(value: Any) -> int:
    """Return roughly how many bytes a snapshot holds; snapshots are bounded, and so is this."""
    if isinstance(value, str):
        return len(value) + 50
    if isinstance(value, dict):
        return 64 + sum(len(key) + _estimate(item) + 50 for key, item in value.items())
    if isinstance(value, list):
        if len(value) > 256 and type(value[0]) in (int, float):  # numbers throughout
            return len(value) * 32
        return 56 + sum(_estimate(item) + 8 for item in value)
    if isinstance(value, Reference):
        return value.size
    return 32


def copy_ids(ids: Any) -> Sequence[int] | None:
    """Return a private copy of token ids (list, tuple, array, numpy or torch), or ``None``.

    The cost is that of a list copy; nothing is checked or converted here. A list becomes a tuple:
    the garbage collector, whose every pass stops the training, need not look through that.
    """
    if ids is None:
        return None
    if type(ids) is list:
        return tuple(ids)
    if isinstance(ids, (tuple, array)):
        return ids[:]
    to_list = getattr(ids, "tolist", None)
    if to_list is not None:
        flat: Any = to_list()
        while isinstance(flat, list) and len(flat) == 1 and isinstance(flat[0], list):
            flat = flat[0]
        return flat if isinstance(flat, list) else [flat]
    return list(ids)


copy_floats: Callable[[Any], Sequence[float] | None] = copy_ids  # the same copy, other elements


# --- packing: on the worker thread ---------------------------------------------------------------


def _quickly(code: str, values: Any) -> array[Any]:
    """Return a tuple or list packed, several times as fast as ``array`` makes it from them.

    Raises ``struct.error`` for anything that has to be looked at, other kinds of sequences too.
    """
    if type(values) not in (tuple, list):
        raise struct.error
    return array(code, struct.Struct(f"{len(values)}{code}").pack(*values))


def pack_ids(ids: Any) -> array[int]:
    """Return ids as an int32 array, int64 where one needs it.

    Raises ``OverflowError`` for an id beyond 64 bits and ``TypeError`` for what is no int.
    """
    if isinstance(ids, array) and ids.typecode in "iq":
        return ids
    with contextlib.suppress(struct.error):
        return _quickly("i", ids)
    try:
        return array("i", ids)
    except OverflowError:
        return array("q", ids)
    except TypeError:
        return pack_ids([_whole(i) for i in ids])


def _whole(value: Any) -> int:
    number = int(value)
    if number != value:
        raise ValueError(f"{value!r} is no token id")
    return number


def pack_floats(values: Any) -> array[float]:
    """Return log-probabilities as a float32 array; what is missing (``None``) is NaN."""
    if isinstance(values, array) and values.typecode == "f":
        return values
    with contextlib.suppress(struct.error, OverflowError):
        return _quickly("f", values)
    try:
        return array("f", values)
    except TypeError:
        return array("f", [math.nan if value is None else float(value) for value in values])


def pack_mask(values: Any) -> array[int]:
    """Return a mask as a uint8 array."""
    if isinstance(values, array) and values.typecode == "B":
        return values
    with contextlib.suppress(struct.error):
        return _quickly("B", values)
    try:
        return array("B", values)
    except TypeError:
        return array("B", [_whole(value) for value in values])


def _packed(
    values: Sequence[Any] | None, pack: Callable[[Iterable[Any]], array[Any]]
) -> Sequence[Any] | None:
    """Return ``values`` packed, or as they are: what is wrong with them is said elsewhere."""
    if values is None:
        return None
    try:
        return pack(values)
    except Exception:
        return values


def ids_encoding(ids: array[int]) -> str:
    """Return the name of the encoding that :func:`encode_array` gives these ids."""
    return INT32 if ids.itemsize == 4 else INT64


def encode_array(values: array[Any]) -> str:
    """Return the array's little-endian bytes in base64."""
    if sys.byteorder == "big" and values.itemsize > 1:
        values = values[:]
        values.byteswap()
    return base64.b64encode(values).decode("ascii")


def decode_ids(text: str, encoding: str = INT32) -> list[int]:
    """Return the ids that an attribute holds; ``encoding`` as its encoding attribute says."""
    return _decoded({INT32: "i", INT64: "q"}[encoding], text).tolist()


def decode_floats(text: str) -> list[float]:
    """Return the log-probabilities that an attribute holds."""
    return _decoded("f", text).tolist()


def decode_mask(text: str) -> list[int]:
    """Return the mask that an attribute holds: 1 for a generated token, 0 for any other."""
    return _decoded("B", text).tolist()


def _decoded(typecode: str, text: str) -> array[Any]:
    values = array(typecode)
    values.frombytes(base64.b64decode(text))
    if sys.byteorder == "big" and values.itemsize > 1:
        values.byteswap()
    return values


# --- the way from the recorder to the processor --------------------------------------------------

_STARTER: Final = "_otel_rollout_starter"
_NOTHING: Final[Mapping[str, Any]] = {}
_beside: dict[int, Payload] = {}


def lay_beside(span_id: int, payload: Payload) -> None:
    """Keep ``payload`` for the span that is about to end."""
    _beside[span_id] = payload


def beside(span: ReadableSpan) -> Payload | None:
    """Return the payload of a span that is ending; for processors, in ``on_end``."""
    context = span.context
    return _beside.get(context.span_id) if context is not None else None


class Starter(Protocol):
    """What starts spans in a tracer's place, for less, where nobody would see a difference."""

    def serve(self, tracer: Any) -> bool:
        """Take the place of a tracer; False where it cannot."""

    def start(
        self, name: str, context: Context, kind: SpanKind, attributes: dict[str, Any]
    ) -> Span | None:
        """Return a span, or ``None`` where the tracer has to decide.

        ``attributes`` are not on it, and may still change: they come with its payload.
        """


def offer_starter(span: Any, starter: Starter) -> None:
    """For a processor, in ``on_start``: what may start spans in place of this one's tracer."""
    vars(span)[_STARTER] = starter


def starter(span: Any) -> Starter | None:
    """Return what a processor offered when this span started, if it did."""
    return getattr(span, "__dict__", _NOTHING).get(_STARTER)


def take_away(span_id: int) -> None:
    """Forget the payload: the span has ended and every processor has seen it."""
    _beside.pop(span_id, None)

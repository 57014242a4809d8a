"""Token ids to text, with a private copy of the tokenizer, on the worker thread.

A fast tokenizer must not be shared between threads: the training code would get "Already
borrowed". So a copy is taken when the tokenizer is registered, on the thread that registers it,
as serialized text; the copy itself is built at its first use, by the worker.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final

from otel_rollout.diagnostics import report_internal_error, say_once
from otel_rollout.forking import in_child
from otel_rollout.processor.byte_level import ByteLevelDecode, is_byte_level

_HIGHEST_ID: Final = 2**32 - 1
_PART_OF_A_CHARACTER: Final = "\ufffd"
_WINDOW: Final = 8
"""Tokens before a delta that are decoded with it, so that no character is cut at the seam."""


class Decoder:
    """Text of token ids, by one tokenizer.

    Args:
        decode: list of ids within the vocabulary to text, special tokens kept.
        size: ids below it are in the vocabulary.
        checks: ``decode`` raises ``IndexError`` for an id from ``size`` on by itself.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], size: int, *, checks: bool = False
    ) -> None:
        self._decode = decode
        self.size = size
        self._checks = checks

    def text(self, ids: array[int]) -> tuple[str, str | None]:
        """Return the text, and what was wrong: ids outside the vocabulary stand as ``<|id:N|>``."""
        if not ids:
            return "", None
        listed = _unsigned(ids)  # what is below 0 is beyond every vocabulary then
        if self._checks or max(listed) < self.size:
            with contextlib.suppress(IndexError):
                return self._decode(listed), None
        pieces: list[str] = []
        outside: list[int] = []
        for inside, run in _runs(ids, self.size):
            if inside:
                pieces.append(self._decode(run))
            else:
                outside.extend(run)
                pieces.extend(f"<|id:{token}|>" for token in run)
        return "".join(pieces), (
            f"{len(outside)} of {len(ids)} token ids are outside the vocabulary of {self.size}; "
            f"the first is {outside[0]}"
        )

    def continuation(self, before: array[int], ids: array[int]) -> tuple[str, str | None]:
        """Return the text that ``ids`` add after ``before``, whole characters at the seam.

        A character whose first bytes are in ``before`` belongs to the continuation. Of ``before``,
        the last few dozen tokens are enough.
        """
        if not before:
            return self.text(ids)
        if before.typecode != ids.typecode:
            before, ids = array("q", before), array("q", ids)
        window, head = self._window(before)
        text, error = self.text(window + ids)
        if error is not None:  # in which of the two?
            error = self.text(ids)[1]
        while not text.startswith(head):
            if not head.endswith(_PART_OF_A_CHARACTER):
                return self.text(ids)[0], error
            head = head[:-1]
        return text[len(head) :], error

    def _window(self, before: array[int]) -> tuple[array[int], str]:
        """Return the last few of ``before``, not beginning within a character, and their text."""
        start = max(0, len(before) - _WINDOW)
        head, _ = self.text(before[start:])
        while start > 0 and head.startswith(_PART_OF_A_CHARACTER):
            start -= 1
            head, _ = self.text(before[start:])
        return before[start:], head


def _unsigned(ids: array[int]) -> list[int]:
    unsigned = array(ids.typecode.upper())
    unsigned.frombytes(ids.tobytes())
    return unsigned.tolist()


def _runs(ids: array[int], size: int) -> Iterator[tuple[bool, list[int]]]:
    run: list[int] = []
    inside = True
    for token in ids:
        now = 0 <= token < size
        if run and now != inside:
            yield inside, run
            run = []
        inside = now
        run.append(token)
    if run:
        yield inside, run


class _Registered:
    """A tokenizer's private copy; the decoder is built when it is first needed."""

    def __init__(self, tokenizer: Any) -> None:
        self.serialized = _serialized(tokenizer)
        self._build = _builder(tokenizer, self.serialized)
        self._size = _vocabulary_size(tokenizer)
        self._decoder: Decoder | None = None
        self._failed = False
        self.new_lock()
        try:
            self._source: weakref.ref[Any] | None = weakref.ref(tokenizer)
        except TypeError:
            self._source = None

    def new_lock(self) -> None:
        """Forget who holds the lock: in a forked child, nobody does."""
        self._lock = threading.Lock()

    def is_of(self, tokenizer: Any) -> bool:
        """Return whether this is a copy of ``tokenizer`` as it is now."""
        same = self._source is not None and self._source() is tokenizer
        return same and self._size == _vocabulary_size(tokenizer)

    def decoder(self) -> Decoder | None:
        with self._lock:
            if self._decoder is None and not self._failed:
                try:
                    self._decoder = self._build()
                except Exception as error:
                    self._failed = True
                    report_internal_error("token2text", error)
            return self._decoder


class Tokenizers:
    """The tokenizers that this process knows, by model; the last one registered is the default."""

    def __init__(self) -> None:
        self._by_model: dict[str | None, _Registered] = {}

    def register(self, tokenizer: Any, model: str | None = None, *, default: bool = True) -> None:
        """See :func:`otel_rollout.register_tokenizer`; ``default=False``: one there stays."""
        registered = self._by_model.get(model)
        if registered is None or not registered.is_of(tokenizer):
            registered = self._by_model[model] = _Registered(tokenizer)
        if default or None not in self._by_model:
            self._by_model[None] = registered

    def decoder(self, model: str | None) -> Decoder | None:
        """Return the decoder for ``model``, or the default one, or ``None``."""
        registered = self._by_model.get(model) or self._by_model.get(None)
        return registered.decoder() if registered is not None else None

    def serialized(self, model: str | None) -> str | None:
        """Return what :meth:`decoder` decodes with, as a ``tokenizer.json``, where it is one."""
        registered = self._by_model.get(model) or self._by_model.get(None)
        return registered.serialized if registered is not None else None

    def clear(self) -> None:
        """Forget every tokenizer."""
        self._by_model.clear()

    def after_fork(self) -> None:
        """In a forked child: the parent's worker may have been building a decoder."""
        for registered in self._by_model.values():
            registered.new_lock()


tokenizers = Tokenizers()
in_child(tokenizers.after_fork)


def register_tokenizer(tokenizer: Any, model: str | None = None) -> None:
    """Let token ids be decoded with a private copy of ``tokenizer``; never raises.

    For code that is neither verl nor an engine; there it happens by itself. Call it where the
    tokenizer is made: the copy is taken on the calling thread (some 0.3 s for a vocabulary of
    150,000) and shares nothing with the original.

    Args:
        tokenizer: a Hugging Face tokenizer, a ``tokenizers.Tokenizer``, or any object with
            ``decode(list[int]) -> str``, which is deep-copied.
        model: the model whose spans it is for; by default every span.
    """
    try:
        tokenizers.register(tokenizer, model)
    except Exception as error:
        say_once(
            "register_tokenizer",
            "register_tokenizer(%s): no private copy can be made (%s: %s); its token ids stay ids",
            type(tokenizer).__name__,
            type(error).__name__,
            error,
        )


def _serialized(tokenizer: Any) -> str | None:
    """Return a fast tokenizer as its ``tokenizer.json``, ``None`` for any other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None and hasattr(tokenizer, "from_str") and hasattr(tokenizer, "to_str"):
        backend = tokenizer
    cleans_up = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
    if backend is None or not hasattr(backend, "to_str") or cleans_up:
        return None
    text: str = backend.to_str()
    return text


def _builder(tokenizer: Any, serialized: str | None) -> Callable[[], Decoder]:
    if serialized is not None:
        return lambda: _fast(serialized)
    private = copy.deepcopy(tokenizer)
    return lambda: Decoder(private.decode, _vocabulary_size(private))


def _fast(serialized: str) -> Decoder:
    import tokenizers as library

    private = library.Tokenizer.from_str(serialized)
    size = 1 + max(private.get_vocab(with_added_tokens=True).values(), default=-1)
    if is_byte_level(private):
        return Decoder(ByteLevelDecode(private, size), size, checks=True)

    def decode(ids: list[int]) -> str:
        text: str = private.decode(ids, skip_special_tokens=False)
        return text

    return Decoder(decode, size)


def _vocabulary_size(tokenizer: Any) -> int:
    try:
        return len(tokenizer)
    except TypeError:
        size = getattr(tokenizer, "vocab_size", None)
        return int(size) if isinstance(size, int) else _HIGHEST_ID

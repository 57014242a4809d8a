"""Decoding for byte-level vocabularies (GPT-2's, Llama 3's, Qwen's…): a table from id to bytes.

Where a tokenizer's decoder is ``ByteLevel`` alone, the text of ids is the bytes of their tokens,
joined. A table of these is several times faster than the tokenizer itself, which matters to a
worker thread that shares the interpreter with the training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any


class NotByteLevel(Exception):
    """The tokenizer's text is something else than its tokens' bytes."""


def is_byte_level(tokenizer: Any) -> bool:
    """Return whether ``ByteLevel`` is a ``tokenizers.Tokenizer``'s only decoder."""
    return type(tokenizer.decoder).__name__ == "ByteLevel"


class ByteLevelDecode:
    """Ids to text, special tokens kept, as the tokenizer itself gives it.

    The table is filled as ids come, and each new entry is held against the tokenizer: where they
    differ, the tokenizer decodes from then on.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, for this object alone.
        size: ids below it are in the vocabulary; a larger one, or one below 0 seen as an unsigned
            number, raises ``IndexError``.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self._token: Callable[[int], str | None] = tokenizer.id_to_token
        self._slowly = tokenizer.decode
        self._table: list[bytes | None] = [None] * size
        self._fits = True

    def __call__(self, ids: list[int]) -> str:
        """Return the text."""
        if self._fits:
            try:
                return b"".join(self._looked_up(ids)).decode("utf-8", "replace")
            except TypeError:  # an entry that is still missing
                pass
            try:
                self._fill(ids)
            except NotByteLevel:
                self._fits = False
            else:
                return self(ids)
        if max(ids, default=-1) >= len(self._table):
            raise IndexError(max(ids))
        return self._original(ids)

    def _looked_up(self, ids: list[int]) -> Sequence[bytes]:
        """Return the entries of ids: one call for all of them, of which the fastest is this."""
        if len(ids) < 2:
            return [self._table[one] for one in ids]  # type: ignore[misc]
        return itemgetter(*ids)(self._table)  # type: ignore[no-any-return]

    def _original(self, ids: list[int]) -> str:
        text: str = self._slowly(ids, skip_special_tokens=False)
        return text

    def _fill(self, ids: list[int]) -> None:
        for one in set(ids):
            if self._table[one] is None:
                entry = _bytes_of(self._token(one))
                if entry.decode("utf-8", "replace") != self._original([one]):
                    raise NotByteLevel(one)
                self._table[one] = entry


def _bytes_of(token: str | None) -> bytes:
    """Return what a token stands for; a token of other letters than the alphabet's is itself."""
    if token is None:  # a gap in the vocabulary
        return b""
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return token.encode("utf-8", "replace")


def _alphabet() -> dict[str, int]:
    """Return the letter that stands for each byte: printable ones for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(byte): byte for byte in printable}
    letters.update((chr(256 + number), byte) for number, byte in enumerate(others))
    return letters


_BYTES = _alphabet()

"""The text of single tokens, where the store or the user has the tokenizer.

Calls hold the text of a whole response, not of each token. The tokenizer that the traced process
has left in the store's folder ``tokenizers``, or one that the user names, gives it.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from otel_rollout.exporters.tokenizers import FOLDER, file_name
from otel_rollout.payload import pack_ids
from otel_rollout.processor.token2text import Decoder


class Vocabularies:
    """The tokenizers that are at hand. For several threads.

    Args:
        directory: of the store.
        given: a ``tokenizer.json`` or a folder with one, for every model.
    """

    def __init__(self, directory: Path, given: Path | None = None) -> None:
        self._folder = directory / FOLDER
        self._given = given
        self._decoders: dict[Path, Decoder | None] = {}
        self._lock = threading.Lock()

    def pieces(self, model: str | None, ids: Sequence[int]) -> list[str] | None:
        """Return the text of each token; ``None`` without a tokenizer for the model."""
        path = self._path(model)
        if path is None:
            return None
        with self._lock:  # a fast tokenizer is for one thread at a time
            if path not in self._decoders:
                self._decoders[path] = _loaded(path)
            decoder = self._decoders[path]
            return _pieces(decoder, pack_ids(ids)) if decoder is not None else None

    def _path(self, model: str | None) -> Path | None:
        if self._given is not None:
            return self._given / "tokenizer.json" if self._given.is_dir() else self._given
        if model is not None:
            named = self._folder / file_name(model)
            if named.is_file():
                return named
        found = sorted(self._folder.glob("*.json"))
        return found[0] if len(found) == 1 else None


def _pieces(decoder: Decoder, ids: array[int]) -> list[str]:
    result = []
    for position in range(len(ids)):
        before = ids[max(0, position - 12) : position]
        result.append(decoder.continuation(before, ids[position : position + 1])[0])
    return result


def _loaded(path: Path) -> Decoder | None:
    try:
        import tokenizers

        tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
    except Exception:  # the library is not there, or the file is none of its
        return None

    def decode(ids: list[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=False)
        return text

    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    return Decoder(decode, 1 + highest)

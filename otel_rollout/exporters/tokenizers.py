"""Tokenizers beside the spool, so that the store can show the text of single tokens."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

FOLDER: Final = "tokenizers"


def file_name(model: str) -> str:
    """Return the name of a model's file in the folder ``tokenizers`` of a store."""
    kept = "".join(c if c.isalnum() or c in "._-" else "_" for c in model)
    return f"{kept.strip('.')[:120] or 'model'}.json"


def keep(directory: Path, model: str, serialized: str) -> None:
    """Write a model's tokenizer (as ``tokenizer.json``) into a store that has none for it.

    Raises ``OSError`` when it cannot be written.
    """
    path = directory / FOLDER / file_name(model)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(serialized, encoding="utf-8")
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)

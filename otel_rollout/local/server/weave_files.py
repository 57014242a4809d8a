"""Files and objects of Weave clients (large fields, ops) by the digest of their content."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import Any, Final

import orjson

FOLDER: Final = "files"
_DIGEST: Final = re.compile(r"[A-Za-z0-9]{43}\Z")


def digest_of(content: bytes) -> str:
    """Return the name of a content, as Weave makes it."""
    encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
    return encoded.replace("-", "X").replace("_", "Y").rstrip("=")


class WeaveFiles:
    """Contents in a folder of the store. Only a digest is ever the name of a file."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / FOLDER

    def put(self, content: bytes) -> str:
        """Store a content and return its digest."""
        digest = digest_of(content)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / digest
        if not path.exists():
            partial = self._folder / f".{digest}.{os.getpid()}"
            partial.write_bytes(content)
            partial.replace(path)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return a content; ``None`` where there is none by this digest."""
        if _DIGEST.match(digest) is None:
            return None
        try:
            return (self._folder / digest).read_bytes()
        except OSError:
            return None

    def put_value(self, value: Any) -> str:
        """Store an object's value and return its digest."""
        return self.put(orjson.dumps(value))

    def value(self, digest: str) -> Any:
        """Return an object's value; ``None`` where there is none."""
        content = self.get(digest)
        if content is None:
            return None
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            return None

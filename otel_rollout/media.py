"""Images, audio and other bytes: said by kind, size and hash, never repeated as base64.

What stands for them is made where it is written, by the worker thread: decoding and hashing take a
millisecond for a megabyte. Until then a :class:`Reference` holds what cannot change, text or bytes,
or a copy of a small image's pixels.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable
from typing import Any, Final

from otel_rollout.identity import clean_text

SMALL: Final = 1024
"""Text of fewer characters is left as it is."""
MAX_PIXELS: Final = 4 << 20
"""Bytes of pixels that are copied to be hashed."""

_BASE64: Final = ";base64,"
_DATA_URL: Final = re.compile(
    r"data:((?:[\w.+-]{1,80}/[\w.+-]{1,80})?(?:;[\w.+-]{1,80}=[\w.+-]{1,80}){0,4});base64,"
    r"([A-Za-z0-9+/_-]{200,}={0,2})"
)
_ALONE: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}\Z")
_KINDS: Final = (
    # first bytes, the base64 that they begin with, what they are
    (b"\x89PNG\r\n", "iVBORw0K", "image/png"),
    (b"\xff\xd8\xff", "/9j/", "image/jpeg"),
    (b"GIF8", "R0lGOD", "image/gif"),
    (b"RIFF", "UklGR", "audio/wav"),
    (b"%PDF-", "JVBERi0", "application/pdf"),
)
_STARTS: Final = tuple(start for _, start, _ in _KINDS)


class Reference:
    """What stands for something large: made when it is written, on whatever thread that is.

    Args:
        size: bytes that are held until then.
        describe: makes it; only called once it is to be written.
    """

    __slots__ = ("_describe", "size")

    def __init__(self, size: int, describe: Callable[[], Any]) -> None:
        self.size = size
        self._describe = describe

    def described(self) -> Any:
        """Return what stands for it, as JSON takes it; never raises."""
        try:
            return self._describe()
        except Exception as error:
            return f"<{self.size} bytes: cannot be described ({type(error).__name__})>"

    def __str__(self) -> str:
        return str(self.described())


def described(value: Any) -> Any:
    """Return what stands for a reference: for ``orjson.dumps(snapshot, default=described)``."""
    if isinstance(value, Reference):
        return value.described()
    raise TypeError(f"{type(value).__name__} is in no snapshot")


def is_in(text: str) -> bool:
    """Return whether there may be base64 of some file in ``text``: a quick look."""
    if len(text) < SMALL:
        return False
    return text.startswith(_STARTS) or _BASE64 in text


def without(text: str, limit: int) -> str:
    """Return ``text`` with what stands for the base64 in it, of ``limit`` characters at most."""
    if text.startswith(_STARTS) and _ALONE.match(text):
        return f"{_kind(base64.b64decode(text[:64]))}{_BASE64}{_said(text)}"
    text = _DATA_URL.sub(lambda url: f"data:{url[1]}{_BASE64}{_said(url[2])}", text)
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text) - limit} more characters cut)"
    return clean_text(text)


def _said(encoded: str) -> str:
    try:
        plain = encoded.replace("-", "+").replace("_", "/").rstrip("=")
        data = base64.b64decode(plain + "=" * (-len(plain) % 4))
    except ValueError:
        return f"… ({len(encoded)} characters cut, sha256 {_hash(encoded.encode())})"
    return f"… ({len(data)} bytes cut, sha256 {_hash(data)})"


def _kind(data: bytes) -> str | None:
    if data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, _, kind in _KINDS if data.startswith(start)), None)


def _hash(data: bytes) -> str:
    import hashlib  # loads OpenSSL, which the start of a process need not wait for

    return hashlib.sha256(data, usedforsecurity=False).hexdigest()


def of_text(text: str, limit: int) -> Reference:
    """Return a reference that becomes :func:`without` of ``text``."""
    return Reference(len(text), functools.partial(without, text, limit))


def of_bytes(data: bytes) -> Reference:
    """Return a reference that becomes kind, size and hash."""

    def describe() -> dict[str, Any]:
        found = {"type": "bytes", "size": len(data), "sha256": _hash(data)}
        kind = _kind(data)
        return found if kind is None else {**found, "mime_type": kind}

    return Reference(len(data), describe)


def is_image(value: Any) -> bool:
    """Return whether this is a PIL image: told by its attributes, PIL is never imported."""
    return hasattr(value, "mode") and hasattr(value, "size") and hasattr(value, "tobytes")


def of_image(image: Any, room: int) -> Any:
    """Return what stands for a PIL image; a hash of its pixels if they take ``room`` or less.

    An image that is still to be read from its file stays so, and is not hashed.
    """
    width, height = (int(length) for length in image.size)
    said = {"type": "image", "width": width, "height": height, "mode": str(image.mode)}
    size = width * height * 4
    if size > room or not _is_read(image):
        return said
    copy = image.copy()
    return Reference(size, lambda: {**said, "sha256": _hash(bytes(copy.tobytes()))})


def _is_read(image: Any) -> bool:
    try:
        return image.im is not None and not getattr(image, "tile", None)
    except Exception:
        return False

"""Calls above the server's limits: large fields become Weave file objects, nothing is lost.

W&B keeps at most 3.5 MiB in the JSON columns of one row and replaces the largest columns above
that by a placeholder. So the largest fields are stored as files first; in the call stands a
``Content`` object, which Weave's client and UI open as the text or JSON that was there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

ROW_BYTES: Final = 3 << 20
"""What the JSON columns of a call may take; the server's own limit is 3.5 MiB."""
FILE_BYTES: Final = 16 << 20
"""What one file may take: a request is at most 31 MiB."""
_COLUMNS: Final = ("attributes", "inputs", "output", "summary")
_SMALLEST_FIELD: Final = 4096
_EXPANSION: Final = 3
"""Longest that UTF-8 grows by as the server writes it, with all but ASCII escaped."""

CreateFile = Callable[[str, bytes], str]
"""Stores a file under a name and returns its digest."""


def is_oversize(call: bytes, limit: int = ROW_BYTES) -> bool:
    """Return whether the columns of a call take more than ``limit`` bytes on the server."""
    if len(call) * _EXPANSION <= limit:
        return False
    if len(call) > limit:
        return True
    parsed = orjson.loads(call)
    return sum(size_of(parsed.get(column)) for column in _COLUMNS) > limit


def size_of(value: Any) -> int:
    """Return the bytes that the server needs for a value."""
    return len(json.dumps(value))


def shrink(call: bytes, limit: int, file_bytes: int, create_file: CreateFile) -> bytes:
    """Return the call with its largest fields as file objects, until it fits ``limit`` bytes.

    Args:
        call: JSON of a call.
        limit: what its columns may take.
        file_bytes: largest file; a field above it becomes a list of file objects, in order.
        create_file: may raise :class:`~otel_rollout.exporters.weave.client.ServerError`.
    """
    parsed = orjson.loads(call)
    sizes = {column: size_of(parsed.get(column)) for column in _COLUMNS}
    while sum(sizes.values()) > limit:
        column = max(sizes, key=lambda name: sizes[name])
        if sizes[column] <= _SMALLEST_FIELD:
            break
        holder, key = _largest(parsed, column)
        value = holder[key]
        stored = _as_files(value, f"{column}.{key}", file_bytes, create_file)
        # The columns themselves must stay objects.
        holder[key] = {"content": stored} if holder is parsed and column != "output" else stored
        before, sizes[column] = sizes[column], size_of(parsed[column])
        if sizes[column] >= before:
            break
    return orjson.dumps(parsed)


def _largest(parsed: dict[str, Any], column: str) -> tuple[Any, Any]:
    """Return holder and key of the field to move: the innermost that is most of its column."""
    holder: Any = parsed
    key: Any = column
    while True:
        value = holder[key]
        inner: list[tuple[int, Any]] = []
        if isinstance(value, dict):
            inner = [(size_of(item), name) for name, item in value.items()]
        elif isinstance(value, list):
            inner = [(size_of(item), position) for position, item in enumerate(value)]
        if not inner or _is_file(value):
            return holder, key
        size, largest = max(inner, key=lambda pair: pair[0])
        if size < _SMALLEST_FIELD or (size < sum(s for s, _ in inner) / 8 and holder is not parsed):
            return holder, key
        holder, key = value, largest


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.get("_type") == "CustomWeaveType"


def _as_files(value: Any, name: str, file_bytes: int, create_file: CreateFile) -> Any:
    if isinstance(value, str):
        content, kind, ending = value.encode("utf-8", "surrogatepass"), "text/plain", "txt"
    else:
        content, kind, ending = orjson.dumps(value), "application/json", "json"
    filename = f"{name}.{ending}"
    stored = [
        _content(part, filename, kind, ending, create_file) for part in _parts(content, file_bytes)
    ]
    return stored[0] if len(stored) == 1 else stored


def _parts(content: bytes, size: int) -> Iterator[bytes]:
    """Cut UTF-8 into parts, between characters."""
    start = 0
    while start < len(content):
        end = start + size
        while end < len(content) and end > start + 4 and content[end] & 0xC0 == 0x80:
            end -= 1
        yield content[start:end]
        start = end


def _content(
    content: bytes, filename: str, kind: str, ending: str, create_file: CreateFile
) -> dict[str, Any]:
    metadata = {
        "size": len(content),
        "mimetype": kind,
        "digest": hashlib.sha256(content).hexdigest(),
        "filename": filename,
        "content_type": "text" if ending == "txt" else "bytes",
        "input_type": "str" if ending == "txt" else "bytes",
        "encoding": "utf-8",
        "extension": f".{ending}",
    }
    return {
        "_type": "CustomWeaveType",
        "weave_type": {"type": "weave.type_wrappers.Content.content.Content"},
        "load_op": None,
        "files": {
            "content": create_file("content", content),
            "metadata.json": create_file("metadata.json", orjson.dumps(metadata)),
        },
    }

"""Calls above the row limit: their large fields become files, everything else stays."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson
import pytest

from otel_rollout.exporters.weave import oversize


class Files:
    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def create(self, name: str, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.stored[digest] = content
        return digest

    def read(self, value: Any) -> Any:
        """What the file objects in a value stand for."""
        if isinstance(value, list) and value and all(map(is_file, value)):
            metadata = orjson.loads(self.stored[value[0]["files"]["metadata.json"]])
            content = b"".join(self.stored[part["files"]["content"]] for part in value)
            return content.decode() if metadata["mimetype"] == "text/plain" else json.loads(content)
        if is_file(value):
            return self.read([value])
        if isinstance(value, dict):
            return {key: self.read(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.read(item) for item in value]
        return value


def is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.get("_type") == "CustomWeaveType"


def call(**columns: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"attributes": {"step": 1}, "inputs": {}, "output": None, "summary": {}}
    return {"id": "0" * 16, **plain, **columns}


LIMIT = 100_000


@pytest.mark.parametrize(
    "columns",
    [
        {"output": "x" * 1_000_000},
        {"output": {"text": "x" * 1_000_000, "short": "y"}},
        {"output": {"deep": [{"a": ["x" * 300_000, "y"]}, {"b": "ü" * 200_000}]}},
        {"inputs": {"messages": [{"role": "user", "content": "x" * 5000}] * 100}},
        {"inputs": {f"key{n}": "x" * 50 for n in range(5000)}},
        {"attributes": {"rollout": {"ids": "A" * 400_000}, "step": 3}, "output": ["x" * 90_000]},
        {"output": "😀" * 100_000},
    ],
)
def test_nothing_is_lost(columns: dict[str, Any]) -> None:
    files = Files()
    whole = call(**columns)
    body = orjson.dumps(whole)
    assert oversize.is_oversize(body, LIMIT)

    small = orjson.loads(oversize.shrink(body, LIMIT, 120_000, files.create))

    assert not oversize.is_oversize(orjson.dumps(small), LIMIT)
    assert isinstance(small["inputs"], dict)
    assert isinstance(small["attributes"], dict)
    assert small["attributes"]["step"] == whole["attributes"]["step"]
    read = {key: files.read(value) for key, value in small.items()}
    for column in ("attributes", "inputs"):
        if "content" in read[column] and "content" not in whole[column]:
            read[column] = read[column]["content"]
    assert read == whole
    assert max(map(len, files.stored.values())) <= 120_000


def test_small_calls_are_left_alone() -> None:
    assert not oversize.is_oversize(orjson.dumps(call(output="x" * 1000)))
    # Five bytes that the server escapes to six each count as it counts.
    assert oversize.is_oversize(orjson.dumps(call(output="ü" * 60_000)), 300_000)
    assert not oversize.is_oversize(orjson.dumps(call(output="x" * 120_000)), 300_000)


def test_the_same_call_always_becomes_the_same() -> None:
    body = orjson.dumps(call(output={"a": "x" * 200_000, "b": "y" * 200_000}))
    results = {oversize.shrink(body, LIMIT, 50_000, Files().create) for _ in range(3)}
    assert len(results) == 1

"""A store as one file, to load with ``datasets``, pandas or a line at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from otel_rollout.local.reading import Store

FORMATS: Final = (".parquet", ".jsonl")
_ROWS_A_GROUP: Final = 1000

Write = Callable[[dict[str, Any]], None]


class ExportError(Exception):
    """Why there is no file, in words for whoever asked for it."""


def export(
    store: Store,
    target: Path,
    *,
    filter: str = "",  # noqa: A002
    each: Callable[[], None] = lambda: None,
) -> int:
    """Write the trajectories that match ``filter`` and return how many.

    The file appears when it is whole. Raises :class:`ExportError`, ``FilterError``, ``OSError``.

    Args:
        store: the store.
        target: ``.parquet`` or ``.jsonl``.
        filter: an expression as in the viewer.
        each: called after each trajectory.
    """
    if target.suffix not in FORMATS:
        raise ExportError(f"{target.name}: the ending says the format, {' or '.join(FORMATS)}")
    writer = _parquet if target.suffix == ".parquet" else _lines
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    count = 0
    try:
        with writer(partial, store) as write:
            for one in store.trajectories(filter):
                write(one)
                each()
                count += 1
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return count


@contextmanager
def _lines(path: Path, _store: Store) -> Iterator[Write]:
    with path.open("wb") as file:

        def write(one: dict[str, Any]) -> None:
            file.write(orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE))

        yield write


@contextmanager
def _parquet(path: Path, store: Store) -> Iterator[Write]:
    try:
        import pyarrow  # type: ignore[import-untyped,import-not-found,unused-ignore]
        from pyarrow import parquet
    except ImportError:
        raise ExportError("Parquet needs pyarrow (pip install pyarrow); .jsonl does not") from None
    schema = _schema(pyarrow, store)
    waiting: list[dict[str, Any]] = []
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:

        def flush() -> None:
            if waiting:
                file.write_table(pyarrow.Table.from_pylist(waiting, schema=schema))
                waiting.clear()

        def write(one: dict[str, Any]) -> None:
            waiting.append(one)
            if len(waiting) >= _ROWS_A_GROUP:
                flush()

        yield write
        flush()


def _schema(pa: Any, store: Store) -> Any:
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    named = "SELECT 1 FROM trajectories WHERE typeof(sample_index) = 'text' LIMIT 1"
    sample = text if store.index.query(named) else whole
    tool = {"name": text, "arguments": text, "result": text, "error": text}
    error = {"call": text, "type": text, "message": text}
    columns = {
        "trace_id": text,
        "project": text,
        "experiment_name": text,
        "step": whole,
        "sample_index": sample,
        "rollout_n": whole,
        "validate": pa.bool_(),
        "group_id": text,
        "reward": real,
        "advantage": real,
        "finished": pa.bool_(),
        "started": real,
        "seconds": real,
        "turns": whole,
        "weight_version": whole,
        "prompt_text": text,
        "response_text": text,
        "prompt_ids": pa.list_(whole),
        "response_ids": pa.list_(whole),
        "response_mask": pa.list_(pa.uint8()),
        "response_logprobs": pa.list_(pa.float32()),
        "context_breaks": pa.list_(whole),
        "tools": pa.list_(pa.struct(list(tool.items()))),
        "errors": pa.list_(pa.struct(list(error.items()))),
    }
    return pa.schema(list(columns.items()))

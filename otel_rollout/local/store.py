"""Reads the local store: calls, their feedback, and the trees that they make up.

Everything is read from the spool's segments, as they are written; nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otel_rollout.exporters import spool
from otel_rollout.exporters.weave.exporter import SPOOL_FOLDER


@dataclass
class Node:
    """A call and those below it, in the order of their start."""

    call: dict[str, Any]
    feedback: list[dict[str, Any]] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class Trajectories:
    """The trajectories of a store, and the calls whose parent is not there (yet)."""

    roots: list[Node]
    orphans: list[Node]


def spool_folder(directory: Path) -> Path:
    """Return where the segments of a store are; the folder of segments itself will do, too."""
    inner = directory / SPOOL_FOLDER
    return inner if inner.is_dir() else directory


def read(directory: Path) -> Trajectories:
    """Read the whole store in ``directory`` (``OTEL_ROLLOUT_DIR``)."""
    nodes: dict[str, Node] = {}
    feedback: list[dict[str, Any]] = []
    for segment in spool.segments(spool_folder(directory)):
        for record in spool.read(segment):
            kind = record.meta.get("kind")
            if kind == "call":
                call = record.parsed()
                nodes[call["id"]] = Node(call)
            elif kind == "feedback":
                feedback.append(record.parsed())
    for one in sorted(feedback, key=lambda one: str(one.get("created_at") or "")):
        node = nodes.get(one["call_id"])
        if node is not None:
            node.feedback.append(one)
    return _trees(nodes)


def _trees(nodes: dict[str, Node]) -> Trajectories:
    roots: list[Node] = []
    orphans: list[Node] = []
    for node in sorted(nodes.values(), key=lambda n: str(n.call["started_at"])):
        parent_id = node.call["parent_id"]
        if parent_id is None:
            roots.append(node)
        elif parent_id in nodes:
            nodes[parent_id].children.append(node)
        else:
            orphans.append(node)
    return Trajectories(roots, orphans)

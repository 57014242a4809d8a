"""A trajectory as a tree in the terminal, and the counts of a store."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from otel_rollout.local import chats
from otel_rollout.local.store import Node, Trajectories
from otel_rollout.local.trajectory import value_of

_MAX_TEXT = 96


def print_trajectory(console: Console, root: Node) -> None:
    """Print one trajectory: what was asked, generated, called and scored, in order."""
    generations: list[dict[str, Any]] = []
    console.print(_branch(root, Tree(_label(root, generations), guide_style="dim"), generations))


def _branch(node: Node, tree: Tree, generations: list[dict[str, Any]]) -> Tree:
    """Add what is below a node; ``generations``: those above it, from which chats go on."""
    for child in node.children:
        below = tree.add(_label(child, generations))
        if chats.asked(child.call):
            generations.append(child.call)
        _branch(child, below, generations)
    return tree


def _label(node: Node, generations: list[dict[str, Any]]) -> str:
    call = node.call
    name = f"[bold]{escape(call['op_name'])}[/]"
    failed = call["exception"] is not None
    parts = [f"[red]{name}[/]" if failed else name, f"[dim]{_milliseconds(call):.0f} ms[/]"]
    if call["parent_id"] is None:
        parts.append(_identity(call["attributes"]))
    lines = [" ".join(part for part in parts if part)]
    lines += [f"  [dim]{mark}[/] {_short(text)}" for mark, text in _content(node, generations)]
    if failed:
        error = json.loads(call["exception"])
        lines.append(f"  [red]! {escape(str(error['type']))}: {_short(error['message'])}[/]")
    return "\n".join(lines)


def _identity(attributes: dict[str, Any]) -> str:
    names = ("step", "sample_index", "rollout_n", "validate", "experiment_name")
    shown = [f"{name}={escape(str(attributes[name]))}" for name in names if name in attributes]
    return "[cyan]" + " ".join(shown) + "[/]"


def _content(node: Node, generations: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return what went in (>) and came out (<) of a call, and rewards (=)."""
    call = node.call
    inputs, output = call["inputs"], call["output"]
    lines: list[tuple[str, str]] = []
    if chats.asked(call):
        for message in chats.new_messages(call, generations):
            lines += [(">", said) for said in _said(message)]
    elif inputs:
        lines.append((">", json.dumps(inputs, ensure_ascii=False)))
    if isinstance(output, dict) and "choices" in output:
        for choice in output["choices"]:
            lines += [("<", said) for said in _said(choice["message"])]
    elif isinstance(output, dict) and "response_text" in output:
        pass  # a trajectory's: it is what its generations said
    elif output is not None and call["parent_id"] is not None:
        shown = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        lines.append(("<", shown))
    score = value_of(call, "gen_ai", "evaluation", "score", "value")
    if score is not None:
        lines.append(("=", f"{value_of(call, 'gen_ai', 'evaluation', 'name')} {score}"))
    for one in node.feedback:
        lines.append(("=", f"{one['payload'].get('name')} {one['payload'].get('value')}"))
    return lines


def _said(message: Any) -> list[str]:
    """Return a message's text, where there is any, and the tools that it calls."""
    if not isinstance(message, dict):
        return [str(message)]
    text = chats.content_text(message.get("content"))
    calls = [f"{name}({arguments})" for name, arguments in chats.tool_calls(message)]
    return calls if calls and not text.strip() else [text, *calls]


def _short(text: object) -> str:
    shown = " ".join(str(text).split())
    if len(shown) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        shown = f"{shown[:half]} … {shown[-half:]}"
    return escape(shown)


def _milliseconds(call: dict[str, Any]) -> float:
    start, end = (datetime.fromisoformat(call[name]) for name in ("started_at", "ended_at"))
    return (end - start).total_seconds() * 1000


def most_telling(trajectories: Trajectories) -> Node | None:
    """Return the trajectory with the most to see: a failed call first, then the most calls."""

    def telling(root: Node) -> tuple[bool, int]:
        nodes = list(root.walk())
        return any(n.call["exception"] for n in nodes), len(nodes)

    return max(trajectories.roots, key=telling, default=None)


def print_counts(console: Console, trajectories: Trajectories, directory: Path) -> None:
    """Print how much there is of what, by step."""
    steps: dict[Any, Counter[str]] = {}
    rewards: dict[Any, list[float]] = {}
    for root in trajectories.roots:
        step = root.call["attributes"].get("step")
        counts = steps.setdefault(step, Counter())
        counts["trajectories"] += 1
        for name in ("num_generations", "num_tool_calls"):
            counts[name] += root.call["attributes"].get("rollout", {}).get(name, 0)
        for node in root.walk():
            counts["errors"] += node.call["exception"] is not None
        output = root.call["output"]
        if isinstance(output, dict) and isinstance(output.get("reward"), (int, float)):
            rewards.setdefault(step, []).append(output["reward"])
    table = Table(title=f"Traced into {directory}", title_justify="left")
    for column in ("step", "trajectories", "generations", "tool calls", "errors", "mean reward"):
        table.add_column(column, justify="right")
    for step, counts in sorted(steps.items(), key=lambda item: str(item[0])):
        scores = rewards.get(step)
        table.add_row(
            str(step),
            str(counts["trajectories"]),
            str(counts["num_generations"]),
            str(counts["num_tool_calls"]),
            str(counts["errors"]),
            f"{sum(scores) / len(scores):.3f}" if scores else "-",
        )
    console.print(table)
    if trajectories.orphans:
        console.print(f"[yellow]{len(trajectories.orphans)} calls whose parent is not here[/]")

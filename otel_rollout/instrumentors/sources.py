"""Whether a function or class is in a library, by its source files: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path


def is_there(name: str, roots: Sequence[Path]) -> bool:
    """Return whether ``module:Class.method`` is defined in a package that lies in ``roots``.

    What a module imports by that name counts as there: where it comes from is not looked up.
    """
    module, _, qualified = name.partition(":")
    tree = _source(module, roots)
    return tree is not None and _defines(tree, qualified.split("."))


def _source(module: str, roots: Sequence[Path]) -> ast.Module | None:
    parts = module.split(".")[1:]
    for root in roots:
        path = root.joinpath(*parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            try:
                return ast.parse(file.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue
    return None


def _defines(tree: ast.AST, names: Sequence[str]) -> bool:
    """Return whether ``Class.method`` or a function is defined, under an ``if`` or ``try`` too."""
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            if any((alias.asname or alias.name) == names[0] for alias in node.names):
                return True
            continue
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name == names[0]:
            return len(names) == 1 or _defines(node, names[1:])
    return False

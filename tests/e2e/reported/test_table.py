"""Every reported fault has a test, and what the table names is there."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT
from tests.e2e.reported.faults import FAULTS


def found_in(node: str) -> list[str]:
    """The tests that a node id stands for: itself, or those of a class."""
    path, _, name = node.partition("::")
    for found in ast.parse((ROOT / path).read_text()).body:
        if getattr(found, "name", None) != name:
            continue
        inside = found.body if isinstance(found, ast.ClassDef) else [found]
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [f.name for f in inside if isinstance(f, functions) and f.name.startswith("test_")]
    return []


@pytest.mark.parametrize("fault", FAULTS)
def test_it_is_tried(fault: str) -> None:
    assert FAULTS[fault]
    assert [node for node in FAULTS[fault] if not found_in(node)] == []

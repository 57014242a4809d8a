"""The public API says what it takes, gives and raises."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import click
import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

import otel_rollout
import otel_rollout.local
import otel_rollout.local.reading
import otel_rollout.testing
from otel_rollout.cli import main

MODULES = (otel_rollout, otel_rollout.testing, otel_rollout.local)
_OF_THE_SDK = (SpanProcessor, SpanExporter, Sampler, IdGenerator)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions, classes and their public methods, by name."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    for name in names:
        thing = getattr(module, name)
        if not getattr(thing, "__module__", "").startswith("otel_rollout"):
            continue
        yield f"{module.__name__}.{name}", thing
        if inspect.isclass(thing):
            yield from methods(f"{module.__name__}.{name}", thing)


def methods(name: str, thing: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, by name."""
    for own, member in vars(thing).items():
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        if not own.startswith("_") and inspect.isfunction(function):
            PROPERTIES.update({f"{name}.{own}"} if isinstance(member, property) else ())
            yield f"{name}.{own}", function


def is_the_sdks(name: str, thing: Any) -> bool:
    """Whether a method is one that OpenTelemetry's documentation describes."""
    method = name.rpartition(".")[2]
    return inspect.isfunction(thing) and any(hasattr(base, method) for base in _OF_THE_SDK)


def parameters(thing: Any) -> list[str]:
    """Names of what a caller gives; of a class, to its constructor."""
    if inspect.isclass(thing):
        if dataclasses.is_dataclass(thing) or "__init__" not in vars(thing):
            return []  # fields have a text of their own, see below
        thing = vars(thing)["__init__"]
    return [
        one.name for one in inspect.signature(thing).parameters.values() if one.name not in _SELF
    ]


_SELF = ("self", "cls")
PROPERTIES: set[str] = set()
"""Names of what is read like a value: said by a noun, not by what it returns."""
STORE = otel_rollout.local.reading.Store  # what otel_rollout.local.open gives
API = sorted(
    {
        **{name: thing for module in MODULES for name, thing in public(module)},
        "otel_rollout.local.Store": STORE,
        **dict(methods("otel_rollout.local.Store", STORE)),
    }.items()
)
CALLED = [
    pytest.param(name, thing, id=name)
    for name, thing in API
    if inspect.isfunction(thing) and name not in PROPERTIES and not is_the_sdks(name, thing)
]


def test_there_is_an_api() -> None:
    assert len(API) >= 60


@pytest.mark.parametrize(("name", "thing"), API, ids=[name for name, _ in API])
def test_every_part_is_described_and_every_argument_named(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    assert text, f"{name} has no docstring"
    if is_the_sdks(name, thing):
        return
    missing = [one for one in parameters(thing) if one not in text]
    assert not missing, f"{name} does not say what these are: {missing}"


@pytest.mark.parametrize(("name", "thing"), API, ids=[name for name, _ in API])
def test_everything_has_types(name: str, thing: Any) -> None:
    function = vars(thing).get("__init__") if inspect.isclass(thing) else thing
    if not inspect.isfunction(function) or dataclasses.is_dataclass(thing):
        return
    signature = inspect.signature(function)
    given = [one for one in signature.parameters.values() if one.name not in _SELF]
    assert all(one.annotation is not inspect.Parameter.empty for one in given), name
    assert signature.return_annotation is not inspect.Signature.empty, name


@pytest.mark.parametrize(("name", "thing"), CALLED)
def test_every_function_says_what_it_raises(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    assert re.search(r"\b[Rr]aises\b", text), f"{name}: what does it raise?"
    for kind in raised(thing):
        assert kind in text, f"{name} raises {kind}, and does not say so"


@pytest.mark.parametrize(("name", "thing"), CALLED)
def test_every_function_says_what_it_gives(name: str, thing: Any) -> None:
    if inspect.signature(thing).return_annotation in ("None", None):
        return
    text = inspect.getdoc(thing) or ""
    verbs = r"\b([Rr]eturns?|[Yy]ields?|[Gg]ives)\b"
    assert re.search(verbs, text), f"{name}: what does it return?"


def raised(thing: Any) -> set[str]:
    """Names of the exceptions in the raise statements of a function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing))))
    found = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc]
    calls = [one.func if isinstance(one, ast.Call) else one for one in found]
    return {ast.unparse(one).rpartition(".")[2] for one in calls}


def test_raise_statements_are_found() -> None:
    assert raised(STORE.trajectory) == {"KeyError"}
    assert raised(otel_rollout.testing.Captured.only) == {"AssertionError"}


@pytest.mark.parametrize("name", sorted(main.commands))
def test_a_command_s_help_says_what_each_option_is(name: str) -> None:
    command = main.commands[name]
    assert command.help
    for one in command.params:
        if isinstance(one, click.Option):
            assert one.help, one.opts
        else:
            assert str(one.name).upper() in command.help, one.name

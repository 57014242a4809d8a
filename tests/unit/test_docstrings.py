"""The public API says what it takes, gives and raises."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter

import otel_rollout
import otel_rollout.local
import otel_rollout.testing

MODULES = (otel_rollout, otel_rollout.testing, otel_rollout.local)
_OF_THE_SDK = (SpanProcessor, SpanExporter)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions, classes and their public methods, by name."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    for name in names:
        thing = getattr(module, name)
        if not getattr(thing, "__module__", "").startswith("otel_rollout"):
            continue
        yield f"{module.__name__}.{name}", thing
        if inspect.isclass(thing):
            for own, member in vars(thing).items():
                function = member.fget if isinstance(member, property) else member
                function = getattr(function, "__func__", function)
                if not own.startswith("_") and inspect.isfunction(function):
                    yield f"{module.__name__}.{name}.{own}", function


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
API = sorted({name: thing for module in MODULES for name, thing in public(module)}.items())


def test_there_is_an_api() -> None:
    assert len(API) >= 60


@pytest.mark.parametrize(("name", "thing"), API, ids=[name for name, _ in API])
def test_every_part_is_described_and_every_argument_named(name: str, thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    assert text, f"{name} has no docstring"
    if is_the_sdks(name, thing) or name.endswith("FollowingSampler.should_sample"):
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

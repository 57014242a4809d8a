"""What ``rollout_op`` records of a call: its arguments by name, and its result."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otel_rollout.diagnostics import say_once


@dataclass(frozen=True)
class Capture:
    """What is recorded of a call; ``names``: only these arguments."""

    inputs: bool
    output: bool
    names: frozenset[str] | None = None

    @staticmethod
    def of(given: Any) -> Capture:
        """Return what ``rollout_op(capture=…)`` asks for; nothing, and a line, where unknown."""
        if isinstance(given, bool):
            return Capture(given, given)
        if given in ("inputs", "output"):
            return Capture(given == "inputs", given == "output")
        if isinstance(given, (tuple, list, set, frozenset)):
            names = [name for name in given if isinstance(name, str)]
            if len(names) == len(given):
                return Capture(True, True, frozenset(names))
        say_once(
            f"op-capture:{given!r}",
            "rollout_op(capture=%r) is not known; allowed are True, False, 'inputs', 'output' and "
            "names of arguments; neither arguments nor result are recorded",
            given,
        )
        return Capture(False, False)

    def check(self, function: str, signature: inspect.Signature | None) -> None:
        """Say which names the function does not have."""
        if signature is not None and self.names is not None:
            unknown = self.names.difference(signature.parameters)
            if unknown:
                say_once(
                    f"op-capture:{function}",
                    "rollout_op(capture=…) of %s: it has no arguments %s; they are not recorded",
                    function,
                    ", ".join(sorted(unknown)),
                )

    def arguments(
        self,
        signature: inspect.Signature | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the arguments of a call by name, ``self`` and ``cls`` left out."""
        inputs = _bound(signature, args, kwargs)
        if self.names is None:
            return inputs
        return {name: value for name, value in inputs.items() if name in self.names}


def _bound(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    if signature is None:
        return {"args": list(args), **kwargs}
    first = next(iter(signature.parameters), None)
    is_method = first in ("self", "cls")
    try:
        inputs = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # the call itself will say so
        return {"args": list(args[1:] if is_method else args), **kwargs}
    if is_method:
        inputs.pop(str(first), None)
    return inputs

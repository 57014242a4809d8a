"""Names of environment variables that nobody reads, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_rollout import environment_variables

_PREFIXES: Final = ("OTEL_ROLLOUT_", "OTEL_EXPORTER_WEAVE_")
_NOT_FOR_USERS: Final = (
    "OTEL_ROLLOUT_IN_RAY_WORKER",
    "OTEL_ROLLOUT_NO_EXPORTER_NAMED",
    # Of the development environments and tests, in a clone.
    "OTEL_ROLLOUT_CACHE",
    "OTEL_ROLLOUT_PYTHON",
    "OTEL_ROLLOUT_TEST_",
    "OTEL_ROLLOUT_FAULT_",
)
_NAMES: Final = frozenset(
    value for name, value in vars(environment_variables).items() if name.startswith("OTEL_")
)
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_SIMILAR: Final = 0.93
"""From here on a name is one of ours with a slip in it (``OTEL_ROLOUT_DIR``: 0.97); none of
OpenTelemetry's own variables is as near."""


def unknown(environ: Iterable[str]) -> list[tuple[str, str | None]]:
    """Return names that begin as ours do and are none, each with the nearest that is one."""
    return [
        (name, _nearest(name, 0.6))
        for name in environ
        if name.startswith(_PREFIXES) and name not in _NAMES and not name.startswith(_NOT_FOR_USERS)
    ]


def slips(environ: Iterable[str]) -> list[tuple[str, str]]:
    """Return other names that are almost one of ours, or OpenTelemetry's for exporters of spans.

    Compares texts at length: for commands, not for the start of a process.
    """
    found = []
    for name in environ:
        if name in _NAMES or name == _EXPORTER or name.startswith(_PREFIXES):
            continue
        meant = _nearest(name, _SIMILAR)
        if meant is not None:
            found.append((name, meant))
    return found


def meant_exporter(environ: Mapping[str, str], others: Iterable[str]) -> str | None:
    """Return the variable that asks for ``weave`` under another name than ``OTEL_TRACES_EXPORTER``.

    ``others``: variables of the other signals, which are known too.
    """
    return next(
        (
            name
            for name, value in environ.items()
            if name.startswith("OTEL_") and "weave" in value.replace(" ", "").split(",")
            if name != _EXPORTER and name not in others
        ),
        None,
    )


def _nearest(name: str, similar: float) -> str | None:
    import difflib  # only where there is something to say

    found = difflib.get_close_matches(name, (*sorted(_NAMES), _EXPORTER), 1, similar)
    return found[0] if found else None

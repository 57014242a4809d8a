"""What the package has to say to people: one line for each thing, once.

Telemetry must not raise into user code. Entry points that run on a user's thread are guarded by
:func:`contained`, and whatever is worth knowing is logged once for each process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

logger = logging.getLogger("otel_rollout")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_D = TypeVar("_D")
_said: set[str] = set()


def say_once(key: str, message: str, *args: object, level: int = logging.WARNING) -> None:
    """Log ``message`` the first time that ``key`` is seen in this process."""
    if key in _said:
        return
    _said.add(key)
    with contextlib.suppress(Exception):  # a logging handler of the user's that raises
        logger.log(level, message, *args)


def forget_said() -> None:
    """Let every line be said again (for tests, and for a forked child)."""
    _said.clear()


def contained(where: str, default: _D) -> Callable[[Callable[_P, _R]], Callable[_P, _R | _D]]:
    """Guard a function that runs on a user's thread: an error is logged once, ``default`` returned.

    Only ``Exception`` is contained: cancellation and interpreter exit belong to the user.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R | _D]:
        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R | _D:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                report_internal_error(where, error)
                return default

        return guarded

    return decorate


def report_internal_error(where: str, error: BaseException) -> None:
    """Log an error of our own, with its traceback, once for each place and kind of error."""
    key = f"internal:{where}:{type(error).__name__}"
    if key in _said:
        return
    _said.add(key)
    with contextlib.suppress(Exception):
        logger.error(
            "otel-rollout: internal error in %s; the run goes on, this span may be incomplete",
            where,
            exc_info=(type(error), error, error.__traceback__),
        )

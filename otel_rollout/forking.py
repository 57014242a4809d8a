"""What a forked child does first: it has none of its parent's threads, and all of its locks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def in_child(begin_afresh: Callable[[], object]) -> None:
    """Call ``begin_afresh`` in every child that this process forks, for good; nothing without fork.

    For functions of a module. An object's method would keep the object alive: see
    :func:`in_child_while_alive`.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=begin_afresh)


def in_child_while_alive(begin_afresh: Callable[[], object]) -> None:
    """Do the same with a bound method, for as long as its object lives."""
    method = weakref.WeakMethod(begin_afresh)

    def call() -> None:
        alive = method()
        if alive is not None:
            alive()

    in_child(call)

"""Giving way to the threads that train.

A thread that wants the interpreter while another one computes asks for it after 5 ms
(``sys.getswitchinterval``); an event loop with a busy thread beside it is late by that much again
and again. Ours hand it over by themselves, many times as often.
"""

from __future__ import annotations

import threading
import time
from typing import Final

SLICE_S: Final = 0.001
"""How long our threads compute at a stretch, where the work can be cut into pieces."""
PAUSE_S: Final = 0.00005
"""Long enough for a thread that waits to wake up; with none, the interpreter would be taken back
before it has."""


class _Turn(threading.local):
    began = 0.0


_turn = _Turn()


def give_way() -> None:
    """Let other threads run, if this one has computed for a while; between two pieces of work."""
    now = time.perf_counter()
    if now - _turn.began >= SLICE_S:
        time.sleep(PAUSE_S)
        _turn.began = time.perf_counter()

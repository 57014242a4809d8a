"""Another process that takes a share of a core and has nothing to do with what is measured.

python -m benchmarks.neighbour SHARE

Two cores of a virtual machine are seldom two whole cores: what one does slows the other. So a
tracer that took nothing from the traced process but worked elsewhere would still be felt, and this
says how much.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.crowd import Work

_PIECE_S = 0.004


@contextlib.contextmanager
def beside(share: float) -> Iterator[None]:
    """Have such a process run for the time of a block; ``share``: of a core, 0 to 1."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.neighbour", f"{share:.3f}"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    share = float(sys.argv[1])
    work = Work(_PIECE_S)
    while True:
        work()
        time.sleep(_PIECE_S / share - _PIECE_S)


if __name__ == "__main__":
    main()

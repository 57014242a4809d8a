"""The local store: what was traced on this machine, read from the spool's files.

import otel_rollout.local

with otel_rollout.local.open(".demo") as store:
    for one in store.trajectories("step == 1 and reward < 0.5"):
        print(one["reward"], one["response_text"])
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_rollout.local.reading import Store

__all__ = ["open"]


def open(directory: str | Path | None = None) -> Store:  # noqa: A001
    """Open the store in ``directory`` (``OTEL_ROLLOUT_DIR`` by default) for reading.

    The first time it is indexed, later what is new; a run may go on writing meanwhile. Returns a
    :class:`~otel_rollout.local.reading.Store`, a context manager. Raises ``FileNotFoundError``
    where there is no such folder.
    """
    from otel_rollout.local.reading import Store
    from otel_rollout.settings import settings

    return Store(Path(directory) if directory is not None else settings().directory)

"""Whether the Weave trace server can be reached, and whether it takes the key."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from otel_rollout.commands.findings import ERROR, NOTE, WARNING, Finding
from otel_rollout.exporters.weave.client import Client, Destination, ServerError, destination
from otel_rollout.settings import Settings

_TIMEOUT_S: Final = 5.0
_UNAUTHORIZED: Final = 401


@dataclass
class Server:
    """Where calls go. ``reachable`` and ``key_works``: ``None`` where that was not asked."""

    trace_server: str | None
    key_from: str | None
    reachable: bool | None = None
    key_works: bool | None = None
    entity: str | None = None
    problem: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def line(self) -> str:
        """Return it as a line to read."""
        if self.trace_server is None:
            return "server        none: no W&B credentials"
        states = {None: "not asked", True: "reachable", False: "not reachable"}
        key = f"key from {self.key_from}" if self.key_from else "no key"
        if self.key_works is not None:
            key += ", accepted" if self.key_works else ", refused"
        entity = f", default entity {self.entity}" if self.entity else ""
        return f"server        {self.trace_server}: {states[self.reachable]}, {key}{entity}"

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with it."""
        if self.trace_server is None:
            yield Finding(
                NOTE,
                "no-credentials",
                "no W&B credentials: trajectories stay in the local store",
                "WANDB_API_KEY or `wandb login`; `otel-rollout push` delivers what is there",
            )
        if self.reachable is False:
            yield Finding(
                WARNING,
                "unreachable",
                f"{self.trace_server} cannot be reached from here ({self.problem}): calls wait in "
                "the spool",
                "check the network and the proxy's variables",
            )
        if self.key_works is False:
            yield Finding(
                ERROR,
                "key-refused",
                f"the key from {self.key_from} is refused ({self.problem}): calls wait",
                "correct the key, then `otel-rollout push`",
            )


def server(settings: Settings, ask: bool = True) -> Server:
    """Return what is known of the server; ``ask``: see whether it answers, for 5 s at most."""
    where = destination(settings)
    if where is None:
        return Server(None, None)
    key_from = None
    if where.api_key:
        key_from = "WANDB_API_KEY" if os.environ.get("WANDB_API_KEY") else "netrc"
    found = Server(where.shown, key_from)
    if ask:
        _ask(where, found)
    return found


def _ask(where: Destination, found: Server) -> None:
    client = Client(where, _TIMEOUT_S)
    try:
        # For a call that nobody has: whatever is answered shows that the server is there.
        client.stored_calls("otel-rollout/doctor", ["0"])
        found.reachable = True
    except ServerError as error:
        found.reachable = error.status > 0
        if not found.reachable:
            found.problem = str(error)
        elif error.status == _UNAUTHORIZED and where.api_key:
            found.key_works, found.problem = False, str(error)
    if where.api_key and found.reachable and found.key_works is None:
        _ask_for_entity(client, found)
    client.close()


def _ask_for_entity(client: Client, found: Server) -> None:
    try:
        found.entity = client.default_entity()
        found.key_works = True
    except ServerError as error:
        if error.refuses_credentials:
            found.key_works, found.problem = False, str(error)

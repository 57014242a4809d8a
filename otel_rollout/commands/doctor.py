"""``otel-rollout doctor``: what is set up, what is wrong with it, what waits and what was lost."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from otel_rollout.commands import libraries, server, switches
from otel_rollout.commands.findings import ERROR, NOTE, WARNING, Finding
from otel_rollout.delivery_state import DeliveryState, delivery_state
from otel_rollout.settings import Settings, load

_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}
_SHOWN = ("OTEL_", "WANDB_", "WEAVE_", "WF_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|HEADERS", re.IGNORECASE)


@click.command()
@click.argument(
    "directory", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--offline", is_flag=True, help="Do not ask the server whether it is there.")
def doctor(directory: Path | None, as_json: bool, offline: bool) -> None:
    """Say what is set up here, what keeps rollouts from being seen, what waits and what was lost.

    Run it with the environment of the run in question. DIRECTORY is OTEL_ROLLOUT_DIR by default.
    The exit status is 1 when there is an error: something was lost or is refused for good, or
    nothing would be traced.
    """
    settings = load()
    state = delivery_state(settings, directory)
    asked = server.server(settings, ask=not offline)
    installed = libraries.libraries()
    found = sorted(
        [
            *switches.findings(settings),
            *libraries.findings(installed),
            *asked.findings(),
            *_store(settings, directory, state),
        ],
        key=lambda one: _ORDER[one.level],
    )
    if as_json:
        report = {
            "packages": libraries.packages(),
            "libraries": {one.name: one.as_dict() for one in installed},
            "settings": _given(os.environ),
            "server": asked.as_dict(),
            "delivery": state.as_dict(),
            "findings": [one.as_dict() for one in found],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        for line in _lines(installed, asked, state, found):
            click.echo(line)
    sys.exit(1 if any(one.level == ERROR for one in found) else 0)


def _lines(
    installed: list[libraries.Library],
    asked: server.Server,
    state: DeliveryState,
    found: list[Finding],
) -> Iterator[str]:
    yield "packages      " + ", ".join(f"{k} {v}" for k, v in libraries.packages().items())
    for library in installed:
        yield from library.lines()
    for name, value in _given(os.environ).items():
        yield f"{name}={value}"
    yield asked.line()
    yield from state.lines()
    yield ""
    if not found:
        yield "Nothing was found that would keep rollouts from being traced and delivered."
    for one in found:
        yield one.line()


def _given(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter, without what is secret in them."""
    return {
        name: "***" if _SECRET.search(name) else _without_password(value)
        for name, value in sorted(environ.items())
        if name.startswith(_SHOWN) and value
    }


def _without_password(value: str) -> str:
    return re.sub(r"://[^@/\s]*@", "://***@", value)


def _store(settings: Settings, directory: Path | None, state: DeliveryState) -> Iterator[Finding]:
    """Yield what is wrong with the local store, and what was lost on the way through it."""
    store = directory or settings.directory
    place = next(path for path in (store, *store.parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            ERROR,
            "unwritable",
            f"the store {store} cannot be written: calls are kept in memory only",
            "set OTEL_ROLLOUT_DIR to a folder of yours",
        )
    yield from _losses(state)
    if state.counters.get("sampled_out") and not state.counters.get("spooled"):
        yield Finding(
            WARNING,
            "sampled-out",
            f"all {state.counters['sampled_out']} spans of the last days were sampled out",
            "look at OTEL_ROLLOUT_SAMPLE_RATE and OTEL_ROLLOUT_MAX_SAMPLES_PER_STEP of those runs",
        )
    if state.segments == 0:
        yield Finding(
            NOTE,
            "empty",
            f"there is nothing in {store}: nothing was traced into it, or all was delivered",
        )


def _losses(state: DeliveryState) -> Iterator[Finding]:
    losses: tuple[tuple[int, str, str, str], ...] = (
        (state.lost, "lost", "calls were lost by processes", "their log says why"),
        (
            state.dead_letters,
            "dead-letters",
            "calls were refused by the server for good",
            "they lie in NAME.spool.dead of the store, with the reason",
        ),
        (
            state.dropped_trajectories,
            "dropped",
            "trajectories were dropped to keep within OTEL_ROLLOUT_MAX_DISK",
            "raise it, or let calls be delivered sooner",
        ),
    )
    for count, about, what, remedy in losses:
        if count:
            yield Finding(ERROR, about, f"{count} {what}", remedy)
    if state.damaged:
        yield Finding(WARNING, "damaged", f"{state.damaged} stretches of segments are damaged")

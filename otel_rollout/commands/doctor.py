"""``otel-rollout doctor``: what is set, where calls go, what waits and what was lost."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import click

from otel_rollout.delivery_state import DeliveryState, delivery_state
from otel_rollout.settings import VARIABLES, settings


@click.command()
@click.argument(
    "directory", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(directory: Path | None, as_json: bool) -> None:
    """Say what is set, where calls go, what waits to be delivered and what was lost.

    DIRECTORY is OTEL_ROLLOUT_DIR by default. The exit status is 1 when something was lost or is
    refused for good.
    """
    state = delivery_state(settings(), directory)
    given = {v.name: _shown(os.environ[v.name]) for v in VARIABLES if os.environ.get(v.name)}
    if as_json:
        click.echo(json.dumps({"settings": given, "delivery": state.as_dict()}, indent=2))
    else:
        for name, value in given.items():
            click.echo(f"{name}={value}")
        for line in state.lines():
            click.echo(line)
    sys.exit(1 if is_ill(state) else 0)


def is_ill(state: DeliveryState) -> bool:
    """Return whether something was lost, or waits for somebody to look at it."""
    return bool(state.lost or state.dead_letters or state.dropped_trajectories)


def _shown(value: str) -> str:
    """Return a setting without a password that a URL in it may hold."""
    return re.sub(r"://[^@/\s]*@", "://***@", value)

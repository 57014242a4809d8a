"""``otel-rollout push``: deliver what the local store, or a copy of one, holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from otel_rollout.exporters import spool
from otel_rollout.exporters.weave.client import destination
from otel_rollout.exporters.weave.push import Push, Pushed, spool_of
from otel_rollout.settings import settings

_WORDS: Final = {
    "shipped": "calls sent",
    "shipped_feedback": "feedbacks sent",
    "offloaded": "calls with large fields as files",
    "kept": "held calls kept by tail rules of processes that have died",
    "dropped_held": "held calls dropped: their processes died before a rule could decide",
    "dropped_disk_limit": "calls of trajectories dropped at the disk limit",
    "damaged": "damaged stretches skipped",
}


@click.command()
@click.argument(
    "directory", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False
)
@click.option(
    "--patience",
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up when a server that fails has taken nothing for this long.",
)
@click.option("--forget", is_flag=True, help="Remove segments once the server has all of them.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what is not delivered.")
def push(directory: Path | None, patience: float, forget: bool, quiet: bool) -> None:
    """Deliver what is in the local store to Weave, and ask the server whether it is there.

    DIRECTORY is OTEL_ROLLOUT_DIR by default; it may be a copy from another machine. A push that
    was interrupted goes on where it stopped. The exit status is 0 only when everything is
    delivered.
    """
    where = destination(settings())
    if where is None:
        raise click.ClickException(
            "no W&B credentials: set WANDB_API_KEY, or log in with `wandb login`"
        )
    folder = spool_of(directory or settings().directory)
    fallback = settings().weave_project or os.environ.get("WANDB_PROJECT")
    pushing = Push(folder, where, patience=patience, fallback_project=fallback)
    result = _run(pushing, folder, forget=forget, quiet=quiet)
    if not quiet:
        into = f" ({', '.join(result.projects)})" if result.projects else ""
        click.echo(f"{where.shown}{into}: {_summary(result)}")
    for line in _problems(result):
        click.echo(line, err=True)
    sys.exit(0 if result.complete else 1)


def _run(pushing: Push, folder: Path, *, forget: bool, quiet: bool) -> Pushed:
    """Run the push behind a progress bar that counts bytes."""
    sizes = {path: path.stat().st_size for path in spool.segments(folder)}
    if quiet or not sizes:
        return pushing.run(forget=forget)
    done = dict.fromkeys(sizes, 0)
    with click.progressbar(
        length=sum(sizes.values()), label=_counted(len(sizes), "segment"), file=sys.stderr
    ) as bar:

        def progress(path: Path, offset: int) -> None:
            if path in done:
                bar.update(max(0, offset - done[path]))
                done[path] = max(offset, done[path])

        pushing.on_progress = progress
        pushing.on_wait = lambda text: click.echo(f"\n{text}", err=True)
        return pushing.run(forget=forget)


def _summary(result: Pushed) -> str:
    counts = [
        _counted(result.segments, "segment"),
        f"{_counted(result.confirmed, 'record')} confirmed by the server",
    ]
    counts += [
        f"{result.counters[name]} {words}"
        for name, words in _WORDS.items()
        if result.counters[name]
    ]
    return ", ".join(counts)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _problems(result: Pushed) -> list[str]:
    lines = []
    if result.stopped_by:
        lines.append(f"stopped: {result.stopped_by}")
    if result.unsettled:
        lines.append(f"what dead processes held for tail rules is not settled: {result.unsettled}")
    if result.missing:
        lines.append(f"{result.missing} records were sent, but the server does not have them")
    if result.dead_letters:
        lines.append(f"{result.dead_letters} records are refused for good: see *.dead in the spool")
    if result.busy:
        lines.append(f"{result.busy} segments are being delivered by live processes")
    return lines

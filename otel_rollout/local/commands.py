"""The commands ``otel-rollout view`` and ``otel-rollout export``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import click

from otel_rollout.settings import settings

_DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
_NEEDED: Final = ("starlette", "uvicorn", "jinja2", "multipart")
DEFAULT_PORT: Final = 7788


def register(group: click.Group) -> None:
    """Add the commands to the command line."""
    group.add_command(view)
    group.add_command(export)


@click.command()
@click.argument("directory", type=_DIRECTORY, required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=DEFAULT_PORT, show_default=True, help="0 takes a free one.")
@click.option("--no-browser", is_flag=True, help="Open no browser.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    help="A tokenizer.json (or its folder) for the text of single tokens.",
)
def view(
    directory: Path | None, host: str, port: int, no_browser: bool, tokenizer: Path | None
) -> None:
    """Look at a store in the browser, while it grows too.

    DIRECTORY is OTEL_ROLLOUT_DIR by default. The server also takes calls from exporters (and from
    any Weave client) on other machines: with `--host 0.0.0.0` it prints the token that they need.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the viewer needs {', '.join(missing)}: pip install 'otel-rollout[view]'"
        )
    from otel_rollout.local.server.serving import serve

    serve(
        directory or settings().directory, host, port, browser=not no_browser, tokenizer=tokenizer
    )


@click.command()
@click.argument("directory", type=_DIRECTORY, required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File to write; .parquet or .jsonl by its ending.",
)
@click.option("--filter", "filter_", default="", help='Such as "step==3 and reward<0.1".')
def export(directory: Path | None, output: Path, filter_: str) -> None:
    """Write a store's trajectories to one file: ids, masks, logprobs, text, reward.

    DIRECTORY is OTEL_ROLLOUT_DIR by default.
    """
    from otel_rollout.local.export import ExportError
    from otel_rollout.local.export import export as write
    from otel_rollout.local.expression import FilterError
    from otel_rollout.local.reading import Store

    try:
        with Store(directory or settings().directory) as store:
            total = store.count(filter_)
            with click.progressbar(length=total, label="trajectories") as bar:
                count = write(store, output, filter=filter_, each=lambda: bar.update(1))
    except (ExportError, FilterError, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{count} trajectories in {output}")

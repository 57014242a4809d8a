"""The ``otel-rollout`` command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from otel_rollout._version import __version__
from otel_rollout.commands.doctor import doctor
from otel_rollout.commands.push import push
from otel_rollout.local.commands import register as register_local_commands
from otel_rollout.settings import settings

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "verl_calculator" / "train.py"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="otel-rollout")
def main() -> None:
    """See what a policy did: rollouts traced with OpenTelemetry, in Weave or on this machine."""


main.add_command(push)
main.add_command(doctor)
register_local_commands(main)


@main.command()
@click.argument("directory", type=_DIRECTORY, required=False)
def show(directory: Path | None) -> None:
    """Print what a local store holds: counts by step, and one trajectory as a tree.

    DIRECTORY is OTEL_ROLLOUT_DIR by default.
    """
    _show(directory or settings().directory)


def _show(directory: Path) -> None:
    from rich.console import Console

    from otel_rollout.local import show as printing
    from otel_rollout.local import store

    console = Console()
    trajectories = store.read(directory)
    root = printing.most_telling(trajectories)
    if root is None:
        raise click.ClickException(
            f"there is no trajectory in {directory}: none was traced into it, or all were "
            f"delivered; `otel-rollout doctor {directory}` says more"
        )
    printing.print_trajectory(console, root)
    printing.print_counts(console, trajectories, directory)


@main.command()
@click.option(
    "--path",
    type=click.Choice(["classic", "v1"]),
    default="v1",
    show_default=True,
    help="Which of verl's rollout paths.",
)
@click.option("--steps", default=2, show_default=True, help="Training steps, without an update.")
@click.option("--prompts", default=8, show_default=True, help="Questions in a step.")
@click.option("--n", "rollouts", default=4, show_default=True, help="Rollouts of each question.")
@click.argument("directory", type=_DIRECTORY, default=Path(".demo"))
def demo(path: str, steps: int, prompts: int, rollouts: int, directory: Path) -> None:
    """Roll out a tiny policy with verl and Ray, traced, and show one trajectory.

    For a clone of the repository, in an environment with verl (`make demo` sets it up). The store
    is DIRECTORY.
    """
    if not _EXAMPLE.exists():
        raise click.ClickException(
            f"the demo runs examples/verl_calculator, which is in the repository, not in {_EXAMPLE}"
        )
    directory = directory.absolute()
    environ = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": os.environ.get("OTEL_TRACES_EXPORTER", "weave"),
        "OTEL_ROLLOUT_DIR": str(directory),
        # What is traced stays here until it is pushed, whoever is logged in.
        "WANDB_API_KEY": "",
        "NETRC": os.devnull,
        "RAY_AUTH_MODE": "disabled",
        # The commands of this environment, though it may not be active.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    options = ["--path", path, "--steps", steps, "--prompts", prompts, "--n", rollouts]
    command = ["opentelemetry-instrument", "python", _EXAMPLE, *options]
    shown = " ".join(str(part) for part in [*command[:2], os.path.relpath(_EXAMPLE), *options])
    click.echo(f"$ OTEL_TRACES_EXPORTER={environ['OTEL_TRACES_EXPORTER']} {shown}")
    done = subprocess.run([str(part) for part in command], env=environ, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"the rollout ended with status {done.returncode}")
    click.echo()
    _show(directory)
    relative = os.path.relpath(directory)
    name = _command()
    click.echo(
        f"\nIn the browser:  {name} view {relative}   (http://127.0.0.1:7788)\n"
        f"In the terminal: {name} show {relative}\n"
        f"Send it to W&B:  WANDB_API_KEY=… {name} push {relative}"
    )


def _command() -> str:
    """Return how this command is called from here: its environment may not be active."""
    here = Path(sys.executable).with_name("otel-rollout")
    found = shutil.which("otel-rollout")
    if found is not None and Path(found).samefile(here):
        return "otel-rollout"
    return os.path.relpath(here)

"""The ``otel-rollout`` command."""

from __future__ import annotations

import click

from otel_rollout._version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="otel-rollout")
def main() -> None:
    """See what a policy did: rollouts traced with OpenTelemetry, in Weave or on this machine."""

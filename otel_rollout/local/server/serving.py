"""Serves the viewer: an address, a link, and a browser where there is one."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import webbrowser
from pathlib import Path

import click
import uvicorn

from otel_rollout.local.server.app import application
from otel_rollout.local.server.guard import LOOPBACK, PARAMETER
from otel_rollout.local.server.state import State

_TOKEN_BYTES = 20  # 40 characters: Weave's client takes no shorter key


def serve(
    directory: Path, host: str, port: int, *, browser: bool, tokenizer: Path | None = None
) -> None:
    """Serve the store in ``directory`` until it is interrupted."""
    listening = _listening(host, port)
    port = listening.getsockname()[1]
    token = None if host in LOOPBACK else secrets.token_hex(_TOKEN_BYTES)
    state = State.of(directory, tokenizer)
    config = uvicorn.Config(
        application(state, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    link = f"{address}/?{PARAMETER}={token}" if token else f"{address}/"
    click.echo(f"{directory}: {link}")
    if token:
        click.echo(
            "Exporters and Weave clients elsewhere: "
            f"WF_TRACE_SERVER_URL={address} WANDB_BASE_URL={address} WANDB_API_KEY={token}"
        )
    if browser:
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how one ends it: no error
        uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        hint = "; --port 0 takes a free one" if port else ""
        raise click.ClickException(f"cannot listen at {host}:{port}: {error}{hint}") from None
    return listening

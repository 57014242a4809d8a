"""The application: the viewer's pages, the files to share, and Weave's protocol, guarded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from otel_rollout.local.server.guard import Guard
from otel_rollout.local.server.pages import Pages
from otel_rollout.local.server.share import Share
from otel_rollout.local.server.state import State
from otel_rollout.local.server.weave_api import WeaveApi


def application(state: State, token: str | None = None) -> Starlette:
    """Return the application over a store.

    Args:
        state: of the store; started and stopped with the application.
        token: what every request needs; ``None``: loopback only, without one.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        state.start()
        yield
        state.stop()

    pages = Pages(state)
    return Starlette(
        routes=[*pages.routes(), *Share(pages).routes(), *WeaveApi(state).routes()],
        middleware=[Middleware(Guard, token=token), Middleware(GZipMiddleware, compresslevel=4)],
        lifespan=lifespan,
    )

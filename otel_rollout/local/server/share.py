"""One file that shows a trajectory, a group or a comparison anywhere, without a server."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otel_rollout.local.server.details import compared, grouped
from otel_rollout.local.server.pages import MOST_COMPARED, VIEWS, Pages, name_of
from otel_rollout.local.server.rendering import content_hash, render, static

_POLICY: Final = "default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'"


class Share:
    """The endpoints for files to share."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._vocabularies = pages.details.vocabularies

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/share/t/{trace}.html", self.trajectory),
            Route("/share/group/{name}.html", self.group),
            Route("/share/compare.html", self.compare),
        ]

    def trajectory(self, request: Request) -> Response:
        """All views of a trajectory, one below the other."""
        found = self._pages.details.trajectory(request.path_params["trace"])
        if found is None:
            return self._pages.missing("This trajectory")
        return _file(
            "trajectory.html",
            f"trajectory-{found.trace[:12]}",
            title=name_of(found),
            view="",
            views=VIEWS,
            one=found,
            selection=None,
            list_query="",
            before=None,
            after=None,
            siblings=self._pages.details.siblings(found),
            parting=self._pages.details.parting_from_best(found),
            **self._pages.body(found, ""),
        )

    def group(self, request: Request) -> Response:
        """A group."""
        members = self._pages.details.group(request.path_params["name"])
        if not members:
            return self._pages.missing("This group")
        view = grouped(members, self._vocabularies)
        name = request.path_params["name"]
        return _file("group.html", f"group-{name[:12]}", title="Group", selection=None, group=view)

    def compare(self, request: Request) -> Response:
        """A comparison."""
        traces = request.query_params.getlist("t")[:MOST_COMPARED]
        found = [one for one in map(self._pages.details.trajectory, traces) if one is not None]
        if not found:
            return self._pages.missing("What is compared")
        comparison = compared(found, self._vocabularies)
        return _file("compare.html", "comparison", title="Compare", comparison=comparison, query="")


def _file(template: str, name: str, **values: Any) -> Response:
    style, script = static("viewer.css"), static("viewer.js")
    policy = _POLICY.format(style=content_hash(style), script=content_hash(script))
    share = {"style": style.decode(), "script": script.decode(), "policy": policy}
    page = render(
        template,
        share=share,
        directory="",
        index_version=0,
        progress=None,
        damage=[],
        fields={},
        **values,
    )
    safe = re.sub(r"[^A-Za-z0-9-]", "", name)
    return Response(
        page,
        media_type="text/html; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{safe}.html"',
            "Content-Security-Policy": policy,
        },
    )

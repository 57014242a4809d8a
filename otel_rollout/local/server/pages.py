"""The viewer's pages. Every state of a page is in its address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from otel_rollout.local import conversation, queries, strips, timeline
from otel_rollout.local.expression import FIELDS, FilterError
from otel_rollout.local.queries import DEFAULT_SORT, SORTS, Selection
from otel_rollout.local.server import plots
from otel_rollout.local.server.details import Details, compared, grouped
from otel_rollout.local.server.rendering import STATIC, list_query, render, static
from otel_rollout.local.server.run_plots import step_plots
from otel_rollout.local.server.state import State
from otel_rollout.local.trajectory import Trajectory

VIEWS: Final = ("conversation", "tokens", "timeline", "calls")
MOST_COMPARED: Final = 4


def selection_of(query: Mapping[str, str]) -> Selection:
    """Return which trajectories an address selects."""
    return Selection(
        query.get("project"),
        query.get("experiment"),
        query.get("q", "").strip(),
        query.get("sort", DEFAULT_SORT),
    )


class Pages:
    """The endpoints; each runs on a thread of its own, since it asks the index."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._index = state.index
        self.details = Details(state.index, state.vocabularies)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self.runs),
            Route("/steps", self.steps),
            Route("/trajectories", self.table),
            Route("/groups", self.groups),
            Route("/group/{name}", self.group),
            Route("/t/{trace}", self.one),
            Route("/compare", self.compare),
            Route("/call/{call}.json", self.call),
            Route("/changes", self.changes),
            Route("/static/{name}", self.static),
        ]

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page of the viewer."""
        shared = {
            "directory": str(self._state.directory.absolute()),
            "index_version": self._index.version(),
            "progress": self._state.progress.percent,
            "damage": queries.damage(self._index),
            "fields": FIELDS,
            "share": None,
        }
        return HTMLResponse(render(template, **{**shared, **values}), status)

    def missing(self, what: str) -> Response:
        """Return the page for what is not in the store."""
        return self.page("missing.html", 404, what=what, title="Not here")

    # --- lists -----------------------------------------------------------------------------------

    def runs(self, request: Request) -> Response:
        """All runs, the last active first."""
        rows = []
        for row in queries.runs(self._index):
            steps = queries.steps(self._index, row["project"], row["experiment"])
            means = [step["mean"] for step in steps if not step["validate"]]
            rows.append((row, means[-60:]))
        return self.page("runs.html", title="Runs", rows=rows)

    def steps(self, request: Request) -> Response:
        """One run by step: plots and table."""
        selection = selection_of(request.query_params)
        project, experiment = selection.project or "", selection.experiment or ""
        rows = queries.steps(self._index, project, experiment)
        if not rows:
            return self.missing("This run")
        return self.page(
            "steps.html",
            title=experiment or project,
            selection=selection,
            rows=rows,
            plots=step_plots(rows, selection),
        )

    def table(self, request: Request) -> Response:
        """A list of trajectories, with the histogram of their rewards."""
        selection = selection_of(request.query_params)
        try:
            summary = queries.summary(self._index, selection)
            page = queries.page(
                self._index,
                selection,
                after=request.query_params.get("after"),
                before=request.query_params.get("before"),
                matching=summary.count if selection.text else None,
            )
        except FilterError as error:
            return self._refused(selection, error)
        return self.page(
            "table.html",
            title="Trajectories",
            selection=selection,
            page=page,
            summary=summary,
            histogram=plots.histogram(summary.bins),
            sorts=SORTS,
            problem=None,
        )

    def groups(self, request: Request) -> Response:
        """The groups of a list, the widest spread of rewards first."""
        selection = selection_of(request.query_params)
        try:
            rows = queries.groups(self._index, selection)
        except FilterError as error:
            return self._refused(selection, error)
        return self.page(
            "groups.html", title="Groups", selection=selection, rows=rows, problem=None
        )

    def _refused(self, selection: Selection, error: FilterError) -> Response:
        nothing = queries.Page([], False, False)
        return self.page(
            "table.html",
            400,
            title="Trajectories",
            selection=selection,
            page=nothing,
            summary=queries.Summary(0, 0, None, 0, ()),
            histogram=[],
            sorts=SORTS,
            problem=str(error),
        )

    # --- trajectories ----------------------------------------------------------------------------

    def group(self, request: Request) -> Response:
        """The rollouts of one prompt side by side."""
        members = self.details.group(request.path_params["name"])
        if not members:
            return self.missing("This group")
        view = grouped(members, self._state.vocabularies)
        return self.page(
            "group.html",
            title="Group",
            selection=Selection(view.facts["project"], view.facts["experiment"]),
            group=view,
        )

    def one(self, request: Request) -> Response:
        """One trajectory."""
        found = self.details.trajectory(request.path_params["trace"])
        if found is None:
            return self.missing("This trajectory")
        query = request.query_params
        view = query.get("view", VIEWS[0])
        selection = selection_of(query)
        before = after = None
        listed = any(key in query for key in ("q", "sort", "project", "experiment"))
        try:
            if listed:
                before, after = queries.neighbours(self._index, selection, found.trace)
        except FilterError:
            listed = False
        return self.page(
            "trajectory.html",
            title=name_of(found),
            view=view if view in VIEWS else VIEWS[0],
            views=VIEWS,
            one=found,
            selection=selection,
            list_query=list_query(selection) if listed else "",
            before=before,
            after=after,
            siblings=self.details.siblings(found),
            parting=self.details.parting_from_best(found),
            **self.body(found, view, _whole(query.get("from"))),
        )

    def body(self, found: Trajectory, view: str, start: int = 0) -> dict[str, Any]:
        """Return what a view of a trajectory (or all of them, for ``""``) is made of."""
        wanted = {view} if view else set(VIEWS)
        return {
            "entries": conversation.entries(found) if wanted - {"tokens", "timeline"} else [],
            "strip": strips.strip(found, self._state.vocabularies, start)
            if "tokens" in wanted
            else None,
            "timeline": timeline.of(found) if "timeline" in wanted else None,
        }

    def compare(self, request: Request) -> Response:
        """Two to four trajectories beside each other."""
        traces = request.query_params.getlist("t")[:MOST_COMPARED]
        found = [one for one in map(self.details.trajectory, traces) if one is not None]
        if not found:
            return self.missing("What is compared")
        return self.page(
            "compare.html",
            title="Compare",
            comparison=compared(found, self._state.vocabularies),
            query=request.url.query,
        )

    # --- the rest --------------------------------------------------------------------------------

    def call(self, request: Request) -> Response:
        """A call as it is stored, to be looked at as text or saved."""
        found = self._index.query(
            "SELECT s.name, c.offset, c.bytes FROM calls c JOIN segments s "
            "ON s.number = c.segment WHERE c.id = ?",
            (request.path_params["call"],),
        )
        if not found:
            return JSONResponse({"reason": "not in this store"}, 404)
        return Response(self._index.body(*found[0]), media_type="application/json")

    def changes(self, request: Request) -> Response:
        """What a page asks to see whether there is something new."""
        return JSONResponse(
            {"version": self._index.version(), "progress": self._state.progress.percent}
        )

    def static(self, request: Request) -> Response:
        """Style and script."""
        name = request.path_params["name"]
        if name not in STATIC:
            return Response("not found", 404)
        return Response(static(name), media_type=STATIC[name])


def name_of(found: Trajectory) -> str:
    """Return what a trajectory is called in titles."""
    facts = found.facts
    parts = [f"step {facts['step']}", f"sample {facts['sample_index']}", f"n {facts['rollout_n']}"]
    return " · ".join(part for part in parts if not part.endswith("None")) or found.trace[:12]


def _whole(text: str | None) -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0

"""Which W&B project, and which W&B run, calls belong to: found when they are sent."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from otel_rollout.diagnostics import say_once
from otel_rollout.settings import Settings

if TYPE_CHECKING:
    from otel_rollout.exporters.weave.client import Client

DEFAULT_PROJECT: Final = "otel-rollout"


def full_name(project: str | None, settings: Settings) -> str:
    """Return the project's name with as much of its entity as this process knows.

    It is put into the spool, for another process may be the one that delivers.
    """
    name = project or settings.weave_project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT
    entity = os.environ.get("WANDB_ENTITY")
    return f"{entity}/{name}" if entity and "/" not in name else name


def current_wandb_run() -> dict[str, Any] | None:
    """Return the W&B run that is active in this process, if there is one; imports nothing.

    ``run``: ``entity/project/id``; ``step``: its step now.
    """
    wandb = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    if run is None:
        return None
    try:
        return {"run": f"{run.entity}/{run.project}/{run.id}", "step": int(run.step)}
    except Exception:
        return None


def with_run(call: bytes, project_id: str, run: Mapping[str, Any] | None) -> bytes:
    """Return the call with the id of the W&B run, where the run is of the same project."""
    if not isinstance(run, Mapping):
        return call
    name = str(run.get("run"))
    if name.rpartition("/")[0] != project_id:
        return call
    more = orjson.dumps({"wb_run_id": name, "wb_run_step": run.get("step")})
    return call[:-1] + b"," + more[1:]


class Projects:
    """Finds ``entity/project`` for a project's name, and creates projects, when they are needed."""

    def __init__(self, client: Client, fallback: str) -> None:
        self._client = client
        self._fallback = fallback
        self._entity: str | None = None
        self._known: dict[str, str] = {}

    def resolve(self, name: str | None) -> str:
        """Return ``entity/project``; raises :class:`ServerError` when W&B cannot be asked."""
        name = name or self._fallback
        project_id = self._known.get(name)
        if project_id is None:
            entity, slash, project = name.partition("/")
            if not slash:
                project = name
                if self._entity is None:
                    self._entity = self._client.default_entity()
                entity = self._entity
            project_id = f"{entity}/{project}"
            if self._client.where.api_key:
                self._create(entity, project)
            self._known[name] = project_id
        return project_id

    @property
    def found(self) -> list[str]:
        """Every ``entity/project`` so far, each once, by name."""
        return sorted(set(self._known.values()))

    def forget(self) -> None:
        """Find everything anew: the server does not know a project."""
        self._known.clear()

    def _create(self, entity: str, project: str) -> None:
        from otel_rollout.exporters.weave.client import ServerError

        try:
            self._client.ensure_project(entity, project)
        except ServerError as error:
            if error.status not in (0, 404, 405):  # these: no API of W&B's there
                raise
            # It may be there all the same; else the trace server will say so, and we come again.
            say_once(
                f"project:{entity}/{project}",
                "W&B does not create the project %s/%s (%s)",
                entity,
                project,
                error,
                level=logging.WARNING if error.answered else logging.DEBUG,
            )

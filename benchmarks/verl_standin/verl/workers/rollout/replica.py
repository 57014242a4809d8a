"""Stands in for verl's ``TokenOutput``."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class TokenOutput(BaseModel):
    token_ids: list[int]
    log_probs: list[float] | None = None
    routed_experts: Any | None = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = {}

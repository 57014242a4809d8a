"""Spans to W&B Weave: span → call → spool → trace server."""

from __future__ import annotations

from otel_rollout.exporters.weave.exporter import WeaveSpanExporter

__all__ = ["WeaveSpanExporter"]

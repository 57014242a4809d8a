"""Fixtures of the unit tests: a real tracer provider, and nothing left over from other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_rollout import diagnostics, recording
from otel_rollout import settings as settings_module
from otel_rollout.processor import sampling
from otel_rollout.processor.token2text import tokenizers
from tests.unit.pipeline import Pipeline


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """Each test finds the package as a new process would."""
    diagnostics.forget_said()
    settings_module.configure(None)
    sampling.use_sampler(None)
    tokenizers.clear()
    yield
    recording.use_tracer_provider(None)
    settings_module.configure(None)
    sampling.use_sampler(None)
    tokenizers.clear()


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    """A provider with RolloutSpanProcessor, an exporter behind it that gets the full payload."""
    made = Pipeline()
    yield made
    made.close()

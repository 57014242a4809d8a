"""OpenTelemetry instrumentation for LLM reinforcement-learning rollouts.

The public API; everything is loaded when it is first used, so that importing the package costs
nothing at start-up.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from otel_rollout._version import __version__

if TYPE_CHECKING:
    from otel_rollout.afterwards import EndedTrajectory, ended_trajectory
    from otel_rollout.exporters.weave.exporter import WeaveSpanExporter
    from otel_rollout.ops import rollout_op
    from otel_rollout.processor.following import FollowingSampler
    from otel_rollout.processor.keeping import TrajectoryFacts
    from otel_rollout.processor.processor import RolloutSpanProcessor
    from otel_rollout.processor.token2text import register_tokenizer
    from otel_rollout.randomness import IdGenerator
    from otel_rollout.threads import in_context
    from otel_rollout.trajectory import (
        Trajectory,
        current_trajectory,
        record_reward,
        trajectory,
    )

__all__ = [
    "EndedTrajectory",
    "FollowingSampler",
    "IdGenerator",
    "RolloutSpanProcessor",
    "Trajectory",
    "TrajectoryFacts",
    "WeaveSpanExporter",
    "__version__",
    "current_trajectory",
    "ended_trajectory",
    "in_context",
    "record_reward",
    "register_tokenizer",
    "rollout_op",
    "trajectory",
]

_HOME = {
    "EndedTrajectory": "otel_rollout.afterwards",
    "ended_trajectory": "otel_rollout.afterwards",
    "FollowingSampler": "otel_rollout.processor.following",
    "IdGenerator": "otel_rollout.randomness",
    "RolloutSpanProcessor": "otel_rollout.processor.processor",
    "Trajectory": "otel_rollout.trajectory",
    "TrajectoryFacts": "otel_rollout.processor.keeping",
    "WeaveSpanExporter": "otel_rollout.exporters.weave.exporter",
    "current_trajectory": "otel_rollout.trajectory",
    "in_context": "otel_rollout.threads",
    "record_reward": "otel_rollout.trajectory",
    "register_tokenizer": "otel_rollout.processor.token2text",
    "rollout_op": "otel_rollout.ops",
    "trajectory": "otel_rollout.trajectory",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """This package; a submodule does not take the place of a public name (``trajectory``)."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets every submodule as an attribute of its package.
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""verl's scoring: the reward of a trajectory, on a span of its own and on the root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.verl.trajectories import PROVIDER
from otel_rollout.recording import Recording
from otel_rollout.trajectory import current_trajectory


def patch_worker(actor_class: type, patches: Patches) -> None:
    """Record ``_compute_score``, which runs inside the trajectory."""
    patches.actor_method(actor_class, "_compute_score", _compute_score)


def _compute_score(method: Callable[..., Any]) -> Callable[..., Any]:
    async def compute_score(self: Any, *args: Any, **kwargs: Any) -> Any:
        final = _final_output(args, kwargs)
        asks = (
            getattr(final, "reward_score", None) is None
            and getattr(self, "reward_loop_worker_handles", None) is not None
        )
        if not asks:
            # Nothing is computed here: the agent loop has set the score itself, or the trainer
            # will do it for the whole batch.
            result = await method(self, *args, **kwargs)
            _note(None, final)
            return result
        recording = recordings.start(
            semconv.OP_EVALUATE,
            "reward",
            attributes={semconv.EVALUATION_NAME: "reward", semconv.PROVIDER: PROVIDER},
        )
        with recordings.active(recording):
            result = await method(self, *args, **kwargs)
            _note(recording, final)
            return result

    return compute_score


def _final_output(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = args[0] if args else kwargs.get("outputs", kwargs.get("output"))
    if isinstance(given, list):
        return given[-1] if given else None
    return given


def _note(recording: Recording | None, final: Any) -> None:
    try:
        score = getattr(final, "reward_score", None)
        if score is None:
            return
        detail = (getattr(final, "extra_fields", None) or {}).get("reward_extra_info") or {}
        handle = current_trajectory()
        if handle is not None and handle.recording.live:
            handle.record_reward(score, "reward", detail if isinstance(detail, dict) else None)
        if recording is not None:
            recording.set(semconv.REWARD, float(score))
            recording.set(semconv.EVALUATION_SCORE, float(score))
            if detail:
                recording.keep(semconv.REWARD_DETAIL, detail)
    except Exception as error:
        report_internal_error("reward", error)

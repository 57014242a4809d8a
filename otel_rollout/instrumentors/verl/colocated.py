"""Scores of a colocated reward model: computed on the driver, when the rollouts are over.

The driver knows batches, not trajectories, and reorders their rows. So an agent-loop worker sends
the headers of each trajectory along, where verl carries something for each row that the training
does not look at: the classic path beside the metrics of a row, which are taken off before the batch
is made; the V1 path among the tags of a key. On the driver the headers meet the scores. All of it
only where the reward model is colocated; anywhere else verl's score comes before the end.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Final

from otel_rollout.afterwards import EndedTrajectory
from otel_rollout.diagnostics import contained, report_internal_error
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.trajectory import Trajectory, current_trajectory

TAG: Final = "otel_rollout"
"""Tag of a key of the V1 path that has the headers of its trajectory, as JSON."""
_BATCHES: Final = 65_536
"""Rows whose trajectories the driver remembers, until they are scored."""

Headers = Mapping[str, str]


# --- the agent-loop worker -----------------------------------------------------------------------


class RowMetrics(dict[str, Any]):
    """The metrics of a row, equal to those that verl made, and the headers of its trajectory."""

    headers: Headers | None = None


_of_outputs: ContextVar[dict[int, tuple[Any, Headers]] | None] = ContextVar(
    "otel_rollout_verl_outputs", default=None
)
_scored_later: ContextVar[bool] = ContextVar("otel_rollout_verl_scored_later", default=False)


class batch:  # noqa: N801 - used like a function, as `contextlib.suppress` is
    """Collects the trajectories of the outputs that are made within."""

    def __enter__(self) -> None:
        self._token = _of_outputs.set({})

    def __exit__(self, *error: object) -> None:
        _of_outputs.reset(self._token)


def begin(worker: Any) -> Any:
    """Note whether what ``worker`` rolls out now is scored later; returns what ends that."""
    return _scored_later.set(getattr(worker, "reward_loop_worker_handles", ()) is None)


def end(token: Any) -> None:
    """End :func:`begin`."""
    _scored_later.reset(token)


@contained("note_output", None)
def note_output(output: Any, opened: Sequence[Trajectory]) -> None:
    """Note which trajectory an output of the classic path is of, where it is scored later."""
    outputs = _of_outputs.get()
    if outputs is None or output is None or not _scored_later.get():
        return
    if len(opened) == 1 and opened[0].sampled:
        # The output too, so that its id stays its own.
        outputs[id(output)] = output, opened[0].headers()


def patch_worker(actor_class: type, patches: Patches) -> None:
    """Let the headers of each trajectory travel with its row."""
    patches.actor_method(actor_class, "_postprocess", _postprocess)
    queue = sys.modules.get("transfer_queue")
    if queue is not None:
        patches.function(queue, "async_kv_batch_put", _async_kv_batch_put)


def _postprocess(method: Callable[..., Any]) -> Callable[..., Any]:
    def postprocess(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        try:
            _send_along(result, args[0] if args else kwargs["inputs"])
        except Exception as error:
            report_internal_error("headers of a batch", error)
        return result

    return postprocess


def _send_along(result: Any, outputs: Sequence[Any]) -> None:
    known = _of_outputs.get()
    rows = result.meta_info.get("metrics") if known else None
    if not known or not isinstance(rows, list) or len(rows) != len(outputs):
        return
    sent = []
    for row, output in zip(rows, outputs, strict=True):
        one = RowMetrics(row)
        one.headers = known[id(output)][1] if id(output) in known else None
        sent.append(one)
    result.meta_info["metrics"] = sent


def _async_kv_batch_put(
    wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    tags = kwargs.get("tags")
    handle = current_trajectory() if _scored_later.get() else None
    if handle is not None and handle.sampled and isinstance(tags, list) and tags:
        try:
            # Of several outputs the last one's score is the trajectory's.
            last = {**tags[-1], TAG: json.dumps(handle.headers())}
            kwargs = {**kwargs, "tags": [*tags[:-1], last]}
        except Exception as error:
            report_internal_error("headers of a key", error)
    return wrapped(*args, **kwargs)


# --- the driver ----------------------------------------------------------------------------------

_lock = threading.Lock()
_rows: OrderedDict[tuple[str, int], Headers] = OrderedDict()
"""Headers by uid and priority, which verl gives each row of a batch to tell it from all others."""
_of_keys: ContextVar[Sequence[Headers | None] | None] = ContextVar(
    "otel_rollout_verl_keys", default=None
)


def patch_manager(patches: Patches, module: ModuleType) -> None:
    """Take the headers off a batch of the classic path."""
    manager = getattr(module, "AgentLoopManager", None)
    patches.method(manager, "_performance_metrics", _performance_metrics)


def patch_trainer(patches: Patches, module: ModuleType) -> None:
    """Read the headers from a batch of the V1 path."""
    trainer = getattr(module, "PPOTrainer", None)
    patches.every_subclass(trainer, "_compute_reward_colocate", _compute_reward_colocate)


def patch_reward_loop(patches: Patches, module: ModuleType) -> None:
    """Record the scores."""
    manager = getattr(module, "RewardLoopManager", None)
    patches.method(manager, "compute_rm_score", _compute_rm_score)


def _performance_metrics(method: Callable[..., Any]) -> Callable[..., Any]:
    def performance_metrics(self: Any, metrics: Any, output: Any, *args: Any, **kw: Any) -> Any:
        try:
            _take_off(metrics, output)
        except Exception as error:
            report_internal_error("headers of a batch", error)
        return method(self, metrics, output, *args, **kw)

    return performance_metrics


def _take_off(metrics: Any, output: Any) -> None:
    headers = [getattr(row, "headers", None) for chunk in metrics for row in chunk]
    keys = _keys(output)
    if len(keys) != len(headers):
        return
    with _lock:
        for key, one in zip(keys, headers, strict=True):
            if one is not None:
                _rows[key] = one
        while len(_rows) > _BATCHES:
            _rows.popitem(last=False)


def _keys(data: Any) -> list[tuple[str, int]]:
    columns = data.non_tensor_batch
    if "uid" not in columns or "priority" not in columns:
        return []
    pairs = zip(columns["uid"], columns["priority"], strict=True)
    return [(str(uid), int(priority)) for uid, priority in pairs]


def _compute_reward_colocate(method: Callable[..., Any]) -> Callable[..., Any]:
    def compute_reward_colocate(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        token = _of_keys.set(_headers_of_tags(batch))
        try:
            return method(self, batch, *args, **kwargs)
        finally:
            _of_keys.reset(token)

    return compute_reward_colocate


def _headers_of_tags(batch: Any) -> list[Headers | None] | None:
    try:
        return [json.loads(tag[TAG]) if TAG in tag else None for tag in batch.tags]
    except Exception as error:
        report_internal_error("headers of keys", error)
        return None


def _compute_rm_score(method: Callable[..., Any]) -> Callable[..., Any]:
    def compute_rm_score(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, data, *args, **kwargs)
        try:
            _record(data, result)
        except Exception as error:
            report_internal_error("scores of a batch", error)
        return result

    return compute_rm_score


def _record(data: Any, result: Any) -> None:
    headers = _of_keys.get()
    if headers is None:
        with _lock:
            headers = [_rows.pop(key, None) for key in _keys(data)]
    if not any(headers):
        return
    scores = result.batch["rm_scores"].sum(dim=-1).tolist()
    details = {
        name: result.non_tensor_batch[name] for name in result.meta_info["reward_extra_keys"]
    }
    for number, (one, score) in enumerate(zip(headers, scores, strict=True)):
        ended = EndedTrajectory.from_headers(one) if one is not None else None
        if ended is not None:
            detail = {name: values[number] for name, values in details.items()}
            ended.record_reward(score, "reward", detail)

"""The calculator example, scored as with a colocated reward model: on the driver, in batches.

A program of its own, for the verl environment: `colocated.py OUT [train.py's options]`. Agent
loops, batches and the scoring of a batch are verl's own; the reward model itself is a stub, since
one needs an engine: it scores what stands in the response.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "verl_calculator"


class RewardModel:
    """Stands for verl's reward worker in front of a reward model; an actor."""

    def compute_score_batch(self, data: Any) -> list[dict[str, Any]]:
        prompt = data.batch["prompts"].shape[1]
        real = data.batch["attention_mask"][:, prompt:].bool()
        found = []
        for number in range(len(data)):
            ids = data.batch["responses"][number][real[number]].tolist()
            found.append({"reward_score": sum(ids) / 7, "reward_extra_info": {"length": len(ids)}})
        return found


def without_reward_workers(manager: Any) -> None:
    """Give agent loops no reward workers, as verl's trainers do with a colocated model."""
    create = manager.create

    def create_without(**given: Any) -> Any:
        return create(**{**given, "reward_loop_worker_handles": None})

    manager.create = staticmethod(create_without)


def rewards_of(config: Any) -> Any:
    """verl's manager of reward workers, with the stub as the only one of them."""
    import ray
    from verl.experimental.reward_loop.reward_loop import RewardLoopManager
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    made = RewardLoopManager.__new__(RewardLoopManager)
    made.config = config
    made.reward_model_manager = None
    made.reward_manager_cls = resolve_reward_manager_cls(config)
    made.reward_loop_workers = [ray.remote(RewardModel).remote()]
    return made


def classic(setup: Any, train: Any, rows: list[Any], step: int) -> list[dict[str, Any]]:
    import numpy
    import torch
    from verl.protocol import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    n = setup.args.n
    columns = {key: numpy.empty(len(rows), dtype=object) for key in rows[0]}
    for key, column in columns.items():
        column[:] = [row[key] for row in rows]
    repeated = {key: numpy.repeat(column, n) for key, column in columns.items()}
    # As the trainer does it: what is rolled out is another batch, and rows change places after.
    batch = DataProto.from_dict(
        tensors={"place": torch.arange(len(rows) * n)},
        non_tensors={key: repeated[key] for key in ("uid", "reward_model", "data_source")},
    )
    given = DataProto(
        non_tensor_batch=repeated, meta_info={"global_steps": step, "validate": False}
    )
    output = setup.manager.generate_sequences(given)
    batch = batch.union(output)
    places = list(range(len(batch)))
    random.Random(step).shuffle(places)
    batch.reorder(torch.tensor(places))
    trainer = SimpleNamespace(reward_loop_manager=rewards_of(setup.config))
    scored = batch.union(RayPPOTrainer._compute_reward_colocate(trainer, batch))
    prompt = scored.batch["prompts"].shape[1]
    real = scored.batch["attention_mask"][:, prompt:].bool()
    return [
        {
            "uid": scored.non_tensor_batch["uid"][i],
            "rollout_n": int(scored.batch["place"][i]) % n,
            "response_ids": scored.batch["responses"][i][real[i]].tolist(),
            "reward": scored.batch["rm_scores"][i].sum().item(),
            "columns": sorted([*scored.non_tensor_batch, *scored.batch.keys()]),
            "meta": sorted(scored.meta_info),
        }
        for i in range(len(scored))
    ]


def v1(setup: Any, train: Any, rows: list[Any], step: int) -> list[dict[str, Any]]:
    import transfer_queue as tq
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils import tensordict_utils

    uids = [row["uid"] for row in rows]
    batch = tensordict_utils.get_tensordict({key: [row[key] for row in rows] for key in rows[0]})
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", step)
    tensordict_utils.assign_non_tensor_data(batch, "validate", False)
    tag = {"is_prompt": True, "status": "pending", "global_steps": step}
    tq.kv_batch_put(keys=uids, partition_id="train", tags=[tag] * len(uids))
    setup.manager.generate_sequences(batch)
    train.wait_for_groups(uids, "train")
    found = {key: tag for key, tag in tq.kv_list("train")["train"].items() if key not in uids}
    keys = sorted(found)
    random.Random(step).shuffle(keys)
    sampled = tq.KVBatchMeta(keys=keys, tags=[found[key] for key in keys], partition_id="train")
    trainer = SimpleNamespace(
        reward_loop_manager=rewards_of(setup.config),
        tokenizer=setup.tokenizer,
        _lengths_to_mask=PPOTrainer._lengths_to_mask,
    )
    PPOTrainer._compute_reward_colocate(trainer, sampled)
    data = tq.kv_batch_get(keys=keys, partition_id="train")
    result = []
    for i, key in enumerate(keys):
        uid, session, _ = key.split("_")
        result.append(
            {
                "uid": uid,
                "rollout_n": int(session),
                "response_ids": data["responses"][i].tolist(),
                "reward": data["rm_scores"][i].sum().item(),
                "columns": sorted(data.keys()),
                "meta": sorted(found[key].keys() - {"otel_rollout"}),
            }
        )
    tq.kv_clear(keys=[*uids, *keys], partition_id="train")
    return result


def main() -> None:
    sys.path.insert(0, str(EXAMPLE))
    train = importlib.import_module("train")
    out, *options = sys.argv[1:]
    args = train.parse_args(options)
    from verl.experimental.agent_loop import AgentLoopManager

    without_reward_workers(AgentLoopManager)
    if args.path == "v1":
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        without_reward_workers(AgentLoopManagerTQ)
    setup = train.setup(args)
    roll_out = v1 if args.path == "v1" else classic
    trajectories: list[dict[str, Any]] = []
    for step in range(1, args.steps + 1):
        setup.sync(step - 1)
        rows = train.make_rows(args, step)
        trajectories += roll_out(setup, train, rows, step)
    train.teardown(setup)
    Path(out).write_text(json.dumps({"trajectories": trajectories}))


if __name__ == "__main__":
    main()

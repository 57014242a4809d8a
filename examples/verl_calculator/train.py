"""The rollouts of a verl training run: a tiny policy learns to call a calculator.

The policy really generates, in verl's own agent loop under Ray; only the update of its weights is
left out. `--path v1` is verl's default path (`trainer.use_v1`, results in the TransferQueue),
`--path classic` the one before it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import time
import uuid
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import older_verl
import ray
import vllm_servers
from policy_server import PolicyServer
from tasks import sample_task

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray.actor import ActorHandle
    from transformers import PreTrainedTokenizerFast
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.workers.rollout.llm_server import LLMServerClient

HERE = Path(__file__).resolve().parent
TIMEOUT = 600.0  # seconds that a step may take

Row = dict[str, Any]
Trajectory = dict[str, Any]


@dataclass
class Setup:
    """What a run needs: verl's config and handles of all its actors."""

    args: argparse.Namespace
    config: DictConfig
    tokenizer: PreTrainedTokenizerFast
    servers: dict[str, ActorHandle]
    reward_workers: list[ActorHandle]
    sync: Callable[[int], None]  # brings the servers the weights of a version
    manager: AgentLoopManager  # its `.agent_loop_workers` run the agent loops


def setup(args: argparse.Namespace) -> Setup:
    """Start Ray and all actors of the rollout."""
    start_ray(args)
    servers = start_servers(args) if args.engine == "example" else {}
    # verl warns of accelerators and training engines that are missing: here none is wanted.
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", message=r"\w+ engine is not available")
    # These imports take seconds, in which the servers start.
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.utils import hf_tokenizer

    config = make_config(args)
    manager_class = AgentLoopManager
    if args.path == "v1":
        import transfer_queue
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ

        manager_class = AgentLoopManagerTQ
        transfer_queue.init(config.transfer_queue)
    reward_workers = start_reward_workers(config)
    if args.engine == "vllm":
        engine = vllm_servers.VllmServers(config)
        servers, sync, client = engine.servers, engine.sync, engine.client()
    else:
        sync, client = functools.partial(set_version, servers), make_client(config, servers)
    if client is None:
        manager = older_verl.create_manager(config, servers, reward_workers)
    else:
        manager = manager_class.create(
            config=config,
            llm_client=client,
            reward_loop_worker_handles=reward_workers,
        )
    tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
    actors = [*servers.values(), *reward_workers, *manager.agent_loop_workers]
    ray.get([actor.__ray_ready__.remote() for actor in actors])
    return Setup(args, config, tokenizer, servers, reward_workers, sync, manager)


def start_ray(args: argparse.Namespace) -> None:
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    env_vars = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if args.path == "v1":
        env_vars |= {"TRANSFER_QUEUE_ENABLE": "1", "TQ_NUM_THREADS": "1"}
    if args.engine == "vllm":
        env_vars |= vllm_servers.ENVIRONMENT
    os.environ.update(env_vars)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starts slowly on a busy machine
    ray.init(
        num_cpus=8,  # what Ray counts with; two real ones will do
        num_gpus=vllm_servers.GPUS if args.engine == "vllm" else None,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": env_vars},
    )


def start_servers(args: argparse.Namespace) -> dict[str, ActorHandle]:
    """Start the rollout servers and name them as verl's router wants them: by address."""
    server_class = ray.remote(PolicyServer).options(num_cpus=0.1, max_concurrency=1000)
    return {
        f"127.0.0.1:{9000 + i}": server_class.remote(
            str(HERE / "policy"), args.prompt_length, args.response_length
        )
        for i in range(args.servers)
    }


def start_reward_workers(config: DictConfig) -> list[ActorHandle]:
    """Start what computes the rewards; until verl 0.6 the agent loop workers do it themselves."""
    try:
        from verl.experimental.reward_loop import RewardLoopManager
    except ImportError:
        return []
    manager = RewardLoopManager(config=config)
    # Of another name before verl 0.8.
    return getattr(manager, "reward_loop_worker_handles", manager.reward_loop_workers)


def make_client(config: DictConfig, servers: dict[str, ActorHandle]) -> LLMServerClient | None:
    """Make the client of the servers; before verl 0.8 there is none."""
    try:
        from verl.workers.rollout.llm_server import LLMServerClient
    except ImportError:
        return None
    return LLMServerClient(config=config, load_balancer_handle=start_router(servers))


def start_router(servers: dict[str, ActorHandle]) -> ActorHandle:
    """Start what shares the requests out among the servers."""
    try:
        from verl.workers.rollout.router import get_router_handle
    except ImportError:  # verl 0.8
        from verl.workers.rollout.llm_server import GlobalRequestLoadBalancer

        return GlobalRequestLoadBalancer.remote(servers=servers)
    return get_router_handle(servers=servers)


def set_version(servers: dict[str, ActorHandle], version: int) -> None:
    """Let the example's servers name the version of their weights, which stay what they are."""
    ray.get([server.set_global_steps.remote(version) for server in servers.values()])


def make_config(args: argparse.Namespace) -> DictConfig:
    """Compose verl's configuration, as `python -m verl.trainer.main_ppo` does."""
    import verl
    from hydra import compose, initialize_config_dir

    rollout = {
        "name": "vllm",
        "mode": "async",
        "n": args.n,
        "temperature": 1.0,
        "prompt_length": args.prompt_length,
        "response_length": args.response_length,
        "calculate_log_probs": True,
        "agent.num_workers": args.workers,
        "agent.agent_loop_config_path": HERE / "agent_loops.yaml",
        "multi_turn.enable": True,
        "multi_turn.format": "hermes",
        "multi_turn.max_assistant_turns": 6,
        "multi_turn.tool_config_path": HERE / "tools.yaml",
    }
    added = {}
    if args.engine == "vllm":
        rollout |= vllm_servers.ROLLOUT
        added = vllm_servers.ADDED
    overrides = {
        "actor_rollout_ref.model.path": HERE / "policy",
        **{f"actor_rollout_ref.rollout.{key}": value for key, value in rollout.items()},
        **{f"+actor_rollout_ref.rollout.{key}": value for key, value in added.items()},
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": HERE / "reward.py",
        "reward.custom_reward_function.name": "compute_score",
        "++trainer.use_v1": args.path == "v1",
        "trainer.project_name": args.project,
        "trainer.experiment_name": args.experiment,
        "++transfer_queue.enable": args.path == "v1",
        "++transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    config_dir = Path(verl.__file__).parent / "trainer" / "config"
    if not (config_dir / "reward").is_dir():
        overrides = older_verl.overrides(overrides)
    with initialize_config_dir(config_dir=str(config_dir), version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[f"{key}={value}" for key, value in overrides.items()] + args.overrides,
        )


def make_rows(args: argparse.Namespace, step: int, validate: bool = False) -> list[Row]:
    """Draw the questions of a step, one row each, as verl's dataset would give them."""
    rng = random.Random(f"{args.seed}/{'val' if validate else 'train'}/{step}")
    rows = []
    for index in range(args.prompts):
        task = sample_task(rng, zero_div=0.1)
        rows.append(
            {
                "raw_prompt": [{"role": "user", "content": task.question}],
                "agent_name": "calculator_agent",
                "data_source": "calculator",
                "reward_model": {"style": "rule", "ground_truth": task.answer},
                "extra_info": {"index": index, "step": step},
                "index": index,
                "uid": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            }
        )
    return rows


def rollout(setup: Setup, step: int, validate: bool = False) -> list[Trajectory]:
    """Roll out one step, and return its trajectories sorted by sample and place in the group."""
    # A trainer would bring new weights here: those of step s come from s - 1 updates.
    setup.sync(step - 1)
    rows = make_rows(setup.args, step, validate)
    run = rollout_v1 if setup.args.path == "v1" else rollout_classic
    outputs = run(setup, rows, step, validate)
    return [
        {
            "step": step,
            "sample_index": row["index"],
            "uid": row["uid"],
            "rollout_n": rollout_n,
            "question": row["raw_prompt"][0]["content"],
            **output,
        }
        for row, group in zip(rows, outputs, strict=True)
        for rollout_n, output in enumerate(group)
    ]


def group_size(setup: Setup, validate: bool) -> int:
    config = setup.config.actor_rollout_ref.rollout
    return config.val_kwargs.n if validate else config.n


def rollout_classic(
    setup: Setup, rows: list[Row], step: int, validate: bool
) -> list[list[Trajectory]]:
    """Roll out one batch of all rows; the result comes back as one padded batch."""
    import numpy as np
    from verl.protocol import DataProto

    n = group_size(setup, validate)
    columns = {key: np.empty(len(rows), dtype=object) for key in rows[0]}
    for key, column in columns.items():
        column[:] = [row[key] for row in rows]
    batch = DataProto(
        non_tensor_batch={key: np.repeat(column, n) for key, column in columns.items()},
        meta_info={"global_steps": step, "validate": validate},
    )
    output = setup.manager.generate_sequences(batch)

    prompts, responses = output.batch["prompts"], output.batch["responses"]
    is_prompt, is_response = (
        output.batch["attention_mask"].bool().split([prompts.shape[1], responses.shape[1]], dim=1)
    )
    trajectories = [
        {
            "prompt_ids": prompts[i][is_prompt[i]].tolist(),
            "response_ids": responses[i][is_response[i]].tolist(),
            "response_mask": output.batch["response_mask"][i][is_response[i]].tolist(),
            "reward": output.batch["rm_scores"][i].sum().item(),
            "num_turns": int(output.non_tensor_batch["__num_turns__"][i]),
        }
        for i in range(len(output))
    ]
    return [trajectories[i : i + n] for i in range(0, len(trajectories), n)]


def rollout_v1(setup: Setup, rows: list[Row], step: int, validate: bool) -> list[list[Trajectory]]:
    """Hand the rows to the workers, and fetch the result from the TransferQueue."""
    import transfer_queue as tq
    from verl.utils import tensordict_utils as tu

    partition = "val" if validate else "train"
    uids = [row["uid"] for row in rows]
    batch = tu.get_tensordict({key: [row[key] for row in rows] for key in rows[0]})
    tu.assign_non_tensor_data(batch, "global_steps", step)
    tu.assign_non_tensor_data(batch, "validate", validate)
    tag = {"is_prompt": True, "status": "pending", "global_steps": step}
    tq.kv_batch_put(keys=uids, partition_id=partition, tags=[tag] * len(uids))
    setup.manager.generate_sequences(batch)  # returns before the rollouts are done

    wait_for_groups(uids, partition)
    fields = ["prompts", "responses", "response_mask", "rm_scores", "num_turns"]
    groups = []
    for uid in uids:
        # One output for each rollout; an agent loop may also give several.
        keys = [f"{uid}_{session}_0" for session in range(group_size(setup, validate))]
        data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=fields)
        groups.append(
            [
                {
                    "prompt_ids": data["prompts"][i].tolist(),
                    "response_ids": data["responses"][i].tolist(),
                    "response_mask": data["response_mask"][i].tolist(),
                    "reward": data["rm_scores"][i].sum().item(),
                    "num_turns": int(data["num_turns"][i]),
                }
                for i in range(len(keys))
            ]
        )
        tq.kv_clear(keys=[uid, *keys], partition_id=partition)
    return groups


def wait_for_groups(uids: list[str], partition: str) -> None:
    """Wait until every group is finished."""
    import transfer_queue as tq

    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        tags = tq.kv_list(partition_id=partition).get(partition, {})
        statuses = {tags.get(uid, {}).get("status") for uid in uids}
        if "failure" in statuses:
            raise RuntimeError("a rollout failed: see the logs of Ray's workers")
        if statuses == {"finished"}:
            return
        time.sleep(0.1)
    raise TimeoutError(f"the rollouts of a step took more than {TIMEOUT:.0f} s")


def teardown(setup: Setup) -> None:
    """End all actors, and Ray."""
    if setup.args.path == "v1":
        import transfer_queue

        transfer_queue.close()
    ray.shutdown()


def summarize(setup: Setup, trajectories: list[Trajectory]) -> str:
    """Say in a line how a step went."""
    groups = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory["uid"]].append(trajectory["reward"])
    texts = [setup.tokenizer.decode(trajectory["response_ids"]) for trajectory in trajectories]
    rewards = [trajectory["reward"] for trajectory in trajectories]
    return (
        f"mean reward {sum(rewards) / len(rewards):.3f}, "
        f"hits per group {[int(sum(group)) for group in groups.values()]}, "
        f"tool errors {sum(text.count('Error executing tool') for text in texts)}"
    )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--path", choices=["classic", "v1"], default="v1")
    parser.add_argument(
        "--engine",
        choices=["example", "vllm"],
        default=os.environ.get("ENGINE") or "example",
        help="what generates: the example's own server, or verl's with vLLM",
    )
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8, help="questions in a step")
    parser.add_argument("--n", type=int, default=4, help="rollouts of each question")
    parser.add_argument("--workers", type=int, default=2, help="agent loop workers")
    parser.add_argument("--servers", type=int, default=2, help="rollout servers")
    parser.add_argument("--seed", type=int, default=0, help="which questions are asked")
    parser.add_argument("--prompt-length", type=int, default=192)
    parser.add_argument("--response-length", type=int, default=256)
    parser.add_argument("--project", default="verl_calculator")
    parser.add_argument("--experiment", default="tiny_policy")
    parser.add_argument("--out", type=Path, help="write the trajectories to this JSON file")
    parser.add_argument("--validate", action="store_true", help="end with a validation batch")
    parser.add_argument("overrides", nargs="*", help="verl options, such as trainer.val_only=True")
    return parser.parse_args(argv)


def main() -> None:
    start = time.monotonic()
    args = parse_args()
    print("setting up Ray and verl, which takes a minute or so", flush=True)
    run = setup(args)
    print(f"set up in {time.monotonic() - start:.1f} s", flush=True)
    results = []
    try:
        batches = [(step, False) for step in range(1, args.steps + 1)]
        if args.validate:
            batches.append((args.steps, True))
        for step, validate in batches:
            start = time.monotonic()
            trajectories = rollout(run, step, validate)
            name = "validation" if validate else f"step {step}"
            seconds = time.monotonic() - start
            print(f"{name}: {summarize(run, trajectories)}, {seconds:.1f} s", flush=True)
            results += trajectories
    finally:
        teardown(run)
    if args.out:
        args.out.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()

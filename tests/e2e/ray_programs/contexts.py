"""What arrives in Ray's workers: instrumentation, context, baggage. `contexts.py OUT [ADDRESS]`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import ray
from opentelemetry import baggage, trace

from otel_rollout import trajectory


def seen() -> dict[str, Any]:
    """The trajectory as this process sees it."""
    context = trace.get_current_span().get_span_context()
    provider = trace.get_tracer_provider()
    return {
        "pid": os.getpid(),
        "trace_id": f"{context.trace_id:032x}",
        "sampled": bool(context.trace_flags.sampled),
        "step": baggage.get_baggage("rollout.step"),
        "provider": type(provider).__name__,
        "exporter": os.environ.get("OTEL_TRACES_EXPORTER"),
        "secret": os.environ.get("WANDB_API_KEY"),
        "mine": os.environ.get("MINE"),
        "hooked": os.environ.get("USER_HOOK_RAN"),
    }


def user_hook() -> None:
    os.environ["USER_HOOK_RAN"] = "yes"


class Base:
    async def inherited(self) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return seen()


@ray.remote(num_cpus=0)
class Actor(Base):
    async def asynchronous(self, value: int) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        with trace.get_tracer("user").start_as_current_span("in the actor"):
            return seen()

    def sync(self) -> dict[str, Any]:
        return seen()

    async def keywords(self, **kwargs: Any) -> Any:
        return sorted(kwargs), seen()

    @staticmethod
    def static() -> str:
        return "static"

    def generator(self) -> Iterator[int]:
        for i in range(3):  # noqa: UP028 - Ray resumes what it finds with `send`
            yield i

    async def asynchronous_generator(self) -> AsyncIterator[int]:
        for i in range(3):
            yield i


@ray.remote(num_cpus=0)
class SyncActor:
    def __init__(self) -> None:
        self.value = 7

    def sync(self) -> dict[str, Any]:
        return {**seen(), "value": self.value}


@ray.remote(num_cpus=0)
class Nesting:
    async def nested(self) -> list[dict[str, Any]]:
        inner = Actor.remote()
        return [seen(), await inner.asynchronous.remote(1)]


@ray.remote(num_cpus=0)
def task() -> dict[str, Any]:
    return seen()


@ray.remote(num_cpus=0)
def task_with_keywords(value: int, *, twice: bool = False, **kwargs: Any) -> dict[str, Any]:
    assert (value, twice, kwargs) == (1, True, {"other": 2})
    return seen()


@ray.remote(num_cpus=0)
def task_generator() -> Iterator[int]:
    for i in range(3):  # noqa: UP028
        yield i


def main() -> None:
    out = Path(sys.argv[1])
    address = sys.argv[2] if len(sys.argv) > 2 else None
    options: dict[str, Any] = {"address": address} if address else {"num_cpus": 4}
    if not address:
        options["include_dashboard"] = False
    runtime_env: dict[str, Any] = {"env_vars": {"MINE": "kept"}}
    if os.environ.get("WITH_USER_HOOK"):
        runtime_env["worker_process_setup_hook"] = user_hook
    ray.init(log_to_driver=False, runtime_env=runtime_env, **options)
    actor, sync, nesting = Actor.remote(), SyncActor.remote(), Nesting.remote()
    found: dict[str, Any] = {}
    with trajectory(step=5, sample_index=0):
        found["driver"] = seen()
        found["async"] = ray.get(actor.asynchronous.remote(1))
        found["inherited"] = ray.get(actor.inherited.remote())
        found["sync method"] = ray.get(actor.sync.remote())
        found["sync actor"] = ray.get(sync.sync.remote())
        names, found["keywords"] = ray.get(actor.keywords.remote(a=1, b=2))
        found["keyword names"] = names
        found["nested"] = ray.get(nesting.nested.remote())
        found["static"] = ray.get(actor.static.remote())
        generated = actor.generator.options(num_returns="streaming").remote()
        found["generator"] = [ray.get(item) for item in generated]
        generated = actor.asynchronous_generator.options(num_returns="streaming").remote()
        found["async generator"] = [ray.get(item) for item in generated]
        found["task"] = ray.get(task.remote())
        answer = task_with_keywords.options(name="named").remote(1, twice=True, other=2)
        found["task with keywords"] = ray.get(answer)
        found["task generator"] = [ray.get(item) for item in task_generator.remote()]
    found["outside"] = ray.get(actor.asynchronous.remote(2))
    found["services"] = services()
    ray.shutdown()
    out.write_text(json.dumps(found))


def services() -> list[list[str]]:
    """Command lines of the Python processes of Ray that are no workers."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            argv = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except (OSError, NotADirectoryError):
            continue
        if (
            argv
            and Path(argv[0]).name.startswith("python")
            and any("/ray/" in part for part in argv[1:4])
        ):
            found.append(argv)
    return found


if __name__ == "__main__":
    main()

"""Tail rules the whole way: into W&B's own server and an OTLP receiver, through deaths, in verl."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_rollout import (
    FollowingSampler,
    IdGenerator,
    RolloutSpanProcessor,
    WeaveSpanExporter,
    recording,
    settings,
)
from otel_rollout.exporters import spool
from otel_rollout.processor import sampling
from tests.e2e.rollouts import runs
from tests.e2e.rollouts.runs import Run
from tests.faults.scenario import push
from tests.servers.otlp_receiver import OtlpReceiver
from tests.servers.weave_process import WeaveServer
from tests.unit.held import Spec, roll_out_all

PROGRAM = Path(__file__).with_name("held_process.py")
ROOT = PROGRAM.parents[2]
RULES = ("error", "reward<0.1", "turns>3", "tokens>90")


def specs(count: int) -> list[Spec]:
    draw = random.Random(11)
    return [
        Spec(
            turns=((draw.randrange(50), draw.randrange(50)),) * draw.randrange(5),
            reward=draw.choice([None, 0.0, 0.3, 1.0]),
            tool_fails=draw.random() < 0.05,
            raises=draw.random() < 0.05,
            foreign=draw.randrange(2),
            nested=draw.random() < 0.1,
        )
        for _ in range(count)
    ]


def test_a_thousand_trajectories_in_weave_and_otlp(
    weave_server: WeaveServer,
    otlp_receiver: OtlpReceiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in weave_server.environ().items():
        monkeypatch.setenv(name, value)
    given = specs(1000)
    configuration = settings.Settings(
        directory=tmp_path, weave_project="local/tail-rules", keep=",".join(RULES)
    )
    sampling.use_sampler(sampling.Sampler(rate=0))
    provider = TracerProvider(sampler=FollowingSampler(ALWAYS_ON), id_generator=IdGenerator())
    processor = RolloutSpanProcessor(
        WeaveSpanExporter(configuration),
        BatchSpanProcessor(OTLPSpanExporter(otlp_receiver.traces_endpoint)),
        configuration=configuration,
    )
    provider.add_span_processor(processor)
    recording.use_tracer_provider(provider)
    try:
        asyncio.run(roll_out_all(given, provider.get_tracer("foreign")))
        assert provider.force_flush(120_000)
    finally:
        provider.shutdown()
        recording.use_tracer_provider(None)
        sampling.use_sampler(None)

    named = {n: spec for n, spec in enumerate(given) if any(map(spec.matches, RULES))}
    assert 200 < len(named) < 900
    expected = Counter({n: spec.spans for n, spec in named.items()})
    spans = otlp_receiver.spans
    assert Counter(span.attributes["rollout.sample_index"] for span in spans) == expected
    assert len({span.span_id for span in spans}) == len(spans)
    client = weave_server.client("tail-rules")
    calls = [runs.Call.of(call) for call in client.get_calls()]
    assert {call.id for call in calls} == {span.span_id for span in spans}
    assert len(calls) == len(spans)
    assert Counter(call.attributes["sample_index"] for call in calls) == expected
    for call in calls:
        if call.parent_id is None:
            kept = call.attributes["rollout"]["kept"]
            assert named[call.attributes["sample_index"]].matches(kept)
    assert processor.counters["dropped_held"] == 0
    assert spool.pending(tmp_path / "spool") == []


# --- deaths --------------------------------------------------------------------------------------


class Death:
    """What a process left behind: its trajectories, by their reward, and its store."""

    def __init__(self, folder: Path, how: str, keep: str, **more: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "WANDB_"))}
        self.environ = {
            **kept,
            "OTEL_ROLLOUT_DIR": str(folder),
            "OTEL_ROLLOUT_SAMPLE_RATE": "0",
            "OTEL_ROLLOUT_KEEP": keep,
            "WANDB_BASE_URL": "http://127.0.0.1:9",  # nobody there
            "WF_TRACE_SERVER_URL": "http://127.0.0.1:9",
            "PYTHONPATH": str(ROOT),
            **more,
        }
        done = subprocess.run(
            [sys.executable, str(PROGRAM), how],
            env=self.environ,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.status = done.returncode
        self.spool = folder / "spool"
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        self.spans = {line["reward"]: set(line["spans"]) for line in lines}

    def spooled(self) -> list[str]:
        paths = spool.segments(self.spool)
        return [r.id for p in paths for r in spool.read(p) if r.kind == spool.CALL]


@pytest.mark.parametrize("how", ["verdict", "moved"])
def test_a_death_between_verdict_and_delivery_loses_nothing(
    weave_server: WeaveServer, tmp_path: Path, how: str
) -> None:
    project = f"tail-{how}"
    one = Death(tmp_path, how, "reward<0.1", OTEL_EXPORTER_WEAVE_PROJECT=f"local/{project}")
    assert one.status == -signal.SIGKILL
    assert len(one.spooled()) == (4 if how == "moved" else 0)

    done = push({**one.environ, **weave_server.environ()})

    assert done.returncode == 0, done.stderr
    calls = [runs.Call.of(call) for call in weave_server.client(project).get_calls()]
    assert {call.id for call in calls} == one.spans[0.0]
    assert len(calls) == 4
    (root,) = [call for call in calls if call.parent_id is None]
    assert root.attributes["rollout"]["kept"] == "reward<0.1"
    assert spool.pending(one.spool) == []


@pytest.mark.parametrize("how", ["open", "os_exit"])
@pytest.mark.parametrize("keep", ["error,reward>9", "reward>9"])
def test_a_death_before_the_roots_end_is_an_error(tmp_path: Path, how: str, keep: str) -> None:
    one = Death(tmp_path, how, keep)
    assert one.status == (3 if how == "os_exit" else -signal.SIGKILL)
    assert one.spooled() == []

    # Any later process on this host settles it at its exit; it does not trace anything itself.
    program = (
        "import logging; logging.basicConfig(level=logging.INFO);"
        "from otel_rollout import WeaveSpanExporter; WeaveSpanExporter().shutdown()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=one.environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert spool.pending(one.spool) == []
    if "error" in keep:
        assert sorted(one.spooled()) == sorted(one.spans[0.0])
    else:
        assert one.spooled() == []
        assert "dropped held 3" in done.stderr


def test_a_normal_end_leaves_nothing_pending(tmp_path: Path) -> None:
    one = Death(tmp_path, "normal", "reward<0.1")

    assert one.status == 0
    assert sorted(one.spooled()) == sorted(one.spans[0.0])
    assert spool.pending(one.spool) == []


# --- verl ----------------------------------------------------------------------------------------


def test_a_verl_rollout_keeps_what_failed(
    verl_python: Path, weave_server: WeaveServer, tmp_path: Path
) -> None:
    """At rate 0, real workers under real Ray keep what went wrong, whole, and nothing else."""
    project = "tail-verl"
    with OtlpReceiver() as receiver:
        results, output = runs.start(
            verl_python,
            tmp_path,
            *("--steps", "1", "--prompts", "8", "--n", "2", "--project", project),
            **runs.both_environments(weave_server, receiver),
            OTEL_ROLLOUT_SAMPLE_RATE="0",
            OTEL_ROLLOUT_KEEP="error,reward<0.1",
        )
        policy = ROOT / "examples" / "verl_calculator" / "policy" / "tokenizer.json"
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(policy))
        wrong = {
            (one["sample_index"], one["rollout_n"])
            for one in results["trajectories"]
            if one["reward"] < 0.1
            or "Error executing tool" in tokenizer.decode(one["response_ids"])
        }
        assert 0 < len(wrong) < 16, "the example's policy makes some mistakes"
        runs.wait_for_calls(weave_server, project, len(wrong))
        run = Run(project, results, tmp_path / "store", output, weave_server, receiver.spans)

    rewards = {(t["sample_index"], t["rollout_n"]): t["reward"] for t in results["trajectories"]}
    kept = {(r.attributes["sample_index"], r.attributes["rollout_n"]): r for r in run.roots}
    assert wrong <= kept.keys()
    for place, root in kept.items():
        below = run.below(root)
        everything = [root, *below, *(call for one in below for call in run.below(one))]
        failed = any(call.exception is not None for call in everything)
        assert root.attributes["rollout"]["kept"] == ("error" if failed else "reward<0.1")
        assert failed or rewards[place] < 0.1
        names = Counter(call.op_name.split()[0] for call in everything)
        assert names["invoke_agent"] == 1
        assert names["text_completion"] >= 1
        assert names["evaluate"] == 1
        assert len({call.attributes["process"]["pid"] for call in everything}) == 1
    in_trajectories = {(s.trace_id, s.span_id) for s in run.spans if "rollout.step" in s.attributes}
    assert in_trajectories == {(call.trace_id, call.id) for call in run.calls}
    assert len(run.calls) == len({call.id for call in run.calls})

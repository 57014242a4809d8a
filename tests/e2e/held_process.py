"""A process with tail rules, for `test_tail_rules.py`: rolls out and dies as it is told.

    python held_process.py DEATH

DEATH: `verdict` (SIGKILL when the verdict is on disk and nothing is in the spool yet), `moved`
(SIGKILL when all is in the spool), `open` (SIGKILL while a root is open), `os_exit` (while a root
is open), `normal`. A line on the standard output names the spans of each trajectory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_rollout import (
    FollowingSampler,
    IdGenerator,
    RolloutSpanProcessor,
    WeaveSpanExporter,
    record_reward,
    trajectory,
)


class Exporter(WeaveSpanExporter):
    """Dies between a verdict and the first record that it brings into the spool, where asked."""

    def _write(self, meta: dict[str, Any], body: bytes) -> None:
        if sys.argv[1] == "verdict":
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write(meta, body)


def main() -> None:
    provider = TracerProvider(sampler=FollowingSampler(ALWAYS_ON), id_generator=IdGenerator())
    provider.add_span_processor(RolloutSpanProcessor(Exporter()))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("held")

    def roll_out(reward: float, *, dies: bool = False) -> None:
        spans = []
        with trajectory(step=1, sample_index=int(reward)):
            for _ in range(3):
                with tracer.start_as_current_span("turn") as span:
                    spans.append(f"{span.get_span_context().span_id:016x}")
            root = trace.get_current_span().get_span_context()
            if not dies:
                spans.append(f"{root.span_id:016x}")
            print(json.dumps({"reward": reward, "spans": spans}), flush=True)
            if dies:
                provider.force_flush()
                if sys.argv[1] == "os_exit":
                    os._exit(3)
                os.kill(os.getpid(), signal.SIGKILL)
            record_reward(reward)

    roll_out(5.0)  # kept by no rule
    if sys.argv[1] in ("open", "os_exit"):
        roll_out(0.0, dies=True)
    roll_out(0.0)
    provider.force_flush()
    if sys.argv[1] == "moved":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

"""The user's own provider and processors, before us and after us; and the SDK switched off."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.alongside.conftest import Run

ROLLOUT = """
from otel_rollout import record_reward, rollout_op, trajectory

@rollout_op(kind="llm", name="policy")
def answer(prompt_ids):
    return {"token_ids": [4, 5]}

def rollout(step=1):
    with trajectory(step=step, project="alongside"):
        answer([1, 2, 3])
        record_reward(1.0)
"""

MEMORY = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

memory = InMemorySpanExporter()

def show():
    trace.get_tracer_provider().force_flush()
    print(json.dumps([[s.name, dict(s.attributes)] for s in memory.get_finished_spans()]))
"""

BY_HAND = """
from otel_rollout import IdGenerator, RolloutSpanProcessor, WeaveSpanExporter

provider = TracerProvider(id_generator=IdGenerator())
"""

#: Upstream's and Elastic's are both called "distro": which is meant depends on their order.
DISTROS = [None, "otel_rollout", "distro", "one that is not there"]


MODULES = {
    "opentelemetry-distro": "opentelemetry.distro",
    "elastic-opentelemetry": "elasticotel.distro",
}


class TestByHand:
    """Without `opentelemetry-instrument`, whatever the order of things."""

    @pytest.mark.parametrize(
        "order",
        [
            "provider.add_span_processor(ours); trace.set_tracer_provider(provider); rollout()",
            "trace.set_tracer_provider(provider); provider.add_span_processor(ours); rollout()",
            "rollout(0); trace.set_tracer_provider(provider); provider.add_span_processor(ours); "
            "rollout()",
        ],
        ids=["processor first", "provider first", "a rollout before either"],
    )
    def test_our_processor_in_front_of_theirs(self, run: Run, order: str) -> None:
        code = (
            f"{ROLLOUT}{MEMORY}{BY_HAND}"
            "ours = RolloutSpanProcessor(WeaveSpanExporter(), SimpleSpanProcessor(memory))\n"
            f"{order}\nshow()"
        )
        ran = run(code, instrument=False)
        (one,) = ran.trajectories()
        assert (one["step"], one["prompt_ids"], one["response_ids"]) == (1, [1, 2, 3], [4, 5])
        spans = json.loads(ran.out)
        assert [name for name, _ in spans] == ["chat policy", "rollout"]
        assert all(attributes["rollout.step"] == 1 for _, attributes in spans)

    def test_theirs_beside_ours_see_the_identity(self, run: Run) -> None:
        code = (
            f"{ROLLOUT}{MEMORY}{BY_HAND}"
            "provider.add_span_processor(SimpleSpanProcessor(memory))\n"
            "provider.add_span_processor(RolloutSpanProcessor(WeaveSpanExporter()))\n"
            "trace.set_tracer_provider(provider); rollout(); show()"
        )
        ran = run(code, instrument=False)
        assert len(ran.trajectories()) == 1
        spans = json.loads(ran.out)
        assert [name for name, _ in spans] == ["chat policy", "rollout"]
        assert all(attributes["rollout.step"] == 1 for _, attributes in spans)


class TestZeroCode:
    """Under `opentelemetry-instrument`, which has set up a provider already."""

    def test_a_processor_that_is_added_later(self, run: Run) -> None:
        code = (
            f"{ROLLOUT}{MEMORY}"
            "trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(memory))\n"
            "rollout(); show()"
        )
        ran = run(code)
        (one,) = ran.trajectories()
        assert one["response_ids"] == [4, 5]
        assert ran.err.startswith("no W&B credentials")
        assert len(ran.err.splitlines()) == 1
        spans = json.loads(ran.out)
        assert [name for name, _ in spans] == ["chat policy", "rollout"]
        assert all(attributes["rollout.step"] == 1 for _, attributes in spans)

    def test_a_processor_that_is_added_later_sees_no_unsampled_trajectory(self, run: Run) -> None:
        code = (
            f"{ROLLOUT}{MEMORY}"
            "trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(memory))\n"
            "rollout(); show()"
        )
        ran = run(code, OTEL_ROLLOUT_SAMPLE_RATE="0")
        assert json.loads(ran.out) == []
        assert ran.trajectories() == []

    def test_a_provider_that_the_user_sets_afterwards_is_refused_by_opentelemetry(
        self, run: Run
    ) -> None:
        code = f"{ROLLOUT}{MEMORY}trace.set_tracer_provider(TracerProvider())\nrollout()"
        ran = run(code)
        assert "Overriding of current TracerProvider is not allowed" in ran.err
        assert len(ran.trajectories()) == 1

    @pytest.mark.parametrize("distro", DISTROS)
    @pytest.mark.parametrize("first", ["opentelemetry-distro", "elastic-opentelemetry"])
    def test_other_distros(self, run: Run, tmp_path: Path, first: str, distro: str | None) -> None:
        # Metadata that is found earlier, of the same files: so that distro is asked first.
        metadata = Path(str(distribution(first).locate_file(""))).glob(
            f"{first.replace('-', '_')}-*.dist-info"
        )
        for folder in metadata:
            shutil.copytree(folder, tmp_path / "first" / folder.name)
        code = (
            "import sys\n"
            "print(*(name for name in ('elasticotel.distro', 'opentelemetry.distro') "
            "if name in sys.modules))\n"
        )
        ran = run(
            f"{code}{ROLLOUT}rollout()",
            PYTHONPATH=str(tmp_path / "first"),
            OTEL_PYTHON_DISTRO=distro,
        )
        if distro in (None, "otel_rollout", "distro"):
            assert MODULES[first] in ran.out
        (one,) = ran.trajectories()
        assert one["response_ids"] == [4, 5]


class TestSwitchedOff:
    """What OpenTelemetry's own switches turn off is off: no file, no line, no error."""

    @pytest.mark.parametrize(
        "switch",
        [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}],
        ids=["OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER=none"],
    )
    def test_off(self, run: Run, switch: dict[str, str]) -> None:
        ran = run(
            f"{ROLLOUT}rollout(); print('ran')",
            OTEL_PYTHON_DISTRO="otel_rollout",
            **switch,
        )
        assert ran.out == "ran\n"
        assert ran.err == ""
        assert not ran.store.exists()

    def test_our_instrumentors_alone(self, run: Run) -> None:
        ran = run(
            f"{ROLLOUT}rollout()",
            OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="otel_rollout_verl,otel_rollout_threads",
        )
        assert len(ran.trajectories()) == 1

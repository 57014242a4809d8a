"""verl's own, unmodified vLLM server: one tree over three processes, in Weave and in OTLP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout import payload, semconv
from tests.e2e.rollouts import runs
from tests.e2e.rollouts.runs import Call, Run
from tests.servers.otlp_receiver import OtlpReceiver, Span
from tests.servers.weave_process import WeaveServer

# On a machine with much else to do, all its processes are up after minutes only.
pytestmark = pytest.mark.timeout(600)

PROGRAM = Path(__file__).parent / "programs" / "verl_server.py"
STEPS, PROMPTS, N = 2, 2, 2
PROJECT = "verl-engine"
GENERATION = "text_completion policy"


@pytest.fixture(scope="module")
def run(weave_server: WeaveServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Two steps with new weights before each, then a generation that is aborted and resumed."""
    folder = tmp_path_factory.mktemp("verl-engine")
    with OtlpReceiver() as receiver:
        results, output = runs.start(
            Path(sys.executable),
            folder,
            *("--steps", str(STEPS), "--prompts", str(PROMPTS), "--n", str(N), "--workers", "1"),
            *("--project", PROJECT),
            program=PROGRAM,
            **{
                **runs.weave_environment(weave_server),
                "OTEL_TRACES_EXPORTER": "weave,otlp",
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_ROLLOUT_OTLP_PAYLOAD": "full",
                "WANDB_PROJECT": PROJECT,
            },
        )
        runs.wait_for_calls(weave_server, PROJECT, STEPS * PROMPTS * N + 1)
        spans = [span for span in receiver.spans if span.scope == semconv.SCOPE]
        yield Run(PROJECT, results, folder / "store", output, weave_server, spans)


def engine_spans(run: Run) -> list[Span]:
    """What the instrumented engine said of itself, by what only it has."""
    return [span for span in run.spans if semconv.RESPONSE_ID in span.attributes]


def by_id(run: Run) -> dict[str, Span]:
    return {span.span_id: span for span in run.spans}


def of_steps(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.attributes[semconv.STEP] <= STEPS]


def test_one_tree_over_three_processes(run: Run) -> None:
    """The driver's root, an agent in an actor with verl's client, and verl's server."""
    spans = [span for span in run.spans if span.attributes[semconv.STEP] == 99]
    assert len({span.trace_id for span in spans}) == 1
    (root,) = [span for span in spans if span.parent_id is None]
    (agent,) = [span for span in spans if span.name == "invoke_agent resumed"]
    (client,) = [span for span in spans if span.parent_id == agent.span_id]
    attempts = [span for span in spans if span.parent_id == client.span_id]
    of_engine = [span for span in engine_spans(run) if span in spans]
    assert agent.parent_id == root.span_id
    assert {span.parent_id for span in of_engine} == {span.span_id for span in attempts}
    pids = [span.resource["process.pid"] for span in (root, agent, of_engine[0])]
    assert pids[0] == run.results["pid"]
    assert len(set(pids)) == 3


def test_verls_own_rollouts(run: Run) -> None:
    spans = by_id(run)
    of_engine = of_steps(engine_spans(run))
    roots = [span for span in of_steps(run.spans) if span.parent_id is None]
    assert len(roots) == STEPS * PROMPTS * N
    assert len(of_engine) >= len(roots)
    for span in of_engine:
        client = spans[span.parent_id or ""]
        agent = spans[client.parent_id or ""]
        root = spans[agent.parent_id or ""]
        names = [one.name for one in (client, agent, root)]
        assert names == [GENERATION, "invoke_agent calculator_agent", "rollout calculator_agent"]
        assert client.resource["process.pid"] != span.resource["process.pid"]
        assert client.start_time <= span.start_time <= span.end_time <= client.end_time


def test_baggage_on_every_span(run: Run) -> None:
    roots = {span.trace_id: span for span in run.spans if span.parent_id is None}
    keys = (semconv.STEP, semconv.SAMPLE_INDEX, semconv.ROLLOUT_N, semconv.EXPERIMENT_NAME)
    for span in run.spans:
        root = roots[span.trace_id]
        for key in keys:
            assert span.attributes[key] == root.attributes[key], (span.name, key)


def test_the_engines_span_refers_to_the_clients_ids(run: Run) -> None:
    spans = by_id(run)
    for span in of_steps(engine_spans(run)):
        client = spans[span.parent_id or ""]
        assert span.attributes[semconv.TOKENS_SPAN] == client.span_id
        assert semconv.RESPONSE_IDS not in span.attributes
        assert semconv.RESPONSE_IDS in client.attributes
        assert span.attributes[semconv.INPUT_TOKENS] == client.attributes[semconv.INPUT_TOKENS]
        assert span.attributes[semconv.OUTPUT_TOKENS] == client.attributes[semconv.OUTPUT_TOKENS]
        assert span.attributes[semconv.OUTCOME] in ("stop", "length")
        assert semconv.TIME_DECODE in span.attributes


def test_the_weights_version_changes_with_the_sync(run: Run) -> None:
    for span in of_steps(engine_spans(run)):
        assert span.attributes[semconv.WEIGHT_VERSION] == span.attributes[semconv.STEP] - 1


def test_the_same_tree_in_weave(run: Run) -> None:
    calls: dict[str, Call] = {call.id: call for call in run.calls}
    spans = engine_spans(run)
    assert len(run.roots) == STEPS * PROMPTS * N + 1
    for span in spans:
        call = calls[span.span_id]
        assert call.parent_id == span.parent_id
        assert call.attributes["step"] == span.attributes[semconv.STEP]
        assert call.attributes["weave"]["kind"] == "llm"
        assert call.attributes["process"]["pid"] == span.resource["process.pid"]
        assert "usage" not in call.summary or not call.summary["usage"]
    pids = {call.attributes["process"]["pid"] for call in run.calls}
    assert len(pids) == 4  # the driver's, verl's worker's, the last agent's, the server's


def test_an_aborted_and_resumed_generation_shows_its_attempts(run: Run) -> None:
    partial: dict[str, Any] = run.results["partial"]
    spans = [span for span in run.spans if span.attributes[semconv.STEP] == 99]
    attempts = sorted(
        (span for span in spans if semconv.ATTEMPT in span.attributes),
        key=lambda span: span.start_time,
    )
    assert len(attempts) >= 2
    assert [span.attributes[semconv.WEIGHT_VERSION] for span in attempts] == [STEPS - 1, 500]
    engines = {span.parent_id: span for span in spans if semconv.RESPONSE_ID in span.attributes}
    of_attempts = [engines[span.span_id] for span in attempts]
    assert [span.attributes[semconv.OUTCOME] for span in of_attempts] == ["abort", "length"]
    assert [span.attributes[semconv.WEIGHT_VERSION] for span in of_attempts] == [STEPS - 1, 500]
    (whole,) = [span for span in spans if semconv.RESPONSE_IDS in span.attributes]
    assert {span.parent_id for span in attempts} == {whole.span_id}
    assert {span.attributes[semconv.TOKENS_SPAN] for span in of_attempts} == {whole.span_id}
    assert payload.decode_ids(whole.attributes[semconv.RESPONSE_IDS]) == partial["token_ids"]
    assert sum(span.attributes[semconv.OUTPUT_TOKENS] for span in of_attempts) == len(
        partial["token_ids"]
    )
    assert partial["versions"] == [STEPS - 1, 500]

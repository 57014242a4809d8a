"""A real verl rollout under real Ray, traced with zero code, in Weave and in an OTLP receiver."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_rollout import payload
from tests.e2e.rollouts import runs
from tests.e2e.rollouts.runs import Run
from tests.servers.otlp_receiver import OtlpReceiver
from tests.servers.weave_process import WeaveServer
from tests.unit import documents

STEPS, PROMPTS, N = 2, 8, 4
OPTIONS = ("--steps", str(STEPS), "--prompts", str(PROMPTS), "--n", str(N), "--workers", "2")
IDENTITY = {
    "step": int,
    "sample_index": int,
    "rollout_n": int,
    "validate": bool,
    "experiment_name": str,
    "group_id": str,
}


@pytest.fixture(scope="module", params=["classic", "v1"])
def run(
    request: pytest.FixtureRequest,
    verl_python: Path,
    weave_server: WeaveServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Two steps of 8 prompts x 4 rollouts, on each of verl's paths, sent to Weave and OTLP."""
    path = request.param
    project = f"verl-{path}"
    folder = tmp_path_factory.mktemp(project)
    with OtlpReceiver() as receiver:
        results, output = runs.start(
            verl_python,
            folder,
            *OPTIONS,
            *("--path", path, "--project", project, "--experiment", f"'{path}, first'"),
            **runs.both_environments(weave_server, receiver),
        )
        runs.wait_for_calls(weave_server, project, STEPS * PROMPTS * N)
        yield Run(project, results, folder / "store", output, weave_server, receiver.spans)


@pytest.fixture(scope="module")
def decode(verl_python: Path) -> Callable[[list[int]], str]:
    """The policy's own tokenizer."""
    from tokenizers import Tokenizer

    file = runs.PROGRAM.parents[3] / "examples" / "verl_calculator" / "policy" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def untraced(
    run: Run, verl_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The same run without `opentelemetry-instrument`."""
    path = run.project.removeprefix("verl-")
    folder = tmp_path_factory.mktemp("untraced")
    results, _ = runs.start(verl_python, folder, *OPTIONS, "--path", path, traced=False)
    assert not (folder / "store").exists()
    return results


def trajectory_of(run: Run, root: Any) -> dict[str, Any]:
    key = [root.attributes[name] for name in ("step", "sample_index", "rollout_n")]
    (found,) = [
        t for t in run.trajectories if [t["step"], t["sample_index"], t["rollout_n"]] == key
    ]
    return found


class TestTheWholeRun:
    """Every trajectory arrives, whole and once."""

    def test_there_are_exactly_as_many_roots_as_trajectories(self, run: Run) -> None:
        assert len(run.roots) == STEPS * PROMPTS * N
        assert len({call.id for call in run.calls}) == len(run.calls)
        assert len({root.trace_id for root in run.roots}) == len(run.roots)

    def test_no_call_is_an_orphan(self, run: Run) -> None:
        ids = {call.id for call in run.calls}
        assert [c.op_name for c in run.calls if c.parent_id and c.parent_id not in ids] == []

    def test_each_trajectory_is_one_tree_with_one_call_for_each_thing_done(
        self, run: Run, decode: Callable[[list[int]], str]
    ) -> None:
        tools = 0
        for root in run.roots:
            trajectory = trajectory_of(run, root)
            text = decode(trajectory["response_ids"])
            assert root.op_name == "rollout calculator_agent"
            assert [c.op_name for c in run.below(root)] == [
                "invoke_agent calculator_agent",
                "evaluate reward",
            ]
            agent, score = run.below(root)
            assert run.below(score) == []
            inside = Counter(call.op_name.split()[0] for call in run.below(agent))
            assert inside["text_completion"] == text.count("<|im_start|>assistant") + 1
            assert inside["execute_tool"] == text.count("<tool_response>")
            assert set(inside) <= {"text_completion", "execute_tool"}
            tools += inside["execute_tool"]
            assert all(run.below(leaf) == [] for leaf in run.below(agent))
        assert tools > 0

    def test_the_tree_of_the_readme_is_made_of_such(self, run: Run) -> None:
        (tree,) = documents.blocks(documents.ROOT / "README.md", "text")
        shown = re.findall(r"^([│├└─ ]*)([a-z_]+ \w+)", tree, flags=re.M)
        over: list[tuple[int, str]] = []
        pairs = set()
        for lead, name in shown:
            over = [one for one in over if one[0] < len(lead)]
            pairs |= {(over[-1][1], name)} if over else set()
            over.append((len(lead), name))
        names = {call.id: call.op_name for call in run.calls}
        assert len(pairs) == 4
        assert pairs <= {(names.get(call.parent_id), call.op_name) for call in run.calls}

    def test_the_root_counts_what_is_below_it(self, run: Run) -> None:
        for root in run.roots:
            inside = [call.op_name.split()[0] for call in run.below(run.below(root)[0])]
            counts = root.attributes["rollout"]
            assert counts["num_generations"] == inside.count("text_completion")
            assert counts.get("num_tool_calls", 0) == inside.count("execute_tool")
            generated = sum(trajectory_of(run, root)["response_mask"])
            assert root.attributes["gen_ai"]["usage"]["output_tokens"] == generated
            version = root.attributes["step"] - 1
            assert counts["weight_version"] == {"min": version, "max": version}

    def test_every_call_has_the_identity_with_its_own_types(self, run: Run) -> None:
        for call in run.calls:
            for name, kind in IDENTITY.items():
                assert type(call.attributes[name]) is kind, (call.op_name, name)
        assert {call.attributes["experiment_name"] for call in run.calls} == {
            f"{run.project.removeprefix('verl-')}, first"
        }

    def test_rollout_n_counts_from_0_in_each_group_and_group_id_is_the_uid(self, run: Run) -> None:
        groups = defaultdict(set)
        for root in run.roots:
            groups[root.attributes["group_id"]].add(root.attributes["rollout_n"])
            assert root.attributes["group_id"] == trajectory_of(run, root)["uid"]
        assert len(groups) == STEPS * PROMPTS
        assert all(members == set(range(N)) for members in groups.values())


class TestFilters:
    """The client's own query finds exactly the calls asked for."""

    @pytest.mark.parametrize(
        ("name", "value", "kind"),
        [("step", 2, "int"), ("sample_index", 3, "int"), ("rollout_n", 0, "int")],
    )
    def test_by_number(self, run: Run, name: str, value: int, kind: str) -> None:
        assert run.server is not None
        wanted = {"$convert": {"input": {"$getField": f"attributes.{name}"}, "to": kind}}
        query: Any = {"$expr": {"$eq": [wanted, {"$literal": value}]}}
        found = {c.id for c in run.server.client(run.project).get_calls(query=query)}
        assert found == {c.id for c in run.calls if c.attributes[name] == value}
        assert 0 < len(found) < len(run.calls)

    def test_by_experiment(self, run: Run) -> None:
        assert run.server is not None
        field = {"$getField": "attributes.experiment_name"}
        name = run.calls[0].attributes["experiment_name"]
        for value, count in ((name, len(run.calls)), ("another", 0)):
            query: Any = {"$expr": {"$eq": [field, {"$literal": value}]}}
            assert len(list(run.server.client(run.project).get_calls(query=query))) == count


class TestContent:
    """What the calls say is what the rollout did."""

    def test_texts_are_what_the_tokenizer_decodes(
        self, run: Run, decode: Callable[[list[int]], str]
    ) -> None:
        for root in run.roots:
            trajectory = trajectory_of(run, root)
            assert root.output["prompt_text"] == decode(trajectory["prompt_ids"])
            assert root.output["response_text"] == decode(trajectory["response_ids"])

    def test_the_texts_of_the_turns_make_up_the_text_of_the_trajectory(self, run: Run) -> None:
        for root in run.roots:
            agent = run.below(root)[0]
            turns = [c for c in run.below(agent) if c.op_name.startswith("text_completion")]
            said = "".join(
                turn.inputs["messages"][0]["content"]
                + turn.output["choices"][0]["message"]["content"]
                for turn in turns
            )
            whole = root.output["prompt_text"] + root.output["response_text"]
            assert whole.startswith(said) or said.startswith(whole)

    def test_token_ids_are_rebuilt_from_the_turns(self, run: Run) -> None:
        for root in run.roots:
            trajectory = trajectory_of(run, root)
            by_id: dict[str, list[int]] = {}
            agent = run.below(root)[0]
            last: list[int] = []
            for turn in run.below(agent):
                if not turn.op_name.startswith("text_completion"):
                    continue
                rollout = turn.attributes["rollout"]
                encoding = rollout["token_ids"]["encoding"]
                prompt = payload.decode_ids(rollout["prompt"]["token_ids"], encoding)
                prefix = rollout["prompt"].get("prefix")
                if prefix is not None:
                    prompt = by_id[prefix["span_id"]][: prefix["length"]] + prompt
                response = payload.decode_ids(rollout["response"]["token_ids"], encoding)
                assert len(payload.decode_floats(rollout["response"]["logprobs"])) == len(response)
                by_id[turn.id] = last = prompt + response
            whole = trajectory["prompt_ids"] + trajectory["response_ids"]
            assert whole == last[: len(whole)]
            assert list(root.attributes["rollout"]["turns"]) == list(by_id)
            mask = payload.decode_mask(root.attributes["rollout"]["response"]["mask"])
            assert mask == trajectory["response_mask"]

    def test_the_reward_is_the_batch_s(self, run: Run) -> None:
        rewards = set()
        for root in run.roots:
            reward = trajectory_of(run, root)["reward"]
            assert root.output["reward"] == reward
            assert [r["value"] for r in root.rewards] == [reward]
            rewards.add(reward)
        assert rewards == {0.0, 1.0}

    def test_a_failing_tool_s_call_has_its_exception(
        self, run: Run, decode: Callable[[list[int]], str]
    ) -> None:
        failed = [
            c
            for c in run.calls
            if c.op_name == "execute_tool calculator" and c.exception is not None
        ]
        raised = sum(
            decode(t["response_ids"]).count("Error executing tool") for t in run.trajectories
        )
        assert len(failed) == raised > 0
        assert any("ZeroDivisionError" in (call.exception or "") for call in failed)
        assert all("Error executing tool" in call.output for call in failed)

    def test_an_unknown_tool_is_an_error(
        self, run: Run, decode: Callable[[list[int]], str]
    ) -> None:
        asked = sum(decode(t["response_ids"]).count("Unknown function") for t in run.trajectories)
        calls = [c for c in run.calls if "UnknownTool" in (c.exception or "")]
        assert len(calls) == asked


class TestOtlp:
    """The OTLP receiver holds the same spans."""

    def test_same_ids_names_and_parents(self, run: Run) -> None:
        def shape(trace_id: str, span_id: str, parent: str | None, name: str) -> tuple[Any, ...]:
            return trace_id, span_id, parent, name

        of_calls = {shape(c.trace_id, c.id, c.parent_id, c.op_name) for c in run.calls}
        traces = {call.trace_id for call in run.calls}
        spans = [span for span in run.spans if span.trace_id in traces]
        of_spans = {shape(s.trace_id, s.span_id, s.parent_id, s.name) for s in spans}
        assert of_spans == of_calls
        assert len(spans) == len(of_spans)

    def test_attributes_carry_the_identity_and_text_but_no_token_ids(self, run: Run) -> None:
        traces = {call.trace_id for call in run.calls}
        completions = 0
        for span in run.spans:
            if span.trace_id not in traces:
                continue
            for name, kind in IDENTITY.items():
                assert type(span.attributes[f"rollout.{name}"]) is kind
            assert "rollout.prompt.token_ids" not in span.attributes
            assert span.attributes["gen_ai.provider.name"]
            if span.name.startswith("text_completion"):
                completions += 1
                assert "gen_ai.output.messages" in span.attributes
        assert completions > 0

    def test_no_span_outside_a_trajectory_reaches_weave(self, run: Run) -> None:
        assert all(call.attributes.get("step") is not None for call in run.calls)


class TestTheRunItself:
    """A traced run equals an untraced one."""

    def test_ids_rewards_and_random_states_are_bit_identical(
        self, run: Run, untraced: dict[str, Any]
    ) -> None:
        assert run.results["trajectories"] == untraced["trajectories"]
        assert run.results["states"] == untraced["states"]
        assert len(run.results["states"]) == 2 + 1 + 2 + 1

    def test_nothing_is_said_but_what_matters(self, run: Run) -> None:
        assert not re.search("otel-rollout: internal error|Traceback|Failed to detach", run.output)

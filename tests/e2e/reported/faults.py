"""The reported faults, and where each is tried. `test_table.py` fails where one is not."""

from __future__ import annotations

from typing import Final

HERE: Final = "tests/e2e/reported"

FAULTS: Final[dict[str, tuple[str, ...]]] = {
    # what goes wrong in other tracers, and the public threads that tell of it: the tests
    "token ids stay ids: they are inputs, the tokenizer is elsewhere (verl#3515, verl#4457)": (
        f"{HERE}/test_tokens.py::TestIdsBecomeText",
        f"{HERE}/test_tokens.py::TestIdsOfAFunction",
        "tests/e2e/test_verl_rollout.py::TestContent",
    ),
    "single-turn loops are not traced (verl#5276)": (
        f"{HERE}/test_tokens.py::TestASingleTurn",
        "tests/verl/test_single_turn.py::test_verl_s_own_single_turn_loop_is_traced",
    ),
    "ids out of range: -1, 2**32, 2**63 (vllm#48567, vllm#26445)": (
        f"{HERE}/test_tokens.py::TestIdsOutOfRange",
        "tests/e2e/test_verl_hostile.py::test_an_id_outside_the_vocabulary_is_kept_and_said",
    ),
    "a decode error ends the rollout (verl#3515)": (
        f"{HERE}/test_tokens.py::TestATokenizerThatRaises",
    ),
    "a next prompt that is no extension of the last (slime#2288, rllm#352)": (
        f"{HERE}/test_tokens.py::TestAHistoryThatIsRewritten",
    ),
    "many gigabytes: every turn repeats the whole prompt (verl#4185)": (
        f"{HERE}/test_tokens.py::TestLongConversations",
    ),
    "numpy numbers arrive as text (verl#6167)": (f"{HERE}/test_types.py::TestNumpyNumbers",),
    "lone surrogates (inspect_ai#3802)": (f"{HERE}/test_types.py::TestLoneSurrogates",),
    "ints beyond 64 bits": (f"{HERE}/test_types.py::TestHugeInts",),
    "NaN and infinities (logfire#2009)": (f"{HERE}/test_types.py::TestNanAndInfinities",),
    "tool calls as JSON strings (verifiers#250)": (
        f"{HERE}/test_types.py::TestToolCallsAsJsonStrings",
    ),
    "malformed tool calls (verl#7177)": (
        f"{HERE}/test_types.py::TestMalformedToolCalls",
        "tests/verl/test_hooks.py::TestTools",
    ),
    "what cannot be serialised (verifiers#578)": (
        f"{HERE}/test_types.py::TestWhatCannotBeSerialised",
        "tests/e2e/test_verl_hostile.py::test_a_tool_s_unserialisable_values_are_described",
    ),
    "lazy images whose stream is closed (weave#3129)": (f"{HERE}/test_types.py::TestLazyImages",),
    "pydantic objects (logfire#573)": (f"{HERE}/test_types.py::TestPydantic",),
    "base64 images that balloon a payload (langfuse#11177)": (
        f"{HERE}/test_types.py::TestBase64Images",
    ),
    "cancellation leaks a span or reads as success (opentelemetry-python-genai#520, #646)": (
        f"{HERE}/test_life.py::TestCancelled",
        "tests/e2e/test_verl_hostile.py::test_a_cancelled_generation_is_an_error_of_its_own_kind",
    ),
    "an async generator cancelled before its first step (langfuse-python#1792)": (
        f"{HERE}/test_life.py::TestAsyncGeneratorNeverStarted",
    ),
    "'Failed to detach context' (opentelemetry-python#2606, openinference#1769)": (
        f"{HERE}/test_life.py::TestLeftInAnotherContext",
        f"{HERE}/test_life.py::test_nothing_is_said_in_any_log",
    ),
    "nested loops beside their tool instead of below it (cubeloop#122)": (
        f"{HERE}/test_life.py::TestALoopInsideATool",
    ),
    "a tool that returns an error (Datus-agent#1248)": (
        f"{HERE}/test_life.py::TestAToolThatReturnsAnError",
    ),
    "a reward that is None, a rollout without generations (agent-lightning#432, #74)": (
        f"{HERE}/test_life.py::TestNoRewardAndNoGeneration",
    ),
    "seeded workers make the same ids (opentelemetry-python#4376)": (
        f"{HERE}/test_life.py::TestSeeded",
        "tests/e2e/test_seeded_workers.py::test_no_two_ids_are_equal",
    ),
    "making spans moves the random generators (opentelemetry-python#2974)": (
        f"{HERE}/test_life.py::TestSeeded",
        "tests/e2e/test_seeded_workers.py::test_generators_end_as_in_an_untraced_run",
    ),
    "the cap of 128 attributes evicts what was set first (ai-gateway#2060)": (
        f"{HERE}/test_life.py::TestTheCapOfAttributes",
    ),
    "one 11 MB tool output takes its batch along (aura#124)": (
        f"{HERE}/test_life.py::TestAHugeToolOutput",
        "tests/e2e/test_delivery.py::test_a_large_output_never_takes_its_neighbours_along",
    ),
    "instrumented classes do not survive cloudpickle (contrib#3467)": (
        "tests/verl/test_pickling.py::test_classes_that_become_actors_pickle",
        "tests/verl/test_pickling.py::test_classes_that_are_pickled_by_value_pickle",
    ),
    "actors inside actors lose the context (ray#37620)": (
        "tests/e2e/test_ray.py::TestContext",
        "tests/e2e/test_seeded_workers.py::test_nested_actors_are_in_the_caller_s_trajectory",
    ),
    "a collector at 127.0.0.1 that another node cannot reach (xtuner#2041)": (
        f"{HERE}/test_life.py::TestACollectorThatIsNotHere",
    ),
}

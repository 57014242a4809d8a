"""Token ids: text of them wherever they come from, exact ids whatever they are, each once."""

from __future__ import annotations

from typing import Any

from otel_rollout import payload, register_tokenizer, rollout_op
from tests.e2e.reported.whole_way import Arrived, Delivery, check_all, generate
from tests.e2e.rollouts.runs import Call
from tests.unit import vocabularies

TOKENIZER = vocabularies.made(vocabularies.byte_level())
BEYOND = [-1, 2**31, 2**32, 2**63 - 1]


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER.encode(text).ids
    return found


def said(call: Call) -> str:
    return "".join(choice["message"]["content"] for choice in call.output["choices"])


def asked(call: Call) -> str:
    return "".join(message["content"] for message in call.inputs["messages"])


def rebuilt(calls: list[Call]) -> list[tuple[list[int], list[int]]]:
    """Prompt and response of each generation, by the references that the calls hold."""
    known: dict[str, list[int]] = {}
    turns = []
    for call in calls:
        rollout = call.attributes["rollout"]
        encoding = rollout["token_ids"]["encoding"]
        prompt = payload.decode_ids(rollout["prompt"]["token_ids"], encoding)
        prefix = rollout["prompt"].get("prefix")
        if prefix is not None:
            prompt = known[prefix["span_id"]][: prefix["length"]] + prompt
        response = payload.decode_ids(rollout["response"]["token_ids"], encoding)
        known[call.id] = prompt + response
        turns.append((prompt, response))
    return turns


class TestIdsBecomeText:
    """Ids come as inputs and as output; the tokenizer is registered, not on any object."""

    @staticmethod
    def roll_out() -> None:
        register_tokenizer(TOKENIZER)
        generate(ids("What is 17 + 25?"), ids("The answer is 42.<|im_end|>"))

    def test_weave_shows_the_text(self, arrived: Arrived) -> None:
        (call,) = arrived.generations()
        assert asked(call) == "What is 17 + 25?"
        assert said(call) == "The answer is 42.<|im_end|>"

    def test_otlp_has_text_and_ids(self, arrived: Arrived) -> None:
        span = arrived.span("text_completion policy")
        assert "What is 17 + 25?" in span.attributes["gen_ai.input.messages"]
        assert "The answer is 42." in span.attributes["gen_ai.output.messages"]
        found = payload.decode_ids(span.attributes["rollout.prompt.token_ids"])
        assert found == ids("What is 17 + 25?")


class TestIdsOfAFunction:
    """A user's own function: ids come as `prompt_ids` and go as `token_ids`."""

    @staticmethod
    def roll_out() -> None:
        register_tokenizer(TOKENIZER)

        class Server:
            @rollout_op(kind="llm", name="policy")
            def generate(self, prompt_ids: list[int], temperature: float) -> dict[str, Any]:
                return {"token_ids": ids("The answer is 42."), "log_probs": None}

        Server().generate(ids("What is 17 + 25?"), temperature=0.5)

    def test_they_are_text_in_weave_and_exact_ids(self, arrived: Arrived) -> None:
        call = arrived.call("chat policy")
        assert (asked(call), said(call)) == ("What is 17 + 25?", "The answer is 42.")
        assert rebuilt([call]) == [(ids("What is 17 + 25?"), ids("The answer is 42."))]
        assert "prompt_ids" not in call.inputs
        assert "prompt_ids" not in str(arrived.span("chat policy").attributes)


class TestASingleTurn:
    """One generation and no tool: a trajectory as any other."""

    @staticmethod
    async def roll_out() -> list[int]:
        class Loop:
            @rollout_op(kind="agent", name="single_turn")
            async def run(self, prompt: list[int]) -> list[int]:
                answer = ids("The answer is 42.")
                generate(prompt, answer)
                return answer

        return await Loop().run(ids("What is 17 + 25?"))

    def test_it_is_root_agent_and_generation(self, arrived: Arrived) -> None:
        names = [call.op_name for call in arrived.calls]
        assert names == ["rollout", "invoke_agent single_turn", "text_completion policy"]
        root, agent, generation = arrived.calls
        assert (agent.parent_id, generation.parent_id) == (root.id, agent.id)
        assert said(generation) == "The answer is 42."
        assert root.attributes["rollout"]["num_generations"] == 1
        assert list(root.attributes["rollout"]["turns"]) == [generation.id]


class TestIdsOutOfRange:
    """They are kept as they are, shown as themselves, said, and reach nobody's rollout."""

    @staticmethod
    def roll_out() -> None:
        for wrong in (*BEYOND, 2**63, 2**64, -(2**63) - 1):
            generate([*ids("the end"), wrong], [*ids("42"), wrong, *ids("end")])

    def test_exact_ids_of_64_bits(self, arrived: Arrived) -> None:
        turns = rebuilt(arrived.generations()[: len(BEYOND)])
        for wrong, (prompt, response) in zip(BEYOND, turns, strict=True):
            assert prompt == [*ids("the end"), wrong]
            assert response == [*ids("42"), wrong, *ids("end")]

    def test_they_stand_in_the_text_as_themselves_and_are_said(self, arrived: Arrived) -> None:
        for wrong, call in zip(BEYOND, arrived.generations(), strict=False):
            assert said(call) == f"42<|id:{wrong}|>end"
            error = call.attributes["rollout"]["token2text"]["error"]
            assert "outside the vocabulary" in error
            assert str(wrong) in error

    def test_what_no_64_bits_hold_is_omitted_and_said(self, arrived: Arrived) -> None:
        for call in arrived.generations()[len(BEYOND) :]:
            rollout = call.attributes["rollout"]
            assert "token_ids" not in rollout.get("prompt", {})
            assert "token_ids: OverflowError" in rollout["payload"]["omitted"]
            assert call.exception is None

    def test_otlp_has_the_same(self, arrived: Arrived) -> None:
        spans = [s for s in arrived.spans if s.name.startswith("text_completion")]
        assert len(spans) == len(BEYOND) + 3
        (huge,) = [s for s in spans if "<|id:9223372036854775807|>" in str(s.attributes)]
        assert huge.attributes["rollout.token_ids.encoding"] == payload.INT64


class TestATokenizerThatRaises:
    """A decode error is on the span; the rollout never sees it, and the ids stay."""

    class Broken:
        def __len__(self) -> int:
            return 100

        def decode(self, ids: list[int]) -> str:
            raise OverflowError("int too big to convert")

    @classmethod
    def roll_out(cls) -> str:
        register_tokenizer(cls.Broken(), model="broken")
        register_tokenizer(TOKENIZER)  # of everybody else
        generate([1, 2, 3], [4, 5], model="broken")
        return "went on"

    def test_it_is_said_and_the_ids_stay(self, arrived: Arrived) -> None:
        assert arrived.result == "went on"
        (call,) = arrived.generations()
        assert rebuilt([call]) == [([1, 2, 3], [4, 5])]
        error = call.attributes["rollout"]["token2text"]["error"]
        assert "OverflowError: int too big to convert" in error
        assert call.exception is None
        span = arrived.span("text_completion policy")
        assert "OverflowError" in span.attributes["rollout.token2text.error"]
        assert span.status == "UNSET"


HISTORY = [
    (list(range(300)), list(range(300, 330))),
    (list(range(330)), [5, 6]),  # extends the last
    ([9, *range(329)], [7]),  # begins anew
    (list(range(100)), [8, 9]),  # the history was cut
    ([*range(200), 7, 7, 7, *range(250, 330)], []),  # a message in the middle was rewritten
    ([*range(100), 8, 9], [1]),  # extends one before the last
    ([], [1]),
    (list(range(2**33, 2**33 + 50)), [2]),  # of another width
    ([*range(2**33, 2**33 + 50), 2], [3]),
]


class TestAHistoryThatIsRewritten:
    """Context that was cut, summarised or begun anew: every prompt is rebuilt exactly."""

    @staticmethod
    def roll_out() -> None:
        for prompt, response in HISTORY:
            generate(prompt, response, logprobs=[-0.5] * len(response))

    def test_each_turn_is_rebuilt_exactly_from_the_calls(self, arrived: Arrived) -> None:
        assert rebuilt(arrived.generations()) == HISTORY

    def test_the_root_names_the_turns_in_their_order(self, arrived: Arrived) -> None:
        turns = list(arrived.root.attributes["rollout"]["turns"])
        assert turns == [call.id for call in arrived.generations()]


TURNS, LONG = 12, 4000


class TestLongConversations:
    """What was said before is referred to: a trajectory's size grows with its tokens, not turns."""

    @staticmethod
    def roll_out() -> int:
        history = [number % 256 for number in range(LONG)]
        for _ in range(TURNS):
            answer = [number % 256 for number in range(100)]
            generate(history, answer)
            history = [*history, *answer, 1, 2, 3]
        return len(history)

    def test_a_trajectory_takes_little_more_than_its_tokens(
        self, arrived: Arrived, delivery: Delivery
    ) -> None:
        size = sum(len(delivery.bodies[call.id]) for call in arrived.calls)
        ids_and_text = arrived.result * (4 * 4 / 3 + 6)  # base64 of int32, and text of escapes
        assert size < 2 * ids_and_text
        whole = TURNS * LONG * (4 * 4 / 3)
        assert size < whole

    def test_and_every_prompt_is_whole_again(self, arrived: Arrived) -> None:
        prompt, response = rebuilt(arrived.generations())[-1]
        assert len(prompt) + len(response) + 3 == arrived.result


def test_every_span_arrived_once_with_its_identity(delivery: Delivery) -> None:
    check_all(delivery)

"""What `OTEL_ROLLOUT_REDACT` names is nowhere: not as text, not in an image's place, not as ids."""

from __future__ import annotations

import base64
import contextlib

from otel_rollout import record_reward, recording, register_tokenizer, rollout_op
from otel_rollout.payload import decode_ids
from tests.e2e.reported.test_tokens import TOKENIZER, ids
from tests.e2e.reported.whole_way import Arrived, Delivery, check_all, generate

SECRET = "sk-12345"
SETTINGS = {"redact": r"sk-\d+"}
HARMLESS = "What is 17 + 25? Let me call the calculator."


class TestASecret:
    """In prompts, answers, arguments, results, rewards and errors."""

    @staticmethod
    def roll_out() -> None:
        register_tokenizer(TOKENIZER)
        generate(ids(HARMLESS), ids("The answer is 42."))
        generate(ids(f"{HARMLESS} {SECRET}"), ids(f"with {SECRET}"), logprobs=[-0.5])

        @rollout_op(kind="tool", name="login")
        def login(key: str) -> dict[str, str]:
            record_reward(0.0, because=f"{key} was used")
            raise PermissionError(f"{key} is not known")

        with contextlib.suppress(PermissionError):
            login(SECRET)
        with recording.active(recording.start("chat", "m")) as made:
            picture = f"data:image/png;base64,{base64.b64encode(bytes(3000)).decode()}"
            content = [{"type": "text", "text": SECRET}, {"type": "image_url", "url": picture}]
            made.keep("gen_ai.input.messages", [{"role": "user", "content": content}])

    def test_it_is_nowhere(self, arrived: Arrived, delivery: Delivery) -> None:
        assert len(arrived.calls) == len(arrived.spans) == 5
        for call in arrived.calls:
            assert SECRET.encode() not in delivery.bodies[call.id]
            assert SECRET not in str(call)
        assert SECRET not in str(arrived.spans)
        assert str(arrived.spans).count("[redacted]") >= 5

    def test_token_ids_that_held_it_are_left_out_and_said(self, arrived: Arrived) -> None:
        harmless, secret = arrived.generations()
        rollout = harmless.attributes["rollout"]
        assert decode_ids(rollout["prompt"]["token_ids"]) == ids(HARMLESS)
        assert decode_ids(rollout["response"]["token_ids"]) == ids("The answer is 42.")
        assert "token_ids" not in secret.attributes["rollout"].get("prompt", {})
        assert "token_ids" not in secret.attributes["rollout"].get("response", {})
        assert "redacted" in secret.attributes["rollout"]["payload"]["omitted"]

    def test_what_stands_for_an_image_stays(self, arrived: Arrived) -> None:
        assert "bytes cut, sha256 " in str(arrived.call("chat m").inputs)


def test_every_span_arrived_once_with_its_identity(delivery: Delivery) -> None:
    check_all(delivery)

"""Token ids to text: by a private copy, whole at the seams, whatever the ids are."""

from __future__ import annotations

import os
import threading
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rollout import register_tokenizer
from otel_rollout.processor.token2text import Decoder, Tokenizers, tokenizers
from tests.unit import vocabularies

PIECES = [
    "the ",
    "answer",
    " is",
    "42",
    "😀",
    "👩\u200d👧",
    "é",
    "你好",
    "\n",
    " ",
    "<|im_end|>",
    "\ufffd",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def decoder(serialized: str) -> Decoder:
    known = Tokenizers()
    known.register(vocabularies.made(serialized))
    found = known.decoder(None)
    assert found is not None
    return found


def text(made: Decoder, ids: list[int]) -> str:
    return made.text(array("i", ids))[0]


VOCABULARIES = pytest.mark.parametrize("serialized", ["byte_level", "sentencepiece"])


class TestText:
    """A decoder gives what the tokenizer gives, special tokens kept."""

    @VOCABULARIES
    @settings(max_examples=50)
    @given(given_text=TEXTS)
    def test_it_decodes_as_the_tokenizer(self, serialized: str, given_text: str) -> None:
        source = getattr(vocabularies, serialized)()
        tokenizer = vocabularies.made(source)
        ids = tokenizer.encode(given_text).ids
        assert text(decoder(source), ids) == tokenizer.decode(ids, skip_special_tokens=False)

    def test_byte_level_round_trip(self) -> None:
        source = vocabularies.byte_level()
        given_text = "<|im_start|>user\nGrüße 😀 👩‍👩‍👧 你好<|im_end|>"
        ids = vocabularies.made(source).encode(given_text).ids
        assert text(decoder(source), ids) == given_text

    @pytest.mark.parametrize("bad", [-1, -(2**31), 2**31, 2**32, 2**62, 100_000])
    def test_ids_out_of_range_stand_as_themselves(self, bad: int) -> None:
        made = decoder(vocabularies.byte_level())
        a = vocabularies.made(vocabularies.byte_level()).token_to_id("a")
        shown, error = made.text(array("q", [a, bad, bad, a]))
        assert shown == f"a<|id:{bad}|><|id:{bad}|>a"
        assert error is not None
        assert error.startswith("2 of 4")
        assert str(bad) in error

    def test_the_first_id_beyond_the_vocabulary_is_outside(self) -> None:
        made = decoder(vocabularies.byte_level())
        assert made.text(array("i", [made.size - 1]))[1] is None
        assert made.text(array("i", [made.size]))[1] is not None

    @VOCABULARIES
    @given(ids=st.lists(st.integers(-(2**63), 2**63 - 1)), more=st.lists(st.integers(-5, 500)))
    @settings(max_examples=50)
    def test_no_ids_raise(self, serialized: str, ids: list[int], more: list[int]) -> None:
        made = decoder(getattr(vocabularies, serialized)())
        made.text(array("q", ids))
        made.continuation(array("i", more), array("q", ids))
        made.continuation(array("q", ids), array("i", more))

    def test_nothing(self) -> None:
        assert decoder(vocabularies.byte_level()).text(array("i")) == ("", None)


class TestContinuation:
    """What ids add to those before: text and continuation are the whole, characters unbroken."""

    @VOCABULARIES
    @settings(max_examples=100)
    @given(given_text=TEXTS, data=st.data())
    def test_two_parts_are_the_whole(self, serialized: str, given_text: str, data: Any) -> None:
        source = getattr(vocabularies, serialized)()
        made = decoder(source)
        ids = vocabularies.made(source).encode(given_text).ids
        cut = data.draw(st.integers(0, len(ids)))
        head = text(made, ids[:cut])
        tail, error = made.continuation(array("i", ids[:cut]), array("i", ids[cut:]))
        assert error is None
        whole = text(made, ids)
        # What of a character stands before the cut is shown whole after it.
        assert whole.endswith(tail)
        before = whole[: len(whole) - len(tail)]
        assert head.startswith(before)
        assert set(head[len(before) :]) <= {"\ufffd"}

    @VOCABULARIES
    @pytest.mark.parametrize("cut", [1, 2, 3])
    def test_a_character_over_the_seam_is_whole(self, serialized: str, cut: int) -> None:
        source = getattr(vocabularies, serialized)()
        tokenizer = vocabularies.made(source)
        made = decoder(source)
        emoji = [self._byte(tokenizer, serialized, byte) for byte in "🦀".encode()]
        the, end = tokenizer.encode("the answer").ids, tokenizer.encode("42").ids
        ids = the + emoji + end
        place = len(the) + cut
        tail, _ = made.continuation(array("i", ids[:place]), array("i", ids[place:]))
        assert tail.startswith("🦀")
        assert text(made, the) + tail == text(made, ids)

    @staticmethod
    def _byte(tokenizer: Any, serialized: str, byte: int) -> int:
        if serialized == "sentencepiece":
            found = tokenizer.token_to_id(f"<0x{byte:02X}>")
        else:
            # GPT-2's alphabet: bytes that are no printable letter stand behind the first 256
            shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
            hidden = [other for other in range(256) if other not in shown]
            found = tokenizer.token_to_id(chr(byte if byte in shown else 256 + hidden.index(byte)))
        assert found is not None
        return int(found)

    def test_a_metaspace_continuation_keeps_its_space(self) -> None:
        source = vocabularies.sentencepiece()
        ids = vocabularies.made(source).encode("the answer is 42").ids
        made = decoder(source)
        assert made.continuation(array("i", ids[:2]), array("i", ids[2:]))[0].startswith(" ")

    def test_what_is_wrong_before_is_not_said_again(self) -> None:
        made = decoder(vocabularies.byte_level())
        assert made.continuation(array("i", [-1]), array("i", [70]))[1] is None
        assert made.continuation(array("i", [70]), array("q", [2**40]))[1] is not None


class TestRegister:
    """The copy is private, follows the tokenizer that was registered, and is taken once."""

    def test_the_original_can_be_used_meanwhile(self) -> None:
        original = vocabularies.made(vocabularies.byte_level())
        known = Tokenizers()
        known.register(original)
        made = known.decoder(None)
        assert made is not None
        ids = array("i", original.encode("the answer is 42 " * 50).ids)
        stop = threading.Event()
        failures: list[BaseException] = []

        def decode() -> None:
            try:
                while not stop.is_set():
                    made.text(ids)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=decode)
        thread.start()
        try:
            for number in range(200):  # each needs the tokenizer for itself: "Already borrowed"
                original.enable_truncation(max_length=100 + number)
                original.enable_padding(length=10)
                original.encode("the answer")
                original.no_truncation()
                original.add_tokens([f"<extra{number}>"])
        finally:
            stop.set()
            thread.join()
        assert failures == []

    def test_the_last_one_is_the_default(self) -> None:
        known = Tokenizers()
        one = vocabularies.made(vocabularies.byte_level())
        two = vocabularies.made(vocabularies.sentencepiece())
        known.register(one)
        default = known.decoder(None)
        known.register(two, "two")
        assert known.decoder(None) is known.decoder("two") is known.decoder("unknown")
        known.register(one)
        found = known.decoder(None)
        assert found is not None
        assert default is not None
        assert found.size == default.size

    def test_one_that_is_there_may_stay(self) -> None:
        known = Tokenizers()
        known.register(vocabularies.made(vocabularies.byte_level()), "one")
        known.register(vocabularies.made(vocabularies.sentencepiece()), "two", default=False)
        assert known.decoder(None) is known.decoder("one") is not known.decoder("two")

    def test_a_new_tokenizer_at_an_old_ones_address_is_not_taken_for_it(self) -> None:
        class Slow:
            vocab_size = 10

            def __init__(self, answer: str) -> None:
                self.answer = answer

            def decode(self, ids: list[int]) -> str:
                return self.answer

        known = Tokenizers()
        for number in range(50):
            known.register(Slow(str(number)))  # dies at once; the next one may have its id
            made = known.decoder(None)
            assert made is not None
            assert made.text(array("i", [1]))[0] == str(number)

    def test_the_same_one_again_costs_nothing(self) -> None:
        class Counting:
            copies = 0
            vocab_size = 10

            def decode(self, ids: list[int]) -> str:
                return "x"

            def __deepcopy__(self, memo: Any) -> Any:
                Counting.copies += 1
                return Counting()

        tokenizer, known = Counting(), Tokenizers()
        for _ in range(5):
            known.register(tokenizer)
        assert Counting.copies == 1

    def test_tokens_added_since_are_known(self) -> None:
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=vocabularies.made(vocabularies.byte_level())
        )
        known = Tokenizers()
        known.register(tokenizer)
        tokenizer.add_tokens(["<tool>"])
        known.register(tokenizer)
        made = known.decoder(None)
        assert made is not None
        assert text(made, [tokenizer.convert_tokens_to_ids("<tool>")]) == "<tool>"

    def test_one_that_cannot_be_copied_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        class Stubborn:
            def decode(self, ids: list[int]) -> str:
                return ""

            def __deepcopy__(self, memo: Any) -> Any:
                raise TypeError("no copies")

        register_tokenizer(Stubborn())
        register_tokenizer(Stubborn())
        assert tokenizers.decoder(None) is None
        (record,) = caplog.records
        assert "no copies" in record.getMessage()

    def test_a_child_forked_while_a_copy_is_built_builds_its_own(self) -> None:
        class Slow:
            vocab_size = 10

            def decode(self, ids: list[int]) -> str:
                return "x"

        register_tokenizer(Slow())
        registered = tokenizers._by_model[None]
        with registered._lock:  # as the parent's worker thread holds it
            child = os.fork()
            if child == 0:
                thread = threading.Thread(target=tokenizers.decoder, args=(None,), daemon=True)
                thread.start()
                thread.join(5)
                os._exit(int(thread.is_alive()))
        assert os.waitpid(child, 0)[1] == 0

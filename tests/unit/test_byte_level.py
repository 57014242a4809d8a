"""The table of bytes gives the text that the tokenizer itself gives, whatever the ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from otel_rollout.processor.byte_level import ByteLevelDecode, is_byte_level
from tests.unit import vocabularies


def with_odd_tokens() -> Tokenizer:
    """One that has tokens beyond the alphabet of bytes, and letters that are bytes there."""
    made = vocabularies.made(vocabularies.byte_level())
    made.add_tokens(["你好", "two words", "Grüße", "\ufffd"])
    return made


SIZE = with_odd_tokens().get_vocab_size(with_added_tokens=True)


@given(ids=st.lists(st.integers(0, SIZE - 1), max_size=40))
@settings(max_examples=300)
def test_it_decodes_as_the_tokenizer(ids: list[int]) -> None:
    expected = with_odd_tokens().decode(ids, skip_special_tokens=False)
    decode = ByteLevelDecode(with_odd_tokens(), SIZE)
    assert decode(ids) == expected
    assert decode(ids) == expected  # the table is filled now


def test_it_stays_with_the_table() -> None:
    decode = ByteLevelDecode(with_odd_tokens(), SIZE)
    decode(list(range(SIZE)))
    assert decode._fits


def test_a_gap_in_the_vocabulary_is_nothing() -> None:
    tokenizer = with_odd_tokens()
    decode = ByteLevelDecode(tokenizer, SIZE + 10)
    a = tokenizer.token_to_id("a")
    assert decode([a, SIZE + 5, a]) == "aa" == tokenizer.decode([a, SIZE + 5, a])


@pytest.mark.parametrize("ids", [[SIZE], [0, 2**32 - 1], [0, 1, 2**64 - 1]])
def test_an_id_beyond_the_vocabulary_raises(ids: list[int]) -> None:
    with pytest.raises(IndexError):
        ByteLevelDecode(with_odd_tokens(), SIZE)(ids)


def test_where_the_table_does_not_fit_the_tokenizer_decodes() -> None:
    class Shouting:
        """A stand-in: no tokenizer that calls itself byte-level is known to differ."""

        def id_to_token(self, one: int) -> str:
            return "a"

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return "A" * len(ids)

    decode = ByteLevelDecode(Shouting(), 5)
    assert [decode([1, 2, 3]), decode([4])] == ["AAA", "A"]
    with pytest.raises(IndexError):
        decode([5])


def test_other_tokenizers_are_told_apart() -> None:
    assert is_byte_level(with_odd_tokens())
    assert not is_byte_level(vocabularies.made(vocabularies.sentencepiece()))

"""Tiny real tokenizers of the two kinds that models have, trained where they are needed."""

from __future__ import annotations

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "What is 17 + 25? Let me call the calculator. The answer is 42.",
    "Grüße aus Köln, 你好世界, emoji 😀 and 👩‍👩‍👧, and the end.",
    "def add(a, b):\n    return a + b\n",
] * 5


@functools.cache
def byte_level() -> str:
    """A byte-level BPE as GPT-2 and Qwen have it; special tokens at the end. As JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer.to_str()


@functools.cache
def sentencepiece() -> str:
    """A Unigram model with metaspace and byte fallback, as Llama and Gemma have it. As JSON."""
    pieces = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    words = {f"▁{word}" for line in CORPUS for word in line.split() if word.isascii()}
    letters = {letter for word in words for letter in word}
    scored = [("<unk>", 0.0), *pieces]
    scored += [(word, -5.0) for word in sorted(words)]
    scored += [(letter, -10.0) for letter in sorted(letters)]
    tokenizer = Tokenizer(models.Unigram(scored, 0, True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # type: ignore[assignment]
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


def made(serialized: str) -> Tokenizer:
    """A tokenizer of one's own."""
    return Tokenizer.from_str(serialized)

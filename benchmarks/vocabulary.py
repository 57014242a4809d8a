"""A tokenizer of Qwen's kind, and ids of real text.

No model's vocabulary can be had without a network, so one is trained: a byte-level BPE with special
tokens at its end, as Qwen's is, on the source text of Python's standard library.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

VOCABULARY = 32_000
_TRAINING_BYTES = 6_000_000


def file_path() -> Path:
    """Where the trained tokenizer lies, for one Python."""
    name = f"otel-rollout-bench-{os.getuid()}-{VOCABULARY}-{sys.version_info[0]}.json"
    return Path(tempfile.gettempdir()) / name


def _texts(limit: int = _TRAINING_BYTES) -> list[str]:
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(errors="replace")
        found.append(text)
        limit -= len(text)
        if limit <= 0:
            break
    return found


def train() -> Path:
    """Train the tokenizer, where that was not done before."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = file_path()
    if path.exists():
        return path
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    new = path.with_suffix(f".{os.getpid()}")
    tokenizer.save(str(new))
    new.replace(path)
    return path


def tokenizer() -> Any:
    """The tokenizer as verl holds one: a fast one of ``transformers``."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(train()), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )


class Ids:
    """Stretches of real text as token ids, every element an object of its own."""

    def __init__(self, seed: int = 0) -> None:
        from tokenizers import Tokenizer

        made = Tokenizer.from_file(str(train()))
        encoded = (made.encode(text).ids for text in _texts(1_500_000))
        self._corpus: list[int] = list(itertools.chain.from_iterable(encoded))
        self._random = random.Random(seed)

    def take(self, count: int) -> list[int]:
        """A new list of new ints."""
        start = self._random.randrange(len(self._corpus))
        stretch = self._corpus[start : start + count]
        while len(stretch) < count:
            stretch += self._corpus[: count - len(stretch)]
        return [int(str(one)) for one in stretch]

    def logprobs(self, count: int) -> list[float]:
        """As many log-probabilities."""
        return [-self._random.expovariate(2.0) for _ in range(count)]

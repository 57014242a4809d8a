"""The token data of one span: packed for its attributes, decoded for its messages.

What cannot be packed or decoded is said, and the rest of the span is as it would be without it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from otel_rollout import semconv
from otel_rollout.identity import clean_text
from otel_rollout.payload import (
    FLOAT32,
    UINT8,
    Payload,
    encode_array,
    ids_encoding,
    pack_floats,
    pack_ids,
    pack_mask,
)
from otel_rollout.processor.token2text import Decoder

NO_IDS: Final[array[int]] = array("i")


@dataclass(frozen=True, slots=True)
class PackedChoice:
    """One of several answers."""

    ids: array[int]
    logprobs: array[float] | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Parts:
    """Packed token data; what is absent or could not be packed is ``None``."""

    prompt: array[int] | None = None
    response: array[int] | None = None
    logprobs: array[float] | None = None
    mask: array[int] | None = None
    choices: Sequence[PackedChoice] = ()

    @property
    def any_ids(self) -> bool:
        """Whether there are token ids at all."""
        return self.prompt is not None or self.response is not None or bool(self.choices)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that hold it."""
        result: dict[str, Any] = {}
        if self.any_ids:
            self._add_ids(result)
        if self.logprobs is not None:
            result[semconv.RESPONSE_LOGPROBS] = encode_array(self.logprobs)
            result[semconv.LOGPROBS_ENCODING] = FLOAT32
        if any(choice.logprobs is not None for choice in self.choices):
            result[semconv.CHOICES_LOGPROBS] = [
                encode_array(choice.logprobs or array("f")) for choice in self.choices
            ]
            result[semconv.LOGPROBS_ENCODING] = FLOAT32
        if self.mask is not None:
            result[semconv.RESPONSE_MASK] = encode_array(self.mask)
            result[semconv.MASK_ENCODING] = UINT8
        return result

    def _add_ids(self, result: dict[str, Any]) -> None:
        # A span says its encoding once: everything in the widest of their types.
        parts = [self.prompt, self.response, *(choice.ids for choice in self.choices)]
        code = "q" if any(part is not None and part.typecode == "q" for part in parts) else "i"

        def encoded(ids: array[int]) -> str:
            return encode_array(ids if ids.typecode == code else array(code, ids))

        result[semconv.IDS_ENCODING] = ids_encoding(array(code))
        if self.prompt is not None:
            result[semconv.PROMPT_IDS] = encoded(self.prompt)
        if self.response is not None:
            result[semconv.RESPONSE_IDS] = encoded(self.response)
        if self.choices:
            result[semconv.CHOICES_IDS] = [encoded(choice.ids) for choice in self.choices]


def parts_of(payload: Payload, omitted: list[str]) -> Parts:
    """Pack a payload's token data; what cannot be packed is added to ``omitted``, and why."""

    def packed(what: str, values: Any, pack: Callable[[Any], array[Any]]) -> array[Any] | None:
        if values is None:
            return None
        try:
            return pack(values)
        except Exception as error:
            omitted.append(f"{what}: {type(error).__name__}: {error}")
            return None

    choices = []
    for choice in payload.choices or ():
        ids = packed(semconv.CHOICES_IDS, choice.ids, pack_ids)
        logprobs = packed(semconv.CHOICES_LOGPROBS, choice.logprobs, pack_floats)
        choices.append(PackedChoice(NO_IDS if ids is None else ids, logprobs, choice.finish_reason))
    return Parts(
        packed(semconv.PROMPT_IDS, payload.prompt_ids, pack_ids),
        packed(semconv.RESPONSE_IDS, payload.response_ids, pack_ids),
        packed(semconv.RESPONSE_LOGPROBS, payload.logprobs, pack_floats),
        packed(semconv.RESPONSE_MASK, payload.mask, pack_mask),
        choices,
    )


class Decoding:
    """Decodes the parts of one span, and remembers what was wrong."""

    def __init__(self, decoder: Decoder | None) -> None:
        self._decoder = decoder
        self.errors: list[str] = []

    def of(self, what: str, ids: array[int], before: array[int] = NO_IDS) -> str | None:
        """Return the text that ``ids`` add after ``before``; ``None`` without a tokenizer."""
        if self._decoder is None:
            return None
        try:
            text, error = self._decoder.continuation(before, ids)
        except BaseException as raised:  # a tokenizer's panic is no Exception
            self.errors.append(f"{what}: {type(raised).__name__}: {raised}")
            return None
        if error is not None:
            self.errors.append(f"{what}: {error}")
        return clean_text(text)

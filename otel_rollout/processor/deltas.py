"""Prompts of later turns as what is new in them.

The prompt of a turn is, as a rule, the prompt and the response of the turn before and something
more. So each generation's token ids are remembered for the time of their trajectory, and a prompt
is split into a reference (span, number of tokens) and the rest. A prompt that is no extension
refers to the longest part that it shares with a turn before, or stands in full.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

MAX_BYTES: Final = 64 << 20
"""Token ids remembered over all open trajectories; the oldest trajectory is forgotten first."""
_TURNS_KEPT: Final = 8
_TURN_BYTES: Final = 256
_WORTH_IT: Final = 16
"""A shorter common part than this many tokens is not worth a reference."""
_HEAD: Final = 64

Key = tuple[int, Hashable]
"""Trace id, and what tells apart the trajectories of one trace."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A prompt: ``length`` tokens of the prefix span's prompt and response, then ``ids``."""

    ids: array[int]
    prefix_span_id: int | None = None
    length: int = 0


class Turns:
    """Token ids of the generations of one trajectory, in the order in which they ended."""

    __slots__ = ("bytes", "recent", "span_ids")

    def __init__(self) -> None:
        self.recent: OrderedDict[int, array[int]] = OrderedDict()
        self.span_ids: list[int] = []
        self.bytes = 0

    def delta(self, prompt: array[int]) -> tuple[Delta, array[int]]:
        """Return the delta of ``prompt``, and the tokens before it (for decoding at the seam)."""
        best_id, best = None, 0
        for span_id, ids in reversed(self.recent.items()):
            if ids.typecode != prompt.typecode:
                continue
            length = common_prefix(prompt, ids)
            if length > best:
                best_id, best = span_id, length
            if length == len(ids):
                break
        if best_id is None or best < _WORTH_IT:
            return Delta(prompt), prompt[:0]
        return Delta(prompt[best:], best_id, best), prompt[max(0, best - 64) : best]

    def remember(self, span_id: int, prompt: array[int], response: array[int]) -> None:
        """Remember a turn for those that follow it."""
        self.span_ids.append(span_id)
        self.bytes += _TURN_BYTES
        if prompt.typecode != response.typecode:
            return
        whole = prompt + response
        self.recent[span_id] = whole
        self.bytes += whole.itemsize * len(whole)
        while len(self.recent) > _TURNS_KEPT:
            _, dropped = self.recent.popitem(last=False)
            self.bytes -= dropped.itemsize * len(dropped)


class Trajectories:
    """The turns of every trajectory that is open.

    A trajectory is known by its trace and its values: a nested one is in the trace of another.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[Key, Turns] = OrderedDict()
        self._in_trace: dict[int, set[Key]] = {}
        self._untrimmed = 0

    def of(self, key: Key) -> Turns:
        """Return the turns of one trajectory."""
        turns = self._turns.get(key)
        if turns is None:
            turns = self._turns[key] = Turns()
            self._in_trace.setdefault(key[0], set()).add(key)
        else:
            self._turns.move_to_end(key)
        return turns

    def known(self, key: Key) -> Turns:
        """Return the turns of one trajectory, none where it has had none."""
        return self._turns.get(key) or Turns()

    def trim(self) -> None:
        """Forget the trajectories that were idle longest, down to :data:`MAX_BYTES`.

        Adding up what they hold is left until there are some more of them: an engine's process
        sees the turns of many trajectories and the end of none.
        """
        self._untrimmed += 1
        if self._untrimmed * 16 < len(self._turns):
            return
        self._untrimmed = 0
        total = sum(turns.bytes for turns in self._turns.values())
        while total > MAX_BYTES and len(self._turns) > 1:
            key, turns = self._turns.popitem(last=False)
            total -= turns.bytes
            keys = self._in_trace[key[0]]
            keys.discard(key)
            if not keys:
                del self._in_trace[key[0]]

    def close(self, trace_id: int) -> None:
        """Forget the trajectories of a trace."""
        for key in self._in_trace.pop(trace_id, ()):
            del self._turns[key]


def common_prefix(a: array[int], b: array[int]) -> int:
    """Return how many elements ``a`` and ``b`` share at their start."""
    length = min(len(a), len(b))
    if length > _HEAD and a[:_HEAD] != b[:_HEAD]:
        length = _HEAD  # nothing in common, as a rule: not worth a look at the rest
    elif a[:length] == b[:length]:
        return length
    low, high = 0, length  # a[:low] == b[:low], a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low

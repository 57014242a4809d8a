"""Text of a model, to be looked at: whatever is in it does nothing.

Markup is escaped by the templates. This is about what escaping leaves alone: control characters
(NUL, terminal escapes), and marks that reorder or hide text; they are shown as signs.
"""

from __future__ import annotations

from typing import Final

SHOWN: Final = 20_000
"""Characters of one text that a page shows; the rest is in the raw call."""

_KEPT: Final = frozenset(map(ord, "\n\t"))
_NAMES: Final = {
    0x00: "NUL",
    0x07: "BEL",
    0x08: "BS",
    0x0D: "CR",
    0x1B: "ESC",
    0x7F: "DEL",
    0x061C: "ALM",
    0x200B: "ZWSP",
    0x200E: "LRM",
    0x200F: "RLM",
    0x202A: "LRE",
    0x202B: "RLE",
    0x202C: "PDF",
    0x202D: "LRO",
    0x202E: "RLO",
    0x2028: "LS",
    0x2029: "PS",
    0x2060: "WJ",
    0x2066: "LRI",
    0x2067: "RLI",
    0x2068: "FSI",
    0x2069: "PDI",
    0xFEFF: "BOM",
}
_SIGNS: Final[dict[int, str]] = {
    **{code: f"⟨{code:02X}⟩" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in _KEPT},
    **{code: f"⟨{name}⟩" for code, name in _NAMES.items()},
    **{code: f"⟨TAG {code:X}⟩" for code in range(0xE0000, 0xE0080)},
}


def inert(text: object) -> str:
    """Return text with signs in place of what would act."""
    return str(text).translate(_SIGNS)


def token_text(text: str) -> str:
    """Return the text of one token, so that every part of it can be seen."""
    return inert(text).replace("\n", "↵").replace("\t", "⇥") or "∅"


def shortened(text: object, length: int = SHOWN) -> tuple[str, int]:
    """Return the text made inert, and how many characters were left out at its end."""
    whole = str(text)
    return inert(whole[:length]), max(0, len(whole) - length)

"""The pages for people: README, docs, the examples' READMEs; and the code and commands in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]
SHELL = ("sh", "console")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.S | re.M)


def all_blocks(page: Path) -> list[tuple[str, str]]:
    """The language and the text of every fenced block of a page, in order."""
    return _FENCED.findall(page.read_text())


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return [text for named, text in all_blocks(page) if named == language]


def block(page: Path, language: str, start: str) -> str:
    """The one block of a language that starts so."""
    (found,) = [text for text in blocks(page, language) if text.startswith(start)]
    return found


def prose(page: Path) -> str:
    """What stands outside the fenced blocks."""
    return _FENCED.sub("", page.read_text())


def block_commands(page: Path) -> list[str]:
    """Every command line that is there to be typed, without its comment."""
    shell = [text for language, text in all_blocks(page) if language in SHELL]
    lines = [line.partition(" #")[0].strip() for text in shell for line in text.splitlines()]
    return [line for line in lines if line]


def commands(page: Path) -> list[str]:
    """Those, and the commands that the text mentions."""
    mentioned = re.findall(r"`((?:otel-rollout|make) [^`]+)`", prose(page))
    return [*block_commands(page), *(line.partition(" #")[0].strip() for line in mentioned)]

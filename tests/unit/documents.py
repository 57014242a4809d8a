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


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def block_commands(page: Path) -> list[str]:
    """Every command line that is there to be typed: of shell blocks, fenced or indented."""
    found = [
        line
        for kind in ("sh", "console")
        for block in blocks(page, kind)
        for line in block.splitlines()
    ]
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    starts = r"(?:[A-Z_]+=\S+ )*(?:make|pip|otel-rollout|opentelemetry-instrument|export)\b"
    found += re.findall(rf"^    ({starts}.*)$", prose, flags=re.M)
    return [line.partition(" #")[0].strip() for line in found if line.strip()]


def commands(page: Path) -> list[str]:
    """Those, and the commands that the text mentions."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    mentioned = re.findall(r"`((?:otel-rollout|make) [^`]+)`", prose)
    return [*block_commands(page), *(line.partition(" #")[0].strip() for line in mentioned)]

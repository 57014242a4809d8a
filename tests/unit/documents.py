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


def commands(page: Path) -> list[str]:
    """Every command line on a page: of fenced shell blocks, and of indented ones that are such."""
    found = [
        line
        for kind in ("sh", "console")
        for block in blocks(page, kind)
        for line in block.splitlines()
    ]
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    starts = r"(?:[A-Z_]+=\S+ )*(?:make|pip|otel-rollout|opentelemetry-instrument|export)\b"
    found += re.findall(rf"^    ({starts}.*)$", prose, flags=re.M)
    found += re.findall(r"`((?:otel-rollout|make) [^`]+)`", prose)
    return [line.partition(" #")[0].strip() for line in found if line.strip()]

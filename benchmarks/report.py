"""The figures that stand in the documentation, written from the results.

python -m benchmarks.report      writes them into docs/performance.md and README.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Row, shown

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"


def table(found: Sequence[Row]) -> str:
    """The table of the documentation, one for each Python."""
    parts = []
    for python in dict.fromkeys(one.python for one in found):
        parts.append(f"Python {python}:\n")
        parts.append(rows.markdown([one for one in found if one.python == python]) + "\n")
    return "\n".join(parts)


def paragraph(found: Sequence[Row]) -> str:
    """The README's figures."""
    # The Python that everything was measured with; another one has some of the rows.
    python = next(one.python for one in found if one.name == "throughput 256")
    by_name = {one.name: one for one in found if one.python == python}

    def ours(name: str) -> str:
        return shown(by_name[name].ours)

    def baseline(name: str) -> str:
        return shown(by_name[name].baseline)

    def ratio(name: str) -> str:
        return shown(by_name[name].ratio)

    caller, bytes_sent, crowd = "caller cpu 4096", "bytes 10 turns", "throughput 256"
    return (
        f"A generation of 4096 + 4096 token ids with logprobs costs the calling thread "
        f"{ours(caller)} ms of CPU,\nwhere verl's own tracing into Weave costs "
        f"{baseline(caller)} ms, and the whole process {ours('process cpu 4096')} ms, decoded, "
        f"spooled and\ndelivered. Ten turns send {ours(bytes_sent)} kB "
        f"(verl's own: {baseline(bytes_sent)} kB). With 256 trajectories on one event\nloop, "
        f"{ratio(crowd)} of the untraced throughput is left "
        f"(verl's own: {ratio('throughput 256 of verl + Weave')}). `make bench` measures all of\n"
        f"it side by side: [docs/performance.md](docs/performance.md)."
    )


def put(text: str, name: str, content: str) -> str:
    """Replace what stands between ``<!-- NAME: … -->`` and ``<!-- /NAME -->``."""
    pattern = re.compile(rf"(<!-- {name}:[^\n]*-->\n).*?\n?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(text), f"no place for {name}"
    return pattern.sub(lambda match: match[1] + content + "\n" + match[2], text)


def found_in(text: str, name: str) -> str:
    """What stands there."""
    match = re.search(rf"<!-- {name}:[^\n]*-->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
    assert match, f"no place for {name}"
    return match[1]


def main() -> None:
    found = rows.load()
    PAGE.write_text(put(PAGE.read_text(), "results", table(found)))
    README.write_text(put(README.read_text(), "figures", paragraph(found)))


if __name__ == "__main__":
    main()

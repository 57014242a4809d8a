"""What the fault tests have seen, as a table for the documentation.

Tests append to the file that `OTEL_ROLLOUT_FAULT_REPORT` names, a JSON object a line;

    python -m tests.faults.report FILE

writes `docs/fault-matrix.md` from it.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.faults.scenario import ROOT, Outcome
from tests.servers import fault_proxy

TARGET: Final = ROOT / "docs" / "fault-matrix.md"

#: Read at once: tests see no settings from outside.
REPORT: Final = os.environ.get("OTEL_ROLLOUT_FAULT_REPORT")


def _append(**line: Any) -> None:
    if REPORT:
        with Path(REPORT).open("a") as file:
            file.write(json.dumps(line) + "\n")


def add(end: str, state: str, outcome: Outcome) -> None:
    _append(end=end, state=state, outcome=asdict(outcome))


def throughput(shares: dict[str, float]) -> None:
    _append(throughput=shares)


def many(facts: dict[str, Any]) -> None:
    _append(many=facts)


def table(seen: list[dict[str, Any]]) -> str:
    """The page for the documentation."""
    states = fault_proxy.STATES
    cells = {(one["end"], one["state"]): one["outcome"] for one in seen if "end" in one}
    lines = [
        "# Fault matrix",
        "",
        f"Made by the tests of `make faults` on {datetime.date.today().isoformat()}; "
        "[delivery.md](delivery.md) says what is what.",
        "",
        "Each cell: spans lost / spans of the last moment (100 ms before an abrupt death) that are "
        "not there / spans ended. `(n twice)`: n of them reached the server twice, byte for byte "
        "the same, and were merged there. An empty cell was not run.",
        "",
        "| end | processes | " + " | ".join(states) + " | longest exit |",
        "|---" * (len(states) + 3) + "|",
    ]
    for end in dict.fromkeys(end for end, _ in cells):
        row = {state: cells.get((end, state)) for state in states}
        there = [outcome for outcome in row.values() if outcome]
        exits = [seconds for outcome in there for seconds in outcome["exit_s"]]
        processes = sum(outcome["processes"] for outcome in there)
        longest = f"{max(exits):.1f} s" if exits else "-"
        shown = " | ".join(_cell(outcome) for outcome in row.values())
        lines.append(f"| {end} | {processes} | {shown} | {longest} |")
    if cells:
        stall = max(outcome["longest_stall_s"] for outcome in cells.values())
        total = sum(outcome["ended"] for outcome in cells.values())
        lines += [
            "",
            f"{total} spans in all. The longest that a process waited for a turn of the machine "
            f"shortly before its death was {stall:.2f} s; twice that time is added to the 100 ms.",
        ]
    for one in seen:
        if "throughput" in one:
            shares = ", ".join(f"{state} {share:.3f}" for state, share in one["throughput"].items())
            lines += ["", f"Rollout throughput as a share of that without telemetry: {shares}."]
        if "many" in one:
            facts = one["many"]
            lines += [
                "",
                f"100,000 spans with the server down: traced in {facts['traced_s']:.0f} s, memory "
                f"grew by {facts['grown_mb']:.0f} MB; then {facts['delivered']} delivered, with "
                f"their rewards, and confirmed in {facts['push_s']:.0f} s.",
            ]
    return "\n".join(lines) + "\n"


def _cell(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return ""
    twice = f" ({outcome['duplicated']} twice)" if outcome["duplicated"] else ""
    return f"{outcome['lost']} / {outcome['last_moment']} / {outcome['ended']}{twice}"


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    found = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    TARGET.write_text(table(found))

"""What the fault tests have seen, as a table for the documentation."""

from __future__ import annotations

import datetime
import os
from typing import Any, Final

from tests.faults.scenario import ROOT, Outcome
from tests.servers import fault_proxy

TARGET: Final = ROOT / "docs" / "fault-matrix.md"
_outcomes: dict[tuple[str, str], Outcome] = {}
_throughput: dict[str, float] = {}
_many: dict[str, Any] = {}


def add(end: str, state: str, outcome: Outcome) -> None:
    _outcomes[end, state] = outcome


def throughput(shares: dict[str, float]) -> None:
    _throughput.update(shares)


def many(facts: dict[str, Any]) -> None:
    _many.update(facts)


def write() -> None:
    """Write the table, unless only a part of it was run."""
    if not os.environ.get("OTEL_ROLLOUT_FAULT_REPORT"):
        return
    states = fault_proxy.STATES
    ends = list(dict.fromkeys(end for end, _ in _outcomes))
    lines = [
        "# Fault matrix",
        "",
        f"Made by `make faults` on {datetime.date.today().isoformat()}; "
        "[delivery.md](delivery.md) says what the columns mean.",
        "",
        "Each cell: spans lost / ended in the last moment and not there / ended in all. "
        "`(n twice)`: n spans reached the server twice, identical, and were merged.",
        "",
        "| end | processes | " + " | ".join(states) + " | longest exit |",
        "|---" * (len(states) + 3) + "|",
    ]
    for end in ends:
        row = {state: _outcomes[end, state] for state in states if (end, state) in _outcomes}
        exits = [seconds for outcome in row.values() for seconds in outcome.exit_s]
        cells = [_cell(row.get(state)) for state in states]
        processes = sum(outcome.processes for outcome in row.values())
        longest = f"{max(exits):.1f} s" if exits else "-"
        lines.append(f"| {end} | {processes} | " + " | ".join(cells) + f" | {longest} |")
    stalls = [outcome.longest_stall_s for outcome in _outcomes.values()]
    if stalls:
        lines += [
            "",
            f"Longest that a process got no turn from the machine before its death: "
            f"{max(stalls):.2f} s (added to the 100 ms).",
        ]
    if _throughput:
        shares = ", ".join(f"{state} {share:.3f}" for state, share in _throughput.items())
        lines += ["", f"Rollout throughput as a share of that without telemetry: {shares}."]
    if _many:
        lines += [
            "",
            f"100,000 spans with the server down: traced in {_many['traced_s']:.0f} s, memory "
            f"grew by {_many['grown_mb']:.0f} MB; then {_many['delivered']} delivered in "
            f"{_many['push_s']:.0f} s.",
        ]
    TARGET.write_text("\n".join(lines) + "\n")


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return ""
    twice = f" ({outcome.duplicated} twice)" if outcome.duplicated else ""
    return f"{outcome.lost} / {outcome.last_moment} / {outcome.ended}{twice}"

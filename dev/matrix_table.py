"""Write `docs/matrix.md` from nox's report and what pytest has counted: see `make matrix`.

matrix_table.py REPORT FOLDER_OF_COUNTS

The page is of one run of all sessions: after a run of some it is printed, not written.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "matrix.md"
WHAT = {
    "sdk": ("opentelemetry-sdk", "the unit tests"),
    "wrapt": ("wrapt", "the unit tests"),
    "weave": ("weave", "its client reads from W&B's server code and from our own server"),
    "verl": ("verl", "its real classes, driven as it drives them: a tree of spans, pickling"),
    "phoenix": ("Arize Phoenix", "its real server receives rollouts over OTLP"),
    "ray": ("Ray", "a local and an existing cluster: actors and tasks of every kind"),
    "python": ("Python", "the unit tests"),
}
#: The versions of verl whose rollout the example cannot do on a CPU, and why not.
NOT_ROLLED_OUT = {
    "0.5.0": "no rollout of the example: its servers answer with bare lists of ids and its tools "
    "with bare text, which those of the example do not, and no reward is computed in a rollout",
}
NO_REWARDS = {
    "0.6.1": "the example's rollout has no rewards in its trace: this version computes them in the "
    "midst of its worker's rollout, in no function that could be recorded",
}


def counts(folder: Path, session: str) -> str:
    """How many tests ran, from pytest's own report."""
    path = folder / f"{re.sub(r'[^a-z0-9.]+', '-', session).strip('-')}.xml"
    try:
        suite = ElementTree.parse(path).getroot().find("testsuite")
    except (OSError, ElementTree.ParseError):
        return ""
    if suite is None:
        return ""
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    words = [f"{total - skipped - failed} passed"]
    words += [f"{failed} failed"] if failed else []
    words += [f"{skipped} skipped"] if skipped else []
    return ", ".join(words)


def rows(report: Path, folder: Path) -> list[str]:
    """One row of the table for each session of the report."""
    found = []
    for session in json.loads(report.read_text())["sessions"]:
        name = session["signatures"][0] if session.get("signatures") else session["name"]
        kind, _, version = name.partition("(")
        if not version:
            kind, _, version = name.partition("-")
        version = version.strip(")") or "newest"
        library, what = WHAT[kind]
        if kind == "verl" and version not in NOT_ROLLED_OUT:
            what += "; the example's rollout under Ray, with tools"
            what += "" if version in NO_REWARDS else " and rewards"
        result = session["result"].lower()
        if result == "skipped":
            outcome = "not run: not on this machine"
        else:
            outcome = f"{'yes' if result == 'success' else 'NO'}: {counts(folder, name)}"
        found.append(f"| {library} | {version} | {what} | {outcome} |")
    return found


def all_sessions() -> set[str]:
    """Return the names of the sessions that `noxfile.py` has."""
    command = [sys.executable, "-m", "nox", "--list", "--json"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {session["session"] for session in json.loads(listed)}


def commit() -> str:
    """Return the commit that was run."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Write the page."""
    report, folder = map(Path, sys.argv[1:])
    table = rows(report, folder)
    sessions = json.loads(report.read_text())["sessions"]
    run = {one["signatures"][0] if one.get("signatures") else one["name"] for one in sessions}
    lines = [
        "# Version matrix",
        "",
        f"Made by one run of `make matrix`, all {len(run)} sessions in one go, on "
        f"{datetime.date.today().isoformat()} at commit {commit().strip()}, with Python "
        f"{platform.python_version()} where the row names no other. Each row is a session of "
        "`noxfile.py`: this package beside that version, everything else as in the development "
        "environment.",
        "",
        "vLLM and SGLang: `make test-engines` runs the newest of each; the signatures of older "
        "ones (vLLM 0.8.5 to 0.32, SGLang 0.4.6 to 0.5.23) are checked by the unit tests.",
        "",
        "| library | version | what is run | works |",
        "|---|---|---|---|",
        *table,
        "",
        *(f"- verl {version}: {why}." for version, why in (NOT_ROLLED_OUT | NO_REWARDS).items()),
        "",
        "A version that is newer than these is instrumented as far as it fits. Where it does not, "
        "one line in the log names the version, what is not instrumented, what still is, and what "
        "to do; `otel-rollout doctor` tells it before a run.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    left = all_sessions() - run
    if left:
        print(f"{TARGET.name} stays as it is: {', '.join(sorted(left))} not run")
    else:
        TARGET.write_text(text)


if __name__ == "__main__":
    main()

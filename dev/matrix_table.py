"""Write `docs/matrix.md` from nox's report and what pytest has counted: see `make matrix`.

matrix_table.py REPORT FOLDER_OF_COUNTS
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "docs" / "matrix.md"
WHAT = {
    "sdk": ("opentelemetry-sdk", "the unit tests"),
    "wrapt": ("wrapt", "the unit tests"),
    "weave": ("weave", "its client reads from W&B's server code and from our own server"),
    "verl": (
        "verl",
        "its real classes, driven as it drives them: a tree of spans, pickling; from 0.8 on the "
        "example's rollout under Ray",
    ),
    "phoenix": ("Arize Phoenix", "its real server receives rollouts over OTLP"),
    "ray": ("Ray", "a local and an existing cluster: actors and tasks of every kind"),
    "python": ("Python", "the unit tests"),
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
        result = session["result"].lower()
        if result == "skipped":
            outcome = "not run: not on this machine"
        else:
            outcome = f"{'yes' if result == 'success' else 'NO'}: {counts(folder, name)}"
        found.append(f"| {library} | {version} | {what} | {outcome} |")
    return found


def main() -> None:
    """Write the page."""
    report, folder = map(Path, sys.argv[1:])
    lines = [
        "# Version matrix",
        "",
        f"Made by `make matrix` on {datetime.date.today().isoformat()}, Python "
        f"{platform.python_version()}. Each row is a session of `noxfile.py`: this package beside "
        "that version, everything else as in the development environment.",
        "",
        "vLLM and SGLang: `make test-engines` runs the newest of each; the signatures of older "
        "ones (vLLM 0.8.5 to 0.32, SGLang 0.4.6 to 0.5.23) are checked by the unit tests.",
        "",
        "| library | version | what is run | works |",
        "|---|---|---|---|",
        *rows(report, folder),
        "",
        "A version that is newer than these is instrumented as far as it fits; `otel-rollout "
        "doctor` names the places that it does not find.",
    ]
    TARGET.write_text("\n".join(lines) + "\n")
    print(TARGET.read_text())


if __name__ == "__main__":
    main()

"""All benchmarks: prints a table and writes ``benchmarks/results.json`` and ``curves.json``.

python -m benchmarks.run [SECTION…]      sections: see SECTIONS; by default all but the viewer's

With ``BENCH_QUICK=1`` everything is done briefly, to see that it runs; the files are then written
to ``build/bench`` and their figures mean little.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import neighbour, rows, tracers
from benchmarks.probe import ROOT, Probe
from benchmarks.rows import Row, Target, row
from benchmarks.startup import Environments
from benchmarks.stub_server import StubServer

QUICK = os.environ.get("BENCH_QUICK", "") not in ("", "0")
FOLDER = ROOT / "build" / "bench" if QUICK else Path(__file__).parent
MS = 1000.0
Curves = dict[str, dict[str, list[list[float]]]]
"""Plot to line to points."""

WEAVE, MLFLOW = "verl + Weave", "verl + MLflow"
BARE, FLOOR, INTS = "bare span", "bare span, two list copies", "int lists, OTLP"
UNTRACED = "untraced"
LABELS = {
    "weave": WEAVE,
    "mlflow": MLFLOW,
    "bare": BARE,
    "floor": FLOOR,
    "ints": INTS,
    "untraced": UNTRACED,
}
BUILT_IN = ("weave", "mlflow")


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def repeats(full: int) -> int:
    return 1 if QUICK else full


class Probes:
    """Processes of several ways to trace, kept for all sections, and the server behind them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[str, Probe] = {}
        self._server: StubServer | None = None

    def __call__(self, *names: str) -> dict[str, Probe]:
        if self._server is None:
            self._server = self._stack.enter_context(StubServer())
        for name in names:
            if name not in self._running:
                say(f"starting a process: {name}")
                probe = Probe(name, self._server.url)
                self._running[name] = self._stack.enter_context(probe)
        return {name: self._running[name] for name in names}

    def close(self) -> None:
        self._stack.close()
        self._running.clear()
        self._server = None


probes = Probes()


Figures = dict[str, list[dict[str, Any]]]


def interleaved(
    running: dict[str, Probe], times: int, measure: Callable[[str, Probe], dict[str, Any]]
) -> Figures:
    """Measure each in turn, and that several times, every other time backwards."""
    found: Figures = {name: [] for name in running}
    for number in range(times):
        names = list(running) if number % 2 == 0 else list(reversed(running))
        for name in names:
            found[name].append(measure(name, running[name]))
    return found


def column(figures: Figures, name: str, key: str, factor: float = 1.0) -> list[float]:
    return [one[key] * factor for one in figures[name]]


# --- one generation ------------------------------------------------------------------------------


def generation(curves: Curves) -> list[Row]:
    running = probes("bare", "floor", "ints", "ours", "weave", *([] if QUICK else ["mlflow"]))

    def caller(
        tokens: int, many: int, cold: bool = False
    ) -> Callable[[str, Probe], dict[str, Any]]:
        def measure(name: str, probe: Probe) -> dict[str, Any]:
            slow = name in (*BUILT_IN, "ints")
            bursts = (1 if QUICK else 3) if slow else 4 if QUICK else many
            return probe.measure(
                "caller_cpu",
                prompt=tokens,
                response=4096 if cold else tokens,
                bursts=bursts,
                burst=1 if slow or cold else 16,
                cold=cold,
            )

        return measure

    def process(name: str, probe: Probe) -> dict[str, Any]:
        calls = (2 if QUICK else 4) if name in BUILT_IN else 10 if QUICK else 40
        return probe.measure("process_cpu", prompt=4096, response=4096, calls=calls)

    say("caller's CPU, 4096 + 4096 ids")
    warm = interleaved(running, repeats(5), caller(4096, 16))
    say("caller's CPU, 32768 ids")
    cold = interleaved(running, repeats(3), caller(32768, 12, cold=True))
    say("process's CPU")
    whole = interleaved(running, repeats(5), process)
    for tokens in (512, 4096) if QUICK else (512, 2048, 4096, 8192, 16384, 32768):
        say(f"caller's CPU, {tokens} ids")
        for name, figures in interleaved(running, 1, caller(tokens, 8)).items():
            cost = statistics.median(one["cost"] for one in figures) * MS
            curves.setdefault("tokens", {}).setdefault(name, []).append([tokens, cost])

    def against(
        name: str, figures: Figures, targets: dict[str, Target], others: Sequence[str]
    ) -> list[Row]:
        ours = column(figures, "ours", "cost", MS)
        return [
            row(
                name if other == "weave" else f"{name} / {LABELS[other]}",
                ours,
                column(figures, other, "cost", MS),
                unit="ms",
                against=LABELS[other],
                target=targets.get(other),
            )
            for other in others
            if other in running
        ]

    everything = ("weave", "bare", "floor", "mlflow", "ints")
    aims = {
        "weave": Target(at_most=0.06),
        "bare": Target(times_at_most=4.5),
        "floor": Target(times_at_most=2.6),  # 0.06 ms where the floor is 0.023 ms
    }
    # verl's own costs much less from Python 3.12 on.
    times = 130 if sys.version_info[:2] == (3, 11) else None
    cpu = {"weave": Target(at_most=1.5, ratio_at_least=times)}
    return [
        *against("caller cpu 4096", warm, aims, everything),
        *against("caller cpu 32768", cold, {"weave": Target(at_most=0.4)}, everything),
        *against("process cpu 4096", whole, cpu, ("weave", "mlflow", "ints")),
    ]


# --- trajectories of several turns ---------------------------------------------------------------


def turns(curves: Curves) -> list[Row]:
    running = probes("ours", "weave", *([] if QUICK else ["mlflow"]))
    short, long = (2, 4) if QUICK else (10, 20)

    def measure(count: int) -> Callable[[str, Probe], dict[str, Any]]:
        def of(name: str, probe: Probe) -> dict[str, Any]:
            many = 1 if name in BUILT_IN else 4 if QUICK else 12
            return probe.measure("trajectories", turns=count, new=512, count=many)

        return of

    interleaved(running, 1, measure(2))  # the first one makes projects and such
    found = {}
    for count in (short, long):
        say(f"{count} turns")
        found[count] = interleaved(running, repeats(3), measure(count))
    for count in (short, long) if QUICK else (2, 5, 10, 20, 40):
        figures = found.get(count) or interleaved(running, 1, measure(count))
        for name, some in figures.items():
            for key, factor, plot in (
                ("cost", MS, "turns cpu"),
                ("bytes", 1e-3, "turns bytes"),
            ):
                value = statistics.median(one[key] for one in some) * factor
                curves.setdefault(plot, {}).setdefault(name, []).append([count, value])
    ten, twenty = found[short], found[long]
    result = []
    for name, ratio_at_least in (("weave", 5.0), ("mlflow", None)):
        if name not in running:
            continue
        result.append(
            row(
                "bytes 10 turns" + ("" if name == "weave" else f" / {LABELS[name]}"),
                column(ten, "ours", "bytes", 1e-3),
                column(ten, name, "bytes", 1e-3),
                unit="kB",
                against=LABELS[name],
                target=Target(ratio_at_least=ratio_at_least) if ratio_at_least else None,
            )
        )
    for name, key, at_most in (
        ("bytes 20 turns / 10 turns", "bytes", 2.1),
        ("process cpu turns doubled", "cost", 2.2),
    ):

        def growth(way: str, key: str = key) -> list[float]:
            pairs = zip(column(ten, way, key), column(twenty, way, key), strict=True)
            return [after / before for before, after in pairs]

        result.append(
            row(
                name,
                growth("ours"),
                growth("weave"),
                unit="times",
                against=WEAVE,
                target=Target(at_most=at_most),
            )
        )
    return result


# --- many at once --------------------------------------------------------------------------------


_WORK_S = 0.0009
_BUSY = 0.55
"""Of the loop's time without tracing: more than half, with room for the machine's moods."""


def crowd(curves: Curves) -> list[Row]:
    many = 64 if QUICK else 256
    arguments = {"seconds": 2.0 if QUICK else 6.0, "new": 512, "work": _WORK_S}
    running = probes("untraced", "ours", "weave")
    ours = {name: running[name] for name in ("untraced", "ours")}

    def measure(name: str, probe: Probe) -> dict[str, Any]:
        return probe.measure("concurrency", trajectories=many, **arguments)

    say(f"{many} trajectories at once: how much work of its own makes the loop half busy")
    found = [measure("untraced", running["untraced"]) for _ in range(repeats(3))]
    busy, calls_s = (
        statistics.median(one[key] for one in found) for key in ("loop_busy", "throughput")
    )
    arguments["work"] = max(0.0, _WORK_S + (_BUSY - busy) / calls_s)
    say(f"{many} trajectories at once")
    used = measure("ours", running["ours"])  # builds the decoder, opens the segment
    share = min(0.9, max(0.05, used["process_cpu"] - used["loop_busy"]))
    figures = interleaved(ours, repeats(5), measure)
    figures["neighbour"] = []
    for _ in range(repeats(3)):
        with neighbour.beside(share):
            figures["neighbour"].append(measure("untraced", running["untraced"]))
    figures["idle"] = [
        ours["ours"].measure("concurrency", trajectories=many, idle=True, **arguments)
        for _ in range(repeats(3))
    ]
    say(f"{many} trajectories at once, {WEAVE}")
    figures["weave"] = [measure("weave", running["weave"])]
    for count in (many,) if QUICK else (16, 64, many):
        say(f"{count} trajectories at once")
        for name, probe in running.items():
            some = (
                figures[name]
                if count == many
                else [probe.measure("concurrency", trajectories=count, **arguments)]
            )
            for key, factor in (("throughput", 1.0), ("lag_p99", MS)):
                value = statistics.median(one[key] for one in some) * factor
                plot = curves.setdefault(f"crowd {key}", {})
                plot.setdefault(name, []).append([count, value])
    busy = statistics.median(column(figures, "untraced", "loop_busy"))
    say(f"the loop is {busy:.0%} busy without tracing")

    def figure(name: str, way: str, key: str, unit: str, **more: Any) -> Row:
        factor = MS if unit in ("ms", "ms/s") else 1.0
        ours, untraced = (column(figures, one, key, factor) for one in (way, "untraced"))
        return row(name, ours, untraced, unit=unit, against=UNTRACED, **more)

    def rate(name: str, way: str, **more: Any) -> Row:
        return figure(name, way, "throughput", "calls/s", higher_is_better=True, **more)

    def lag(name: str, way: str, **more: Any) -> Row:
        return figure(name, way, "lag_p99", "ms", **more)

    return [
        rate("throughput 256", "ours", target=Target(ratio_at_least=0.98), paired=True),
        rate(f"throughput 256 of {WEAVE}", "weave"),
        lag("loop lag p99 256", "ours", target=Target(times_at_most=1.2), paired=True),
        lag("loop lag p99 256, our worker idle", "idle"),
        lag("loop lag p99 256, untraced beside another process", "neighbour"),
        figure("garbage collection 256", "ours", "collecting", "ms/s"),
        lag(f"loop lag p99 256 of {WEAVE}", "weave"),
    ]


# --- from the end of a span to the disk ----------------------------------------------------------

RATES = (100, 200, 300, 400, 500, 600, 800, 1000)
LAG_S = 0.1


def spool_lag(curves: Curves) -> list[Row]:
    reached = []
    at_300 = []
    running = probes("ours")
    ours = running["ours"]
    seconds = 1.5 if QUICK else 5.0
    ours.measure("spool_lag", rate=50, seconds=1, tokens=4096)
    for _ in range(repeats(2)):
        best = 0.0
        for rate in (100, 300) if QUICK else RATES:
            found = ours.measure("spool_lag", rate=rate, seconds=seconds, tokens=4096)
            say(f"{rate} spans/s: p99 {found['p99'] * MS:.1f} ms")
            curves.setdefault("spool lag", {}).setdefault("ours", []).append(
                [rate, found["p99"] * MS]
            )
            if rate == 300:
                at_300.append(found["p99"] * MS)
            if found["p99"] > LAG_S or found["reached"] < 0.97 * rate:
                break
            best = rate
        reached.append(best)
    result = [
        row(
            "spool lag p99",
            reached,
            unit="spans/s within 100 ms",
            target=Target(at_least=300),
        )
    ]
    if at_300:
        result.append(row("spool lag p99 at 300 spans/s", at_300, unit="ms"))
    return result


# --- programs of their own -----------------------------------------------------------------------


def memory(curves: Curves) -> list[Row]:
    say("memory of what waits")
    found = []
    for _ in range(repeats(3)):
        command = [".venv-bench/bin/python", "-m", "benchmarks.memory", "150" if QUICK else "400"]
        found.append(json.loads(output_of([*command, "4096"])))
    ids = [one["ids"] / 1000 for one in found]
    return [
        row(
            "memory waiting",
            [one["per_span"] / 1000 for one in found],
            ids,
            unit="kB",
            against="ids as int32",
            target=Target(times_at_most=1.2),
        ),
        row(
            "memory of a full queue",
            [one["gained"] / 1e6 for one in found],
            [one["bound"] / 1e6 for one in found],
            unit="MB",
            against="its bound",
            target=Target(times_at_most=1.2),
        ),
    ]


def start_up(curves: Curves) -> list[Row]:
    say("start-up")
    both = Environments()
    try:
        both.check()
        with_ours, without = [], []
        for ours in (True, False):  # writes the byte code
            both.start(ours=ours, exporter="weave" if ours else None)
        for _ in range(3 if QUICK else 25):
            without.append(both.start(ours=False, exporter=None))
            with_ours.append(both.start(ours=True, exporter="weave"))
    finally:
        both.close()
    pairs = list(zip(with_ours, without, strict=True))
    more = [(ours.wall - other.wall) * MS for ours, other in pairs]
    more_cpu = [(ours.cpu - other.cpu) * MS for ours, other in pairs]
    whole = [[one.wall * MS for one in starts] for starts in (with_ours, without)]
    return [
        row("start-up", more, unit="ms more", against="", target=Target(at_most=50)),
        row("start-up, CPU", more_cpu, unit="ms more", against=""),
        row("start-up, whole", *whole, unit="ms", against="without the package"),
    ]


def vllm(curves: Curves) -> list[Row]:
    say("the real vLLM on this CPU")
    requests, pairs = ("40", "1") if QUICK else ("200", "8")
    with StubServer() as server, tempfile.TemporaryDirectory() as folder:
        venv = ".venv-vllm/bin"
        rates = json.loads(
            output_of(
                [
                    f"{venv}/opentelemetry-instrument",
                    f"{venv}/python",
                    *("-m", "benchmarks.vllm_requests", requests, pairs),
                ],
                tracers.environment("ours", server.url, Path(folder)),
            )
        )
    return [
        row(
            "throughput vllm",
            rates["traced"],
            rates["untraced"],
            unit="requests/s",
            against=UNTRACED,
            target=Target(ratio_at_least=0.98),
            higher_is_better=True,
            paired=True,
        )
    ]


def viewer(curves: Curves) -> list[Row]:
    say("the viewer, 100,000 trajectories")
    trajectories = "2000" if QUICK else "100000"
    text = output_of(
        [
            ".venv-bench/bin/python",
            *("-m", "benchmarks.bench_viewer", "--json", "--trajectories", trajectories),
        ]
    )
    return [
        row(
            f"viewer: {one['what']}",
            one["taken"],
            unit="ms",
            target=Target(at_most=one["limit"]),
        )
        for one in json.loads(text)
    ]


def output_of(command: Sequence[str], environ: dict[str, str] | None = None) -> str:
    """What a program prints; raises ``RuntimeError`` when it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-3000:]}"
        )
    return done.stdout


SECTIONS: dict[str, Callable[[Curves], list[Row]]] = {
    "generation": generation,
    "turns": turns,
    "crowd": crowd,
    "spool lag": spool_lag,
    "memory": memory,
    "start-up": start_up,
    "vllm": vllm,
    "viewer": viewer,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", default=list(SECTIONS))
    parser.add_argument("--no-curves", action="store_true", help="leave the plots' data alone")
    arguments = parser.parse_args()
    for name in arguments.sections:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}: there are {', '.join(SECTIONS)}")
    curves_file = FOLDER / "curves.json"
    results_file = FOLDER / rows.RESULTS.name
    failed = 0
    for name in arguments.sections:
        begun = time.monotonic()
        curves: Curves = {}
        try:
            new = [dataclasses.replace(one, section=name) for one in SECTIONS[name](curves)]
        except Exception as error:
            failed += 1
            say(f"{name} failed: {type(error).__name__}: {error}")
            continue
        say(f"{name}: {time.monotonic() - begun:.0f} s")
        rows.save(rows.merge(rows.load(results_file), new), results_file)
        if arguments.no_curves:
            continue
        before = json.loads(curves_file.read_text()) if curves_file.exists() else {}
        curves_file.write_text(json.dumps({**before, **curves}) + "\n")
    probes.close()
    print(rows.plain(rows.load(results_file)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

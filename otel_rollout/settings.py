"""Every setting, read from the environment once, checked, with its default.

A value that cannot be used is one log line that names the variable, the value and what is allowed;
the default takes its place and the run goes on.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from otel_rollout import environment_variables as env
from otel_rollout import misspelt
from otel_rollout.diagnostics import say_once

IN_RAY_WORKER: Final = "OTEL_ROLLOUT_IN_RAY_WORKER"
"""Set in Ray workers by the start-up hook: what the driver has said already is not said again."""

SPOOL_FOLDER: Final = "spool"

ALLOWED_RULES: Final = (
    "`error`, `group`, `module:function`, and reward, turns, tokens or duration compared with a "
    "number (`reward<0.1`, `turns>8`), separated by commas"
)

CONTENT_VALUES: Final = {
    "true": True,
    "span_only": True,
    "event_only": True,
    "span_and_event": True,
    "false": False,
    "no_content": False,
    **dict.fromkeys(("1", "yes", "on"), True),
    **dict.fromkeys(("0", "no", "off"), False),
}


class Variable(NamedTuple):
    """One environment variable: how it is read, and what the documentation says of it."""

    name: str
    field: str
    allowed: str
    meaning: str
    default: str
    parse: Callable[[str], Any]


@dataclass(frozen=True)
class Settings:
    """The settings of this process; ``None`` means "not set" (see :data:`VARIABLES`)."""

    weave_project: str | None = None
    weave_endpoint: str | None = None
    directory: Path = field(default_factory=lambda: default_directory(os.environ))
    max_samples_per_step: int | None = None
    sample_rate: float = 1.0
    keep: str | None = None
    token2text: bool = True
    prompt_deltas: bool = True
    otlp_payload: str = "text"
    max_queue_bytes: int = 256 << 20
    max_batch_bytes: int = 3 << 20
    max_disk: int = 10 << 30
    keep_local: bool = False
    ray_secrets: bool = False
    capture_content: bool = True
    redact: str | None = None

    @property
    def spool(self) -> Path:
        """Where the segments lie."""
        return self.directory / SPOOL_FOLDER


def default_directory(environ: Mapping[str, str]) -> Path:
    """Per-user state folder, ``$XDG_STATE_HOME/otel-rollout`` or below ``~/.local/state``.

    Where the user has no home, as in many containers, a folder of theirs for temporary files.
    """
    state = environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):  # a relative path is to be ignored, says the XDG specification
        return Path(state) / "otel-rollout"
    try:
        return Path.home() / ".local" / "state" / "otel-rollout"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"otel-rollout-{os.getuid()}"


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.lower())
    if match is None:
        raise ValueError(text)
    power = " kmgt".index(match[2] or " ")
    value = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if value <= 0:
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise ValueError(text)
    return value


def _choice(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return values[text.lower()]
        except KeyError:
            raise ValueError(text) from None

    return parse


_flag = _choice(
    {
        **dict.fromkeys(("true", "1", "yes", "on"), True),
        **dict.fromkeys(("false", "0", "no", "off"), False),
    }
)


def _project(text: str) -> str:
    parts = text.split("/")
    if len(parts) > 2 or not all(part.strip() == part and part for part in parts):
        raise ValueError(text)
    return text


def _endpoint(text: str) -> str:
    if not text.startswith(("http://", "https://")) or len(text.split("://", 1)[1]) == 0:
        raise ValueError(text)
    return text.rstrip("/")


def _rules(text: str) -> str:
    from otel_rollout.processor import keeping  # only where there are rules

    keeping.parse(text)
    return text


VARIABLES: Final[tuple[Variable, ...]] = (
    Variable(
        env.OTEL_EXPORTER_WEAVE_PROJECT,
        "weave_project",
        "`project` or `entity/project`",
        "where calls go; the entity is found when the first call is sent",
        "verl's `trace.project_name`; without verl `WANDB_PROJECT`, else `otel-rollout`",
        _project,
    ),
    Variable(
        env.OTEL_EXPORTER_WEAVE_ENDPOINT,
        "weave_endpoint",
        "an http(s) URL",
        "Weave trace server",
        "W&B's, by `WF_TRACE_SERVER_URL` and `WANDB_BASE_URL`",
        _endpoint,
    ),
    Variable(
        env.OTEL_ROLLOUT_DIR,
        "directory",
        "a folder",
        "spool and local store",
        "`$XDG_STATE_HOME/otel-rollout`, else `~/.local/state/otel-rollout`",
        lambda text: Path(text).expanduser().absolute(),
    ),
    Variable(
        env.OTEL_ROLLOUT_MAX_SAMPLES_PER_STEP,
        "max_samples_per_step",
        "a whole number from 0",
        "unique samples per (step, validate, worker), each with all its rollouts",
        "all; verl's `trace.max_samples_per_step_per_worker` where set",
        _count,
    ),
    Variable(
        env.OTEL_ROLLOUT_SAMPLE_RATE,
        "sample_rate",
        "a number from 0 to 1",
        "share of samples that are traced, the same ones in every process",
        "1",
        _share,
    ),
    Variable(
        env.OTEL_ROLLOUT_KEEP,
        "keep",
        ALLOWED_RULES,
        "tail rules: an unsampled trajectory that one of them names is kept all the same, whole; "
        "`group` keeps the others of its group with it",
        "nothing",
        _rules,
    ),
    Variable(
        env.OTEL_ROLLOUT_TOKEN2TEXT,
        "token2text",
        "true or false",
        "decode token ids to text",
        "true",
        _flag,
    ),
    Variable(
        env.OTEL_ROLLOUT_PROMPTS,
        "prompt_deltas",
        "delta or full",
        "a later turn's prompt: only what is new, or all of it",
        "delta",
        _choice({"delta": True, "full": False}),
    ),
    Variable(
        env.OTEL_ROLLOUT_OTLP_PAYLOAD,
        "otlp_payload",
        "full, text or none",
        "what of the payload exporters other than Weave's get",
        "text",
        _choice({"full": "full", "text": "text", "none": "none"}),
    ),
    Variable(
        env.OTEL_ROLLOUT_MAX_QUEUE_BYTES,
        "max_queue_bytes",
        "a whole number of bytes from 1",
        "bound of what waits in memory; beyond it spans are dropped and counted",
        "268435456",
        _positive,
    ),
    Variable(
        env.OTEL_ROLLOUT_MAX_BATCH_BYTES,
        "max_batch_bytes",
        "a whole number of bytes from 1",
        "bound of one batch to an exporter other than Weave's",
        "3145728",
        _positive,
    ),
    Variable(
        env.OTEL_ROLLOUT_MAX_DISK,
        "max_disk",
        "a size above 0, such as 10GiB, 500MB or a number of bytes",
        "bound of the local store; beyond it delivered segments go first, then the oldest whole "
        "trajectories, which are counted",
        "10GiB",
        _bytes,
    ),
    Variable(
        env.OTEL_ROLLOUT_KEEP_LOCAL,
        "keep_local",
        "true or false",
        "keep in the local store what is delivered to Weave, within OTEL_ROLLOUT_MAX_DISK",
        "false",
        _flag,
    ),
    Variable(
        env.OTEL_ROLLOUT_RAY_SECRETS,
        "ray_secrets",
        "true or false",
        "hand API keys and exporter headers to Ray workers through the runtime_env",
        "false",
        _flag,
    ),
    Variable(
        env.OTEL_ROLLOUT_REDACT,
        "redact",
        "regular expressions, one a line, or `module:function` (text to text)",
        "what must not be seen in any text, nor as token ids; what cannot be used fails closed: no "
        "content leaves the process",
        "nothing",
        str,
    ),
    Variable(
        env.OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT,
        "capture_content",
        "true, false, NO_CONTENT, SPAN_ONLY, EVENT_ONLY or SPAN_AND_EVENT",
        "NO_CONTENT or false: no text, token ids or arguments leave the process",
        "content is captured",
        _choice(CONTENT_VALUES),
    ),
)


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from ``environ``; never raises."""
    values: dict[str, Any] = {"directory": default_directory(environ)}
    level = logging.DEBUG if environ.get(IN_RAY_WORKER) else logging.WARNING
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        if not text:
            continue
        try:
            values[variable.field] = variable.parse(text)
        except Exception as error:
            reason = f" ({error})" if variable.parse is _rules else ""  # they say where
            say_once(
                f"setting:{variable.name}",
                "%s=%r is not usable%s: allowed is %s; going on with the default (%s)",
                variable.name,
                text,
                reason,
                variable.allowed,
                variable.default.replace("`", ""),
                level=level,
            )
    for name, meant in misspelt.unknown(environ):
        say_once(
            f"setting:{name}",
            "%s is no setting of this version%s",
            name,
            f": did you mean {meant}?" if meant else "",
            level=level,
        )
    return Settings(**values)


_current: Settings | None = None


def settings() -> Settings:
    """Return the settings of this process, read at the first call."""
    global _current
    if _current is None:
        _current = load()
    return _current


def configure(replacement: Settings | None) -> None:
    """Put other settings in place, or ``None`` to read the environment again (for tests)."""
    global _current
    _current = replacement


assert {v.field for v in VARIABLES} == {f.name for f in fields(Settings)}


def table() -> str:
    """Return the variables as a Markdown table, as README and documentation have it."""
    rows = [
        "| variable | meaning | allowed | default |",
        "|---|---|---|---|",
        "| `OTEL_TRACES_EXPORTER=weave[,otlp…]` | OTel's own switch | | |",
    ]
    rows += [f"| `{v.name}` | {v.meaning} | {v.allowed} | {v.default} |" for v in VARIABLES]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())

"""Templates, and how values are written in them."""

from __future__ import annotations

import base64
import datetime
import hashlib
import math
import time
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
import orjson

from otel_rollout._version import __version__
from otel_rollout.local.facts import error_of
from otel_rollout.local.queries import DEFAULT_SORT, LIVE_S, Selection
from otel_rollout.local.server import inert, plots

STATIC: Final = {
    "viewer.css": "text/css; charset=utf-8",
    "viewer.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


NOTHING: Final = "\u2013"
_LINE: Final = 300


@cache
def static(name: str) -> bytes:
    """Return a static file; only the names in :data:`STATIC` exist."""
    if name not in STATIC:
        raise KeyError(name)
    return files(__package__).joinpath("static", name).read_bytes()


def content_hash(content: bytes) -> str:
    """Return a source for a content security policy that allows exactly this content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


def number(value: Any, digits: int = 3) -> str:
    """Return a number for people; a dash where there is none."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}".replace(",", "\u202f")
    return str(value)


def duration(value: Any) -> str:
    """Return seconds for people."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min"


def moment(value: Any) -> str:
    """Return a time for people, in UTC."""
    if value is None:
        return NOTHING
    when = datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
    return when.strftime("%Y-%m-%d %H:%M:%S")


def is_live(ended: Any) -> bool:
    """Return whether something has come lately."""
    return ended is not None and time.time() - ended < LIVE_S


def shade(value: float | None, low: float | None, high: float | None) -> int | None:
    """Return 0 (lowest) to 8 (highest) for a value's place between two."""
    if value is None or low is None or high is None:
        return None
    return max(0, min(8, round(8 * (value - low) / ((high - low) or 1))))


def pretty(value: Any) -> str:
    """Return JSON for people, inert."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return inert.inert(orjson.dumps(value, option=options, default=str).decode())


def one_line(value: Any) -> str:
    """Return a value as short JSON, inert."""
    text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
    return inert.inert(text if len(text) <= _LINE else f"{text[:_LINE]}…")


def error_line(exception: Any) -> str:
    """Return type and message of a call's exception, inert."""
    return inert.inert(": ".join(error_of(exception))[:_LINE])


def list_query(selection: Selection, **more: Any) -> str:
    """Return the query part of a list's address, with what is not there by default."""
    pairs: dict[str, Any] = {
        "project": selection.project,
        "experiment": selection.experiment,
        "q": selection.text or None,
        "sort": selection.sort if selection.sort != DEFAULT_SORT else None,
        **more,
    }
    return urlencode({key: value for key, value in pairs.items() if value is not None})


def joined(text: str, condition: str) -> str:
    """Return a filter expression that also demands ``condition``."""
    text = text.strip()
    if not text or condition in text.split(" and "):
        return text or condition
    return f"{f'({text})' if ' or ' in text else text} and {condition}"


def literal(value: Any) -> str:
    """Return a value as it stands in a filter expression."""
    return repr(value) if not isinstance(value, bool) else str(value)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("otel_rollout.local.server"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        inert=inert.inert,
        token=inert.token_text,
        shortened=inert.shortened,
        number=number,
        duration=duration,
        moment=moment,
        pretty=pretty,
        literal=literal,
        tojson_inert=one_line,
        error_line=error_line,
    )
    environment.globals.update(
        version=__version__,
        is_live=is_live,
        shade=shade,
        list_query=list_query,
        joined=joined,
        sparkline=plots.sparkline,
    )
    return environment


_templates: Final = _environment()


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _templates.get_template(template).render(values)

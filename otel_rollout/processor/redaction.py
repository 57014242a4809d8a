"""What must not leave the process: patterns or a function of the user's, applied before anything.

Every text of a span is passed through it: messages, arguments, results, errors, attributes of other
instrumentations. Token ids decode to their text, so they go where their text held a match, and
where there is no text to look at. A setting that cannot be used fails closed: no content leaves.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.sdk.trace import Event
from opentelemetry.trace import Status

from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error

if TYPE_CHECKING:
    from otel_rollout.processor.assembly import Assembled

REPLACEMENT: Final = "[redacted]"
_FUNCTION: Final = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)\Z")
_IDS_OF: Final = {
    semconv.INPUT_MESSAGES: (semconv.PROMPT_IDS,),
    semconv.OUTPUT_MESSAGES: (
        semconv.RESPONSE_IDS,
        semconv.RESPONSE_LOGPROBS,
        semconv.CHOICES_IDS,
        semconv.CHOICES_LOGPROBS,
    ),
}
_NOTE: Final = "token ids: their text was redacted, or could not be looked at"


@dataclass(frozen=True)
class Redaction:
    """Replaces what must not be seen, by a function from text to text."""

    redact: Callable[[str], str]

    def text(self, text: str) -> str:
        """Return ``text`` without what must not be seen; if the function fails, nothing of it."""
        try:
            redacted = self.redact(text)
        except Exception as error:
            report_internal_error("OTEL_ROLLOUT_REDACT", error)
            return REPLACEMENT
        return redacted if isinstance(redacted, str) else REPLACEMENT

    def value(self, value: Any) -> Any:
        """Return an attribute's value with every text in it redacted.

        Text that is JSON is looked at as what it stands for: escapes must not hide a match.
        """
        if isinstance(value, str):
            return self._json(value) if value[:1] in ("{", "[", '"') else self.text(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.value(item) for item in value)
        return value

    def _json(self, text: str) -> str:
        try:
            parsed = orjson.loads(text)
        except orjson.JSONDecodeError:
            return self.text(text)
        redacted = self._walk(parsed)
        return text if redacted == parsed else orjson.dumps(redacted).decode()

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self._walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        return value

    def apply(self, span: Assembled) -> None:
        """Redact an assembled span, in place; the identity of its trajectory stays as it is."""
        kept = span.identity_keys
        for key, value in span.base.items():
            if key not in kept:
                span.base[key] = self.value(value)
        changed = {key for key, value in span.text.items() if self._replace(span.text, key, value)}
        self._drop_ids(span, changed)
        if span.status is not None and span.status.description:
            span.status = Status(span.status.status_code, self.text(span.status.description))
        span.events = [
            Event(
                event.name,
                {key: self.value(value) for key, value in (event.attributes or {}).items()},
                event.timestamp,
            )
            for event in span.events
        ]

    def _replace(self, attributes: dict[str, Any], key: str, value: Any) -> bool:
        attributes[key] = self.value(value)
        return bool(attributes[key] != value)

    @staticmethod
    def _drop_ids(span: Assembled, changed: set[str]) -> None:
        dropped = False
        for messages, keys in _IDS_OF.items():
            if messages in changed or messages not in span.text:
                for key in keys:
                    dropped = span.tokens.pop(key, None) is not None or dropped
        if dropped:
            before = span.base.get(semconv.OMITTED)
            span.base[semconv.OMITTED] = f"{before}; {_NOTE}" if before else _NOTE


def parse(setting: str) -> Redaction:
    """Return the redaction that a setting asks for.

    ``module:function`` names a function ``str -> str``. Anything else is regular expressions, one
    or several separated by line breaks. Raises ``ValueError``, ``re.error`` or what the import
    raises when it cannot be used.
    """
    named = _FUNCTION.match(setting.strip())
    if named is not None:
        function: Any = importlib.import_module(named[1])
        for part in named[2].split("."):
            function = getattr(function, part)
        if not callable(function):
            raise ValueError(f"{setting} is not callable")
        return Redaction(function)
    patterns = [re.compile(line) for line in setting.splitlines() if line.strip()]
    if not patterns:
        raise ValueError("no pattern")

    def redact(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(REPLACEMENT, text)
        return text

    return Redaction(redact)

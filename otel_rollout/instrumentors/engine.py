"""The life of an engine's generation span, the same rules for every engine.

An engine's ``generate`` is an async generator, and its callers treat it as they like: they take
one item and drop it, break off, are cancelled, or abort. So a span is ended as soon as everything
is finished, *before* the last item is handed on; its context is never attached, since a generator
may be closed in another task than it was iterated in; and the engine's own generator is closed
whenever ours is. While items pass, only references and lengths are kept; token ids are copied once,
at the end.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import baggage
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import contained, report_internal_error
from otel_rollout.identity import plain
from otel_rollout.payload import Choice, copy_ids
from otel_rollout.processor.token2text import tokenizers
from otel_rollout.recording import Recording
from otel_rollout.settings import settings

STOP: Final = "stop"
LENGTH: Final = "length"
ABORT: Final = "abort"
CANCELLED: Final = "cancelled"
ABANDONED: Final = "abandoned"
ERROR: Final = "error"

_WORST_FIRST: Final = (ERROR, ABORT, LENGTH)

REQUEST: Final = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_new_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "sampling_seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}


# --- what is known beside the engine --------------------------------------------------------------

_TOKENS_AT: Final = "rollout-tokens"
"""Baggage entry: id of the span that will hold the ids of the generation that is asked for."""

serving_weights: ContextVar[Callable[[], Any] | None] = ContextVar(
    "otel_rollout_serving_weights", default=None
)
"""Tells the version of the weights, where the code around the engine knows it better."""


def holding_tokens(recording: Recording, values: Mapping[str, object] | None = None) -> Context:
    """Return the recording's context, saying that it holds the ids of the generation inside it.

    An engine's span below it, in whatever process, then refers to it and does not repeat them.
    ``values``: more that the context is to have.
    """
    if not recording.live:
        return recording.context_with(values=values)
    return recording.context_with({_TOKENS_AT: f"{recording.span_id:016x}"}, values)


def register_engine_tokenizer(tokenizer: Any, model: str | None) -> None:
    """Take a private copy of an engine's tokenizer, while the engine starts and nothing uses it."""
    if tokenizer is None or not settings().token2text or not settings().capture_content:
        return
    try:
        # An agent loop in this process may have registered its own: that stays the default.
        tokenizers.register(tokenizer, model, default=False)
    except Exception as error:
        report_internal_error("an engine's tokenizer", error)


def trace_headers(recording: Recording) -> dict[str, str]:
    """Return W3C headers that make an engine's own spans children of ``recording``.

    Of an unsampled trajectory they say so (flags 0), and the engine makes no spans.
    """
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context=recording.context)
    return carrier


_propagator: Final = TraceContextTextMapPropagator()


def request_attributes(get: Callable[[str], Any]) -> dict[str, Any]:
    """Return span attributes for sampling parameters; ``get`` gives one by name, or ``None``."""
    attributes: dict[str, Any] = {semconv.REQUEST_CHOICES: get("n") or 1}
    for name, key in REQUEST.items():
        value = get(name)
        if isinstance(value, (int, float)):
            attributes[key] = value
    top_k = get("top_k")
    if isinstance(top_k, int) and 0 < top_k < 1 << 30:  # else an engine's way to say "off"
        attributes[semconv.REQUEST_TOP_K] = top_k
    stop = get("stop")
    if stop:
        attributes[semconv.REQUEST_STOP] = [stop] if isinstance(stop, str) else list(map(str, stop))
    return attributes


# --- one prompt -----------------------------------------------------------------------------------


class Answer:
    """What has come of one choice: references to it, and how long each was when it came.

    An engine may go on to extend a list that it has handed out.
    """

    __slots__ = ("finish_reason", "ids", "logprobs")

    def __init__(self) -> None:
        self.ids: list[tuple[Any, int]] = []
        self.logprobs: list[tuple[Any, int]] = []
        self.finish_reason: str | None = None

    def put(self, ids: Any, logprobs: Any, *, more: bool) -> None:
        """Note what came; ``more``: it continues what came before, else it repeats and extends."""
        if not more:
            self.ids.clear()
            self.logprobs.clear()
        if ids is not None:
            self.ids.append((ids, len(ids)))
        if logprobs is not None:
            self.logprobs.append((logprobs, len(logprobs)))

    @property
    def tokens(self) -> int:
        """Number of tokens so far."""
        return sum(length for _, length in self.ids)

    def copied_ids(self) -> Sequence[int]:
        """Return a copy of the token ids that came."""
        if len(self.ids) == 1:
            return _first(*self.ids[0])
        joined: list[int] = []
        for ids, length in self.ids:
            joined.extend(_first(ids, length))
        return joined


def _first(ids: Any, length: int) -> Sequence[int]:
    if isinstance(ids, (list, tuple, array)):
        return ids[:length]
    return (copy_ids(ids) or [])[:length]


class Generation:
    """The span of one prompt's generation; an engine's own class says what only it knows."""

    def __init__(self, recording: Recording, context: Context, choices: int = 1) -> None:
        self.recording = recording
        self.answers: dict[int, Answer] = {}
        self.choices = choices
        holder = baggage.get_baggage(_TOKENS_AT, context) if recording.live else None
        self._tokens_at = holder if isinstance(holder, str) else None
        self._started = time.perf_counter()
        self._first_seen: float | None = None

    def answer(self, index: int) -> Answer:
        """Return the answer of one choice, new if need be."""
        found = self.answers.get(index)
        if found is None:
            found = self.answers[index] = Answer()
        return found

    def tokens_seen(self) -> None:
        """Note the time of the first tokens that were handed on while more are to come."""
        if self._first_seen is None:
            self._first_seen = time.perf_counter()

    @property
    def finished(self) -> bool:
        """Whether every choice that was asked for has a finish reason."""
        return len(self.answers) >= self.choices and all(
            answer.finish_reason is not None for answer in self.answers.values()
        )

    def end(self, outcome: str | None = None, error: BaseException | None = None) -> None:
        """End the span, once; without an outcome it is the worst of the finish reasons."""
        recording = self.recording
        if recording.ended:
            return
        try:
            if recording.live:
                self._describe(outcome or self._outcome(), error)
        except Exception as internal:
            report_internal_error("the end of a generation", internal)
        finally:
            recording.end()

    def _outcome(self) -> str:
        reasons = {answer.finish_reason for answer in self.answers.values()}
        if not reasons or None in reasons:
            return ABORT  # nothing came, or the engine fell silent
        for reason in _WORST_FIRST:
            if reason in reasons:
                return reason
        return STOP

    def _describe(self, outcome: str, error: BaseException | None) -> None:
        recording, payload = self.recording, self.recording.payload
        recording.set(semconv.OUTCOME, outcome)
        if error is not None:
            recording.fail(error)
        elif outcome == ERROR:
            recording.failed(ERROR, self.message() or "the engine ended this generation")
        answers = [self.answers[index] for index in sorted(self.answers)]
        if any(answer.finish_reason is not None for answer in answers):
            recording.set(
                semconv.FINISH_REASONS, [answer.finish_reason or outcome for answer in answers]
            )
        recording.set(semconv.OUTPUT_TOKENS, sum(answer.tokens for answer in answers))
        if self._first_seen is not None:
            recording.set(semconv.TIME_TO_FIRST_TOKEN, self._first_seen - self._started)
        self.describe()
        told = serving_weights.get()
        if told is not None:
            recording.set(semconv.WEIGHT_VERSION, plain(told()))
        prompt_ids = self.prompt_ids()
        if prompt_ids is not None:
            recording.set(semconv.INPUT_TOKENS, len(prompt_ids))
        if self._tokens_at is not None and outcome in (STOP, LENGTH, ABORT):
            # What ended otherwise may never have reached the span that was to hold it.
            recording.set(semconv.TOKENS_SPAN, self._tokens_at)
            return
        payload.prompt_ids = copy_ids(prompt_ids)
        if not any(answer.ids for answer in answers):
            return
        if self.choices > 1 or len(answers) > 1:
            payload.choices = [self._choice(answer) for answer in answers]
        else:
            only = self._choice(answers[0])
            payload.response_ids, payload.logprobs = only.ids, only.logprobs

    def _choice(self, answer: Answer) -> Choice:
        ids = answer.copied_ids()
        logprobs: Sequence[float] | None = None
        if answer.logprobs:
            try:
                logprobs = self.floats(answer, ids)
            except Exception as error:
                report_internal_error("the log-probabilities of a generation", error)
        return Choice(ids, logprobs, answer.finish_reason)

    def prompt_ids(self) -> Any:
        """Return the prompt's token ids, not copied; ``None`` where they are not known."""
        raise NotImplementedError

    def describe(self) -> None:
        """Set the attributes that only this engine knows."""
        raise NotImplementedError

    def floats(self, answer: Answer, ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token of an answer."""
        raise NotImplementedError

    def message(self) -> str | None:
        """Return what the engine says of an error that it did not raise."""
        return None

    def timing(
        self,
        *,
        to_first_token: float | None = None,
        queue: float | None = None,
        prefill: float | None = None,
        decode: float | None = None,
    ) -> None:
        """Set the times that the engine tells, in seconds; one of no sense is left out."""
        for key, value in (
            (semconv.TIME_TO_FIRST_TOKEN, to_first_token),
            (semconv.TIME_QUEUE, queue),
            (semconv.TIME_PREFILL, prefill),
            (semconv.TIME_DECODE, decode),
        ):
            if value is not None and value >= 0:
                self.recording.set(key, float(value))
        longest = max((answer.tokens for answer in self.answers.values()), default=0)
        if decode is not None and decode > 0 and longest > 1:
            self.recording.set(semconv.TIME_PER_OUTPUT_TOKEN, decode / (longest - 1))


def start(
    model: str | None, engine: str, context: Context, attributes: Mapping[str, Any]
) -> Recording:
    """Start a generation's span below ``context``; it is not made current."""
    given = {semconv.PROVIDER: engine, **attributes}
    if model:
        given[semconv.REQUEST_MODEL] = model
    recording = recordings.start(
        semconv.OP_TEXT_COMPLETION, model, attributes=given, kind=SpanKind.INTERNAL, context=context
    )
    recording.payload.model = model
    return recording


# --- one call -------------------------------------------------------------------------------------


class Call:
    """One call of an engine's ``generate``, which may be of several prompts."""

    def __init__(self) -> None:
        self.generations: list[Generation] = []

    @property
    def live(self) -> bool:
        """Whether anything is recorded of it."""
        return any(generation.recording.live for generation in self.generations)

    def note(self, item: Any) -> None:
        """Note an item before it is handed on, and end what is finished with it."""
        raise NotImplementedError

    @contained("an item of a generation", None)
    def see(self, item: Any) -> None:
        """:meth:`note`, never raising."""
        self.note(item)

    @contained("closing a generation", None)
    def close(self, outcome: str | None = None, error: BaseException | None = None) -> None:
        """End whatever is still open."""
        for generation in self.generations:
            generation.end(outcome, error)

    def __del__(self) -> None:
        # A generator that is dropped after its event loop has ended is closed by nobody.
        self.close(ABANDONED)


async def follow(
    begin: Callable[[], Awaitable[tuple[Call | None, AsyncGenerator[Any, None]]]],
) -> AsyncGenerator[Any, None]:
    """Yield what the engine's generator yields, and record it.

    ``begin`` starts the spans and calls the engine, when the first item is asked for; without a
    call there is nothing to record. What is thrown into this generator ends the engine's.
    """
    call, items = await begin()
    live = call is not None and call.live
    outcome: str | None = ERROR
    error: BaseException | None = None
    try:
        async for item in items:
            if live and call is not None:
                call.see(item)
            yield item
        outcome = None
    except GeneratorExit:
        outcome = ABANDONED
        raise
    except asyncio.CancelledError as cancelled:
        outcome, error = CANCELLED, cancelled
        raise
    except BaseException as raised:
        error = raised
        raise
    finally:
        if call is not None:
            call.close(outcome, error)
        # `async for` does not close what it iterates over.
        await items.aclose()

"""vLLM: a span for each call of ``AsyncLLM.generate``, with what only the engine knows.

What is recorded is the same for every ``output_kind``. The engine's own spans, where it makes any,
become children of ours.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors import engine as engines
from otel_rollout.instrumentors.engine import Answer, Call, Generation
from otel_rollout.instrumentors.patching import Patches

PROVIDER: Final = "vllm"
_DELTA: Final = "DELTA"


def patch_v1(patches: Patches, module: ModuleType) -> None:
    """Record ``generate`` of the engine."""
    _patch(patches, getattr(module, "AsyncLLM", None))


def patch_v0(patches: Patches, module: ModuleType) -> None:
    """Record ``generate`` of the engine before V1."""
    engine_class = getattr(module, "AsyncLLMEngine", None)
    if isinstance(engine_class, type):
        _patch(patches, engine_class)


def _patch(patches: Patches, engine_class: type | None) -> None:
    if patches.method(engine_class, "generate", _generate):
        patches.method(engine_class, "__init__", _created)


def _created(method: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        method(self, *args, **kwargs)
        try:
            engines.register_engine_tokenizer(_tokenizer(self), _model(self))
        except Exception as error:
            report_internal_error("vLLM's tokenizer", error)

    return __init__


def _tokenizer(engine: Any) -> Any:
    """Return the engine's tokenizer: at the renderer, itself, in a group, or behind an engine."""
    renderer = getattr(engine, "renderer", None)
    found: Any = getattr(renderer, "tokenizer", None) or getattr(engine, "tokenizer", None)
    if found is None:
        found = getattr(getattr(engine, "engine", None), "tokenizer", None)
    if type(found).__name__.endswith("TokenizerGroup"):
        found = found.tokenizer
    return found


def _model(engine: Any) -> str | None:
    """Return the model's name: the one that it is served under, else its folder's or repository's.

    The same as verl's client has it, so that both their spans are of one model.
    """
    try:
        config = getattr(engine, "model_config", None)
        if config is None:
            config = engine.engine.model_config
        served = getattr(config, "served_model_name", None) or config.model
        if isinstance(served, (list, tuple)):
            served = served[0]
        return os.path.basename(str(served).rstrip("/")) or None
    except Exception:
        return None


# --- a call ---------------------------------------------------------------------------------------


def _generate(method: Callable[..., Any]) -> Callable[..., Any]:
    names = tuple(inspect.signature(method).parameters)[1:]

    def generate(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        context = otel_context.get_current()

        async def begin() -> tuple[Call | None, AsyncGenerator[Any, None]]:
            call: _Call | None = None
            given_args, given = args, kwargs
            try:
                call = _Call(self, {**dict(zip(names, args, strict=False)), **kwargs}, context)
                if not call.given.get("trace_headers") and await self.is_tracing_enabled():
                    given_args, given = call.with_trace_headers(names, args, kwargs)
            except Exception as error:
                report_internal_error("vLLM's generate", error)
            return call, method(self, *given_args, **given)

        return engines.follow(begin)

    return generate


class _Call(Call):
    """A call of ``generate``: one prompt."""

    def __init__(self, engine: Any, given: Mapping[str, Any], context: Context) -> None:
        super().__init__()
        self.given = given
        params = given.get("sampling_params")
        attributes = engines.request_attributes(lambda name: getattr(params, name, None))
        lora = getattr(given.get("lora_request"), "lora_name", None)
        if lora is not None:
            attributes[semconv.LORA] = str(lora)
        if given.get("priority") is not None:
            attributes[semconv.PRIORITY] = given["priority"]
        recording = engines.start(_model(engine), PROVIDER, context, attributes)
        self.generation = _Generation(recording, context, attributes[semconv.REQUEST_CHOICES])
        self.generation.given = given
        self.generations.append(self.generation)
        kind = getattr(params, "output_kind", None)
        self.delta = getattr(kind, "name", None) == _DELTA

    def with_trace_headers(
        self, names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call's arguments with headers that make the engine's spans our children."""
        headers = engines.trace_headers(self.generation.recording)
        if not headers or "trace_headers" not in names:
            return args, dict(kwargs)
        position = names.index("trace_headers")
        if position < len(args):
            return (*args[:position], headers, *args[position + 1 :]), dict(kwargs)
        return args, {**kwargs, "trace_headers": headers}

    def note(self, item: Any) -> None:
        """Note a ``RequestOutput``."""
        generation = self.generation
        if generation.recording.ended:
            return
        generation.last = item
        for output in item.outputs:
            if output is None:  # a choice of an aborted request that never came
                continue
            answer = generation.answer(output.index)
            answer.put(output.token_ids, output.logprobs, more=self.delta)
            if output.finish_reason is not None:
                answer.finish_reason = str(output.finish_reason)
                generation.final[output.index] = output
        if item.finished:
            generation.end()
        else:
            generation.tokens_seen()


class _Generation(Generation):
    """The span of a vLLM request."""

    given: Mapping[str, Any]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.last: Any = None
        """The last ``RequestOutput`` that came."""
        self.final: dict[int, Any] = {}
        """Each choice's last ``CompletionOutput``."""

    def prompt_ids(self) -> Any:
        """Return the ids that the engine made of the prompt, else those that it was given."""
        ids = getattr(self.last, "prompt_token_ids", None)
        if ids is not None:
            return ids
        prompt = self.given.get("prompt")
        if isinstance(prompt, Mapping):
            return prompt.get("prompt_token_ids")
        return getattr(prompt, "prompt_token_ids", None)

    def describe(self) -> None:
        """Set the request's id, its cached tokens, the version of the weights, and the times."""
        recording, last = self.recording, self.last
        request_id = last.request_id if last is not None else self.given.get("request_id")
        if request_id is not None:
            recording.set(semconv.RESPONSE_ID, str(request_id))
        recording.set(semconv.CACHED_TOKENS, getattr(last, "num_cached_tokens", None))
        self._weights()
        metrics = getattr(last, "metrics", None)
        if metrics is None:
            return
        recording.set(semconv.NUM_PREEMPTED, getattr(metrics, "num_preemptions", None))
        if hasattr(metrics, "scheduled_ts"):
            first = getattr(metrics, "first_token_latency", None)
            self.timing(
                to_first_token=first or None,
                queue=_between(metrics.queued_ts, metrics.scheduled_ts),
                prefill=_between(metrics.scheduled_ts, metrics.first_token_ts),
                decode=_between(metrics.first_token_ts, metrics.last_token_ts),
            )
        elif hasattr(metrics, "first_scheduled_time"):  # the engine before V1
            self.timing(
                to_first_token=_between(metrics.arrival_time, metrics.first_token_time),
                queue=metrics.time_in_queue,
                prefill=_between(metrics.first_scheduled_time, metrics.first_token_time),
                decode=_between(metrics.first_token_time, metrics.last_token_time),
            )

    def _weights(self) -> None:
        """Tell the version that the last token was sampled with, and all where there are more."""
        spans = [
            (span.version, span.start, span.end)
            for index in sorted(self.final)
            for span in getattr(self.final[index], "weight_versions", None) or ()
        ]
        if spans:
            self.recording.set(semconv.WEIGHT_VERSION, str(spans[-1][0]))
        if len({version for version, _, _ in spans}) > 1:
            self.recording.keep(
                semconv.WEIGHT_VERSIONS,
                [{"version": version, "start": start, "end": end} for version, start, end in spans],
            )

    def floats(self, answer: Answer, ids: Sequence[int]) -> list[float]:
        """Return each token's own log-probability, of whatever form vLLM gives them in."""
        result: list[float] = []
        for piece, length in answer.logprobs:
            starts = getattr(piece, "start_indices", None)
            if starts is not None:  # FlatLogprobs: a position's first entry is the sampled token's
                flat = piece.logprobs
                result.extend([flat[start] for start in starts[:length]])
                continue
            offset = len(result)
            tokens = ids[offset : offset + length]
            result.extend([one[token].logprob for one, token in zip(piece, tokens, strict=False)])
        return result


def _between(start: float | None, end: float | None) -> float | None:
    return end - start if start and end else None

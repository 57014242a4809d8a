"""SGLang: a span for each prompt that ``TokenizerManager.generate_request`` is asked for.

``Engine.generate``, ``Engine.async_generate``, its HTTP server and verl all go through it. One
call may be of several prompts, and of several answers to each: a prompt is a span, its answers are
that span's choices.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from otel_rollout import semconv, snapshot
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors import engine as engines
from otel_rollout.instrumentors.engine import Answer, Call, Generation
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.payload import copy_ids

PROVIDER: Final = "sglang"
_HEADER: Final = "external_trace_header"


def patch(patches: Patches, module: ModuleType) -> None:
    """Record ``generate_request`` of the tokenizer manager."""
    manager = getattr(module, "TokenizerManager", None)
    if patches.method(manager, "generate_request", _generate_request):
        patches.method(manager, "__init__", _created)


def _created(method: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        method(self, *args, **kwargs)
        try:
            engines.register_engine_tokenizer(getattr(self, "tokenizer", None), _model(self))
        except Exception as error:
            report_internal_error("SGLang's tokenizer", error)

    return __init__


def _model(manager: Any) -> str | None:
    """Return the model's name, as verl's client has it: the last part of its path."""
    name = getattr(manager, "served_model_name", None) or getattr(manager, "model_path", None)
    return os.path.basename(str(name).rstrip("/")) or None if name else None


def _traces(manager: Any) -> bool:
    """Return whether the engine makes spans of its own."""
    enabled = getattr(manager, "enable_trace", None)
    if enabled is None:
        enabled = getattr(getattr(manager, "server_args", None), "enable_trace", False)
    return bool(enabled)


def _in_pieces(manager: Any) -> bool:
    """Return whether a streamed item holds only what is new."""
    for name in ("incremental_streaming_output", "stream_output"):
        for owner in (manager, getattr(manager, "server_args", None)):
            value = getattr(owner, name, None)
            if isinstance(value, bool):
                return value
    return False


# --- a call ---------------------------------------------------------------------------------------


def _generate_request(method: Callable[..., Any]) -> Callable[..., Any]:
    def generate_request(
        self: Any, obj: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        if not any(kind.__name__ == "GenerateReqInput" for kind in type(obj).__mro__):
            items: AsyncGenerator[Any, None] = method(self, obj, *args, **kwargs)  # embeddings
            return items
        context = otel_context.get_current()

        async def begin() -> tuple[Call | None, AsyncGenerator[Any, None]]:
            call = None
            try:
                call = _Call(self, obj, context)
                if _traces(self):
                    request = args[0] if args else kwargs.get("request")
                    call.send_trace_header(request)
            except Exception as error:
                report_internal_error("SGLang's generate_request", error)
            return call, method(self, obj, *args, **kwargs)

        return engines.follow(begin)

    return generate_request


class _Call(Call):
    """A call of ``generate_request``: one or several prompts."""

    def __init__(self, manager: Any, obj: Any, context: Context) -> None:
        super().__init__()
        self._obj = obj
        self._header_set = False
        self._more = bool(getattr(obj, "stream", False)) and _in_pieces(manager)
        params = obj.sampling_params
        each = params if isinstance(params, list) else None
        prompts = _prompts(obj)
        # The engine reads it from the first one, too; a beam search's n is no sampling.
        first: Mapping[str, Any] = (each[0] if each else params) or {}
        beams = (first.get("beam_width") or 1) > 1
        self._choices = 1 if beams else int(first.get("n") or 1)
        model = _model(manager)
        for number, prompt in enumerate(prompts):
            own: Mapping[str, Any] = (each[number] if each and number < len(each) else first) or {}
            attributes = engines.request_attributes(own.get)
            lora = _at(getattr(obj, "lora_path", None), number)
            if lora:
                attributes[semconv.LORA] = str(lora)
            priority = getattr(obj, "priority", None)
            if isinstance(priority, int):
                attributes[semconv.PRIORITY] = priority
            recording = engines.start(model, PROVIDER, context, attributes)
            generation = _Generation(recording, context, self._choices)
            if recording.live:
                generation.asked(prompt, _at(getattr(obj, "rid", None), number))
            self.generations.append(generation)

    def send_trace_header(self, request: Any) -> None:
        """Have the engine's spans be children of ours, unless the caller said whose they are.

        A call has one header: with several prompts they are all below the first one's span.
        """
        obj = self._obj
        if not hasattr(obj, _HEADER) or getattr(obj, _HEADER) or not self.generations:
            return
        if "traceparent" in (getattr(request, "headers", None) or ()):
            return
        header = engines.trace_headers(self.generations[0].recording)
        if header:
            setattr(obj, _HEADER, header)
            self._header_set = True

    def note(self, item: Any) -> None:
        """Note one item: a dict, or the list of all answers to all prompts."""
        if isinstance(item, list):
            for index, output in enumerate(item):
                self._note_one(index, output)
        else:
            self._note_one(item.get("index", 0), item)

    def _note_one(self, index: int, output: Mapping[str, Any]) -> None:
        number, choice = divmod(index, self._choices)
        generation = self.generations[number]
        if generation.recording.ended:
            return
        assert isinstance(generation, _Generation)
        meta = output["meta_info"]
        generation.outputs[choice] = output
        answer = generation.answer(choice)
        logprobs = meta.get("output_token_logprobs")
        answer.put(output.get("output_ids"), logprobs, more=self._more)
        reason = meta.get("finish_reason")
        if reason is None:
            generation.tokens_seen()
            return
        answer.finish_reason = _reason(reason)
        if generation.finished:
            generation.end()

    def close(self, outcome: str | None = None, error: BaseException | None = None) -> None:
        """End what is open, and leave the caller's object without our header."""
        super().close(outcome, error)
        if self._header_set:
            self._header_set = False
            setattr(self._obj, _HEADER, None)


def _at(value: Any, number: int) -> Any:
    """Return the part of a request's field that is of one prompt."""
    if isinstance(value, list):
        return value[number] if number < len(value) else None
    return value


def _prompts(obj: Any) -> list[Any]:
    """Return each prompt: its text, its ids, or ``None`` for embeddings."""
    text: Any = getattr(obj, "text", None)
    ids: Any = getattr(obj, "input_ids", None)
    if text is not None:
        return [text] if isinstance(text, str) else list(text)
    if ids is not None:
        return list(ids) if len(ids) and isinstance(ids[0], (list, tuple)) else [ids]
    embeds: Any = getattr(obj, "input_embeds", None)
    several = bool(embeds) and isinstance(embeds[0][0], (list, tuple))
    return [None] * (len(embeds) if several else 1)


def _reason(reason: Any) -> str:
    """Return the finish reason; SGLang's is a dict, and its errors are aborts with a status."""
    if not isinstance(reason, Mapping):
        return str(reason)
    kind = str(reason.get("type"))
    status = reason.get("status_code")
    return engines.ERROR if kind == "abort" and status is not None and status >= 400 else kind


class _Generation(Generation):
    """The span of one prompt."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.outputs: dict[int, Mapping[str, Any]] = {}
        """Each choice's last item."""
        self._prompt: Sequence[int] | None = None
        self._rid: Any = None

    def asked(self, prompt: Any, rid: Any) -> None:
        """Note the prompt; SGLang does not give its ids back, so the caller's are copied."""
        self._rid = rid
        if isinstance(prompt, str):
            self.recording.keep(semconv.INPUT_MESSAGES, [{"role": "user", "content": prompt}])
        elif prompt is not None:
            self._prompt = copy_ids(prompt)

    def prompt_ids(self) -> Any:
        """Return the prompt's ids, where it was given as ids."""
        return self._prompt

    def describe(self) -> None:
        """Set what ``meta_info`` tells."""
        recording = self.recording
        metas = [self.outputs[choice]["meta_info"] for choice in sorted(self.outputs)]
        if not metas:
            if self._rid is not None:
                recording.set(semconv.RESPONSE_ID, str(self._rid))
            return
        first = metas[0]
        recording.set(semconv.RESPONSE_ID, str(first.get("id")))
        recording.set(semconv.INPUT_TOKENS, first.get("prompt_tokens"))
        recording.set(semconv.CACHED_TOKENS, first.get("cached_tokens"))
        retractions = [meta.get("num_retractions") for meta in metas]
        if retractions[0] is not None:
            recording.set(semconv.NUM_PREEMPTED, sum(count or 0 for count in retractions))
        version = metas[-1].get("weight_version")
        if version is not None:
            recording.set(semconv.WEIGHT_VERSION, str(version))
        spans = [span for meta in metas for span in meta.get("weight_versions") or ()]
        if len({span["version"] for span in spans}) > 1:
            recording.keep(semconv.WEIGHT_VERSIONS, spans)
        if not any(answer.ids for answer in self.answers.values()):
            self._without_ids(metas)
        self._times(max(metas, key=lambda meta: meta.get("completion_tokens") or 0))

    def _times(self, meta: Mapping[str, Any]) -> None:
        begun, prefilled = meta.get("forward_entry_time"), meta.get("prefill_finished_time")
        ended = meta.get("request_finished_ts")
        self.timing(
            to_first_token=meta.get("first_token_latency"),
            queue=meta.get("queue_time"),
            prefill=prefilled - begun if begun and prefilled else None,
            decode=ended - prefilled if ended and prefilled else None,
        )

    def _without_ids(self, metas: Sequence[Mapping[str, Any]]) -> None:
        """Take ids from the log-probabilities, or else the text: older versions give no ids."""
        for answer in self.answers.values():
            for pairs, length in answer.logprobs:
                answer.ids.append(([pair[1] for pair in pairs[:length]], length))
        self.recording.set(
            semconv.OUTPUT_TOKENS, sum(meta.get("completion_tokens") or 0 for meta in metas)
        )
        texts = [self.outputs[choice].get("text") for choice in sorted(self.outputs)]
        if not any(answer.ids for answer in self.answers.values()) and any(texts):
            self.recording.keep(
                semconv.OUTPUT_MESSAGES,
                [{"role": "assistant", "content": snapshot.text_of(text)} for text in texts],
            )

    def floats(self, answer: Answer, ids: Sequence[int]) -> list[float]:
        """Return each token's log-probability, of (logprob, id, text)."""
        pieces = answer.logprobs
        last, length = pieces[-1]
        if len(pieces) > 1 and length == len(ids):  # some versions stream ids in pieces only
            pieces = [(last, length)]
        return [
            float("nan") if one[0] is None else one[0]
            for piece, length in pieces
            for one in piece[:length]
        ]

    def message(self) -> str | None:
        """Return the message of an abort that is an error."""
        for output in self.outputs.values():
            reason = output["meta_info"].get("finish_reason")
            if isinstance(reason, Mapping) and reason.get("message"):
                return str(reason["message"])
        return None

"""verl's generation: what an agent loop asks of the inference servers, tokens in, tokens out."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind

from otel_rollout import recording as recordings
from otel_rollout import semconv
from otel_rollout.diagnostics import report_internal_error
from otel_rollout.instrumentors.engine import REQUEST, holding_tokens
from otel_rollout.instrumentors.patching import Patches
from otel_rollout.instrumentors.verl.trajectories import PROVIDER
from otel_rollout.payload import copy_floats, copy_ids
from otel_rollout.recording import Recording

_REQUEST: Final = {
    **REQUEST,
    "top_k": semconv.REQUEST_TOP_K,
    "n": semconv.REQUEST_CHOICES,
}


class Generation(Recording):
    """A client's generation while it is under way.

    ``client``: verl's. ``attempt``: which of the generation around it this is, if there is one.
    ``attempts``: how many it has made itself.
    """

    __slots__ = ("attempt", "attempts", "client")

    client: Any
    attempt: int | None
    attempts: int


_OPEN: Final = otel_context.create_key("otel-rollout-verl-generation")
"""Where the context of what a generation calls has that generation."""


def patch_llm_server(patches: Patches, module: ModuleType) -> None:
    """Record ``generate`` of the client, verl 0.8 and newer."""
    patches.every_subclass(getattr(module, "LLMServerClient", None), "generate", _generate)


def patch_agent_loop(patches: Patches, module: ModuleType) -> None:
    """Record ``generate`` of the client, before verl 0.8."""
    patches.every_subclass(getattr(module, "AsyncLLMServerManager", None), "generate", _generate)


def _generate(method: Callable[..., Any]) -> Callable[..., Any]:
    # One coroutine and no context manager: what is open for a second with hundreds of others is
    # what the garbage collector has to go through.
    async def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = _begin(self, args, kwargs)
        try:
            output = await method(self, *args, **kwargs)
        except BaseException as error:
            recording.leave(error)
            raise
        _end(recording, output)
        return output

    return generate


def _begin(client: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Generation:
    outer = otel_context.get_value(_OPEN)
    attempt = None
    if isinstance(outer, Generation) and outer.client is client:
        # The fully-async client asks again after an abort: each attempt is a span of its own.
        attempt = outer.attempts
        outer.attempts += 1
    recording = _start(client, args, given, attempt)
    recording.client, recording.attempt, recording.attempts = client, attempt, 0
    inside = {_OPEN: recording}
    if attempt is not None:
        recording.enter(recording.context_with(values=inside))
        return recording
    if recording.live:
        try:
            recording.payload.prompt_ids = copy_ids(given.get("prompt_ids"))
        except Exception as error:
            report_internal_error("generate prompt", error)
    # The whole generation's span holds the ids: engines and attempts below refer to it.
    recording.enter(holding_tokens(recording, inside))
    return recording


def _end(recording: Generation, output: Any) -> None:
    if recording.live:
        _note_output(recording, output)
    recording.leave()


def _start(
    client: Any, args: tuple[Any, ...], given: Mapping[str, Any], attempt: int | None
) -> Generation:
    model, engine = _served(client)
    attributes: dict[str, Any] = {semconv.PROVIDER: engine or PROVIDER}
    if model:
        attributes[semconv.REQUEST_MODEL] = model
    if attempt is not None:
        attributes[semconv.ATTEMPT] = attempt
    try:
        _add_request(attributes, args, given)
    except Exception as error:
        report_internal_error("generate request", error)
    return recordings.start_as(
        Generation, semconv.OP_TEXT_COMPLETION, model, attributes=attributes, kind=SpanKind.CLIENT
    )


def _add_request(
    attributes: dict[str, Any], args: tuple[Any, ...], given: Mapping[str, Any]
) -> None:
    """Add what is asked for; everything but the request's id is a keyword in every verl."""
    prompt_ids = given.get("prompt_ids")
    if prompt_ids is not None:
        attributes[semconv.INPUT_TOKENS] = len(prompt_ids)
    request_id = args[0] if args else given.get("request_id")
    if request_id is not None:
        attributes[semconv.CONVERSATION_ID] = str(request_id)
    for name, value in (given.get("sampling_params") or {}).items():
        key = _REQUEST.get(name)
        if key is not None and isinstance(value, (int, float)):
            attributes[key] = value


_names: weakref.WeakKeyDictionary[Any, tuple[str | None, str | None]] = weakref.WeakKeyDictionary()


def _served(client: Any) -> tuple[str | None, str | None]:
    """Return the model's name and the engine's, as verl's configuration has them."""
    try:
        known = _names.get(client)
        if known is None:
            section = client.config.actor_rollout_ref
            path = str(section.model.path).rstrip("/")
            known = (os.path.basename(path) or None, str(section.rollout.name))
            _names[client] = known
        return known
    except Exception:
        return None, None


def _note_output(recording: Generation, output: Any) -> None:
    """Note a ``TokenOutput``, or the bare list of ids of verl 0.5."""
    try:
        token_ids = output if isinstance(output, list) else output.token_ids
        attributes: dict[str, Any] = {semconv.OUTPUT_TOKENS: len(token_ids)}
        if recording.attempt is None:
            recording.payload.response_ids = copy_ids(token_ids)
            recording.payload.logprobs = copy_floats(getattr(output, "log_probs", None))
        reason = getattr(output, "stop_reason", None)
        if reason is not None:
            attributes[semconv.FINISH_REASONS] = [str(reason)]
        extra = getattr(output, "extra_fields", None) or {}
        for key, value in (
            (semconv.NUM_PREEMPTED, getattr(output, "num_preempted", None)),
            (semconv.WEIGHT_VERSION, extra.get("global_steps")),
            (semconv.CACHED_TOKENS, extra.get("num_cached_tokens")),
        ):
            if value is not None:
                attributes[key] = value
        recording.set_all(attributes)
    except Exception as error:
        report_internal_error("generate output", error)

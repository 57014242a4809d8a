"""What a call of a language model is made of, in the forms that such calls have.

For functions that are recorded as ``rollout_op(kind="llm")``: arguments called ``messages`` and
``prompt_ids``, and results in the form of OpenAI's chat and text completions (as vLLM's and
SGLang's servers answer, token ids included) or with ``token_ids``, as verl's ``TokenOutput``.
Whatever has another form stays what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from otel_rollout import semconv
from otel_rollout.payload import Choice, copy_floats, copy_ids
from otel_rollout.recording import Recording

_MESSAGES: Final = "messages"
_PROMPT_IDS: Final = ("prompt_ids", "prompt_token_ids")
_RESPONSE_IDS: Final = ("token_ids", "response_ids")
_LOGPROBS: Final = ("log_probs", "logprobs")
_REASON: Final = ("finish_reason", "stop_reason")
_REQUEST: Final = {
    "model": semconv.REQUEST_MODEL,
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_completion_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
}


def note_inputs(recording: Recording, inputs: dict[str, Any]) -> dict[str, Any]:
    """Note a request on its span; return the arguments that are not said by it."""
    rest = dict(inputs)
    if isinstance(rest.get(_MESSAGES), (list, tuple)):
        recording.keep(semconv.INPUT_MESSAGES, list(rest.pop(_MESSAGES)))
    for name in _PROMPT_IDS:
        if _is_ids(rest.get(name)):
            _prompt(recording, rest.pop(name))
    for name, key in _REQUEST.items():
        if type(rest.get(name)) in (str, int, float):
            recording.set(key, rest[name])
    return rest


def note_output(recording: Recording, output: Any) -> bool:
    """Note an answer on its span; return False where it has none of the known forms."""
    choices = _get(output, "choices")
    if isinstance(choices, (list, tuple)) and choices:
        _completion(recording, output, choices)
        return True
    for name in _RESPONSE_IDS:
        ids = _get(output, name)
        if _is_ids(ids):
            recording.payload.response_ids = copy_ids(ids)
            recording.payload.logprobs = _floats(_first(output, _LOGPROBS))
            recording.set(semconv.OUTPUT_TOKENS, len(ids))
            reason = _first(output, _REASON)
            if isinstance(reason, str):
                recording.set(semconv.FINISH_REASONS, [reason])
            return True
    return False


def _completion(recording: Recording, output: Any, choices: Any) -> None:
    messages = [_message(choice) for choice in choices]
    if any(message is not None for message in messages):
        recording.keep(semconv.OUTPUT_MESSAGES, messages)
    reasons = [_get(choice, "finish_reason") for choice in choices]
    attributes: dict[str, Any] = {}
    if any(reason is not None for reason in reasons):
        attributes[semconv.FINISH_REASONS] = [str(reason) for reason in reasons]
    usage = _get(output, "usage")
    details = _get(usage, "prompt_tokens_details")
    for key, value in (
        (semconv.RESPONSE_MODEL, _get(output, "model")),
        (semconv.RESPONSE_ID, _get(output, "id")),
        (semconv.INPUT_TOKENS, _get(usage, "prompt_tokens")),
        (semconv.OUTPUT_TOKENS, _get(usage, "completion_tokens")),
        (semconv.CACHED_TOKENS, _get(details, "cached_tokens")),
    ):
        if type(value) in (str, int):
            attributes[key] = value
    recording.set_all(attributes)
    prompt = _get(output, "prompt_token_ids")
    _prompt(recording, prompt if prompt is not None else _get(choices[0], "prompt_token_ids"))
    answers = [_answer(choice) for choice in choices]
    if len(answers) == 1 and answers[0] is not None:
        recording.payload.response_ids = answers[0].ids
        recording.payload.logprobs = answers[0].logprobs
    elif len(answers) > 1 and all(answer is not None for answer in answers):
        recording.payload.choices = [answer for answer in answers if answer is not None]


def _message(choice: Any) -> Any:
    message = _get(choice, "message")
    if message is None:
        text = _get(choice, "text")
        return {"role": "assistant", "content": text} if isinstance(text, str) else None
    if isinstance(message, Mapping):
        return {"role": "assistant", **message}
    calls = _get(message, "tool_calls")
    given = {"role": _get(message, "role") or "assistant", "content": _get(message, "content")}
    if not isinstance(calls, (list, tuple)) or not calls:
        return given
    return {**given, "tool_calls": [_tool_call(call) for call in calls]}


def _tool_call(call: Any) -> Any:
    function = _get(call, "function")
    if function is None:
        return call
    asked = {"name": _get(function, "name"), "arguments": _get(function, "arguments")}
    return {"id": _get(call, "id"), "type": "function", "function": asked}


def _answer(choice: Any) -> Choice | None:
    ids = _get(choice, "token_ids")
    if not _is_ids(ids):
        return None
    logprobs = _get(choice, "logprobs")
    content = _get(logprobs, "content")
    if isinstance(content, (list, tuple)):
        values: Any = [_get(one, "logprob") for one in content]
    else:
        values = _get(logprobs, "token_logprobs")
    reason = _get(choice, "finish_reason")
    return Choice(copy_ids(ids) or [], _floats(values), None if reason is None else str(reason))


def _prompt(recording: Recording, ids: Any) -> None:
    if _is_ids(ids):
        recording.payload.prompt_ids = copy_ids(ids)
        recording.set(semconv.INPUT_TOKENS, len(ids))


def _floats(values: Any) -> Any:
    if isinstance(values, (list, tuple)) and all(type(value) is float for value in values):
        return copy_floats(values)
    return None


def _is_ids(value: Any) -> bool:
    """Return whether it may be a list of token ids, by its first element."""
    if isinstance(value, (list, tuple)):
        return not value or type(value[0]) is int
    return hasattr(value, "dtype") and hasattr(value, "tolist") and hasattr(value, "__len__")


def _first(value: Any, names: tuple[str, ...]) -> Any:
    return next((found for found in (_get(value, n) for n in names) if found is not None), None)


def _get(value: Any, name: str) -> Any:
    """Return an item or attribute, ``None`` where there is none or it cannot be had."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return value.get(name)
    try:
        return getattr(value, name, None)
    except Exception:
        return None

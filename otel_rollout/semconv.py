"""Every attribute, baggage key and span name of the project, in one place.

Names that OpenTelemetry's GenAI semantic conventions define are used as they stand; what they do
not know (the place of a span in a rollout, token ids, masks) has the prefix ``rollout.``.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "otel_rollout"
"""Instrumentation scope of every span that this package starts."""

# --- identity of a trajectory: baggage keys and span attributes of the same name -----------------
PREFIX: Final = "rollout."
STEP: Final = "rollout.step"
SAMPLE_INDEX: Final = "rollout.sample_index"
ROLLOUT_N: Final = "rollout.rollout_n"
VALIDATE: Final = "rollout.validate"
EXPERIMENT_NAME: Final = "rollout.experiment_name"
GROUP_ID: Final = "rollout.group_id"
PROJECT: Final = "rollout.project"
SAMPLED: Final = "rollout.sampled"

# --- outcome of a trajectory ---------------------------------------------------------------------
NUM_TURNS: Final = "rollout.num_turns"
NUM_OUTPUTS: Final = "rollout.num_outputs"
NUM_PREEMPTED: Final = "rollout.num_preempted"
REWARD: Final = "rollout.reward"
REWARD_DETAIL: Final = "rollout.reward_detail"
WEIGHT_VERSION: Final = "rollout.weight_version"
WEIGHT_VERSIONS: Final = "rollout.weight_versions"
"""Where the weights changed while tokens were made: JSON, version and the tokens from, to."""
ATTEMPT: Final = "rollout.generation.attempt"
OUTCOME: Final = "rollout.generation.outcome"
LORA: Final = "rollout.generation.lora"
PRIORITY: Final = "rollout.generation.priority"
TIME_QUEUE: Final = "rollout.timing.queue"
"""Seconds, as all of ``rollout.timing``: in the engine's queue, before it was first scheduled."""
TIME_TO_FIRST_TOKEN: Final = "rollout.timing.time_to_first_token"
TIME_PREFILL: Final = "rollout.timing.prefill"
TIME_DECODE: Final = "rollout.timing.decode"
TIME_PER_OUTPUT_TOKEN: Final = "rollout.timing.time_per_output_token"
TOOL_REWARD: Final = "rollout.tool.reward"
TOOL_METRICS: Final = "rollout.tool.metrics"
TOOL_CALLS_EVENT: Final = "rollout.tool_calls.parsed"

# --- payload: put on the rebuilt span by the processor, never by the caller's thread --------------
PROMPT_IDS: Final = "rollout.prompt.token_ids"
PROMPT_PREFIX_SPAN: Final = "rollout.prompt.prefix.span_id"
PROMPT_PREFIX_LENGTH: Final = "rollout.prompt.prefix.length"
RESPONSE_IDS: Final = "rollout.response.token_ids"
RESPONSE_LOGPROBS: Final = "rollout.response.logprobs"
RESPONSE_MASK: Final = "rollout.response.mask"
CHOICES_IDS: Final = "rollout.response.choices.token_ids"
"""Where several answers were asked for: a list, one text a choice, in place of RESPONSE_IDS."""
CHOICES_LOGPROBS: Final = "rollout.response.choices.logprobs"
TOKENS_SPAN: Final = "rollout.tokens.span_id"
"""On an engine's span: the span above it that holds this generation's token ids."""
TURNS: Final = "rollout.turns"
"""On the root: span ids of the generations below it, in order of their end."""
IDS_ENCODING: Final = "rollout.token_ids.encoding"
LOGPROBS_ENCODING: Final = "rollout.logprobs.encoding"
MASK_ENCODING: Final = "rollout.mask.encoding"
INPUT: Final = "rollout.input"
OUTPUT: Final = "rollout.output"
DECODE_ERROR: Final = "rollout.token2text.error"
OMITTED: Final = "rollout.payload.omitted"
"""Names of payload attributes that were left out, and why."""

# --- GenAI semantic conventions ------------------------------------------------------------------
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_STOP: Final = "gen_ai.request.stop_sequences"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
ERROR_TYPE: Final = "error.type"

OP_INVOKE_AGENT: Final = "invoke_agent"
OP_TEXT_COMPLETION: Final = "text_completion"
OP_CHAT: Final = "chat"
OP_EXECUTE_TOOL: Final = "execute_tool"
OP_EVALUATE: Final = "evaluate"
OP_ROLLOUT: Final = "rollout"

DEFAULT_PROVIDER: Final = "otel_rollout"


def span_name(operation: str, subject: str | None) -> str:
    """Name of a span: the operation, and what it is about when that is known."""
    return f"{operation} {subject}" if subject else operation

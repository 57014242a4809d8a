"""A rollout server that samples from a small Hugging Face model on a CPU, without an engine.

It has the `generate` of verl's own rollout servers (`vLLMHttpServer`, `SGLangHttpServer`) and runs
as a Ray actor in their place. Every call draws from a generator of its own, seeded by what is
asked: the answer depends on nothing else that the server does, before or at the same time.
"""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from verl.workers.rollout.replica import TokenOutput


class PolicyServer:
    """Serves one model; sequences are sampled one at a time, off the event loop."""

    def __init__(self, model_path: str, prompt_length: int, response_length: int) -> None:
        # Imported by the actor only: the driver starts it before its own imports are done.
        from transformers import AutoModelForCausalLM
        from verl.workers.rollout.replica import TokenOutput

        torch.set_num_threads(1)
        self.output_class = TokenOutput
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self.prompt_length = prompt_length
        self.response_length = response_length
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.global_steps: int | None = None

    async def set_global_steps(self, global_steps: int) -> None:
        """Note the version of the weights that are served."""
        self.global_steps = global_steps

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        kv_transfer_params: dict[str, Any] | None = None,
    ) -> TokenOutput:
        """Sample a continuation of a prompt, as verl's LLM client asks for it."""
        # The budget of verl's own servers: what the earlier turns have left of the response.
        left = self.prompt_length + self.response_length - len(prompt_ids)
        budget = min(self.response_length, left)
        limit = max(1, min(sampling_params.get("max_tokens", budget), budget))
        token_ids, log_probs = await asyncio.get_running_loop().run_in_executor(
            self.executor, self._sample, list(prompt_ids), limit, dict(sampling_params)
        )
        return self.output_class(
            token_ids=token_ids,
            log_probs=log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self.global_steps},
        )

    def _sample(
        self, prompt_ids: list[int], limit: int, params: dict[str, Any]
    ) -> tuple[list[int], list[float]]:
        """Decode token by token until a stop token or the limit; returns ids and log-probs."""
        generator = make_generator(params.get("seed"), prompt_ids)
        stop_ids = {self.model.config.eos_token_id, *(params.get("stop_token_ids") or ())}
        token_ids: list[int] = []
        log_probs: list[float] = []
        cache = None
        inputs = torch.tensor([prompt_ids])
        with torch.inference_mode():
            while len(token_ids) < limit:
                output = self.model(input_ids=inputs, past_key_values=cache, logits_to_keep=1)
                cache = output.past_key_values
                logits = output.logits[0, -1]
                token = pick_token(logits, params, generator)
                token_ids.append(token)
                log_probs.append(float(logits.log_softmax(-1)[token]))
                if token in stop_ids:
                    break
                inputs = torch.tensor([[token]])
        return token_ids, log_probs


def make_generator(seed: int | None, prompt_ids: list[int]) -> torch.Generator:
    """Make the generator of one call; without a seed it is seeded by the operating system."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        # The prompt joins in, as the turns of a rollout share their seed.
        key = blake2b(array("q", [seed, *prompt_ids]).tobytes(), digest_size=8)
        generator.manual_seed(int.from_bytes(key.digest(), "big"))
    return generator


def pick_token(logits: torch.Tensor, params: dict[str, Any], generator: torch.Generator) -> int:
    """Sample a token by temperature, top-k and top-p; temperature 0 takes the likeliest."""
    temperature = params.get("temperature", 1.0)
    top_k, top_p = params.get("top_k", -1), params.get("top_p", 1.0)
    if temperature <= 0:
        return int(logits.argmax())
    scaled = logits / temperature
    if 0 < top_k < len(scaled):
        scaled[scaled < scaled.topk(top_k).values[-1]] = -torch.inf
    if top_p < 1:
        probs, order = scaled.softmax(-1).sort(descending=True)
        scaled[order[probs.cumsum(-1) - probs > top_p]] = -torch.inf
    return int(torch.multinomial(scaled.softmax(-1), 1, generator=generator))

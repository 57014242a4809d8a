"""Train the tiny tool-calling policy of this example from scratch, in minutes on a CPU.

Builds a byte-level BPE tokenizer (digits are single tokens) with a ChatML template, a Qwen2 model
of 657,024 parameters, and synthetic dialogues, and writes an ordinary Hugging Face model folder.
The model in `policy/` comes from `python train_policy.py --out policy --minutes 4.5`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from dialogues import Turn, dialogue, prompt_text, segments
from tasks import TOOL, Task, calculate, sample_task
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

Example = tuple[list[int], list[bool]]  # token ids, and whether the policy has to produce them

# Qwen2.5's layout, shortened: a long fixed prompt would only cost training and prefill time.
CHAT_TEMPLATE = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
{{- '# Tools\\n' }}
{%- for t in tools %}
{{- ('' if loop.first else '\\n') + t | tojson(separators=(',', ':')) }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif not (m.role == 'system' and loop.first and tools) %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- if m.tool_calls %}{%- for c in m.tool_calls %}
{{- '<tool_call>' + c.function | tojson(separators=(',', ':')) + '</tool_call>' }}
{%- endfor %}{%- endif %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build_tokenizer(rng: random.Random, vocab_size: int) -> PreTrainedTokenizerFast:
    """Learn the merges from plain text, without the markers: no merge crosses a boundary."""
    markers = re.compile(r"<\|im_start\|>|<\|im_end\|>|</?tool_(?:call|response)>")
    texts = [text for _ in range(2000) for text, _ in segments(dialogue(rng))]
    corpus = [piece for text in texts for piece in markers.split(text) if piece]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 4,
        min_frequency=20,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    )
    bpe.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=1024,
    )
    # Not special tokens, as in Qwen.
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=math.ceil(len(tokenizer) / 64) * 64,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 64,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def encode(tokenizer: PreTrainedTokenizerFast, dialogues: list[list[Turn]]) -> list[Example]:
    """Tokenize dialogues, all of them in one call."""
    pieces = [list(segments(turns)) for turns in dialogues]
    texts = [text for dialogue_pieces in pieces for text, _ in dialogue_pieces]
    encoded = iter(tokenizer(texts, add_special_tokens=False)["input_ids"])
    examples = []
    for dialogue_pieces in pieces:
        ids: list[int] = []
        learn: list[bool] = []
        for _, produced in dialogue_pieces:
            piece = next(encoded)
            ids += piece
            learn += [produced] * len(piece)
        examples.append((ids, learn))
    return examples


def check_template(tokenizer: PreTrainedTokenizerFast) -> None:
    """Make sure that the chat template writes what the policy is trained on."""
    turns = dialogue(random.Random(1), noise=0)
    messages = [{"role": role, "content": text} for role, text in turns]
    templated = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    if templated != "".join(text for text, _ in segments(turns)):
        raise ValueError(f"the chat template differs from the training text: {templated}")


def batches(
    data: list[Example], size: int, pad: int, rng: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield shuffled batches of examples of similar length, as ids and labels."""
    order = list(range(len(data)))
    rng.shuffle(order)
    groups = []
    for start in range(0, len(order), size * 16):
        chunk = sorted(order[start : start + size * 16], key=lambda i: len(data[i][0]))
        groups += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    rng.shuffle(groups)
    for group in groups:
        longest = max(len(data[i][0]) for i in group)
        ids, labels = [], []
        for i in group:
            tokens, learn = data[i]
            padding = longest - len(tokens)
            ids.append(tokens + [pad] * padding)
            wanted = [token if yes else -100 for token, yes in zip(tokens, learn, strict=True)]
            labels.append(wanted + [-100] * padding)
        yield torch.tensor(ids), torch.tensor(labels)


def train(
    model: Qwen2ForCausalLM,
    data: list[Example],
    args: argparse.Namespace,
    n_fixed: int,
    rng: random.Random,
) -> dict[str, Any]:
    """Train until the time or the steps are used up; the first `n_fixed` tokens never differ."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    model.train()
    step, mean_loss, start, done = 0, math.nan, time.monotonic(), 0.0
    while done < 1:
        for ids, labels in batches(data, args.batch, model.config.pad_token_id, rng):
            elapsed = time.monotonic() - start
            done = step / args.steps if args.steps else elapsed / (args.minutes * 60)
            if done >= 1:
                break
            # A short warm-up, then a cosine down to 2 %.
            rate = min(1, (step + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * done)))
            for group in optimizer.param_groups:
                group["lr"] = args.lr * rate
            # The keys and values of the fixed prompt are computed once for the whole batch.
            cache = model.model(input_ids=ids[:1, :n_fixed], use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(ids))
            hidden = model.model(input_ids=ids[:, n_fixed:], past_key_values=cache)
            wanted = labels[:, n_fixed + 1 :]
            learn = wanted != -100
            logits = model.lm_head(hidden.last_hidden_state[:, :-1][learn])
            loss = torch.nn.functional.cross_entropy(logits, wanted[learn])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            mean_loss = loss.item() if step == 0 else 0.95 * mean_loss + 0.05 * loss.item()
            if step % 100 == 0:
                print(f"step {step}, {elapsed:.0f} s, loss {mean_loss:.4f}", flush=True)
            step += 1
    seconds = time.monotonic() - start
    return {"train_seconds": round(seconds), "steps": step, "loss": round(mean_loss, 4)}


def answer_call(reply: str) -> str | None:
    """Say what the tool would answer to a reply; None if no tool is called."""
    found = re.search(r"<tool_call>(.*?)</tool_call>", reply, re.DOTALL)
    if found is None:
        return None
    try:
        call = json.loads(found.group(1))
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError):
        return None
    if name != "calculator":
        return f"Unknown function '{name}'. Available tools: ['calculator']"
    try:
        return calculate(arguments["a"], arguments["b"], arguments["op"])
    except Exception as error:  # as a rollout does: whatever the tool raises is its answer
        return f"Error executing tool 'calculator': {error}"


@torch.no_grad()
def play(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tasks: list[Task],
    max_turns: int = 6,
) -> list[list[Turn]]:
    """Sample whole dialogues at temperature 1, all in one batch."""
    played: list[list[Turn]] = [[("user", task.question)] for task in tasks]
    live, tokenizer.padding_side = played, "left"
    for _ in range(max_turns):
        if not live:
            break
        prompts = [prompt_text(turns) for turns in live]
        batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        output = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=48,
        )
        still_live = []
        for turns, row in zip(live, output[:, batch["input_ids"].shape[1] :], strict=True):
            reply = tokenizer.decode(row).split("<|im_end|>")[0]
            turns.append(("assistant", reply))
            answer = answer_call(reply)
            if answer is not None:
                turns.append(("tool", answer))
                still_live.append(turns)
        live = still_live
    return played


def evaluate(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, n: int, seed: int
) -> dict[str, Any]:
    """Count what the policy gets right, and how it fails, on questions it was not trained on."""
    rng = random.Random(seed)
    tasks = [sample_task(rng, two_step=0.25, zero_div=0.05) for _ in range(n)]
    right: dict[int, list[bool]] = {1: [], 2: []}
    kinds = dict.fromkeys(["bad_json", "no_tool", "unknown_tool", "tool_error", "wrong"], 0)
    for task, turns in zip(tasks, play(model, tokenizer, tasks), strict=True):
        correct = turns[-1][1] == f"The answer is {task.answer}."
        right[len(task.steps)].append(correct)
        said = " ".join(text for role, text in turns if role == "assistant")
        heard = " ".join(text for role, text in turns if role == "tool")
        kinds["wrong"] += not correct
        kinds["bad_json"] += "<tool_call>" in turns[-1][1]
        kinds["no_tool"] += "<tool_call>" not in said
        kinds["unknown_tool"] += "Unknown" in heard
        kinds["tool_error"] += "Error" in heard

    def share(values: list[bool]) -> float:
        return round(sum(values) / max(len(values), 1), 3)

    return {
        "accuracy": share(right[1] + right[2]),
        "one_step": share(right[1]),
        "two_step": share(right[2]),
        "n": n,
        **kinds,
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the model is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=4.5, help="training time")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--noise", type=float, default=1.0, help="scales the share of mistakes")
    parser.add_argument("--dialogues", type=int, default=60000)
    parser.add_argument("--eval", type=int, default=400, help="questions in the evaluation")
    parser.add_argument("--threads", type=int, default=1, help="more rarely help so small a model")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = build_tokenizer(rng, args.vocab)
    check_template(tokenizer)
    data = encode(tokenizer, [dialogue(rng, args.noise) for _ in range(args.dialogues)])
    fixed_prompt, _ = next(segments([]))
    n_fixed = len(tokenizer(fixed_prompt, add_special_tokens=False)["input_ids"])

    model = build_model(tokenizer, args.hidden, args.layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters} parameters, {len(tokenizer)} tokens, {len(data)} dialogues", flush=True)
    trained = train(model, data, args, n_fixed, rng)

    model = model.to(torch.bfloat16).eval()
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    scores = evaluate(model.float(), tokenizer, args.eval, args.seed + 1)
    report = {**scores, "parameters": parameters, **trained}
    print(json.dumps(report))
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

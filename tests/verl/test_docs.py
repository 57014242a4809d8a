"""The lines of README.md, docs/verl.md and docs/otlp.md that start verl, with the real verl.

verl's own trainer needs GPUs, so it is asked for its configuration (`--cfg job` where the pages
have `…`): it starts under `opentelemetry-instrument`, imports what is patched, and ends there. The
rollouts are in tests/e2e/test_verl_rollout.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import shell
from tests.unit import documents

BLOCKS = [
    documents.block(page, "sh", start)
    for page, start in (
        (documents.ROOT / "README.md", "pip install otel-rollout\n"),
        (documents.DOCS / "verl.md", "pip install"),
        (documents.DOCS / "otlp.md", "pip install"),
    )
]
EXAMPLE = documents.ROOT / "examples" / "verl_calculator"


@pytest.mark.parametrize("block", sorted(set(BLOCKS)), ids=lambda block: block.splitlines()[0])
def test_the_trainer_starts(block: str, tmp_path: Path) -> None:
    pip, *lines = block.splitlines()
    assert pip.startswith("pip install ")  # tests/e2e/test_docs_install.py
    assert lines[-1].endswith("python -m verl.trainer.main_ppo …")
    lines[-1] = lines[-1].replace("…", "--cfg job")
    script = "\n".join(lines).replace("WANDB_API_KEY=…", "WANDB_API_KEY=")
    environ = shell.environment(
        OTEL_ROLLOUT_DIR=str(tmp_path / "store"),
        WF_TRACE_SERVER_URL="http://127.0.0.1:9",
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    done = shell.run(script, tmp_path, environ, timeout=300)
    assert "not instrumented" not in done.stderr
    assert "actor_rollout_ref:" in done.stdout


def test_the_example_takes_the_options_of_its_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run with them in tests/e2e/test_verl_rollout.py and tests/engines/vllm."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from train import parse_args  # type: ignore[import-not-found]

    lines = documents.block_commands(EXAMPLE / "README.md")
    runs = [line.removeprefix("python train.py") for line in lines if "train.py" in line]
    assert len(runs) == 3
    for options in runs:
        parse_args(shlex.split(options))  # ends the process where it does not know one

"""Code of the documentation that needs what is installed here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from otel_rollout.testing import captured
from tests.alongside.conftest import Run
from tests.alongside.http_server import HttpServer
from tests.alongside.test_providers import ROLLOUT
from tests.unit import documents


def test_a_server_behind_an_api(http_server: HttpServer) -> None:
    (code,) = [
        code
        for code in documents.blocks(documents.DOCS / "own-loop.md", "python")
        if "import AsyncOpenAI" in code
    ]
    names: dict[str, Any] = {}
    exec(code.replace("http://127.0.0.1:8000", http_server.url), names)
    from otel_rollout import trajectory

    with captured() as rollouts, trajectory(step=1):
        asyncio.run(names["answer"]([{"role": "user", "content": "6*7?"}]))
    (turn,) = rollouts.only().generations
    assert (turn.prompt_ids, turn.response_ids) == ([1, 2, 3], [4, 2])
    assert turn.response_text == "42"


def test_the_configuration_file(run: Run, tmp_path: Path) -> None:
    (config,) = documents.blocks(documents.DOCS / "otlp.md", "yaml")
    (tmp_path / "otel.yaml").write_text(config)
    ran = run(
        f"{ROLLOUT}rollout()",
        OTEL_CONFIG_FILE=str(tmp_path / "otel.yaml"),
        OTEL_PYTHON_DISTRO="otel_rollout",
    )
    assert len(ran.trajectories()) == 1

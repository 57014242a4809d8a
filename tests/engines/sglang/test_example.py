"""examples/sglang_loop on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.examples import check, rollouts_of

pytestmark = pytest.mark.timeout(600)


def test_every_rollout_is_there(tmp_path: Path) -> None:
    options = ("--steps", "1", "--prompts", "2", "--n", "2")
    check(rollouts_of("sglang_loop", tmp_path, {}, *options), 2, 2)

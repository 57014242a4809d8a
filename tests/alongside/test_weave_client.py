"""The `weave` package used by the program as well, against W&B's own trace server."""

from __future__ import annotations

import pytest

from tests.alongside.conftest import Run
from tests.alongside.test_providers import ROLLOUT
from tests.servers.weave_process import WeaveServer

BOTH = """
import weave
{before}
@weave.op
def theirs(x):
    rollout()
    return x + 1

assert theirs(1) == 2
rollout(2)
weave.finish()
"""


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_both_write_their_own_calls(run: Run, weave_server: WeaveServer, first: str) -> None:
    project = f"alongside-{first}"
    init = f"weave.init('{project}')\n"
    rollout = ROLLOUT.replace('"alongside"', f'"{project}"')
    start = f"{init}rollout(0)" if first == "theirs" else f"rollout(0)\n{init}"
    ran = run(rollout + BOTH.format(before=start), **weave_server.environ())
    calls = list(weave_server.client(project).get_calls())
    roots = [call for call in calls if call.op_name == "rollout"]
    (theirs,) = [call for call in calls if call.op_name.startswith("weave:")]
    assert sorted(call.attributes["step"] for call in roots) == [0, 1, 2]
    assert len([call for call in calls if call.op_name == "chat policy"]) == 3
    assert len(calls) == 7
    assert theirs.output == 2
    assert all(call.parent_id is None for call in roots)
    assert ran.trajectories() == []  # delivered

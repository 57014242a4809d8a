"""GRPO's groups: what verl's batch says of each rollout is what the page, and Weave's client, say.

A real verl rollout on each of verl's paths stays in the local store, is looked at there in a real
browser, and is then pushed to W&B's server code.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from otel_rollout.local import open as open_store
from tests.e2e import browser
from tests.e2e.rollouts import runs
from tests.e2e.viewer import Viewer
from tests.faults.scenario import push
from tests.servers.weave_process import WeaveServer

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PROMPTS, N = 4, 4
OPTIONS = ("--steps", "1", "--prompts", str(PROMPTS), "--n", str(N), "--workers", "1")
REWARD = {"$convert": {"input": {"$getField": "output.reward"}, "to": "double"}}


class Rollouts:
    """One run: verl's batch, the local store, and W&B's server with what was pushed."""

    def __init__(self, batch: list[dict[str, Any]], store: Path, client: Any) -> None:
        self.batch = batch
        self.store = store
        self.client = client

    @property
    def groups(self) -> dict[str, list[float]]:
        """The rewards of verl's batch by uid, in the order of `rollout_n`."""
        found = defaultdict(list)
        for one in sorted(self.batch, key=lambda one: one["rollout_n"]):
            found[one["uid"]].append(one["reward"])
        return dict(found)

    def roots(self, **more: Any) -> list[Any]:
        return list(self.client.get_calls(filter={"trace_roots_only": True}, **more))

    def reward_of(self, root: Any) -> float:
        """What verl's batch says of this root's trajectory."""
        key = root.attributes["group_id"], root.attributes["rollout_n"]
        (reward,) = [o["reward"] for o in self.batch if (o["uid"], o["rollout_n"]) == key]
        return float(reward)


@pytest.fixture(scope="module", params=["classic", "v1"])
def rollouts(
    request: pytest.FixtureRequest,
    verl_python: Path,
    weave_server: WeaveServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Rollouts:
    project = f"groups-{request.param}"
    folder = tmp_path_factory.mktemp(project)
    results, _ = runs.start(
        verl_python,
        folder,
        *OPTIONS,
        *("--path", request.param, "--project", project),
        OTEL_TRACES_EXPORTER="weave",
    )
    copy = folder / "copy"
    shutil.copytree(folder / "store", copy)
    environ = {**os.environ, **weave_server.environ(), "WANDB_ENTITY": "local"}
    pushed = push(environ, str(copy))
    assert pushed.returncode == 0, pushed.stderr
    return Rollouts(results["trajectories"], folder / "store", weave_server.client(project))


@pytest.fixture(scope="module")
def viewer(rollouts: Rollouts) -> Iterator[Viewer]:
    running = Viewer(rollouts.store)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    started = browser.start(tmp_path_factory.mktemp("profile"))
    yield started
    started.quit()


def pages_of_groups(store: Path) -> dict[str, str]:
    """The path of each group's page, by uid."""
    with open_store(store) as opened:
        rows = opened.index.query("SELECT DISTINCT group_id, grp FROM trajectories")
    return {row["group_id"]: f"/group/{row['grp']}" for row in rows}


class TestThePageOfAGroup:
    """Four rollouts, with the rewards of verl's batch."""

    def test_it_shows_the_four_rewards(
        self, rollouts: Rollouts, viewer: Viewer, chrome: Chrome
    ) -> None:
        pages = pages_of_groups(rollouts.store)
        assert set(pages) == set(rollouts.groups)
        for uid, rewards in rollouts.groups.items():
            chrome.get(viewer.url + pages[uid])
            assert f"{N} rollouts" in chrome.find_element("css selector", "h1").text
            shown = {}
            for row in chrome.find_elements("css selector", "table.rollouts tr[data-row]"):
                cells = row.find_elements("css selector", "td")
                number = re.match(r"-?[\d.]+", cells[2].text)
                assert number is not None
                shown[int(cells[1].text)] = float(number[0])
            assert shown == dict(enumerate(rewards))

    def test_a_group_without_variance_says_so(
        self, rollouts: Rollouts, viewer: Viewer, chrome: Chrome
    ) -> None:
        pages = pages_of_groups(rollouts.store)
        for uid, rewards in rollouts.groups.items():
            chrome.get(viewer.url + pages[uid])
            flat = "no variance" in chrome.find_element("css selector", "main").text
            assert flat is (len(set(rewards)) == 1)


class TestWeave:
    """The real client sorts and filters the roots by reward, and each is verl's."""

    def test_each_root_s_reward_is_that_of_the_batch(self, rollouts: Rollouts) -> None:
        roots = rollouts.roots(include_feedback=True)
        assert len(roots) == PROMPTS * N
        for root in roots:
            assert root.output["reward"] == rollouts.reward_of(root)
            (feedback,) = runs.Call.of(root).rewards
            assert feedback["value"] == root.output["reward"]

    @pytest.mark.parametrize("direction", ["asc", "desc"])
    def test_sorted(self, rollouts: Rollouts, direction: str) -> None:
        order = [{"field": "output.reward", "direction": direction}]
        rewards = [root.output["reward"] for root in rollouts.roots(sort_by=order)]
        every = [one["reward"] for one in rollouts.batch]
        assert rewards == sorted(every, reverse=direction == "desc")
        assert {0.0, 1.0} <= set(rewards)

    def test_filtered(self, rollouts: Rollouts) -> None:
        high = {"$expr": {"$gte": [REWARD, {"$literal": 0.5}]}}
        low = {"$expr": {"$not": [high["$expr"]]}}
        for query, wanted in ((high, True), (low, False)):
            found = rollouts.roots(query=query)
            kept = [one for one in rollouts.batch if (one["reward"] >= 0.5) is wanted]
            assert len(found) == len(kept) > 0
            assert all((rollouts.reward_of(root) >= 0.5) is wanted for root in found)

    def test_one_group_by_its_id(self, rollouts: Rollouts) -> None:
        field = {"$getField": "attributes.group_id"}
        for uid, rewards in rollouts.groups.items():
            query = {"$expr": {"$eq": [field, {"$literal": uid}]}}
            roots = rollouts.roots(query=query)
            assert {r.attributes["rollout_n"]: r.output["reward"] for r in roots} == dict(
                enumerate(rewards)
            )

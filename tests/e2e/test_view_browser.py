"""The viewer in a real browser: pages, filters, keys, groups, live update, files to share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import orjson
import pytest

from benchmarks.synthetic_store import PROJECT, write_store
from otel_rollout.exporters.segments import SegmentWriter
from otel_rollout.local import open as open_store
from otel_rollout.payload import encode_array, pack_floats, pack_ids
from tests.conftest import ROOT
from tests.e2e import browser
from tests.e2e.viewer import Viewer

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

PICTURES = ROOT / "artefacts" / "viewer"
RUN = f"project={PROJECT}&experiment=grpo-base"
HOSTILE = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    '"><svg/onload=window.hacked=3>{{7*7}}</pre></script>'
    "\x1b[31mred\x1b[0m \x00nul \u202egnp.exe\u202c javascript:alert(1)"
)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    directory = tmp_path_factory.mktemp("store")
    write_store(directory, 256, samples=8, rollouts=8)
    running = Viewer(directory)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    started = browser.start(tmp_path_factory.mktemp("profile"))
    yield started
    started.quit()


class Page:
    """What a person does and sees."""

    def __init__(self, chrome: Chrome, viewer: Viewer) -> None:
        self.chrome = chrome
        self.viewer = viewer

    def open(self, path: str) -> Page:
        self.chrome.get(path if "://" in path else self.viewer.url + path)
        return self

    def all(self, selector: str) -> list[WebElement]:
        return self.chrome.find_elements("css selector", selector)

    def one(self, selector: str) -> WebElement:
        return self.chrome.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.chrome).send_keys(*keys).perform()

    def until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = condition()
            except Exception:  # the page is being changed
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"not within {seconds} s: {self.address}"
            time.sleep(0.1)

    @property
    def address(self) -> str:
        return self.chrome.current_url

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.address).query)

    def complaints(self) -> list[str]:
        """What the browser has to say: errors of scripts, what the policy has stopped."""
        return [
            entry["message"]
            for entry in self.chrome.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING") and "favicon" not in entry["message"]
        ]

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        height = self.chrome.execute_script("return document.documentElement.scrollHeight")
        self.chrome.set_window_size(1360, max(700, min(1800, height + 90)))
        self.chrome.save_screenshot(str(PICTURES / f"{name}.png"))
        self.chrome.set_window_size(1360, 900)


@pytest.fixture
def page(chrome: Chrome, viewer: Viewer) -> Iterator[Page]:
    opened = Page(chrome, viewer)
    chrome.get_log("browser")
    yield opened
    assert opened.complaints() == []


@pytest.fixture(scope="module")
def worst(viewer: Viewer) -> dict[str, Any]:
    """A trajectory of step 1 that went wrong while others of its group went right."""
    with open_store(viewer.directory) as store:
        found = store.index.query(
            "SELECT trace, grp, rollout_n FROM trajectories WHERE step = 1 AND spread > 0.5 "
            "AND experiment = 'grpo-base' AND tool_errors > 0 ORDER BY reward LIMIT 1"
        )
    return dict(found[0])


def test_every_page(page: Page, worst: dict[str, Any]) -> None:
    trace, group = worst["trace"], worst["grp"]
    pages = {
        "runs": ("/", "Runs"),
        "steps": (f"/steps?{RUN}", "grpo-base"),
        "table": (f"/trajectories?{RUN}", "Trajectories"),
        "groups": (f"/groups?{RUN}", "Groups"),
        "group": (f"/group/{group}", "8 rollouts"),
        "conversation": (f"/t/{trace}", "step 1"),
        "tokens": (f"/t/{trace}?view=tokens", "step 1"),
        "timeline": (f"/t/{trace}?view=timeline", "step 1"),
        "calls": (f"/t/{trace}?view=calls", "step 1"),
    }
    for name, (path, title) in pages.items():
        page.open(path)
        assert title in page.text("h1")
        page.picture(name)


def test_dark_by_the_systems_wish(viewer: Viewer, worst: dict[str, Any], tmp_path: Path) -> None:
    chrome = browser.start(tmp_path / "profile", dark=True)
    try:
        page = Page(chrome, viewer)
        for name, path in (
            ("steps", f"/steps?{RUN}"),
            ("tokens", f"/t/{worst['trace']}?view=tokens"),
            ("group", f"/group/{worst['grp']}"),
        ):
            page.open(path)
            colour = page.one("body").value_of_css_property("background-color")
            assert colour.startswith("rgba(18")
            page.picture(f"{name}-dark")
    finally:
        chrome.quit()


def test_from_the_runs_to_a_step(page: Page) -> None:
    page.open("/")
    page.one("a[data-open]").click()
    page.one(".plot .mark rect").click()

    assert page.query["q"] == ["step==1"]
    assert "64 trajectories" in page.text(".count")


def test_a_typed_filter(page: Page) -> None:
    page.open(f"/trajectories?{RUN}")
    page.press("/")
    page.press("step==1 and reward<0.1 and tool.error\n")
    page.until(lambda: "q" in page.query)

    rows = page.all("tr[data-row]")
    assert rows
    assert all("Error" in row.text for row in rows)
    assert page.query["project"] == [PROJECT]


def test_a_filter_that_cannot_be_read_is_explained(page: Page) -> None:
    page.open("/trajectories?q=" + quote("stepp==1 or __import__('os')"))

    assert "there is no field 'stepp'" in page.text("#problem")
    assert page.one("#q").get_attribute("value").startswith("stepp")
    page.chrome.get_log("browser")  # the browser tells of the status 400


def test_filters_by_clicking(page: Page) -> None:
    page.open(f"/trajectories?{RUN}")
    bars = page.all(".histogram a")
    counted = int(
        bars[0].find_element("css selector", "title").get_attribute("textContent").split(": ")[1]
    )
    bars[0].find_element("css selector", ".hit").click()
    page.until(lambda: "q" in page.query)
    assert f"{counted} trajectories" in page.text(".count")

    page.one("tr[data-row] a.value").click()
    page.until(lambda: "step==" in page.query["q"][0])
    assert " and step==" in page.query["q"][0]


def test_sorting_and_paging(page: Page) -> None:
    page.open("/trajectories")
    page.chrome.find_element("link text", "reward").click()
    page.until(lambda: page.query.get("sort") == ["-reward"])
    page.chrome.find_element("partial link text", "reward").click()
    page.until(lambda: page.query.get("sort") == ["reward"])
    seen = []
    while True:
        seen += [row.get_attribute("data-trace") for row in page.all("tr[data-trace]")]
        if not page.all("a[rel=next]"):
            break
        before = page.address
        page.press("n")
        page.until(lambda before=before: page.address != before)
    assert len(seen) == len(set(seen)) == 256
    page.press("p")
    page.until(lambda: "before" in page.query)
    assert [r.get_attribute("data-trace") for r in page.all("tr[data-trace]")] == seen[200:250]


def test_everything_by_keys(page: Page) -> None:
    page.open("/")
    page.press("?")
    assert page.one("#help").get_attribute("open")
    page.picture("help")
    page.press("\ue00c")  # Escape
    assert not page.one("#help").get_attribute("open")
    page.press("j", "k", "\n")
    page.until(lambda: "/steps" in page.address)
    page.press("g", "t")
    page.until(lambda: "/trajectories" in page.address)
    page.press("j", "j", "\n")
    page.until(lambda: "/t/" in page.address)
    first = page.address
    page.press("3")
    page.until(lambda: page.query["view"] == ["timeline"])
    page.press("n")
    page.until(lambda: page.address.split("?")[0] != first.split("?")[0])
    page.press("p")
    page.until(lambda: page.address.split("?")[0] == first.split("?")[0])
    page.press("g", "g")
    page.until(lambda: "/group/" in page.address)
    page.press("j", "x", "j", "x", "c")
    page.until(lambda: "/compare" in page.address)
    assert len(page.query["t"]) == 2
    page.press("t")
    assert page.one("html").get_attribute("data-theme") == "dark"
    page.press("t")


def test_why_it_failed_and_where_it_parted(page: Page, worst: dict[str, Any]) -> None:
    page.open(f"/t/{worst['trace']}")

    assert "execute_tool calculator failed" in page.text(".failure")
    if not page.all(".parting"):
        pytest.skip("the whole group failed")
    position = int(page.one(".parting b").text)
    page.chrome.find_element("link text", "compare with the best").click()
    page.until(lambda: "/compare" in page.address)
    assert f"part at token {position}" in page.text(".parting")
    marked = page.all(".strip i.parts")
    assert len(marked) == 2
    assert {cell.get_attribute("data-p") for cell in marked} == {str(position)}
    assert len({cell.get_attribute("data-id") for cell in marked}) == 2
    page.picture("compare")


def test_a_token_under_the_pointer(page: Page, worst: dict[str, Any]) -> None:
    from selenium.webdriver import ActionChains

    page.open(f"/t/{worst['trace']}?view=tokens#t3")
    cell = page.one("#t3")
    ActionChains(page.chrome).move_to_element(cell).perform()

    tip = page.until(lambda: page.text("#tip"))
    assert f"id {cell.get_attribute('data-id')}" in tip
    assert "log p -" in tip
    masked = page.one(".strip i.m")
    assert float(masked.value_of_css_property("opacity")) < 1


def test_new_trajectories_appear(page: Page, viewer: Viewer) -> None:
    page.open("/trajectories?q=" + quote("experiment=='live'"))
    assert "No trajectory matches" in page.text("[data-live]")
    page.chrome.execute_script("window.stayed = true")
    writer = SegmentWriter(viewer.directory / "spool")
    for number in range(2):
        write_call(writer, f"live{number}", experiment="live", text="hello")
        rows = page.until(lambda n=number: len(page.all("tr[data-trace]")) == n + 1)
    writer.close()

    assert rows
    assert page.chrome.execute_script("return window.stayed") is True
    assert "2 trajectories" in page.text(".count")


def test_what_has_not_changed_is_left_alone(
    page: Page, viewer: Viewer, worst: dict[str, Any]
) -> None:
    page.open(f"/t/{worst['trace']}?view=calls")
    page.one("details.call summary").click()
    page.chrome.execute_script("window.region = document.querySelector('[data-live]')")
    version = page.one("html").get_attribute("data-version")
    writer = SegmentWriter(viewer.directory / "spool")
    write_call(writer, "another", experiment="other", text="hello")
    writer.close()
    page.until(lambda: page.chrome.execute_script("return version") != int(version))

    same = "return window.region === document.querySelector('[data-live]')"
    assert page.chrome.execute_script(same)
    assert page.one("details.call").get_attribute("open")


def test_hostile_text_does_nothing(page: Page, viewer: Viewer) -> None:
    writer = SegmentWriter(viewer.directory / "spool")
    long = HOSTILE + "A" * (10 << 20)
    trace = write_call(writer, "hostile", experiment=HOSTILE, text=long, error=HOSTILE, group="h")
    write_call(writer, "hostile2", experiment=HOSTILE, text=HOSTILE, group="h", reward=1.0)
    writer.close()
    page.open("/")
    page.until(lambda: any("hacked" in row.text for row in page.all("tr[data-row]")))
    with open_store(viewer.directory) as store:
        row = store.index.query("SELECT grp FROM trajectories WHERE trace = ?", [trace])[0]
    for path in (
        f"/t/{trace}",
        f"/t/{trace}?view=tokens",
        f"/t/{trace}?view=timeline",
        f"/t/{trace}?view=calls",
        f"/group/{row['grp']}",
        f"/compare?t={trace}&t={'hostile2'.rjust(32, '0')}",
        "/trajectories?q=" + quote("error"),
        "/steps?project=p&experiment=" + quote(HOSTILE),
        "/trajectories?q=" + quote(HOSTILE[:60]),
    ):
        page.open(path)
        assert page.chrome.execute_script("return window.hacked") is None, path
        assert not page.all("main img, main script"), path
        source = page.chrome.page_source
        assert len(source) < 1 << 20, path
        assert "\x1b" not in source, path
        assert "\u202e" not in source, path
    page.open(f"/t/{trace}")
    shown = page.text(".talk")
    assert "<script>window.hacked=1</script>" in shown
    assert "⟨ESC⟩[31mred" in shown
    assert "⟨RLO⟩" in shown
    assert "⟨NUL⟩nul" in shown
    assert "more characters" in shown
    page.picture("hostile")
    page.chrome.get_log("browser")  # of the filter that cannot be read


@pytest.mark.parametrize("what", ["trajectory", "group", "compare"])
def test_a_shared_file_needs_nothing_else(
    page: Page, worst: dict[str, Any], tmp_path: Path, what: str
) -> None:
    import urllib.request

    with open_store(page.viewer.directory) as store:
        members = store.index.query("SELECT trace FROM trajectories WHERE grp = ?", [worst["grp"]])
    path = {
        "trajectory": f"/share/t/{worst['trace']}.html",
        "group": f"/share/group/{worst['grp']}.html",
        "compare": f"/share/compare.html?t={members[0]['trace']}&t={members[1]['trace']}",
    }[what]
    file = tmp_path / "shared.html"
    with urllib.request.urlopen(page.viewer.url + path) as answer:
        file.write_bytes(answer.read())

    page.open(file.as_uri())

    content = file.read_text()
    assert "http://" not in content.replace("http://www.w3.org/", "")
    assert not page.all("[src], link[href], a[href]:not([href^='#'])")
    assert page.one("header").value_of_css_property("position") == "sticky"  # its style is in it
    page.press("?")
    assert page.one("#help").get_attribute("open")  # and its script
    page.press("\ue00c")
    assert page.all(".strip i" if what != "group" else ".rollouts tr")
    page.picture(f"shared-{what}")


def write_call(
    writer: SegmentWriter,
    name: str,
    *,
    experiment: str,
    text: str,
    error: str | None = None,
    group: str | None = None,
    reward: float = 0.0,
) -> str:
    """Write a trajectory of two calls whose every text is `text`."""
    trace = name.rjust(32, "0")
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    ids = pack_ids(range(len(name) * 3))
    tokens = {
        "token_ids": encode_array(ids),
        "logprobs": encode_array(pack_floats([-0.5] * len(ids))),
    }
    identity = {"step": 1, "sample_index": 0, "experiment_name": experiment, "group_id": group}
    message = {"role": "assistant", "content": text}
    failed = orjson.dumps({"type": error, "message": error}).decode() if error else None
    generation = {
        "id": f"{name}-a",
        "parent_id": f"{name}-r",
        "op_name": f"chat {text[:100]}",
        "attributes": {
            **identity,
            "weave": {"kind": "llm"},
            "gen_ai": {"request": {"model": text[:100]}},
            "rollout": {"response": tokens, "prompt": {"token_ids": encode_array(ids[:3])}},
        },
        "inputs": {"messages": [{"role": text[:50], "content": text[:5000]}]},
        "output": {"choices": [{"index": 0, "message": message}]},
    }
    tool = {
        "id": f"{name}-t",
        "parent_id": f"{name}-r",
        "op_name": f"execute_tool {text[:80]}",
        "attributes": {**identity, "weave": {"kind": "tool"}, "process": {"host": text[:60]}},
        "inputs": {"query": text[:3000]},
        "output": text[:3000],
        "exception": failed,
    }
    root = {
        "id": f"{name}-r",
        "parent_id": None,
        "op_name": "rollout agent",
        "attributes": {**identity, "weave": {"kind": "agent"}},
        "inputs": {},
        "output": {"prompt_text": text[:5000], "response_text": text, "reward": reward},
    }
    for call in (generation, tool, root):
        whole = {"trace_id": trace, "started_at": now, "ended_at": now, "exception": None, **call}
        writer.append({"kind": "call", "id": call["id"], "project": "p"}, orjson.dumps(whole))
    return trace

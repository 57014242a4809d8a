"""The server answers only whom it should, and what it shows is inert."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from benchmarks.synthetic_store import write_store
from otel_rollout.local.server import inert
from otel_rollout.local.server.app import application
from otel_rollout.local.server.guard import COOKIE
from otel_rollout.local.server.rendering import joined
from otel_rollout.local.server.state import State

TOKEN = "t" * 40
HOST = {"host": "127.0.0.1:7788"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    write_store(directory, 8, samples=1, rollouts=4)
    return directory


@pytest.fixture
def local(store: Path) -> Iterator[TestClient]:
    with TestClient(application(State.of(store)), base_url="http://127.0.0.1:7788") as client:
        yield client


@pytest.fixture
def exposed(store: Path) -> Iterator[TestClient]:
    app = application(State.of(store), TOKEN)
    with TestClient(app, base_url="http://node7:7788", follow_redirects=False) as client:
        yield client


class TestLoopback:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1:7788", "localhost:7788", "localhost", "[::1]:7788", "localhost:9999"]
    )
    def test_by_its_names(self, local: TestClient, host: str) -> None:
        assert local.get("/", headers={"host": host}).status_code == 200

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "127.0.0.1.evil.example:7788", "10.0.0.1", "", "localhost@evil", "["],
    )
    def test_by_no_other_name(self, local: TestClient, host: str) -> None:
        assert local.get("/", headers={"host": host}).status_code == 421

    @pytest.mark.parametrize("path", ["/changes", "/calls/stream_query", "/feedback/create"])
    def test_not_for_pages_of_other_sites(self, local: TestClient, path: str) -> None:
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
            answer = local.post(path, headers={"origin": origin, "content-type": "text/plain"})
            assert answer.status_code == 403

    def test_not_as_a_part_of_other_sites(self, local: TestClient) -> None:
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
        assert local.get("/static/viewer.js", headers=headers).status_code == 403

    def test_a_link_from_elsewhere_opens(self, local: TestClient) -> None:
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert local.get("/", headers=headers).status_code == 200


class TestToken:
    def test_nothing_without_it(self, exposed: TestClient) -> None:
        for path in ("/", "/static/viewer.js", "/changes", "/server_info", f"/?token={'x' * 40}"):
            assert exposed.get(path).status_code == 401
        assert exposed.post("/v2/a/b/calls/complete", json={"batch": []}).status_code == 401

    def test_from_the_link_it_goes_into_a_cookie(self, exposed: TestClient) -> None:
        answer = exposed.get(f"/trajectories?q=step==1&token={TOKEN}")

        assert answer.status_code == 303
        assert answer.headers["location"] == "/trajectories?q=step%3D%3D1"
        cookie = answer.headers["set-cookie"].lower()
        assert COOKIE in cookie
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert exposed.get("/").status_code == 200

    def test_the_link_leads_nowhere_else(self, exposed: TestClient) -> None:
        answer = exposed.get(f"//evil.example/?token={TOKEN}")

        assert not answer.headers.get("location", "/").startswith("//")

    def test_as_a_password(self, exposed: TestClient) -> None:
        def with_header(value: str) -> int:
            return exposed.get("/server_info", headers={"authorization": value}).status_code

        encoded = base64.b64encode(f"api:{TOKEN}".encode()).decode()
        wrong = base64.b64encode(b"api:wrong").decode()
        assert with_header(f"Basic {encoded}") == 200
        assert with_header(f"Bearer {TOKEN}") == 200
        assert with_header(f"Basic {wrong}") == 401
        assert with_header("Basic ?") == 401


def test_what_a_browser_may_do(local: TestClient) -> None:
    for path in ("/", "/nothing-here", "/static/viewer.js", "/t/unknown"):
        headers = local.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../index.sqlite",
        "/static/..%2f..%2findex.sqlite",
        "/static/%2e%2e/pages.py",
        "/call/..%2f..%2fetc%2fpasswd.json",
        "/t/..%2f..%2fetc",
        "/share/t/..%2f.html",
    ],
)
def test_no_path_leaves_the_store(local: TestClient, path: str) -> None:
    assert local.get(path).status_code == 404


def test_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    with TestClient(application(State.of(tmp_path / "new")), base_url="http://localhost") as client:
        assert "Nothing is stored yet" in client.get("/").text
        write_store(tmp_path / "new", 4, samples=1, rollouts=4)
        deadline = time.monotonic() + 30
        while "grpo-base" not in client.get("/").text:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_damage_is_said(tmp_path: Path) -> None:
    write_store(tmp_path, 4, samples=1, rollouts=4, workers=1)
    (segment,) = (tmp_path / "spool").glob("*.spool")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(bytes(content))
    with TestClient(application(State.of(tmp_path)), base_url="http://localhost") as client:
        while client.get("/changes").json()["progress"] is not None:
            pass
        assert f"1 in {segment.name}" in client.get("/").text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[31m", "⟨ESC⟩[31m"),
        ("a\x00b", "a⟨NUL⟩b"),
        ("\u202egnp", "⟨RLO⟩gnp"),
        ("\x9b31m", "⟨9B⟩31m"),
        ("\U000e0041", "⟨TAG E0041⟩"),
        ("zero\u200bwidth", "zero⟨ZWSP⟩width"),
        ("日本 👩\u200d💻", "日本 👩\u200d💻"),
    ],
)
def test_what_acts_is_shown_as_a_sign(text: str, shown: str) -> None:
    assert inert.inert(text) == shown


def test_a_clicked_filter_joins_the_typed_one() -> None:
    assert joined("", "step==1") == "step==1"
    assert joined("reward<1", "step==1") == "reward<1 and step==1"
    assert joined("a or b", "step==1") == "(a or b) and step==1"
    assert joined("step==1 and error", "error") == "step==1 and error"

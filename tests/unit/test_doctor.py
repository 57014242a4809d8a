"""``otel-rollout doctor``: says why nothing shows up, and tells scripts by its exit status."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.synthetic_store import write_store
from otel_rollout import delivery_state
from otel_rollout.cli import main
from otel_rollout.commands import libraries
from otel_rollout.instrumentors.places import Place

KEY = "k" * 40


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_ROLLOUT_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "weave")


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and report."""
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    return result.exit_code, json.loads(result.output)


def found(report: dict[str, Any]) -> dict[str, str]:
    return {one["about"]: one["level"] for one in report["findings"]}


class Answers:
    """A server that answers everything with one status."""

    def __init__(self, status: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b"{}"
                if "graphql" in self.path and status == 200:
                    body = b'{"data": {"viewer": {"defaultEntity": {"name": "me"}}}}'
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def answering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = Answers(request.param)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WF_TRACE_SERVER_URL", server.url)
    yield server.url
    server.close()


class TestVariables:
    """Each variable that keeps spans from being seen is named, and what to do."""

    @pytest.mark.parametrize("of_a_clone", ["OTEL_ROLLOUT_CACHE", "OTEL_ROLLOUT_PYTHON"])
    def test_nothing_wrong(self, monkeypatch: pytest.MonkeyPatch, of_a_clone: str) -> None:
        monkeypatch.setenv(of_a_clone, "/somewhere")
        status, report = doctor()
        assert status == 0
        assert found(report) == {"no-credentials": "note", "empty": "note"}

    @pytest.mark.parametrize(
        ("name", "value", "about", "level"),
        [
            ("OTEL_SDK_DISABLED", "true", "sdk-disabled", "error"),
            ("OTEL_TRACES_EXPORTER", "none", "no-exporter", "error"),
            ("OTEL_TRACES_EXPORTER", "", "no-exporter", "warning"),
            ("OTEL_TRACES_EXPORTER", "weave,otpl", "unknown-exporter", "error"),
            ("OTEL_TRACES_SAMPLER", "always_off", "sampler", "error"),
            ("OTEL_TRACES_SAMPLER", "parentbased_always_off", "sampler", "error"),
            ("OTEL_PROPAGATORS", "tracecontext", "propagators", "error"),
            ("OTEL_ROLLOUT_SAMPLE_RATE", "0", "rate", "error"),
            ("OTEL_ROLLOUT_SAMPLE_RATE", "5", "bad-value", "warning"),
            ("OTEL_ROLLOUT_MAX_SAMPLES_PER_STEP", "0", "rate", "error"),
            ("OTEL_ROLLOUT_SAMPLERATE", "1", "unknown-variable", "warning"),
            ("OTEL_ROLOUT_DIR", "store", "unknown-variable", "warning"),
            ("OTEL_TRACE_EXPORTER", "weave", "unknown-variable", "warning"),
            ("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "otel_rollout_ray", None, "warning"),
            ("OTEL_CONFIG_FILE", "/nowhere/otel.yaml", "config-file-missing", "error"),
            ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "false", "content", "note"),
            ("OTEL_PYTHON_DISTRO", "theirs", "distro", "note"),
        ],
    )
    def test_one_of_them(
        self,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        value: str,
        about: str | None,
        level: str,
    ) -> None:
        monkeypatch.setenv(name, value)
        status, report = doctor()
        assert found(report)[about or "instrumentors-disabled"] == level
        assert status == (level == "error")

    def test_a_misspelt_name_is_met_with_the_right_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "weav")
        monkeypatch.setenv("OTEL_ROLLOUT_REDAKT", "x")
        _, report = doctor()
        remedies = [one["do"] for one in report["findings"]]
        assert "did you mean weave?" in remedies
        assert "did you mean OTEL_ROLLOUT_REDACT?" in remedies

    def test_a_share_of_spans(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        for share, level in (("0.0", "error"), ("0.5", "warning")):
            monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
            assert found(doctor()[1])["sampler"] == level

    def test_tail_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_ROLLOUT_KEEP", "error")
        assert found(doctor()[1])["keep-alone"] == "note"
        monkeypatch.setenv("OTEL_ROLLOUT_SAMPLE_RATE", "0")
        status, report = doctor()
        assert status == 0
        assert "rate" not in found(report)
        assert "keep-alone" not in found(report)

    def test_two_ways_to_weave(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "weave,otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://trace.wandb.ai/otel")
        assert found(doctor("--offline")[1])["twice"] == "warning"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
        assert "twice" not in found(doctor("--offline")[1])

    def test_workers_without_a_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        assert found(doctor("--offline")[1])["ray-secrets"] == "note"
        monkeypatch.setenv("OTEL_ROLLOUT_RAY_SECRETS", "true")
        assert "ray-secrets" not in found(doctor("--offline")[1])

    def test_secrets_are_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hunter2")
        monkeypatch.setenv("OTEL_EXPORTER_WEAVE_ENDPOINT", "http://me:hunter2@127.0.0.1:1")
        for arguments in (["--offline"], ["--offline", "--json"]):
            output = CliRunner().invoke(main, ["doctor", *arguments]).output
            assert KEY not in output
            assert "hunter2" not in output
            assert "OTEL_EXPORTER_OTLP_HEADERS" in output


class TestServer:
    """Whether it is there and takes the key."""

    @pytest.mark.parametrize("answering", [200], indirect=True)
    def test_reachable(self, answering: str) -> None:
        status, report = doctor()
        assert status == 0
        server = report["server"]
        assert (server["trace_server"], server["key_from"]) == (answering, "WANDB_API_KEY")
        assert (server["reachable"], server["key_works"], server["entity"]) == (True, True, "me")

    @pytest.mark.parametrize("answering", [401], indirect=True)
    def test_a_key_that_is_refused(self, answering: str) -> None:
        status, report = doctor()
        assert status == 1
        assert found(report)["key-refused"] == "error"
        assert report["server"]["reachable"] is True

    @pytest.mark.parametrize("answering", [500], indirect=True)
    def test_a_server_in_trouble_is_reachable(self, answering: str) -> None:
        _, report = doctor()
        assert (report["server"]["reachable"], report["server"]["key_works"]) == (True, None)

    def test_nobody_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_WEAVE_ENDPOINT", "http://127.0.0.1:9")
        status, report = doctor()
        assert status == 0  # nothing is lost: calls wait
        assert found(report)["unreachable"] == "warning"

    def test_offline_asks_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_WEAVE_ENDPOINT", "http://127.0.0.1:9")
        assert doctor("--offline")[1]["server"]["reachable"] is None


class TestStore:
    """What waits, what was lost, and whether there is room for more."""

    def test_what_waits(self, tmp_path: Path) -> None:
        write_store(tmp_path / "other", 4, samples=2, rollouts=2)
        status, report = doctor(str(tmp_path / "other"))
        assert status == 0
        assert report["delivery"]["waiting_calls"] > 0
        assert "empty" not in found(report)

    def test_what_was_lost(self, tmp_path: Path) -> None:
        delivery_state.note_counters(tmp_path, {"dropped_queue_full": 3})
        status, report = doctor(str(tmp_path))
        assert status == 1
        assert found(report)["lost"] == "error"

    def test_everything_was_sampled_out(self, tmp_path: Path) -> None:
        delivery_state.note_counters(tmp_path, {"sampled_out": 9})
        assert found(doctor(str(tmp_path))[1])["sampled-out"] == "warning"

    def test_a_place_that_cannot_be_written(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("OTEL_ROLLOUT_DIR", str(tmp_path / "file" / "store"))
        status, report = doctor()
        assert status == 1
        assert found(report)["unwritable"] == "error"


class TestLibraries:
    """What will be patched is found in the source, without an import."""

    @pytest.fixture
    def library(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """A package like one of those that we instrument, which must not be imported."""
        package = tmp_path / "rolling"
        package.mkdir()
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        (package / "loop.py").write_text(
            "try:\n    class Loop:\n        async def run(self): ...\nfinally:\n    pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        return package

    def report(self, monkeypatch: pytest.MonkeyPatch, *places: Place) -> dict[str, Any]:
        monkeypatch.setattr(libraries, "PLACES", {"rolling": places, "not_there": places})
        return doctor("--offline")[1]

    def test_found_and_missing(self, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        report = self.report(
            monkeypatch,
            Place("runs", ("rolling.old:Loop.run", "rolling.loop:Loop.run")),
            Place("tools", ("rolling.loop:Loop.call_tool",)),
            Place("rewards", ("rolling.rewards:score",), until="2.0"),
        )
        assert report["libraries"] == {
            "rolling": {
                "version": None,
                "found": {"runs": "rolling.loop:Loop.run"},
                "missing": ["tools"],
            }
        }
        assert found(report)["hooks:rolling"] == "warning"

    def test_source_that_cannot_be_read(
        self, library: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (library / "loop.py").write_bytes(b"class Loop:\n\x00\xff(")
        report = self.report(monkeypatch, Place("runs", ("rolling.loop:Loop.run",)))
        assert report["libraries"]["rolling"]["missing"] == ["runs"]


def test_the_text_ends_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if line.startswith("error")]
    assert line == "error    OTEL_SDK_DISABLED=true: nothing is traced -> unset it"

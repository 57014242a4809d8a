"""`OTEL_CONFIG_FILE`: what it sets up is ours to feed, as what the environment sets up."""

from __future__ import annotations

from pathlib import Path

from tests.alongside.conftest import Run
from tests.alongside.test_providers import ROLLOUT
from tests.servers.otlp_receiver import OtlpReceiver

OTLP = """
file_format: "1.0"
tracer_provider:
  processors:
    - batch:
        exporter:
          otlp_http:
            endpoint: {endpoint}
"""


def test_an_exporter_of_the_file_gets_what_others_get(
    run: Run, tmp_path: Path, otlp_receiver: OtlpReceiver
) -> None:
    config = tmp_path / "otel.yaml"
    config.write_text(OTLP.format(endpoint=otlp_receiver.traces_endpoint))
    run(f"{ROLLOUT}rollout()", OTEL_CONFIG_FILE=str(config), OTEL_PYTHON_DISTRO="otel_rollout")
    assert sorted(span.name for span in otlp_receiver.spans) == ["chat policy", "rollout"]
    assert all(span.attributes["rollout.step"] == 1 for span in otlp_receiver.spans)


def test_the_file_decides_and_the_exporter_of_the_environment_does_not(
    run: Run, tmp_path: Path, otlp_receiver: OtlpReceiver
) -> None:
    config = tmp_path / "otel.yaml"
    config.write_text(OTLP.format(endpoint=otlp_receiver.traces_endpoint))
    ran = run(
        f"{ROLLOUT}rollout()", OTEL_CONFIG_FILE=str(config), OTEL_PYTHON_DISTRO="otel_rollout"
    )
    assert ran.trajectories() == []


def test_weave_in_the_file(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "otel.yaml"
    config.write_text(
        'file_format: "1.0"\n'
        "tracer_provider:\n  processors:\n    - batch:\n        exporter:\n          weave:\n"
    )
    ran = run(
        f"{ROLLOUT}rollout()", OTEL_CONFIG_FILE=str(config), OTEL_PYTHON_DISTRO="otel_rollout"
    )
    (one,) = ran.trajectories()
    assert one["response_ids"] == [4, 5]

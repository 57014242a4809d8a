"""The public names of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import otel_rollout


class TestPublicNames:
    """Every public name is what the documentation says, whatever was imported before it."""

    @pytest.mark.parametrize(
        "first",
        [
            "import otel_rollout.trajectory",
            "import otel_rollout.instrumentors.verl",
            "from otel_rollout.trajectory import record_reward",
            "import otel_rollout.processor.processor",
        ],
    )
    def test_trajectory_is_the_context_manager_after(self, first: str) -> None:
        code = f"{first}\nfrom otel_rollout import trajectory\nwith trajectory(step=1): pass"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_all_names_are_there(self) -> None:
        for name in otel_rollout.__all__:
            assert getattr(otel_rollout, name) is not None

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'nope'"):
            _ = otel_rollout.nope

    def test_importing_the_package_imports_none_of_its_modules(self) -> None:
        code = (
            "import sys, otel_rollout\n"
            "print([m for m in sys.modules if m.startswith(('otel_rollout.', 'opentelemetry'))])"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        assert "['otel_rollout._version']" in result.stdout

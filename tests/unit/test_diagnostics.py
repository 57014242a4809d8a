"""What is said is said once, and saying it never raises."""

from __future__ import annotations

import asyncio
import logging

import pytest

from otel_rollout.diagnostics import contained, forget_said, report_internal_error, say_once


class TestSayOnce:
    """One line for each thing in a process."""

    def test_once(self, caplog: pytest.LogCaptureFixture) -> None:
        for _ in range(3):
            say_once("a", "said %d times", 1)
        say_once("b", "other")
        assert [record.getMessage() for record in caplog.records] == ["said 1 times", "other"]
        forget_said()
        say_once("a", "again")
        assert len(caplog.records) == 3

    def test_an_error_once_for_each_place_and_kind(self, caplog: pytest.LogCaptureFixture) -> None:
        for place in ("here", "there"):
            for error in (ValueError("1"), ValueError("2"), KeyError("3")):
                report_internal_error(place, error)
        assert len(caplog.records) == 4


class TestContained:
    """An error of ours becomes the default; cancellation and exit belong to the user."""

    def test_exceptions(self, caplog: pytest.LogCaptureFixture) -> None:
        @contained("here", "default")
        def function(x: int) -> str:
            return str(1 / x)

        assert function(1) == "1.0"
        assert function(0) == "default"
        (record,) = caplog.records
        assert record.exc_info is not None
        assert record.levelno == logging.ERROR

    @pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
    def test_others_pass(self, error: type[BaseException]) -> None:
        @contained("here", None)
        def function() -> None:
            raise error

        with pytest.raises(error):
            function()

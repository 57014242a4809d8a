"""A real Chromium, headless, driven by Selenium."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def executables() -> tuple[str, str]:
    """Browser and driver; Debian's are installed where that may be done, else the test fails."""
    found = _found()
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES],
        ):
            subprocess.run(command, capture_output=True, check=False, timeout=600)
        found = _found()
    if found is None:
        pytest.fail(
            "the viewer's tests need Chromium and its driver: as root, "
            f"apt-get install {' '.join(_PACKAGES)}"
        )
    return found


def _found() -> tuple[str, str] | None:
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def start(profile: Path, *, dark: bool = False, width: int = 1360, height: int = 900) -> Chrome:
    """A browser with an empty profile."""
    from selenium import webdriver

    browser, driver = executables()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.set_page_load_timeout(60)
    return chrome

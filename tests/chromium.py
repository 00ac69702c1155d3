"""Where Chromium is, and how tests start it. `python tests/chromium.py` prints its path, or says
on stderr what to install and fails.

    from tests.chromium import chromium  # a fixture; in the conftest.py of the tests that use it

    def test_the_title(chromium: Browser) -> None:
        page = chromium.new_page()

One Chromium serves a module. Playwright's synchronous calls leave an event loop running in their
thread as long as they are in use, so such a module has no `async def` test; those use `browsing`:

    async with browsing() as browser:
        page = await browser.new_page()
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright import async_api, sync_api

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WHAT_TO_DO = (
    "the tests in a browser need Chromium. Debian: apt install chromium. Ubuntu, whose chromium is "
    "a snap that tests cannot use: install google-chrome-stable_current_amd64.deb from "
    "https://dl.google.com/linux/direct/. Elsewhere: put chromium or google-chrome on PATH, or "
    "name it: TOCSIN_CHROMIUM=/path/to/chromium"
)


class ChromiumMissing(RuntimeError):
    """There is no Chromium here; the text says what to do."""


@cache
def executable() -> str:
    """The path of Chromium.

    Raises:
        ChromiumMissing: there is none that starts.
    """
    named = os.environ.get("TOCSIN_CHROMIUM")
    if named:
        if why := _failure(named):
            raise ChromiumMissing(f"TOCSIN_CHROMIUM={named}: {why}")
        return named
    found = [path for name in NAMES if (path := shutil.which(name))]
    for path in found:
        if _failure(path) is None:
            return path
    seen = "".join(f" ({path}: {_failure(path)})" for path in found)
    raise ChromiumMissing(WHAT_TO_DO + seen)


def _failure(path: str) -> str | None:
    """Why this is none that tests can use, or None."""
    if Path(path).resolve().name == "snap" or "/snap/" in str(Path(path).resolve()):
        return "a snap, which does not see the tests' temporary folders"
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if ran.returncode == 0 and "Chrom" in ran.stdout:
        return None
    return ran.stderr.strip() or "it does not start as Chromium does"


def options() -> dict[str, Any]:
    """What Playwright's `chromium.launch` is to be told."""
    args = ["--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        args.append("--no-sandbox")  # as root it does not start with one
    return {"executable_path": executable(), "args": args}


@pytest.fixture(scope="module")
def chromium() -> "Iterator[sync_api.Browser]":
    """A browser for the tests of a module, which are not asynchronous. Fails without Chromium."""
    from playwright.sync_api import sync_playwright

    launching = options()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launching)
        yield browser
        browser.close()


@asynccontextmanager
async def browsing() -> "AsyncIterator[async_api.Browser]":
    """A browser for one asynchronous test. Raises ChromiumMissing."""
    from playwright.async_api import async_playwright

    launching = options()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**launching)
        yield browser
        await browser.close()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{executable()}\n")
    except ChromiumMissing as error:
        sys.exit(f"tocsin: {error}")

"""Find Chromium, and start it for trials and tests.

`python -m loadtests.chromium` prints its path. If there is none, it says on stderr what to install
and fails. Only the system's own Chromium is used; Playwright's builds are never downloaded.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, async_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WHAT_TO_DO: Final = (
    "the tests in a browser need Chromium. On Debian run `apt install chromium`. On Ubuntu, whose "
    "chromium is a snap that tests cannot use, install google-chrome-stable_current_amd64.deb from "
    "https://dl.google.com/linux/direct/. Elsewhere put chromium or google-chrome on PATH, or set "
    "TOCSIN_CHROMIUM=/path/to/chromium"
)


class ChromiumMissing(RuntimeError):
    """No Chromium was found here; the text says what to do."""


@cache
def executable() -> str:
    """Return the path of Chromium.

    Raises:
        ChromiumMissing: none was found that starts.
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
    """Return the reason why tests cannot use this program, or None if they can."""
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
    """Return the arguments for Playwright's `chromium.launch`."""
    args = ["--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        args.append("--no-sandbox")  # as root it does not start with a sandbox
    return {"executable_path": executable(), "args": args}


@asynccontextmanager
async def browsing(more: Sequence[str] = (), *, path: str = "") -> AsyncIterator[Browser]:
    """Yield a headless browser and close it in the end. `more` are further arguments for it; `path`
    is a program to start in place of `executable()`. Raises ChromiumMissing."""
    launching = options()
    launching["args"] += more
    if path:
        launching["executable_path"] = path
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**launching)
        try:
            yield browser
        finally:
            await browser.close()


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{executable()}\n")
    except ChromiumMissing as error:
        sys.exit(f"tocsin: {error}")

"""Where Chromium is, and how trials and tests start it. `python -m loadtests.chromium` prints its
path, or says on stderr what to install and fails.

It is the system's own; Playwright's builds are never downloaded.
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


@asynccontextmanager
async def browsing(more: Sequence[str] = (), *, path: str = "") -> AsyncIterator[Browser]:
    """A headless browser, gone in the end; `more` are arguments for it, `path` is what is started
    in place of what `executable` finds. Raises ChromiumMissing."""
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

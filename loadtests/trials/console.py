"""The price of an open console: `batch100` in turns with and without it, compared in pairs.

The console runs in a Chromium on the same cores as the broker and the load. An operator's console
runs on another machine, so Chromium here has the lowest priority (nice 19). Its cost is then that
of its requests to the broker, and of the little time that the kernel still gives it. The same turns
with a Chromium of ordinary priority are printed too; no promise depends on them.
"""

import asyncio
import contextlib
import stat
import statistics
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, Request, expect

from loadtests.bench.load_run import WARM_UP_S, Bench, LoadRun, quiet
from loadtests.chromium import browsing, executable
from loadtests.server import Process
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker

RATIO_MIN: Final = 0.98
PAIRS: Final = 12
TURN_S: Final = 5.0
SETTLE_S: Final = 2.0
"""Pause between opening a page and a turn, so that opening it is not measured."""
QUEUE: Final = "batch100"
_WINDOW: Final = 20_000
_VIEWS: Final = (f"#/queues/{QUEUE}", "#/")


@dataclass(frozen=True)
class Plan:
    """Measure the cost of an open console for batch100, in turns with and without it. Needs
    Chromium."""

    pairs: int = options.whole(
        PAIRS, "Number of turns with the console, and of turns without it.", 1, 1000
    )
    turn_s: float = options.seconds(TURN_S, "Duration of each turn.")


@contextlib.asynccontextmanager
async def _chromium(niceness: int) -> AsyncIterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="tocsin-nice-") as folder:
        async with browsing(path=_wrapper(Path(folder, "chromium"), niceness)) as browser:
            yield browser


def _wrapper(path: Path, niceness: int) -> str:
    """Write a script to `path` that starts Chromium with this niceness. Returns `path` as text."""
    path.write_text(f'#!/bin/sh\nexec nice -n {niceness} "{executable()}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def _turns(
    line: LoadRun, page: Page, url: str, plan: Plan, what: str
) -> tuple[list[float], list[float], int]:
    """Return (messages a second in turns without the console, the same with it, number of API calls
    that the console made)."""
    requests = 0

    def count(request: Request) -> None:
        nonlocal requests
        requests += "/v1/" in request.url

    page.on("request", count)
    without: list[float] = []
    open_: list[float] = []
    for number in range(plan.pairs):
        for is_open in (False, True) if number % 2 else (True, False):
            view = url + "/console" + _VIEWS[number % len(_VIEWS)] if is_open else "about:blank"
            await page.goto(view)
            if is_open:
                await expect(page.get_by_test_id("link-state")).to_have_text("live")
            await asyncio.sleep(SETTLE_S)
            settled, elapsed, _ = await line.run(plan.turn_s, f"{what}, {view}")
            (open_ if is_open else without).append(settled / elapsed)
            await line.drain()
    page.remove_listener("request", count)
    return without, open_, requests


async def console(plan: Plan, progress: Progress) -> Finding:
    """Run the trial of an open console, at nice 19 and at ordinary priority. Raises
    ChromiumMissing, LoadFailed or ServerFailed if it cannot end normally."""
    finding = Finding("console")
    finding.conditions = {
        "pairs": plan.pairs, "turn_s": plan.turn_s, "queue": QUEUE,
        "console": "headless Chromium on the same machine, the queue's page and the overview",
    }  # fmt: skip
    async with broker("console") as server:
        bench = Bench(server.url, None, Process(server.pid), plan.turn_s, 0, 0, progress)
        async with quiet(LoadRun(bench, QUEUE, 100, _WINDOW)) as line:
            await line.open()
            for niceness in (19, 0):
                async with _chromium(niceness) as browser:
                    page = await browser.new_page(viewport={"width": 1280, "height": 800})
                    name = f"nice{niceness}"
                    without, open_, requests = await _turns(line, page, server.url, plan, name)
                ratios = [b / a for a, b in zip(without, open_, strict=True)]
                ratio = statistics.median(ratios)
                finding.figures |= {
                    f"{name}_without_per_s": round(statistics.median(without)),
                    f"{name}_with_per_s": round(statistics.median(open_)),
                    f"{name}_ratio": round(ratio, 4),
                    f"{name}_requests_per_s": round(
                        requests / (plan.pairs * (SETTLE_S + WARM_UP_S + plan.turn_s)), 1
                    ),
                }
                if niceness:
                    finding.check(
                        f"batch100 keeps {RATIO_MIN:.0%} while the console is open",
                        ratio >= RATIO_MIN, f"{ratio:.2%} (median of {plan.pairs} pairs)",
                        timed=True,
                    )  # fmt: skip
    return finding

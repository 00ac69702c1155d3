"""The demo page under a steady stream: its heap must not grow, and its frames must not stutter.

idle     the page is open and no messages come: the intervals between frames
load     a steady rate of messages for minutes: the same intervals, and the heap after the
         first minute and at the end, each after a full collection
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import tocsin
from playwright.async_api import CDPSession, Page

from loadtests.chromium import browsing
from loadtests.trials import options
from loadtests.trials.trial import Finding, Progress, broker

SECONDS: Final = 600.0
RATE: Final = 200
HEAP_RATIO_MAX: Final = 1.2
FRAMES_RATIO_MAX: Final = 1.2
QUEUE: Final = "machine"
KEYS: Final = ("cpu0", "cpu1", "cpu2", "cpu3", "memory", "vda", "eth0", "load")
_BATCH_S: Final = 0.05
_SEEN_TIMEOUT_S: Final = 30.0
_REDRAWN_S: Final = 2.0
"""Wait before the page's count of messages is read, in seconds. The page draws changes outside the
screen once a second."""
_COLLECTIONS: Final = 3
"""Number of collections before the heap is measured. A single one does not find everything, because
finalizers and detached nodes need another."""
_FRAMES: Final = """() => {
  window.frameIntervals = [];
  let last = performance.now();
  const next = (now) => {
    window.frameIntervals.push(now - last);
    last = now;
    window.frameHandle = requestAnimationFrame(next);
  };
  window.frameHandle = requestAnimationFrame(next);
}"""
_FRAMES_END: Final = """() => {
  cancelAnimationFrame(window.frameHandle);
  const intervals = window.frameIntervals.slice(1).sort((a, b) => a - b);
  delete window.frameIntervals;
  return [intervals.length, intervals[Math.floor(intervals.length * 0.95)]];
}"""


@dataclass(frozen=True)
class Plan:
    """Stream messages into the demo page for ten minutes, and measure its heap and its frames.

    The heap at the end is compared with the heap after the first minute (a fifth of a shorter run).
    The intervals between frames are compared with those of the idle page. Needs Chromium.
    """

    seconds: float = options.seconds(
        SECONDS, "How long messages come. The heap is first measured after 60 s."
    )
    rate: int = options.whole(RATE, "Messages a second.", 1, 10_000)
    idle_s: float = 20.0
    frames_s: float = 20.0
    """Duration at the end of the load in which frames are measured, in seconds."""

    @property
    def first_s(self) -> float:
        """Time from the beginning of the load to the first measurement of the heap, in seconds."""
        return min(60.0, self.seconds / 5)


class _Heap:
    """The page's JavaScript heap in use, after full collections."""

    def __init__(self, session: CDPSession) -> None:
        self._session = session

    async def used_bytes(self) -> int:
        for _ in range(_COLLECTIONS):
            await self._session.send("HeapProfiler.collectGarbage")
        usage = await self._session.send("Runtime.getHeapUsage")
        return int(usage["usedSize"])


async def _frames(page: Page, seconds: float) -> tuple[int, float]:
    """Watch the page's frames for `seconds`. Return (number of intervals between frames, their 95th
    percentile in milliseconds)."""
    await page.evaluate(_FRAMES)
    await asyncio.sleep(seconds)
    count, p95_ms = await page.evaluate(_FRAMES_END)
    return int(count), float(p95_ms)


async def _publish(client: tocsin.Client, rate: int, seconds: float) -> int:
    """Publish a steady stream of the messages of `tocsin demo`; return how many were
    acknowledged."""
    began, sent, number = time.monotonic(), 0, 0
    while (elapsed := time.monotonic() - began) < seconds:
        due = int(elapsed * rate)
        messages = []
        while sent < due:
            key = KEYS[number % len(KEYS)]
            body = {"busy_percent": round(50 + 50 * ((number * 7919) % 1000) / 1000, 1)}
            messages.append(tocsin.NewMessage(body, key))
            sent, number = sent + 1, number + 1
        if messages:
            await client.publish_many(QUEUE, messages)
        await asyncio.sleep(_BATCH_S)
    return sent


async def page(plan: Plan, progress: Progress, chromium_arguments: Sequence[str] = ()) -> Finding:
    """Run the trial of the demo page. Raises ChromiumMissing, LoadFailed or ServerFailed if it
    cannot end normally."""
    finding = Finding("page")
    finding.conditions = {
        "rate_per_s": plan.rate, "seconds": plan.seconds, "idle_s": plan.idle_s,
        "keys": len(KEYS), "window": "1280 x 800, headless Chromium",
    }  # fmt: skip
    async with (
        broker("page") as server,
        tocsin.connect(server.url) as client,
        browsing(chromium_arguments) as browser,
    ):
        await client.create_queue(QUEUE, partitions=8, retention_s=60.0, messages_max=100_000)
        view = await browser.new_page(viewport={"width": 1280, "height": 800})
        errors: list[str] = []
        view.on("pageerror", lambda error: errors.append(str(error)))
        await view.goto(f"{server.url}/demo")
        await view.locator("[data-testid=connection][data-state=websocket]").wait_for()
        # A few messages first, so that the whole page is idle.
        before = await _publish(client, plan.rate, 2.0)
        await _received(view, before)
        heap = _Heap(await view.context.new_cdp_session(view))
        idle_frames, idle_ms = await _frames(view, plan.idle_s)
        progress(f"page: idle, {idle_frames} frames, p95 {idle_ms:.1f} ms")
        publishing = asyncio.create_task(_publish(client, plan.rate, plan.seconds))
        await asyncio.sleep(plan.first_s)
        first = await heap.used_bytes()
        progress(f"page: {first / 2**20:.1f} MiB after {plan.first_s:.0f} s")
        await asyncio.sleep(max(0.0, plan.seconds - plan.first_s - plan.frames_s))
        load_frames, load_ms = await _frames(view, plan.frames_s)
        published = await publishing
        seen = await _received(view, before + published) - before
        last = await heap.used_bytes()
    finding.figures = {
        "published": published,
        "seen_by_page": seen,
        "heap_first_bytes": first,
        "heap_last_bytes": last,
        "frame_p95_idle_ms": round(idle_ms, 2),
        "frame_p95_load_ms": round(load_ms, 2),
        "frames_idle": idle_frames,
        "frames_load": load_frames,
    }
    finding.check("the page saw every message", seen == published, f"{seen} of {published}")
    finding.check("no script failed", not errors, errors or "none did")
    finding.check(
        f"the heap ends at no more than {HEAP_RATIO_MAX} x what it was after {plan.first_s:.0f} s",
        last <= HEAP_RATIO_MAX * first, f"{last / first:.3f} x",
    )  # fmt: skip
    finding.check(
        f"the p95 interval between frames is at most {FRAMES_RATIO_MAX} x that of the idle page",
        load_ms <= FRAMES_RATIO_MAX * idle_ms, f"{load_ms / idle_ms:.3f} x", timed=True,
    )  # fmt: skip
    return finding


async def _received(view: Page, wanted: int) -> int:
    """Wait until the page says that it has handled `wanted` messages, or until a timeout, and two
    seconds more. Return the number that the page says then."""
    deadline = time.monotonic() + _SEEN_TIMEOUT_S
    while True:
        if await _handled(view) >= wanted or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(_REDRAWN_S)
    return await _handled(view)


async def _handled(view: Page) -> int:
    text = await view.get_by_test_id("handled").inner_text()
    return int("".join(character for character in text if character.isdigit()) or 0)

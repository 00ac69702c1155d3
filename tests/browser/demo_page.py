"""The demo page as a visitor has it: opened in Chromium, and watched for what must never happen."""

import asyncio
import contextlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import tocsin
from playwright.async_api import Browser, Locator, Page, WebSocket, expect

QUEUE: Final = "machine"
GROUP: Final = "page"
KEYS: Final = ("cpu0", "cpu1", "cpu2", "cpu3", "memory", "disk-vda", "net-eth0", "load")
PATIENCE_MS: Final = 30_000
LAYOUT_SHIFT_MAX: Final = 0.1
MS: Final = re.compile(r"^\d+(\.\d)? (ms|s)$")
GONE: Final = re.compile("ERR_CONNECTION_(REFUSED|RESET|CLOSED)|ERR_EMPTY_RESPONSE|WebSocket")
"""What Chromium says of a broker that is not there."""
expect.set_options(timeout=PATIENCE_MS)
_WATCH: Final = """
  globalThis.layoutShift = 0;
  globalThis.violations = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      layoutShift += entry.hadRecentInput ? 0 : entry.value;
    }
  }).observe({ type: "layout-shift", buffered: true });
  document.addEventListener("securitypolicyviolation", (event) => {
    violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
  });
"""


def figures(key: str, number: int) -> dict[str, float]:
    """A body as `tocsin demo` publishes it; another one each time."""
    if key == "memory":
        return {"used_percent": 40 + number % 7, "used_mib": 3300, "total_mib": 8000}
    if key.startswith("disk"):
        return {"read_bytes_per_s": 0, "written_bytes_per_s": 4096 * (number % 9)}
    if key.startswith("net"):
        return {"received_bytes_per_s": 1024 * (1 + number % 99), "sent_bytes_per_s": 0}
    if key == "load":
        return {"m1": 0.5 + number % 5, "m5": 0.4, "m15": 0.3}
    return {"busy_percent": (7.5 * number) % 100}


@dataclass
class Host:
    """Publishes host figures, and knows where each message went."""

    client: tocsin.Client
    keys: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, offset) -> key."""

    @contextlib.asynccontextmanager
    async def running(self, period_s: float = 0.1) -> AsyncIterator[None]:
        """Every key, again and again. What began is acknowledged when the block has ended."""
        going = True

        async def publish() -> None:
            for number in itertools.count():
                if not going:
                    return
                messages = [{"key": key, "body": figures(key, number)} for key in KEYS]
                for key, receipt in zip(
                    KEYS, await self.client.publish_many(QUEUE, messages), strict=True
                ):
                    assert receipt.offset is not None
                    self.keys[receipt.partition, receipt.offset] = key
                await asyncio.sleep(period_s)

        task = asyncio.create_task(publish())
        try:
            yield
        finally:
            going = False
            await task


@dataclass
class Visit:
    """A tab with the page."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """What the browser's console said, and scripts that failed."""
    acked: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) of what it said to have handled, in its order."""

    def __post_init__(self) -> None:
        def said(text: str, kind: str, url: str) -> None:
            if kind in {"error", "warning"}:
                self.complaints.append(f"{text} ({url})")

        self.page.on("console", lambda one: said(one.text, one.type, one.location["url"]))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        def sent(text: str | bytes) -> None:
            said = json.loads(text)
            for frame in said if isinstance(said, list) else [said]:
                for partition, _, _, *ranges in frame.get("deliveries", []):
                    for first, last in zip(ranges[::2], ranges[1::2], strict=True):
                        if frame["type"] == "ack":
                            self.acked += [(partition, n) for n in range(first, last + 1)]

        socket.on("framesent", sent)

    def at(self, name: str) -> Locator:
        """By test id."""
        return self.page.get_by_test_id(name)

    def lane(self, key: str) -> Locator:
        """The row of this key in step 6."""
        return self.page.locator(f'[data-testid="lane"][data-key="{key}"]')

    def figure(self, key: str) -> Locator:
        """The row of this key in step 2."""
        return self.page.locator(f'[data-testid="figure"][data-key="{key}"]')

    async def is_carried_by(self, transport: str) -> None:
        """Wait until the session goes on over that."""
        await expect(self.at("connection")).to_have_attribute("data-state", transport)

    async def publish(self, key: str, body: str) -> None:
        """Type it, and send it with the keyboard."""
        await self.at("publish-key").fill(key)
        await self.at("publish-body").fill(body)
        await self.at("publish-body").press("Control+Enter")

    async def owns(self, shares: dict[str, int]) -> None:
        """Wait until the workers of these letters own this many partitions each."""
        for letter, count in shares.items():
            cells = self.page.locator(f'[data-testid="partition"][data-owner="{letter}"]')
            await expect(cells).to_have_count(count)

    async def moves(self) -> None:
        """Wait until figures come."""
        value = self.figure("net-eth0").locator(".value")
        before = await value.text_content()
        await expect(value).not_to_have_text(before or "")

    async def is_clean(self, expected: re.Pattern[str] | None = None) -> None:
        """Nothing failed, nothing was forbidden, nothing jumped, nothing stands over the edge;
        but for complaints that are `expected`."""
        complaints = [one for one in self.complaints if not (expected and expected.search(one))]
        assert complaints == []
        assert await self.page.evaluate("violations") == []
        shift = await self.page.evaluate("layoutShift")
        assert shift < LAYOUT_SHIFT_MAX
        assert await self.page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )


@contextlib.asynccontextmanager
async def visited(
    browser: Browser, address: str, *, is_ready: bool = True, **options: Any
) -> AsyncIterator[Visit]:
    """Open that in a browser of its own (cookies, storage), with Playwright's options for a
    context; `is_ready`: wait until its worker has its partitions."""
    context = await browser.new_context(**options)
    await context.add_init_script(_WATCH)
    try:
        visit = Visit(await context.new_page())
        await visit.page.goto(address)
        if is_ready:
            await visit.is_carried_by("websocket")
            await expect(visit.at("hero-workers")).not_to_have_text("\u2013")
            await expect(visit.at("partition").first).to_have_attribute("data-owner", "A")
        yield visit
    finally:
        await context.close()


def in_order(places: list[tuple[int, int]], keys: dict[tuple[int, int], str]) -> bool:
    """Whether these messages are in the order of their keys."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for place in places:
        if place in keys:
            offsets[keys[place]].append(place[1])
    return all(given == sorted(set(given)) for given in offsets.values())

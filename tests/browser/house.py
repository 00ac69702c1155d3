"""A page in Chromium that consumes and reads, what it saw, and who publishes meanwhile."""

import asyncio
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import tocsin
from playwright.async_api import Page

QUEUE: Final = "watched"
GROUP: Final = "page"
KEYS: Final = tuple(f"user-{number}" for number in range(12))
PATIENCE_S: Final = 60.0
Seen = TypeVar("Seen")
SPEED: Final = 10
"""The client's clock and timers in these pages go this many times as fast as ours, so that silence
is noticed and WebSockets are tried again in seconds."""

_OPEN: Final = """async ({queue, group, speed, resume}) => {
  const { connect } = await import("/assets/tocsin/index.js");
  const environment = {
    now: () => performance.now() * speed,
    setTimeout: (callback, delay) => setTimeout(callback, delay / speed),
    clearTimeout: (handle) => clearTimeout(handle),
  };
  const store = (name) => {
    const earlier = resume ? JSON.parse(sessionStorage.getItem(name) ?? "[]") : [];
    if (resume) {
      addEventListener("pagehide", () => {
        sessionStorage.setItem(name, JSON.stringify(globalThis[name]));
      });
    }
    return earlier;
  };
  globalThis.seen = store("seen");
  globalThis.read = store("read");
  globalThis.transports = [];
  globalThis.errors = [];
  addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
  addEventListener("error", (event) => errors.push(String(event.message)));
  const options = { environment, resume: resume ?? undefined, name: "a page" };
  const client = await connect(undefined, options);
  client.addEventListener("connection", (event) => {
    transports.push([Math.round(performance.now()), event.detail.transport, event.detail.reason]);
  });
  const note = (list) => (message) => {
    list.push([message.partition, message.offset, message.key, message.body]);
  };
  globalThis.worker = client.subscribe(queue, group, { concurrency: 16 }, note(seen));
  globalThis.reader = client.read(queue, { start: "earliest" }, note(read));
  await Promise.all([worker.opened, reader.opened]);
  globalThis.client = client;
  return client.transport;
}"""


def opening(*, resume: str | None = None) -> str:
    """An expression that opens the client on the page where it is evaluated."""
    asked = {"queue": QUEUE, "group": GROUP, "speed": SPEED, "resume": resume}
    return f"({_OPEN})({json.dumps(asked)})"


class Evaluates(Protocol):
    """A page, whoever drives it."""

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""


async def blank(page: Page, url: str) -> None:
    """Go to a page of the broker's that does nothing by itself. One that Playwright answers in its
    place would count as coming from elsewhere, and may open no WebSocket to this machine."""
    await page.goto(f"{url}/healthz")


async def watch(page: Page, url: str, *, resume: str | None = None) -> str:
    """Consume and read there; what carries the session."""
    await blank(page, url)
    return await open_client(page, resume=resume)


async def open_client(page: Page, *, resume: str | None = None) -> str:
    """The same on the page as it is."""
    transport: str = await page.evaluate(opening(resume=resume))
    return transport


async def until(look: Callable[[], Awaitable[Seen]], what: str) -> Seen:
    """Look again and again, until what is seen is something; that. Fails after PATIENCE_S."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if seen := await look():
                    return seen
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}") from None


async def has(is_so: bool) -> bool:
    """For `until`: what is known here already."""
    return is_so


async def until_carried_by(page: Evaluates, transport: str | None) -> None:
    """Until the session goes on over that; None: nothing carries it."""

    async def look() -> bool:
        return bool(await page.evaluate("client.transport") == transport)

    try:
        await until(look, f"the session is carried by {transport}")
    except AssertionError as error:
        error.add_note(f"it was carried by {await page.evaluate('transports')}")
        raise


@dataclass
class Stream:
    """What somebody publishes meanwhile, all the time, past every proxy."""

    client: tocsin.Client
    rate: int = 200
    places: list[tuple[int, int]] = field(default_factory=list)
    """(partition, offset) of all that was acknowledged."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish while the block runs; everything is acknowledged when it has ended."""
        going = True

        async def publish() -> None:
            number = 0
            while going:
                receipts = await self.client.publish_many(
                    QUEUE,
                    [
                        {"body": number + i, "key": KEYS[(number + i) % len(KEYS)]}
                        for i in range(self.rate // 50)
                    ],
                )
                number += len(receipts)
                self.places += [
                    (one.partition, one.offset) for one in receipts if one.offset is not None
                ]
                await asyncio.sleep(0.02)

        task = asyncio.create_task(publish())
        try:
            yield
        finally:
            going = False
            await task

    async def grows(self, count: int) -> None:
        """Until this many more are published."""
        wanted = len(self.places) + count

        await until(lambda: has(len(self.places) >= wanted), f"{count} more are published")

    async def goes_on(self, page: Evaluates, count: int = 40) -> None:
        """Until the page has consumed and read this many more."""
        consumed, read = await counts(page)

        async def look() -> bool:
            now = await counts(page)
            return now[0] >= consumed + count and now[1] >= read + count

        await until(look, f"{count} more messages reach the page")

    async def arrives(self, page: Evaluates) -> None:
        """Until the page has everything, and then some: nothing comes twice, nothing too much.
        Fails where something of a key is missing, comes twice, or not in its order."""
        wanted = len(self.places)

        async def look() -> bool:
            now = await counts(page)
            return min(now) >= wanted

        with contextlib.suppress(AssertionError):  # what is missing is told below
            await until(look, "everything reached the page")
        await asyncio.sleep(0.3)
        for name in ("seen", "read"):
            check(name, await page.evaluate(name), self.places)
        assert await page.evaluate("errors") == []


async def counts(page: Evaluates) -> tuple[int, int]:
    """How many messages the page has consumed and read."""
    consumed, read = await page.evaluate("[seen.length, read.length]")
    return consumed, read


def check(name: str, came: list[list[Any]], places: list[tuple[int, int]]) -> None:
    """No gap, no repetition, no inversion, per key."""
    offsets: dict[str, list[int]] = defaultdict(list)
    for _, offset, key, _ in came:
        offsets[key].append(offset)
    for key, given in offsets.items():
        assert given == sorted(set(given)), f"{name}, {key}: {_wrong(given)}"
    missing = set(places) - {(partition, offset) for partition, offset, _, _ in came}
    assert not missing, f"{name}: {len(missing)} of {len(places)} never came: {sorted(missing)[:9]}"
    assert len(came) == len(places), f"{name}: {len(came)} came of {len(places)}"


def _wrong(given: list[int]) -> str:
    pairs = itertools.pairwise(given)
    return "; ".join(f"{later} behind {earlier}" for earlier, later in pairs if later <= earlier)

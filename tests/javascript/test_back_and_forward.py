"""A page that the browser keeps while another one is looked at, and that comes back as it was: in
Chromium, the client goes on with its session; or, where it is not to outlive reloads, it gives up
its places while the page is kept, and comes back for them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
import tocsin
from playwright.async_api import async_playwright

from loadtests.chromium import options
from loadtests.clients.rest import Rest
from loadtests.server import Server
from tests.waiting import becomes

WAIT_MS: Final = 30_000
KEEPS_NO_PAGES: Final = "--disable-back-forward-cache"
"""What Playwright starts Chromium with."""
PAGES: Final = ("/assets/tocsin/index.js", "/assets/tocsin/proto/wire.js")
"""Documents that the browser may keep, and that do nothing by themselves."""
SCRIPT: Final = """async (transport) => {
  const { connect } = await import("/assets/tocsin/index.js");
  const client = await connect(undefined, { resume: "page", transport });
  const seen = { bodies: [], session: client.sessionId, persisted: [], errors: [] };
  Object.assign(window, { client, seen });
  addEventListener("pageshow", (event) => seen.persisted.push(event.persisted));
  addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
  await client.subscribe("q", "g", ({ body }) => { seen.bodies.push(body); }).opened;
}"""


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_page_that_comes_back_goes_on(tmp_path: Path, transport: str) -> None:
    server = Server(tmp_path / "data", level="warning")
    server.start()
    try:
        async with tocsin.connect(server.url) as client, async_playwright() as playwright:
            await client.create_queue("q", partitions=1)
            browser = await playwright.chromium.launch(
                **options(), ignore_default_args=[KEEPS_NO_PAGES]
            )
            page = await (await browser.new_context(bypass_csp=True)).new_page()
            await page.goto(f"{server.url}{PAGES[0]}")
            await page.evaluate(SCRIPT, transport)
            await client.publish("q", 0, key="a")
            await page.wait_for_function("window.seen?.bodies.length === 1", timeout=WAIT_MS)
            await page.goto(f"{server.url}{PAGES[1]}")
            await client.publish("q", 1, key="a")
            await page.go_back(wait_until="commit")
            await page.wait_for_function("window.seen?.bodies.length === 2", timeout=WAIT_MS)
            seen = await page.evaluate("window.seen")
            assert seen["persisted"] == [True], "it was loaded anew"
            assert seen["bodies"] == [0, 1]
            assert seen["errors"] == []
            assert await page.evaluate("client.sessionId") == seen["session"]
            assert await page.evaluate("client.transport") == transport
            assert await page.evaluate("sessionStorage.length") == 0
            await browser.close()
    finally:
        server.kill()


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_page_that_is_kept_gives_its_places_to_those_who_work(
    tmp_path: Path, transport: str
) -> None:
    """P8: at once, not when leases end; and it is given its share again when it is looked at."""
    server = Server(tmp_path / "data", level="warning")
    server.start()
    rest = Rest(server.url)
    try:
        async with tocsin.connect(server.url) as client, async_playwright() as playwright:
            await client.create_queue("q", partitions=8)
            browser = await playwright.chromium.launch(
                **options(), ignore_default_args=[KEEPS_NO_PAGES]
            )
            page = await (await browser.new_context(bypass_csp=True)).new_page()
            await page.goto(f"{server.url}{PAGES[0]}")
            await page.evaluate(SCRIPT.replace('resume: "page", ', ""), transport)
            async with client.subscribe("q", "g") as working:
                bodies: set[object] = set()

                async def work() -> None:
                    async for message in working:
                        bodies.add(message.body)
                        await message.ack()

                async def owners() -> int:
                    group = await rest.call("GET", "/v1/queues/q/groups/g")
                    return len({one["member"] for one in group["partitions"]})

                task = asyncio.create_task(work())
                await until(owners, 2)
                await page.goto(f"{server.url}{PAGES[1]}")
                await client.publish_many("q", [{"key": f"k{n}", "body": n} for n in range(64)])
                await becomes(lambda: len(bodies) == 64, within_s=10)  # a lease is 30 s
                assert await owners() == 1
                await page.go_back(wait_until="commit")
                await until(owners, 2)
                await client.publish_many("q", [{"key": f"k{n}", "body": n} for n in range(64)])
                await page.wait_for_function("window.seen?.bodies.length > 0", timeout=WAIT_MS)
                seen = await page.evaluate("window.seen")
                assert (seen["persisted"], seen["errors"]) == ([True], [])
                assert await page.evaluate("client.transport") == transport
                assert await page.evaluate("client.sessionId") != seen["session"]
                task.cancel()
            await browser.close()
    finally:
        rest.close()
        server.kill()


async def until(count: Callable[[], Awaitable[int]], wanted: int) -> None:
    """Wait until it is this many."""
    async with asyncio.timeout(WAIT_MS / 1000):
        while (await count()) != wanted:  # noqa: ASYNC110 - asked of the broker, which tells nobody
            await asyncio.sleep(0.05)

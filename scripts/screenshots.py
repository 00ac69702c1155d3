"""Make the README's screenshots again: `.venv/bin/python scripts/screenshots.py`. Needs Chromium.

A separate demo runs for a minute, beside queues that look like real work.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import tocsin
from playwright.async_api import Browser

from loadtests.chromium import browsing
from loadtests.server import Server

ROOT: Final = Path(__file__).parent.parent
FOLDER: Final = ROOT / "clients" / "browser" / "screenshots"
DEMO: Final = ("-c", "from gateway.demo.demo import demo; demo()")
WIDTH: Final = 1280
HEIGHTS: Final = {"demo": 1560, "console": 700}
WARM_UP_S: Final = 62.0
"""The time for which the plots have been filling when the picture is taken, in seconds."""
QUEUES: Final[dict[str, dict[str, Any]]] = {
    "orders": {"retention_s": 3600},
    "invoices": {"retention_s": 3600, "attempts_max": 2, "on_exhausted": "park"},
    "notifications": {"retention_s": 600},
}


@contextlib.contextmanager
def demo() -> Iterator[str]:
    """Give the address of a running demo, inside this block."""
    with tempfile.TemporaryDirectory(prefix="tocsin-screenshots-") as folder:
        server = Server(Path(folder, "data"), command=DEMO)
        try:
            server.start()
            yield server.url
        finally:
            server.stop()


async def publish(client: tocsin.Client) -> None:
    """Publish orders and the messages that follow from them, until cancelled."""
    number = 0
    while True:
        for queue in QUEUES:
            body = {"order": number, "total": 10 + number % 90}
            await client.publish(queue, body, key=f"customer-{number % 40}")
        number += 1
        await asyncio.sleep(0.02)


async def consume(client: tocsin.Client, queue: str, group: str, slow_s: float) -> None:
    """Consume, but fail at every thirtieth customer of the invoices."""
    async with client.subscribe(queue, group=group, credit=20) as messages:
        async for message in messages:
            await asyncio.sleep(slow_s)
            if queue == "invoices" and message.key == "customer-30":
                await message.nack(delay_s=0.1, reason="address unknown")
            else:
                await message.ack()


async def picture(browser: Browser, address: str, name: str) -> None:
    """Wait, then take and keep a picture."""
    page = await browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHTS[name]}, color_scheme="light"
    )
    await page.goto(address)
    await asyncio.sleep(WARM_UP_S)
    if name == "demo":
        await page.get_by_test_id("publish").click()
        acked = page.get_by_test_id("way").first.locator("[data-stage=acked]", has_text="ms")
        await acked.wait_for()
        await page.evaluate("scrollTo(0, 0)")
    await page.mouse.move(0, 0)
    await page.screenshot(path=FOLDER / f"{name}.png")


async def main() -> None:
    """Make both pictures."""
    FOLDER.mkdir(exist_ok=True)
    with demo() as url:
        async with browsing() as browser:
            await take(url, browser)


async def take(url: str, browser: Browser) -> None:
    """Work for a while, and take the pictures."""
    async with tocsin.connect(url) as client:
        for queue, settings in QUEUES.items():
            await client.create_queue(queue, partitions=8, **settings)
        work = [
            asyncio.create_task(publish(client)),
            asyncio.create_task(consume(client, "orders", "billing", 0.01)),
            asyncio.create_task(consume(client, "invoices", "mail", 0.01)),
            asyncio.create_task(consume(client, "notifications", "push", 0.03)),
        ]
        await asyncio.gather(
            picture(browser, f"{url}/demo", "demo"),
            picture(browser, f"{url}/console", "console"),
        )
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())

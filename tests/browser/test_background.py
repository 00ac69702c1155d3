"""A page in a background tab, its timers throttled by the browser, or frozen: nothing is lost, and
nothing comes twice."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import tocsin

from loadtests.faults.proxy import Proxy
from tests.browser.hidden_tab import Tab, UsersChromium, opened
from tests.browser.house import Stream, opening, until_carried_by
from tests.browser.test_bad_networks import healed, hole
from tests.waiting import becomes

_TICKS = """new Promise((resolve) => {
  let ticks = 0;
  const tick = () => { ticks += 1; setTimeout(tick, 10); };
  tick();
  const began = performance.now();
  const channel = new MessageChannel();
  channel.port1.onmessage = () => {
    if (performance.now() - began > 2000) resolve(ticks); else channel.port2.postMessage(0);
  };
  channel.port2.postMessage(0);
})"""
"""How often a timer of 10 ms fires within two seconds."""


@pytest.fixture
async def users_chromium() -> AsyncIterator[UsersChromium]:
    async with opened() as browser:
        yield browser


async def hidden(browser: UsersChromium, url: str) -> Tab:
    """A tab behind another one, with a client."""
    tab = await browser.tab()
    await tab.visit(f"{url}/healthz")
    await tab.evaluate(opening())
    await browser.tab()
    assert await tab.evaluate("document.visibilityState") == "hidden"
    return tab


async def test_a_tab_in_the_background_is_pushed_to_and_changes_transport(
    users_chromium: UsersChromium, stream: Stream, proxy: Proxy
) -> None:
    tab = await hidden(users_chromium, proxy.url)
    async with stream.running():
        await stream.goes_on(tab)
        assert await tab.evaluate(_TICKS) <= 10  # it is throttled indeed
        hole(proxy)
        await until_carried_by(tab, "long-poll")
        await stream.goes_on(tab)
        healed(proxy)
        await until_carried_by(tab, "websocket")
        await tab.to_front()
        await stream.goes_on(tab)
    await stream.arrives(tab)


async def test_a_frozen_tab_goes_on_when_it_is_looked_at_again(
    users_chromium: UsersChromium, stream: Stream, proxy: Proxy
) -> None:
    tab = await hidden(users_chromium, proxy.url)
    async with stream.running():
        await stream.goes_on(tab)
        await tab.freeze(frozen=True)
        await stream.grows(400)
        await tab.freeze(frozen=False)
        await tab.to_front()
        await stream.goes_on(tab)
    await stream.arrives(tab)


_CONSUMER = """(async () => {
  const { connect } = await import("/assets/tocsin/index.js");
  window.client = await connect();
  window.bodies = [];
  await client.subscribe("shared", "g", ({ body }) => { bodies.push(body); }).opened;
})()"""


async def test_a_frozen_tab_gives_its_places_to_those_who_work(
    users_chromium: UsersChromium, proxy: Proxy
) -> None:
    """P8: at once, not when leases end (30 s); thawed, it is given its share again."""
    numbers = iter(range(1000))
    async with tocsin.connect(proxy.url) as client:
        await client.create_queue("shared", partitions=8)
        tab = await users_chromium.tab()
        await tab.visit(f"{proxy.url}/healthz")
        await tab.evaluate(_CONSUMER)
        await users_chromium.tab()
        async with client.subscribe("shared", "g") as working:
            handled: set[object] = set()

            async def work() -> None:
                async for message in working:
                    handled.add(message.body)
                    await message.ack()

            async def publish() -> set[int]:
                bodies = {next(numbers) for _ in range(64)}
                await client.publish_many("shared", [{"key": f"k{n}", "body": n} for n in bodies])
                return bodies

            async def shared() -> None:
                async with asyncio.timeout(30):
                    while not await tab.evaluate("bodies.length"):
                        await publish()
                        await asyncio.sleep(0.1)

            task = asyncio.create_task(work())
            await shared()
            await tab.freeze(frozen=True)
            published = await publish()
            await becomes(lambda: published <= handled, within_s=10)
            await tab.freeze(frozen=False)
            await tab.evaluate("void (bodies.length = 0)")
            await shared()
            task.cancel()

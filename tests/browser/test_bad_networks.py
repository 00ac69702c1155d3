"""A page's session on a bad network: it goes on by long poll and comes back, and what the page
consumes and reads has no gap, no repetition and no inversion (P1, P3, P10, R22).

The network is a proxy's, not the browser's offline switch, which leaves open sockets alive.
"""

from playwright.async_api import Browser, Page

from loadtests.faults.proxy import HELD, PASS, Proxy
from loadtests.server import Server
from tests.browser.house import Stream, blank, open_client, until_carried_by, watch


def hole(proxy: Proxy) -> None:
    """WebSockets that stand carry nothing any more, and new ones get no answer; nobody is told."""
    proxy.upgrades = "swallow"
    for link in proxy.links:
        if link.is_websocket:
            link.treat(up=HELD, down=HELD)


def healed(proxy: Proxy) -> None:
    """WebSockets pass again; those that stood when the hole came never do."""
    proxy.upgrades = "pass"


async def test_a_black_holed_session_goes_on_by_long_poll_and_returns(
    page: Page, stream: Stream, proxy: Proxy
) -> None:
    await watch(page, proxy.url)
    await until_carried_by(page, "websocket")
    session = await page.evaluate("client.sessionId")
    async with stream.running():
        await stream.goes_on(page)
        for _ in range(2):
            hole(proxy)
            await until_carried_by(page, "long-poll")
            await stream.goes_on(page)
            healed(proxy)
            await until_carried_by(page, "websocket")
            await stream.goes_on(page)
    await stream.arrives(page)
    assert await page.evaluate("client.sessionId") == session


async def test_a_page_that_never_gets_a_websocket_is_pushed_to_by_long_poll(
    page: Page, stream: Stream, proxy: Proxy
) -> None:
    proxy.upgrades = "refuse"
    assert await watch(page, proxy.url) == "long-poll"
    async with stream.running():
        await stream.goes_on(page)
    await stream.arrives(page)


async def test_everything_black_holed_goes_on_when_anything_passes_again(
    page: Page, stream: Stream, proxy: Proxy
) -> None:
    await watch(page, proxy.url)
    async with stream.running():
        await stream.goes_on(page)
        proxy.treat_all(up=HELD, down=HELD)
        await until_carried_by(page, None)
        proxy.treat_all(up=PASS, down=PASS)
        await stream.goes_on(page)
    await stream.arrives(page)


async def test_a_broker_killed_under_the_page_is_come_back_to(
    page: Page, stream: Stream, server: Server
) -> None:
    await watch(page, server.url)
    for _ in range(2):
        async with stream.running():
            await stream.goes_on(page)
            server.kill()
            await until_carried_by(page, None)
            server.start()
            await stream.goes_on(page)
    await stream.arrives(page)


async def test_a_duplicated_tab_does_not_take_the_session_of_the_first(
    browser: Browser, stream: Stream, server: Server
) -> None:
    """A duplicate has a copy of the first one's sessionStorage."""
    context = await browser.new_context(bypass_csp=True)
    one = await context.new_page()
    await watch(one, server.url, resume="the page")
    kept = await one.evaluate("JSON.stringify({...sessionStorage})")
    two = await context.new_page()
    await blank(two, server.url)
    await two.evaluate(
        "(kept) => Object.entries(JSON.parse(kept)).forEach((e) => sessionStorage.setItem(...e))",
        kept,
    )
    await open_client(two, resume="the page")
    assert await one.evaluate("client.sessionId") != await two.evaluate("client.sessionId")
    assert await one.evaluate("client.isConnected")

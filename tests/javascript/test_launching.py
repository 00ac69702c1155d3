"""The Chromium that tests share: for tests that are asynchronous and for those that are not."""

import asyncio

from loadtests.chromium import browsing


async def test_an_asynchronous_test_has_a_browser_of_its_own() -> None:
    async with browsing() as browser:
        page = await browser.new_page()
        await page.set_content("<title>Tocsin</title>")
        assert await page.title() == "Tocsin"


def test_what_ran_before_leaves_no_event_loop_behind() -> None:
    """Playwright's synchronous calls do, while their module lasts."""
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"

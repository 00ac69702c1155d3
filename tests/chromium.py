"""Chromium for synchronous tests; asynchronous ones use loadtests.chromium.browsing.

    from tests.chromium import chromium  # a fixture; in the conftest.py of the tests that use it

    def test_the_title(chromium: Browser) -> None:
        page = chromium.new_page()

One browser serves a module. Playwright's synchronous calls keep an event loop running in their
thread while they are in use, so such a module has no `async def test`.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from loadtests.chromium import options


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser for the tests of a module. Fails without Chromium."""
    launching = options()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launching)
        yield browser
        browser.close()

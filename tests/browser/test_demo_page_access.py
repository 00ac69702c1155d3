"""Getting into the demo page of a broker with a token: by a ticket, or by the token typed in."""

import re

import pytest
from playwright.async_api import Browser, expect
from tocsin.api.http import Http

from loadtests.server import Server
from tests.browser.conftest import TOKEN
from tests.browser.demo_page import visited

pytestmark = pytest.mark.asyncio(loop_scope="module")
REFUSED = re.compile("401")
"""What Chromium says of it by itself."""


async def address(guarded: Server) -> str:
    """As `tocsin ticket` prints it."""
    async with Http(guarded.url, token=TOKEN) as http:
        return f"{guarded.url}/demo#ticket={await http.ticket()}"


async def test_a_ticket_lets_in_once_and_leaves_the_address(
    chromium: Browser, guarded: Server
) -> None:
    where = await address(guarded)
    async with visited(chromium, where) as visit:
        assert visit.page.url == f"{guarded.url}/demo"
        assert await visit.page.evaluate("[document.cookie, location.hash]") == ["", ""]
        kept = "JSON.stringify([{...localStorage}, {...sessionStorage}])"
        assert where.partition("=")[2] not in await visit.page.evaluate(kept)
        await visit.publish("hello", "from a guest")
        await expect(visit.at("publish-said")).to_contain_text("acknowledged after")
        await visit.at("websocket").uncheck()
        await visit.is_carried_by("long-poll")
        await visit.at("websocket").check()
        await visit.is_carried_by("websocket")
        await visit.page.reload()  # the cookie holds
        await visit.is_carried_by("websocket")
        await visit.is_clean()
    async with visited(chromium, where, is_ready=False) as visit:
        await expect(visit.at("access-said")).to_contain_text("That ticket is used up")
        await expect(visit.at("access-said")).to_contain_text("Get another, or enter the token")
        assert visit.page.url == f"{guarded.url}/demo"
        await visit.is_clean(expected=REFUSED)


async def test_a_typed_token_lets_in_and_a_wrong_one_gets_advice(
    chromium: Browser, guarded: Server
) -> None:
    async with visited(chromium, f"{guarded.url}/demo", is_ready=False) as visit:
        await expect(visit.at("step-1")).to_be_hidden()
        for wrong in ("wrong", "", "päss wörd", "<img src=x onerror=planted=1>", "x" * 10_000):
            await visit.at("access-token").fill(wrong)
            await visit.at("access-submit").click()
            said = visit.at("access-said")
            await expect(said).to_contain_text("Look at its TOCSIN_TOKEN and try again")
            await expect(visit.at("access-token")).to_have_attribute("aria-invalid", "true")
            await expect(visit.at("access-submit")).to_be_enabled()
        assert await visit.page.evaluate("typeof planted") == "undefined"
        await visit.at("access-token").fill(TOKEN)
        await visit.at("access-token").press("Enter")
        await visit.is_carried_by("websocket")
        await expect(visit.at("step-1")).to_be_visible()
        assert TOKEN not in await visit.page.content()
        await visit.is_clean(expected=REFUSED)

"""Who has few rights: both pages say what is not allowed, in words, and break nowhere."""

import asyncio

import httpx2
import pytest
import tocsin
from playwright.async_api import Browser, expect

from gateway.admin import client as admin
from loadtests.server import Server
from tests.browser.conftest import TOKEN
from tests.browser.console_house import console

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def ticket(server: Server, *rights: str) -> str:
    """Lets in somebody with these rights."""
    wanted: dict[str, object] = {"name": "ann", "rights": list(rights)}
    made = await asyncio.to_thread(admin.create_token, server.data_dir, wanted)
    async with httpx2.AsyncClient(base_url=server.url) as http:
        headers = {"Authorization": f"Bearer {made['token']}"}
        return str((await http.post("/v1/tickets", headers=headers)).json()["ticket"])


async def test_the_pages_say_what_is_not_allowed(chromium: Browser, guarded: Server) -> None:
    async with tocsin.connect(guarded.url, token=TOKEN) as client:
        for name in ("orders", "feed"):
            await client.create_queue(name, partitions=1)
    text = await ticket(guarded, "consume:orders")
    async with console(chromium, guarded.url) as view:
        await view.page.goto(f"{guarded.url}/console#ticket={text}")
        await expect(view.at("queue-name", queue="orders")).to_be_visible()
        await expect(view.at("queue-name", queue="feed")).to_have_count(0)
        await view.page.goto(f"{guarded.url}/console#/queues/orders/messages")
        await expect(view.page.locator("#errors")).to_contain_text("right to read, on the queue")
        await expect(view.page.locator("#link")).to_contain_text("not allowed")
        await view.page.goto(f"{guarded.url}/demo")
        failure = view.page.get_by_test_id("failure")
        await expect(failure).to_contain_text("right to manage, on the queue 'machine'")
        await expect(view.page.get_by_role("heading")).to_have_text("You may not take part here")
        await expect(view.page.locator("#connection-text")).to_have_text("Not allowed")
        assert all("403" in complaint for complaint in view.complaints), view.complaints
        view.complaints.clear()  # Chromium notes each 403

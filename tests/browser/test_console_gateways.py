"""The console of a cluster: it says whose sessions and rates it shows."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import tocsin
from playwright.async_api import Browser, expect

from loadtests.server import Server
from tests.browser.console_house import console
from tests.histories.redis_gateways import a_server, emptied
from tests.waiting import becomes


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[Server]]:
    """Two gateways over one store."""
    with ExitStack() as stack:
        url = await emptied(stack.enter_context(a_server()))
        settings = {"TOCSIN_STORAGE": url, "TOCSIN_ENCRYPTION": "off"}
        yield [
            stack.enter_context(Server(tmp_path / name, level="warning", settings=settings))
            for name in "ab"
        ]


async def test_the_console_names_its_gateway_and_the_others(
    browser: Browser, servers: list[Server]
) -> None:
    one, two = servers
    async with tocsin.connect(two.url) as client, console(browser, one.url) as view:
        session = client.session_id

        async def know_each_other() -> bool:
            known = [len((await at.get("/v1/sessions"))["gateways"]) for at in (view, behind)]
            return known == [2, 2]

        async with console(browser, two.url) as behind:
            await becomes(know_each_other)
        said = await view.get("/v1/sessions")
        here = said["gateway"]
        (other,) = [name for name in said["gateways"] if name != here]
        await view.open("/sessions")
        await expect(view.at("session-empty")).to_have_text("Nobody is at this gateway.")
        await expect(view.at("gateways")).to_contain_text(f"those of the gateway {here}")
        await expect(view.at("gateways")).to_contain_text(f"1 other gateway ({other}) has its own")
        async with console(browser, two.url) as behind:
            await behind.open("/sessions")
            await expect(behind.at("gateways")).to_contain_text(f"of the gateway {other}")
            await expect(behind.at("session-client", session=session)).to_be_visible()

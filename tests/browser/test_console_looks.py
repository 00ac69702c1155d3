"""Every view of the console, wide and narrow, light and dark: nothing that axe finds, nothing that
stands out at the sides, nothing that jumps, nothing that Chromium complains of."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final, Literal

import pytest
import pytest_asyncio
import tocsin
from playwright.async_api import Browser, expect

from loadtests.server import Server
from tests.browser.accessibility import complaints
from tests.browser.console_house import Console, console
from tests.browser.console_state import Busy

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHIFT_MAX = 0.1
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
VIEWS = {
    "queues": "/queues",
    "queue": "/queues/work",
    "queue-paused": "/queues/resting",
    "queue-empty": "/queues/empty",
    "group": "/queues/work/groups/billing",
    "parked": "/queues/work/groups/billing/parked",
    "messages": "/queues/work/messages?group=billing",
    "scheduled": "/queues/later/scheduled",
    "dead-letters": "/queues/dying/dead-letters",
    "sessions": "/sessions",
    "clusters": "/clusters",
    "explain-form": "/explain",
    "explain": "/explain?queue=work&key=k4",
}
_SHIFTS = """() => {
  globalThis.shifted = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) shifted += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
}"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def busy(broker: Server) -> AsyncIterator[Busy]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(tocsin.connect(broker.url))
        busy = Busy(broker, stack, client)
        await busy.first()
        yield busy


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("width", [1280, 390])
async def test_every_view_is_fit_to_be_used(chromium: Browser, broker: Server, width: int) -> None:
    async def look_at(names: list[str]) -> None:
        size = {"width": width, "height": 900}
        async with console(chromium, broker.url, viewport=size) as view:
            await view.page.add_init_script(f"({_SHIFTS})()")
            for name in names:
                await view.open(VIEWS[name])
                if name in ("messages", "scheduled", "dead-letters"):
                    await view.page.locator("details summary").first.click()
                await _check(view, name)

    names = list(VIEWS)
    await asyncio.gather(look_at(names[::2]), look_at(names[1::2]))


async def _check(view: Console, name: str) -> None:
    """What is on screen, in both schemes."""
    await expect(view.page.locator("#main")).not_to_have_attribute("aria-busy", "true")
    for scheme in SCHEMES:
        await view.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = await complaints(view.page)
        assert not found, f"{name}, {scheme}: {found}"
        await view.fits(f"{name}, {scheme}")
        await view.shoot(name)
    if name == "sessions":
        lingering = view.page.get_by_test_id("session-transport").filter(has_text="lingering")
        await expect(lingering).to_have_count(1)
    assert await view.page.evaluate("shifted") < SHIFT_MAX, name


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("width", [1280, 390])
async def test_dialogs_and_errors_are_fit_to_be_used(
    chromium: Browser, broker: Server, width: int
) -> None:
    async with console(chromium, broker.url, viewport={"width": width, "height": 900}) as view:
        await view.page.add_init_script(f"({_SHIFTS})()")
        await view.open("/queues/work")
        await view.at("queue-purge").click()
        await _check(view, "purge")
        await view.at("purge-cancel").click()
        await view.page.route("**/v1/queues/work", lambda route: route.abort())
        await expect(view.at("error-what")).to_be_visible()
        await _check(view, "error")
        await view.page.evaluate("location.hash = '#/nothing/here'")
        await expect(view.at("nowhere")).to_be_visible()
        await _check(view, "nowhere")
        view.complaints.clear()

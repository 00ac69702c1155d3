"""How the demo page looks: for axe, at two widths, in both colour schemes. Screenshots are kept in
build/screenshots."""

import re
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.async_api import Browser, expect

from loadtests.server import Server
from tests.browser.accessibility import complaints
from tests.browser.demo_page import Host, visited
from tests.layout.tree import ROOT

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PRESSED: Final = {"light": "false", "dark": "true"}
SCREENSHOTS: Final = ROOT / "build/screenshots"


def screenshot(page: str, width: int, scheme: str) -> Path:
    """Where it is kept."""
    return SCREENSHOTS / f"{page}-{width}-{scheme}.png"


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_page_is_accessible_fits_and_does_not_jump(
    chromium: Browser, broker: Server, host: Host, width: int
) -> None:
    async with (
        host.running(),
        visited(
            chromium, f"{broker.url}/demo",
            viewport={"width": width, "height": 800}, color_scheme="light",
        ) as visit,
    ):  # fmt: skip
        await visit.moves()
        await visit.at("worker-add").click()
        await visit.publish("hello", "a message")
        await expect(visit.at("publish-said")).to_contain_text("acknowledged")
        await visit.lane("memory").get_by_test_id("park").click()
        await visit.lane("load").get_by_test_id("nack").click()
        await expect(visit.lane("memory")).to_have_attribute("data-state", "parked")
        for step in range(1, 8):  # as somebody who reads on
            await visit.at(f"step-{step}").scroll_into_view_if_needed()
            await expect(visit.at(f"step-{step}")).to_be_in_viewport()
        await visit.page.evaluate("scrollTo(0, 0)")
        for scheme in SCHEMES:
            await visit.page.emulate_media(color_scheme=scheme)
            await expect(visit.at("theme")).to_have_attribute("aria-pressed", PRESSED[scheme])
            # A colour in the middle of its change has the contrast of neither scheme.
            await visit.page.evaluate(
                "Promise.allSettled(document.getAnimations()"
                ".filter((one) => one instanceof CSSTransition).map((one) => one.finished))"
            )
            found = await complaints(visit.page)
            assert not found, found
            path = screenshot("demo", width, scheme)
            await visit.page.screenshot(path=path, full_page=True, animations="disabled")
            assert path.stat().st_size > 0
        await visit.is_clean()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_form_that_asks_for_a_token_is_accessible(
    chromium: Browser, guarded: Server, scheme: Literal["light", "dark"]
) -> None:
    async with visited(
        chromium, f"{guarded.url}/demo", is_ready=False,
        viewport={"width": 390, "height": 800}, color_scheme=scheme,
    ) as visit:  # fmt: skip
        await expect(visit.at("access-token")).to_be_focused()
        found = await complaints(visit.page)
        assert not found, found
        await visit.is_clean(expected=re.compile("401"))
        path = screenshot("demo-sign-in", 390, scheme)
        await visit.page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size > 0

"""Whatever names, keys, bodies, headers and reasons are, the console shows them as text."""

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
import tocsin
from playwright.async_api import Browser, expect

from loadtests.server import Server
from tests.browser.console_house import Console, console, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUEUE = "q" * 128
GROUP = "g" * 128
MARKUP = "<img src=x onerror='window.ran=1'><script>window.ran=2</script><b>bold</b>"
TEXTS = (
    MARKUP,
    "javascript:window.ran=3//\\\"'`${window.ran=4}{{window.ran=5}}",
    "k" * 1000,
    "\N{GRINNING FACE}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}" * 20,
    "שלום עולם מימין לשמאל",
    "turned \u202e round \u2066 and \x1b[31m red \x07",
    "two\nlines\tand a tab",
)
LONG = "<i>" * 3334
BINARY = bytes(range(256)) * 4


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(broker: Server) -> AsyncIterator[tocsin.Client]:
    """A queue of such messages; each key is parked, and the reason is its text."""
    settings = tocsin.QueueSettings(partitions=1, attempts_max=1, on_exhausted="park", lease_s=600)
    async with tocsin.connect(broker.url) as client:
        await client.create_queue(QUEUE, **settings)
        for text in TEXTS:
            body = {text: [text, LONG]}
            headers = {"note": text[:200]}
            await client.publish(QUEUE, body, key=text, headers=headers, content_type="text/<b>")
        await client.publish(QUEUE, BINARY, key="binary")
        await client.publish(QUEUE, "y" * 30_000, key="long")
        async with client.subscribe(QUEUE, GROUP, auto_extend=False) as messages:
            for _ in TEXTS:
                message = await asyncio.wait_for(anext(messages), 30)
                await message.nack(reason=str(message.key)[:200])

            async def parked() -> None:
                assert (await client.group(QUEUE, GROUP))["keys_parked"] == len(TEXTS)

            await eventually(parked, "all of them are parked")
            yield client


def _addresses() -> list[str]:
    explained = [f"/explain?queue={QUEUE}&key={quote(text, safe='')}" for text in TEXTS]
    place = f"/queues/{QUEUE}/groups/{GROUP}"
    return [
        "/queues", f"/queues/{QUEUE}", place, f"{place}/parked", f"/queues/{QUEUE}/messages",
        f"/queues/{QUEUE}/messages?group={GROUP}", "/sessions", *explained,
        f"/sessions?filter={quote(MARKUP)}", f"/queues/{QUEUE}/messages?key={quote(MARKUP)}",
        f"/queues/{QUEUE}/dead-letters?reason={quote(MARKUP)}",
    ]  # fmt: skip


@pytest.mark.usefixtures("client")
async def test_nothing_of_it_is_run_and_nothing_breaks_the_page(
    chromium: Browser, broker: Server
) -> None:
    async with console(chromium, broker.url) as view:
        view.page.on("dialog", lambda dialog: view.complaints.append(dialog.message))
        for number, address in enumerate(_addresses()):
            await view.open(address)
            opening = "for (const one of document.querySelectorAll('details')) one.open = true"
            await view.page.evaluate(opening)
            for width in (1280, 390):
                await view.page.set_viewport_size({"width": width, "height": 800})
                await view.fits(f"{address}, {width}")
                if number in (2, 3, 4):
                    await view.shoot(f"foreign-{number}")
            made = "#main img, #main script, #main b:not([data-testid]), #main i:not([class])"
            assert await view.page.locator(made).count() == 0, address
            assert await view.page.evaluate("window.ran") is None, address


async def test_bodies_keys_headers_and_reasons_are_what_they_were(
    chromium: Browser, broker: Server, client: tocsin.Client
) -> None:
    async with console(chromium, broker.url) as view:
        await view.open(f"/queues/{QUEUE}/messages")
        found = view.page.locator('details[data-testid="message"]')
        await expect(found).to_have_count(len(TEXTS) + 2)
        await view.page.evaluate(
            "for (const one of document.querySelectorAll('details')) one.open = true"
        )
        await expect(view.page.locator('[data-testid="message-body"]')).to_have_count(
            len(TEXTS) + 2
        )
        for offset, text in enumerate(TEXTS):
            await _same(view, offset, text)
        body = view.at("message-body", offset=len(TEXTS))
        await expect(body).to_contain_text("000000  00 01 02 03")
        await expect(view.at("message-form", offset=len(TEXTS))).to_contain_text("binary")
        long = view.at("message-body", offset=len(TEXTS) + 1)
        assert len(await long.text_content() or "") == 20_000
        await view.at("message-whole", offset=len(TEXTS) + 1).click()
        assert len(await long.text_content() or "") == 30_002
        await view.open(f"/queues/{QUEUE}/groups/{GROUP}/parked")
        keys = await view.page.locator('[data-testid="parked-key"]').evaluate_all(
            "keys => keys.map((key) => key.dataset.key)"
        )
        assert sorted(keys) == sorted(TEXTS)
        assert (await client.parked_keys(QUEUE, GROUP))["keys_parked"] == len(TEXTS)


async def _same(view: Console, offset: int, text: str) -> None:
    body = await view.at("message-body", offset=offset).text_content()
    assert json.loads(body or "") == {text: [text, LONG]}
    shown = await view.at("message-full-key", offset=offset).text_content() or ""
    plain = "".join(sign for sign in text if sign.isprintable())
    kept = "".join(sign for sign in shown if sign in plain)
    assert [s for s in kept if s != " "] == [s for s in plain if s != " "]
    assert not any(ord(sign) < 32 or sign in "\u202e\u2066" for sign in shown)
    key = view.at("message-key", offset=offset)
    assert await key.get_attribute("data-key") == text
    assert await key.get_attribute("dir") == "auto"

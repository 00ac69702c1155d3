"""What people type, what others publish, and what servers answer that are no broker: the demo page
shows text, or what to do; it runs nothing and is never blank."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import tocsin
from playwright.async_api import Browser, Route, expect

from loadtests.server import Server
from tests.browser.demo_page import GONE, KEYS, MS, QUEUE, Host, Visit, visited

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARKUP: Final = (
    "<script>planted=1</script><img src=x onerror=planted=2><svg onload=planted=3>"
    "<iframe srcdoc='<script>parent.planted=4</script>'></iframe><a href='javascript:planted=5'>x"
)
TEXTS: Final = (
    MARKUP,
    "\N{FIRE}\N{FAMILY}\N{ZERO WIDTH JOINER}\N{GRINNING FACE}",
    "\u05e9\u05dc\u05d5\u05dd \u202e cba",
    "\"'`</textarea></style>&lt;&amp;",
)


async def nothing_ran(visit: Visit) -> None:
    """No element of anybody else's stands in the page, and none of it was executed."""
    assert await visit.page.evaluate("typeof planted") == "undefined"
    foreign = "img, iframe, svg[onload], a[href^='javascript'], body script"
    await expect(visit.page.locator(foreign)).to_have_count(0)


async def test_what_is_typed_is_published_and_shown_as_text(visit: Visit) -> None:
    for text in TEXTS:
        await visit.publish(text, text)
        row = visit.at("way").first
        await expect(row.locator(".way-text")).to_have_text(shown(text, 120))
        await expect(row.locator(".way-key")).to_have_text(shown(text, 80))
        await expect(row.locator('[data-stage="acked"]')).to_have_text(MS)
        await expect(visit.at("lane").filter(has_text=text[:4])).to_have_count(1)
    await nothing_ran(visit)
    await visit.is_clean()


def shown(text: str, chars_max: int) -> str | re.Pattern[str]:
    """As the page shows it: what turns the direction of text is a dot, what is long is cut."""
    visible = text.replace("\u202e", "\u00b7")
    if len(visible) <= chars_max:
        return visible
    return re.compile(re.escape(visible[:chars_max]) + f"\u2026 .{len(text)} characters.")


async def test_a_key_of_1025_bytes_is_refused_and_one_of_1024_is_not(
    visit: Visit, client: tocsin.Client
) -> None:
    for key, count in (("k" * 10_000, "10,000"), ("k" * 1025, "1,025"), ("\u00e9" * 513, "1,026")):
        before = (await client.queue(QUEUE))["counters"]["refused"]
        await visit.publish(key, "x")
        await expect(visit.at("publish-said")).to_have_text(
            re.compile(f"{count} bytes, and may have 1,024: shorten it")
        )
        await expect(visit.at("publish-key")).to_have_attribute("aria-invalid", "true")
        assert (await client.queue(QUEUE))["counters"]["refused"] == before
        await expect(visit.at("way")).to_have_count(0)  # nothing was sent
    for key in ("k" * 1024, "\u00e9" * 512):
        await visit.publish(key, "x")
        await expect(visit.at("publish-said")).to_contain_text("acknowledged after")
        assert (await client.explain(QUEUE, key))["queue"] == QUEUE
    await visit.is_clean()


async def test_what_others_publish_is_shown_whatever_it_is(
    visit: Visit, client: tocsin.Client
) -> None:
    bodies: dict[str, Any] = {
        "bytes": bytes(range(40)), "empty": b"", "null": None, "deep": [[[[{"a": [MARKUP]}]]]],
        "number": 12.5, "huge": 10**300, "wrong": {"busy_percent": MARKUP}, MARKUP: MARKUP,
        "proto": {"__proto__": {"x": 1}, "toString": 1}, "long": "y" * 100_000, "none": "",
    }  # fmt: skip
    for key, body in bodies.items():
        await client.publish(QUEUE, body, key=key)
    await client.publish(QUEUE, "without a key")
    for text in ("binary, 40 bytes: 00 01 02", "without a key", "empty text", "100,000 characters"):
        await expect(visit.at("ways")).to_contain_text(text)
    await expect(visit.figure("number")).to_contain_text("12.5")
    await expect(visit.figure("bytes")).to_contain_text("binary, 40 bytes")
    await visit.moves()
    await nothing_ran(visit)
    await visit.is_clean()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, "\x00garbage"), (200, "<html><script>planted=1</script>"), (200, "[]"), (500, "oops"),
     (503, '{"code": "draining", "detail": "going down", "retry": true}'), (204, "")],
)  # fmt: skip
async def test_a_server_that_is_no_broker_is_reported_with_what_to_do(
    chromium: Browser, broker: Server, host: Host, status: int, body: str
) -> None:
    async def answer(route: Route) -> None:
        await route.fulfill(status=status, body=body, content_type="text/html")

    async with answered(chromium, broker, answer) as visit:
        failure = visit.at("failure")
        await expect(failure).to_contain_text(re.compile(r"\w{3,}.*[.] .*\w{3,}.*[.]"))
        await expect(visit.at("failure-again")).to_be_visible()
        await nothing_ran(visit)
        await visit.page.unroute("**/v1/**")
        await visit.at("failure-again").click()
        await visit.is_carried_by("websocket")


async def test_a_server_that_closes_at_once_is_reported_and_tried_again(
    chromium: Browser, broker: Server, host: Host
) -> None:
    async with answered(chromium, broker, lambda route: route.abort()) as visit:
        await expect(visit.at("failure")).to_contain_text("Look whether it still runs")
        await expect(visit.at("connection")).to_have_attribute("data-state", "gone")
        await visit.page.unroute("**/v1/**")
        await visit.is_carried_by("websocket")  # by itself


@asynccontextmanager
async def answered(
    browser: Browser, broker: Server, answer: Callable[[Route], Awaitable[None]]
) -> AsyncIterator[Visit]:
    """The page, where that is what its API answers."""
    async with visited(browser, "about:blank", is_ready=False) as visit:
        await visit.page.route("**/v1/**", answer)
        await visit.page.goto(f"{broker.url}/demo")
        yield visit


async def test_garbage_in_answers_of_later_leaves_the_page_as_it_is(visit: Visit) -> None:
    asked = asyncio.Event()

    async def answer(route: Route) -> None:
        asked.set()
        await route.fulfill(status=200, body="<html>", content_type="text/html")

    await visit.page.route("**/v1/queues/**", answer)
    await asyncio.wait_for(asked.wait(), 30)
    await visit.moves()
    await visit.at("worker-add").click()
    await expect(visit.at("workers-said")).to_contain_text(re.compile(r"\w+"))
    await visit.page.unroute("**/v1/queues/**")
    await expect(visit.figure(KEYS[0])).to_be_visible()
    await visit.moves()
    await visit.is_clean(expected=GONE)

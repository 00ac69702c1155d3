"""Who may look at the console, and what it says while the broker does not answer, or something else
answers for it."""

from collections.abc import AsyncIterator

import httpx2
import pytest
import pytest_asyncio
import tocsin
from playwright.async_api import Browser, Route, expect

from loadtests.server import Server
from tests.browser.conftest import TOKEN
from tests.browser.console_house import Console, console

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def locked(guarded: Server) -> Server:
    """A broker that wants a token, with a queue."""
    async with tocsin.connect(guarded.url, token=TOKEN) as client:
        await client.create_queue("orders", partitions=1)
    return guarded


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(broker: Server) -> AsyncIterator[tocsin.Client]:
    async with tocsin.connect(broker.url) as client:
        await client.create_queue("orders", partitions=1)
        await client.publish_many("orders", [{"body": n} for n in range(3)])
        yield client


async def ticket(url: str) -> str:
    async with httpx2.AsyncClient(base_url=url) as http:
        answer = await http.post("/v1/tickets", headers={"Authorization": f"Bearer {TOKEN}"})
        return str(answer.json()["ticket"])


async def test_a_ticket_lets_in_once_and_leaves_the_address(
    chromium: Browser, locked: Server
) -> None:
    text = await ticket(locked.url)
    async with console(chromium, locked.url) as view:
        await view.page.goto(f"{locked.url}/console#ticket={text}")
        await expect(view.at("queue-name", queue="orders")).to_be_visible()
        assert text not in view.page.url
        assert "ticket" not in view.page.url
        await view.page.reload()
        await expect(view.at("queue-name", queue="orders")).to_be_visible()
    async with console(chromium, locked.url) as view:
        await view.page.goto(f"{locked.url}/console#ticket={text}")
        await expect(view.at("access-said")).to_contain_text("That ticket is used up")
        view.complaints.clear()  # Chromium notes each 401


async def test_a_wrong_token_is_refused_and_the_right_one_leads_to_where_one_wanted(
    chromium: Browser, locked: Server
) -> None:
    async with console(chromium, locked.url) as view:
        await view.page.goto(f"{locked.url}/console#/queues/orders")
        await expect(view.page.locator("#content")).to_be_hidden()
        for wrong in ("wrong", TOKEN + "x", "no header \N{SNOWMAN}"):
            await view.at("access-token").fill(wrong)
            await view.at("access-submit").click()
            await expect(view.at("access-said")).to_contain_text("not this broker's token")
            await expect(view.at("access-token")).to_have_attribute("aria-invalid", "true")
            await view.at("access-token").fill("")
        await view.shoot("sign-in")
        await view.at("access-token").fill(TOKEN)
        await view.at("access-submit").click()
        await expect(view.page.locator("h1").last).to_have_text("Queue orders")
        assert not any(TOKEN in one["value"] for one in await view.page.context.cookies())
        assert await view.page.evaluate("document.cookie") == ""
        await view.page.context.clear_cookies()
        await expect(view.at("access-form")).to_be_visible()
        await view.at("access-token").fill(TOKEN)
        await view.at("access-submit").click()
        await expect(view.at("queue-depth")).to_be_visible()
        await view.answered()
        view.complaints.clear()


async def test_a_broker_that_is_killed_leaves_its_figures_and_comes_back(
    chromium: Browser, server: Server
) -> None:
    async with console(chromium, server.url) as view:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders", partitions=1)
            await client.publish_many("orders", [{"body": n} for n in range(3)])
        await view.open("/queues/orders")
        depth = view.at("queue-depth")
        await expect(depth).to_have_attribute("data-value", "3")
        server.kill()
        await expect(view.at("link-state")).to_have_text("old figures")
        await expect(view.at("error-what")).to_have_text("The broker cannot be reached.")
        await expect(view.at("error-advice")).to_contain_text("See whether it runs")
        await expect(view.at("error-age")).to_contain_text("The figures are those of")
        await expect(view.page.locator("#main")).to_have_class("is-old")
        await expect(depth).to_have_attribute("data-value", "3")
        await expect(view.at("broker-state")).to_have_text("broker: not answering")
        await view.shoot("broker-gone")
        server.start()
        await view.asks_again()
        await view.answered()
        await expect(view.at("error")).to_be_hidden()
        await expect(view.page.locator("#main")).not_to_have_class("is-old")
        await expect(depth).to_have_attribute("data-value", "3")
        async with tocsin.connect(server.url) as client:
            await client.publish("orders", "one more")
        await expect(depth).to_have_attribute("data-value", "4")
        view.complaints.clear()  # Chromium notes each request that failed


_HTML = "<html><script>window.ran = 1</script><h1>502 Bad Gateway</h1></html>"


@pytest.mark.parametrize(
    ("status", "body", "what"),
    [
        (200, _HTML, "is not what a Tocsin broker says"),
        (502, _HTML, "(HTTP 502) is not what a Tocsin broker says"),
        (200, "\x00\x01{", "is not what a Tocsin broker says"),
        (200, "", "without any content"),
        (200, "[]", "is not what a Tocsin broker says"),
        (200, "{}", "The broker's answer cannot be shown"),
        (200, '{"queues": {"a": 1}}', "The broker's answer cannot be shown"),
        (200, '{"queues": [null]}', "The broker's answer cannot be shown"),
        (500, '{"detail": 7}', "(HTTP 500) is not what a Tocsin broker says"),
        (503, '{"code": "storage_unavailable", "detail": "the disk", "retry": true}', "The disk."),
        (0, "", "The broker cannot be reached."),
    ],
)
@pytest.mark.usefixtures("client")
async def test_what_is_no_answer_is_said_and_leaves_the_figures(
    chromium: Browser, broker: Server, status: int, body: str, what: str
) -> None:
    async with console(chromium, broker.url) as view:
        await view.open("/queues")
        depth = view.at("queue-depth", queue="orders")
        await expect(depth).to_have_attribute("data-value", "3")

        async def answer(route: Route) -> None:
            if status:
                await route.fulfill(status=status, body=body, content_type="text/html")
            else:
                await route.abort("connectionreset")

        await view.page.route("**/v1/queues*", answer)
        await view.asks_again()
        await expect(view.at("error-what")).to_contain_text(what)
        assert await view.at("error-advice").text_content()
        await expect(view.at("link-state")).to_have_text("old figures")
        await expect(depth).to_have_attribute("data-value", "3")
        assert await view.page.evaluate("window.ran") is None
        await view.page.unroute("**/v1/queues*")
        await view.asks_again()
        await view.answered()
        await expect(view.at("error")).to_be_hidden()
        view.complaints.clear()


async def test_a_page_that_nobody_sees_asks_nothing(
    chromium: Browser, broker: Server, client: tocsin.Client
) -> None:
    async with console(chromium, broker.url) as view:
        await view.page.clock.install()
        asked: list[str] = []
        view.page.on("request", lambda request: asked.append(request.url))
        await view.open("/queues")
        await hide(view, True)
        await expect(view.at("link-state")).to_have_text("resting")
        asked.clear()
        await view.page.clock.run_for(120_000)
        assert asked == []
        await client.publish("orders", "unseen")
        depth = (await client.queue("orders"))["depth"]
        await hide(view, False)
        await expect(view.at("queue-depth", queue="orders")).to_have_attribute(
            "data-value", str(depth)
        )
        assert asked


async def hide(view: Console, is_hidden: bool) -> None:
    """As the browser tells a page whose tab goes to the back, or comes to the front."""
    await view.page.evaluate(
        """(isHidden) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )

"""A broker, a proxy before it, a queue, a page in Chromium, and somebody who publishes."""

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import tocsin
from playwright.async_api import Browser, Page

from gateway.demo.demo import SETTINGS_OF_QUEUE
from loadtests.chromium import browsing
from loadtests.faults.proxy import Proxy
from loadtests.server import Server
from tests.browser import demo_page
from tests.browser.demo_page import Visit, visited
from tests.browser.house import GROUP, QUEUE, Stream
from tests.memory import in_memory, tmp_path

__all__ = ["tmp_path"]

TOKEN = "the-token-of-these-tests"
GUARDED = (
    "-c",
    f"import os; os.environ['TOCSIN_TOKEN'] = {TOKEN!r}; "
    "from gateway.cli.serve import serve; serve()",
)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest.fixture
async def page(browser: Browser) -> Page:
    """Return a page where any script may run."""
    return await browser.new_page(bypass_csp=True)


@pytest.fixture
async def stream(server: Server) -> AsyncIterator[Stream]:
    async with tocsin.connect(server.url) as client:
        await client.create_queue(QUEUE, partitions=4, retention_s=3600)
        await client.create_group(QUEUE, GROUP)
        yield Stream(client)


@pytest.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as proxy:
        yield proxy


# --- For the pages that the broker serves: one browser and one broker a module --------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    """Yield one browser for the tests of a module, whose loop is the module's."""
    async with browsing() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker() -> AsyncIterator[Server]:
    """Yield one broker for the tests of a module."""
    with in_memory() as folder, Server(folder / "data", level="warning") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded() -> AsyncIterator[Server]:
    """A broker with a token."""
    with (
        in_memory() as folder,
        Server(folder / "data", level="warning", command=GUARDED) as server,
    ):
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(broker: Server) -> AsyncIterator[tocsin.Client]:
    async with tocsin.connect(broker.url) as client:
        await client.create_queue(demo_page.QUEUE, **SETTINGS_OF_QUEUE)
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def host(client: tocsin.Client) -> demo_page.Host:
    """Of a broker on which nobody has seen the page yet."""
    with contextlib.suppress(tocsin.GroupNotFound):
        await client.delete_group(demo_page.QUEUE, demo_page.GROUP)
    return demo_page.Host(client)


@pytest_asyncio.fixture(loop_scope="module")
async def visit(chromium: Browser, broker: Server, host: demo_page.Host) -> AsyncIterator[Visit]:
    """The page, with figures that move."""
    async with host.running(), visited(chromium, f"{broker.url}/demo") as visit:
        await visit.moves()
        yield visit

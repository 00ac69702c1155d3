"""The web page of the README, as it stands there: only what its two addresses lead to is another
broker and another web server."""

import http.server
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import tocsin
from playwright.async_api import expect

from loadtests.chromium import browsing
from loadtests.server import SERVE, Server
from tests.layout.tree import text

README: Final = text(Path("README.md"))
WEB: Final = "http://127.0.0.1:3000"
LINES_MAX: Final = 10
PAGE: Final = "".join(re.findall(r"^```html\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker that lets the pages of the README's web server in."""
    with Server(tmp_path / "data", command=(*SERVE, "--origins", WEB)) as server:
        yield server


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Python's web server, in the folder of orders.html."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "orders.html").write_text(PAGE)
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield str(server.server_address[1])
        server.shutdown()
        thread.join()


def test_the_page_is_short() -> None:
    assert 5 < len(PAGE.splitlines()) <= LINES_MAX


async def test_the_page_of_the_readme_shows_orders(server: Server, web: str) -> None:
    elsewhere = f"MAP 127.0.0.1:8080 127.0.0.1:{server.port}, MAP 127.0.0.1:3000 127.0.0.1:{web}"
    async with (
        tocsin.connect(server.url) as client,
        browsing([f"--host-resolver-rules={elsewhere}"]) as browser,
    ):
        await client.create_queue("orders", retention_s=86_400)
        await client.publish("orders", {"total": 12}, key="user-7")
        page = await browser.new_page()
        await page.goto(f"{WEB}/orders.html")
        lines = page.locator("#orders li")
        await expect(lines).to_have_text(["an order of 12"], timeout=30_000)
        await client.publish("orders", {"total": 13}, key="user-8")
        await client.publish("orders", {"total": 14}, key="user-7")
        await expect(lines).to_have_text(["an order of 12", "an order of 14"], timeout=30_000)

"""The JavaScript client in Chromium: the same modules replay the same transcripts there."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.javascript.conftest import REPLAYS, Result, check
from tests.layout.tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WAIT_MS = 60_000
SCRIPT = """async (names) => {
  const { replayed } = await import("/javascript/test/conformance/run.js");
  const tocsin = await import("/javascript/src/index.js");
  const results = [];
  for (const name of names) {
    const text = await (await fetch(`/conformance/${name}.jsonl`)).text();
    results.push(...(await replayed(name, text, tocsin)));
  }
  return results;
}"""
START = f"(names) => {{ ({SCRIPT})(names).then((found) => {{ window.found = found; }}); }}"
"""And do not wait: a page that hangs would keep the test for ever."""


class Files(SimpleHTTPRequestHandler):
    """The files of clients/, and an empty page at /."""

    extensions_map = {".js": "text/javascript", ".jsonl": "text/plain; charset=utf-8"}

    def do_GET(self) -> None:
        """A file, or the page."""
        if self.path != "/":
            super().do_GET()
            return
        page = b'<!doctype html><html lang="en"><title>Transcripts</title></html>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Where clients/ is served."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Files, directory=str(ROOT / "clients"))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def results(chromium: "Browser", origin: str) -> dict[tuple[str, str], Result]:
    """Of every replay."""
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(origin)
    page.evaluate(START, sorted({name for name, _ in REPLAYS}))
    page.wait_for_function("window.found", timeout=WAIT_MS)
    found: list[Result] = page.evaluate("window.found")
    page.close()
    assert errors == []
    return {(one["name"], one["transport"]): one for one in found}


@pytest.mark.parametrize(("name", "transport"), REPLAYS)
def test_the_client_says_what_the_transcript_shows(
    name: str, transport: str, results: dict[tuple[str, str], Result]
) -> None:
    check(name, transport, results)

"""A page that goes on over its reloads, in Chromium: the session stays, and of no key a message is
missing, handled twice or out of order, by a consumer and by a reader."""

import asyncio
import json
from collections import defaultdict
from typing import Any, Final

import pytest
import tocsin

from loadtests.chromium import browsing
from loadtests.server import Server

KEYS, COUNT, RELOADS = 10, 1000, 3
WAIT_MS: Final = 30_000
SCRIPT: Final = """async (transport) => {
  const { connect } = await import("/assets/tocsin/index.js");
  const write = (...line) => {
    const lines = JSON.parse(localStorage.lines ?? "[]");
    localStorage.lines = JSON.stringify([...lines, line]);
    window.written = lines.length + 1;
  };
  const client = await connect(undefined, { resume: "page", transport });
  write("session", client.sessionId, client.transport);
  const messages = client.subscribe("q", "g", async (message) => {
    if (message.offset % 7 === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    if (!message.signal.aborted) write("consumer", message.key, message.body);
  });
  const reader = client.read("q", { start: "earliest" }, ({ key, body }) => {
    write("reader", key, body);
  });
  await Promise.all([messages.opened, reader.opened]);
}"""


async def publish(client: tocsin.Client, enough: asyncio.Event) -> None:
    """One round over the keys after another, and `enough` in the middle of each third."""
    for round_number in range(COUNT // KEYS):
        await asyncio.gather(
            *(client.publish("q", round_number, key=f"k{key}") for key in range(KEYS))
        )
        if round_number % (COUNT // KEYS // RELOADS) == 10:
            enough.set()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_reload_keeps_the_session(server: Server, transport: str) -> None:
    async with tocsin.connect(server.url) as client, browsing() as browser:
        await client.create_queue("q", partitions=4, retention_s=3600)
        page = await (await browser.new_context(bypass_csp=True)).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(f"{server.url}/healthz")
        await page.evaluate(SCRIPT, transport)
        enough = asyncio.Event()
        publishing = asyncio.create_task(publish(client, enough))
        for _ in range(RELOADS):
            await enough.wait()
            enough.clear()
            await page.reload()
            await page.evaluate(SCRIPT, transport)
        await publishing
        lines_all = 2 * COUNT + RELOADS + 1
        await page.wait_for_function(f"window.written >= {lines_all}", timeout=WAIT_MS)
        lines: list[Any] = json.loads(await page.evaluate("localStorage.lines"))
        kept = await page.evaluate("sessionStorage.length")
    assert errors == []
    assert kept == 0, "nothing is left to be taken by a copy of the tab"
    sessions = [line[1:] for line in lines if line[0] == "session"]
    assert len(sessions) == RELOADS + 1
    assert {tuple(session) for session in sessions} == {(sessions[0][0], transport)}
    for role in ("consumer", "reader"):
        came: dict[str, list[int]] = defaultdict(list)
        for who, key, body in lines:
            if who == role:
                came[key].append(body)
        assert came == {f"k{key}": list(range(COUNT // KEYS)) for key in range(KEYS)}

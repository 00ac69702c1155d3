"""A Chromium whose tabs behave as a user's: driven by its own protocol alone, because Playwright
keeps every page visible and its timers unthrottled (playwright issue 2286)."""

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import websockets

from loadtests.chromium import options

START_TIMEOUT_S = 30.0
_PORT_FILE = "DevToolsActivePort"


class Tab:
    """A tab, over the DevTools protocol (https://chromedevtools.github.io/devtools-protocol)."""

    def __init__(self, browser: "UsersChromium", session: str) -> None:
        self._browser = browser
        self._session = session

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited where it is a promise. Raises RuntimeError."""
        answer = await self._browser.call(
            "Runtime.evaluate", self._session,
            expression=expression, awaitPromise=True, returnByValue=True,
        )  # fmt: skip
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def visit(self, url: str) -> None:
        """Go there, where whatever the broker serves may run, and nothing else does."""
        await self._browser.call("Page.enable", self._session)
        await self._browser.call("Page.setBypassCSP", self._session, enabled=True)
        await self._browser.call("Page.navigate", self._session, url=url)
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                if await self.evaluate("location.href + document.readyState") == f"{url}complete":
                    return
                await asyncio.sleep(0.02)

    async def to_front(self) -> None:
        """Let the user look at it."""
        await self._browser.call("Page.bringToFront", self._session)

    async def freeze(self, *, frozen: bool) -> None:
        """Nothing of it runs, as after a while in the background of a phone; or it goes on."""
        state = "frozen" if frozen else "active"
        await self._browser.call("Page.setWebLifecycleState", self._session, state=state)


class UsersChromium:
    """The browser. Made by `opened`."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        """Take answers until cancelled."""
        async for text in self._socket:
            said = json.loads(text)
            waiting = self._answers.pop(said.get("id", 0), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(said)

    async def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Ask for something, in a tab where `session` names one. Raises RuntimeError."""
        number = next(self._numbers)
        waiting = asyncio.get_running_loop().create_future()
        self._answers[number] = waiting
        said = {"id": number, "method": method, "params": params}
        await self._socket.send(json.dumps(said | ({"sessionId": session} if session else {})))
        answer = await waiting
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    async def tab(self, url: str = "about:blank") -> Tab:
        """A new one, in front; the others are in the background then."""
        target = await self.call("Target.createTarget", url=url)
        attached = await self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        return Tab(self, attached["sessionId"])


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[UsersChromium]:
    """A headless Chromium, gone in the end."""
    with tempfile.TemporaryDirectory(prefix="tocsin-chromium-", ignore_cleanup_errors=True) as home:
        launching = options()
        process = await asyncio.create_subprocess_exec(
            launching["executable_path"], *launching["args"],
            "--headless=new", "--remote-debugging-port=0", "--no-first-run",
            f"--user-data-dir={home}", "about:blank",
            stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with websockets.connect(await _address(Path(home)), max_size=None) as socket:
                browser = UsersChromium(socket)
                listening = asyncio.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    listening.cancel()
        finally:
            process.kill()
            await process.wait()


async def _address(home: Path) -> str:
    """Where it listens, which it writes into its profile when it does."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            lines = await asyncio.to_thread(_lines, home / _PORT_FILE)
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.05)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

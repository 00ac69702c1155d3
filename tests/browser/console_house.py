"""The console in Chromium: its views, what it shows there, and what it complained of."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
from playwright.async_api import Browser, Locator, Page, expect

PATIENCE_MS: Final = 30_000
SHOTS: Final = Path(__file__).parent.parent.parent / "build" / "screenshots"
Who = frozenset[tuple[str, str]]
Hook = tuple[str, Who]
"""A test id, and of what it is."""
Shown = tuple[str, str]
"""`value`, `unix_ms` or `text`, and which."""

LOOK: Final = """() => [...document.querySelectorAll("#main [data-testid]")].map((element) => {
  const { testid, value, unixMs, ...data } = element.dataset;
  return { testid, value, unixMs, data, text: element.textContent };
})"""
_OUTSIDE: Final = """() => {
  const badges = [...document.querySelectorAll(".table td > .badge")];
  const before = badges.map((badge) => badge.textContent);
  for (const badge of badges) badge.textContent = "lingering, ends in 4 min 59 s, draining";
  const outside = [...document.querySelectorAll(".table td > *")].filter((element) => {
    const [inner, cell] = [element, element.parentElement].map((e) => e.getBoundingClientRect());
    return inner.left < cell.left - 1 || inner.right > cell.right + 1;
  });
  badges.forEach((badge, index) => { badge.textContent = before[index]; });
  return outside.map((element) => element.dataset.testid ?? element.textContent);
}"""
"""What stands out of its cell, also when every state is as long as one may be."""
_WHOSE: Final = (
    "queue", "group", "cluster", "partition", "offset", "session", "subscription", "keyHash",
    "line", "ticket",
)  # fmt: skip

expect.set_options(timeout=PATIENCE_MS)


def who(**data: object) -> Who:
    """`who(queue="orders", key_hash=…)`: of what a hook is."""
    names = {"key_hash": "keyHash"}
    return frozenset((names.get(name, name), str(one)) for name, one in data.items())


@dataclass
class Seen:
    """What a page showed at one moment."""

    elements: list[dict[str, Any]]

    def figures(self) -> dict[Hook, Shown]:
        """All that has an exact number or time."""
        found: dict[Hook, Shown] = {}
        for one in self.elements:
            for kind, name in (("value", "value"), ("unix_ms", "unixMs")):
                if one.get(name) is not None:
                    assert _hook(one) not in found, f"{_hook(one)} stands there twice"
                    found[_hook(one)] = (kind, one[name])
        return found

    def texts(self) -> dict[Hook, str]:
        """All texts."""
        return {_hook(one): one["text"] for one in self.elements}

    def value(self, testid: str, **data: object) -> str:
        """The exact number of one figure."""
        kind, value = self.figures()[testid, who(**data)]
        assert kind == "value"
        return value


def _hook(one: Mapping[str, Any]) -> Hook:
    return one["testid"], frozenset((n, one["data"][n]) for n in _WHOSE if n in one["data"])


@dataclass
class Console:
    """A page, its broker's address and what else knows that broker."""

    page: Page
    url: str
    api: httpx2.AsyncClient
    complaints: list[str] = field(default_factory=list)

    def at(self, testid: str, **data: object) -> Locator:
        """The element with this test id, of this queue, group, partition, …"""
        named = "".join(f'[data-{k.replace("_", "-")}="{v}"]' for k, v in data.items())
        return self.page.locator(f'[data-testid="{testid}"]{named}')

    async def open(self, address: str) -> None:
        """Go there, anew, and wait for the first answer."""
        await self.page.goto("about:blank")
        await self.page.goto(f"{self.url}/console#{address}")
        await self.answered()

    async def answered(self) -> None:
        """Until what is on screen has been answered."""
        await expect(self.at("link-state")).to_have_text(re.compile("^(live|loaded)$"))

    async def asks_again(self) -> None:
        """Press "Try now", which is gone where the page has tried by itself a moment ago."""
        await self.at("retry-now").dispatch_event("click")

    async def seen(self) -> Seen:
        """Return what it shows at this moment."""
        return Seen(await self.page.evaluate(LOOK))

    async def get(self, path: str, **query: object) -> Any:
        """Return what the broker answers to somebody else."""
        answer = await self.api.get(path, params={k: str(v) for k, v in query.items()})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def shoot(self, view: str) -> None:
        """Keep a picture, named after page, view, width and scheme."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        width = await self.page.evaluate("innerWidth")
        scheme = await self.page.evaluate(
            "matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'"
        )
        await self.page.screenshot(path=SHOTS / f"console-{view}-{width}-{scheme}.png")

    async def fits(self, what: str) -> None:
        """Nothing stands out of the page at its sides."""
        wide, inner = await self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= inner, f"{what}: {wide} of {inner} px"
        outside = await self.page.evaluate(_OUTSIDE)
        assert not outside, f"{what}: {outside} stand out of their cells"


@asynccontextmanager
async def console(browser: Browser, url: str, **context: Any) -> AsyncIterator[Console]:
    """A console of its own, in a fresh context whose time zone is UTC. In the end nothing has been
    complained of: neither in the console of Chromium nor as an uncaught error."""
    opened = await browser.new_context(timezone_id="UTC", **context)
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=30) as api:
            page = await opened.new_page()
            page.set_default_timeout(PATIENCE_MS)
            made = Console(page, url, api)
            page.on("pageerror", lambda error: made.complaints.append(str(error)))
            page.on(
                "console",
                lambda said: (
                    made.complaints.append(said.text) if said.type in ("error", "warning") else None
                ),
            )
            yield made
            assert made.complaints == []
            await page.unroute_all(behavior="ignoreErrors")  # what is under way is nobody's now
    finally:
        await opened.close()


async def eventually(look: Any, what: str) -> None:
    """Until `look` returns without an AssertionError; the last one is raised when patience ends."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_MS / 1000
    while True:
        try:
            await look()
            return
        except AssertionError as error:
            if loop.time() > until:
                error.add_note(f"waited for: {what}")
                raise
        await asyncio.sleep(0.1)

"""R32: the wall clock is set by a second, an hour and a year, both ways, at the gateway that moves
what is due, and at the server that stores it. What docs/scheduling.md says of each happens."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtests.clients.rest import Rest
from loadtests.server import Server
from tests.histories.redis_gateways import emptied
from tests.servers.binaries import binaries
from tests.servers.layouts import single
from tests.system.clock import WallClock, wall_clock

QUEUE = "/v1/queues/later"
HOUR_S, YEAR_S = 3600, 365 * 86_400
PATIENCE_S = 30.0
QUIET_S = 3.0


class Broker:
    """A gateway, over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        rest = Rest(self._url)
        try:
            return await rest.call(method, path, body)
        finally:
            rest.close()

    async def publish(self, body: object, delay_s: float) -> dict[str, Any]:
        """Schedule a message; return its result."""
        asked = {"messages": [{"key": "k", "body": body, "delay_s": delay_s}]}
        (result,) = (await self.ask("POST", f"{QUEUE}/messages", asked))["results"]
        return dict(result)

    async def log(self) -> list[Any]:
        """Return the bodies in the log."""
        page = await self.ask("GET", f"{QUEUE}/messages?limit=100")
        return [one["body"] for one in page["messages"]]

    async def becomes(self, bodies: list[Any]) -> float:
        """Wait until these are in the log. Returns how long that took, in seconds."""
        began = time.monotonic()
        while (found := await self.log()) != bodies:
            assert time.monotonic() - began < PATIENCE_S, (found, bodies)
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def notes(self) -> list[str]:
        """Return what rests here."""
        return list((await self.ask("GET", "/readyz")).get("notes", []))

    async def is_told(self) -> str:
        """Wait until it says that it moves nothing; return the sentence."""
        began = time.monotonic()
        while not (found := await self.notes()):
            assert time.monotonic() - began < PATIENCE_S
            await asyncio.sleep(0.05)
        return found[0]

    async def believe(self) -> None:
        """Say that the clock is right."""
        assert (await self.ask("POST", "/v1/scheduled/believe-clock"))["moving"]


@contextmanager
def over_valkey(folder: Path, clock: WallClock, *, at_store: bool) -> Iterator[Server]:
    """Run a gateway over Valkey, of which one has this clock."""
    engine = next(one for one in binaries() if one.engine == "valkey")
    preload = [f"{name}={text}" for name, text in clock.settings.items()]
    with single(engine, folder / "store", inside=["env", *preload] if at_store else []) as node:
        settings = {
            "TOCSIN_STORAGE": asyncio.run(emptied(node)), "TOCSIN_ENCRYPTION": "no",
            **({} if at_store else clock.settings),
        }  # fmt: skip
        with Server(folder / "gateway", settings=settings) as gateway:
            yield gateway


@contextmanager
def embedded(folder: Path, clock: WallClock) -> Iterator[Server]:
    """Run a broker with this clock."""
    with Server(folder / "broker", settings=clock.settings) as broker:
        yield broker


async def begun(server: Server) -> Broker:
    """Return the broker, with an empty queue."""
    broker = Broker(server.url)
    await broker.ask("PUT", QUEUE, {"partitions": 1, "retention_s": 9 * YEAR_S})
    return broker


async def a_second(broker: Broker, clock: WallClock) -> None:
    """A second ahead or back of the mover's clock is believed."""
    await broker.publish("a", 4.0)
    clock.set(1)
    took_s = await broker.becomes(["a"])
    assert took_s < 3.9
    await broker.publish("b", 2.0)
    clock.set(0)
    took_s = await broker.becomes(["a", "b"])
    assert took_s > 2.5
    clock.set(-1)
    await asyncio.sleep(QUIET_S)
    assert await broker.log() == ["a", "b"], "nothing comes twice"
    assert await broker.notes() == []


async def far(broker: Broker, clock: WallClock, set_s: int, said: str, *, at_store: bool) -> None:
    """A clock that is set far ahead or back is doubted, until an operator believes it."""
    before = await broker.log()
    await broker.publish("soon", 2.0)
    await broker.publish("in a day", 86_400.0)
    clock.set(set_s)
    assert said in await broker.is_told()
    refused = (await broker.publish("c", 1.0))["error"]
    assert (refused["code"], refused["retry"]) == ("clock_in_doubt", True)
    await asyncio.sleep(QUIET_S)
    assert await broker.log() == before
    await broker.believe()
    moves_s = 0 if at_store else set_s
    expected = [*before, *["soon"] * (moves_s > -QUIET_S), *["in a day"] * (moves_s > 86_400)]
    await broker.becomes(expected)
    await asyncio.sleep(QUIET_S)
    assert await broker.log() == expected
    clock.set(0)
    assert await broker.is_told()
    await broker.believe()
    await broker.becomes(expected if "soon" in expected else [*before, "soon"])
    await broker.ask("POST", f"{QUEUE}/purge", {"all": True})


@pytest.mark.parametrize("kind", ["embedded", "valkey"])
def test_the_clock_of_the_gateway_is_set(kind: str, tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        broker = await begun(server)
        await a_second(broker, clock)
        await broker.ask("POST", f"{QUEUE}/purge", {"all": True})
        clock.set(0)
        for set_s in (HOUR_S, -HOUR_S, YEAR_S, -YEAR_S):
            way = "ahead" if set_s > 0 else "back"
            await far(broker, clock, set_s, f"was set {way} by", at_store=False)

    with wall_clock(tmp_path / "clock") as clock:
        run = embedded(tmp_path, clock)
        if kind == "valkey":
            run = over_valkey(tmp_path, clock, at_store=False)
        with run as server:
            asyncio.run(test(server))


def test_the_clock_of_the_store_is_set(tmp_path: Path) -> None:
    async def test(server: Server) -> None:
        broker = await begun(server)
        for set_s in (1, -1, 0):
            clock.set(set_s)
            await broker.publish("a", 1.0)
        await broker.becomes(["a"] * 3)
        assert await broker.notes() == []
        await broker.ask("POST", f"{QUEUE}/purge", {"all": True})
        for set_s in (HOUR_S, -HOUR_S, YEAR_S, -YEAR_S):
            way = "behind" if set_s > 0 else "ahead of"
            await far(broker, clock, set_s, f"is {way} the store's by", at_store=True)

    with (
        wall_clock(tmp_path / "clock") as clock,
        over_valkey(tmp_path, clock, at_store=True) as server,
    ):
        asyncio.run(test(server))


def test_a_gateway_that_starts_with_a_wrong_clock_moves_nothing(tmp_path: Path) -> None:
    async def first(server: Server) -> None:
        broker = await begun(server)
        await broker.publish("tomorrow", 86_400.0)

    async def second(server: Server) -> None:
        broker = Broker(server.url)
        assert "is ahead of the store's by" in await broker.is_told()
        await asyncio.sleep(QUIET_S)
        assert await broker.log() == []

    with (
        wall_clock(tmp_path / "clock") as clock,
        over_valkey(tmp_path, clock, at_store=False) as server,
    ):
        asyncio.run(first(server))
        server.stop()
        clock.set(YEAR_S)
        server.start()
        asyncio.run(second(server))

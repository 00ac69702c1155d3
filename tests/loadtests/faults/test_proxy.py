"""The proxy of the trials does to connections what it is told, and nothing else."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from loadtests.faults.proxy import (
    HEAD_BYTES_MAX,
    HELD,
    SWALLOWED,
    Link,
    Proxy,
    Requests,
    Treatment,
    refusal,
    without_upgrade,
)

UPGRADE = b"GET /v1/ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
POST = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
WAIT_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that says back what it hears, and notes how its connections end."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ends: asyncio.Queue[str] = asyncio.Queue()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Echo":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.heard += data
                writer.write(data)
                await writer.drain()
            self.ends.put_nowait("fin")
        except OSError:
            self.ends.put_nowait("reset")
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with Echo() as echo:
        yield echo


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    async with Proxy(echo.port, is_http=False) as proxy:
        yield proxy


@pytest.fixture
async def http(echo: Echo) -> AsyncIterator[Proxy]:
    async with Proxy(echo.port) as proxy:
        yield proxy


opened: list[Streams] = []


@pytest.fixture(autouse=True)
async def hang_up() -> AsyncIterator[None]:
    yield
    for _, writer in opened:
        writer.transport.abort()
    opened.clear()


async def connected(proxy: Proxy) -> Streams:
    opened.append(await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2])))
    return opened[-1]


async def got(streams: Streams, count: int) -> bytes:
    """Return this many bytes of what comes."""
    return await asyncio.wait_for(streams[0].readexactly(count), WAIT_S)


async def end_of(streams: Streams) -> str:
    """How it ends: what still comes before does not count."""
    try:
        await asyncio.wait_for(streams[0].read(), WAIT_S)
    except ConnectionResetError:
        return "reset"
    return "fin"


async def through(proxy: Proxy) -> tuple[Streams, Link]:
    """A connection that has carried a word both ways, and its link."""
    streams = await connected(proxy)
    streams[1].write(b"hello")
    assert await got(streams, 5) == b"hello"
    return streams, proxy.links[-1]


async def until(done: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def emptied(proxy: Proxy) -> None:
    """Wait until no connection stands."""
    await until(lambda: not proxy.links)


# --- what it does to bytes


async def test_bytes_pass_both_ways_and_a_close_is_passed_on(proxy: Proxy, echo: Echo) -> None:
    streams, _ = await through(proxy)
    data = Random(1).randbytes(300_000)
    streams[1].write(data)
    assert await got(streams, len(data)) == data
    streams[1].close()
    assert await echo.ends.get() == "fin"
    await emptied(proxy)
    assert proxy.counts == {"connections": 1}


async def test_what_is_delayed_comes_later_and_whole(proxy: Proxy) -> None:
    streams, link = await through(proxy)
    link.treat(up=Treatment(delay_s=(0.05, 0.06)), down=Treatment(delay_s=(0.1, 0.11)))
    began = time.monotonic()
    streams[1].write(b"later")
    assert await got(streams, 5) == b"later"
    assert time.monotonic() - began >= 0.15


async def test_what_trickles_comes_in_small_pieces(proxy: Proxy) -> None:
    streams, link = await through(proxy)
    link.treat(down=Treatment(trickle_bytes=2, trickle_s=0.02))
    began = time.monotonic()
    streams[1].write(b"0123456789")
    assert await got(streams, 2) == b"01"
    assert await got(streams, 8) == b"23456789"
    assert time.monotonic() - began >= 0.08


async def test_what_is_held_moves_on_when_it_is_let_go(proxy: Proxy, echo: Echo) -> None:
    streams, link = await through(proxy)
    link.treat(up=HELD)
    streams[1].write(b"world")
    streams[1].write_eof()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(streams[0].read(1), 0.1)
    assert echo.heard == b"hello"
    assert echo.ends.empty()
    link.treat()
    assert await got(streams, 5) == b"world"
    assert await end_of(streams) == "fin"


async def test_what_is_swallowed_is_gone_and_its_connection_ends_afterwards(
    proxy: Proxy, echo: Echo
) -> None:
    """A stream with a hole in it must not go on."""
    streams, link = await through(proxy)
    link.treat(up=SWALLOWED)
    streams[1].write(b"world" * 10_000)
    await asyncio.wait_for(streams[1].drain(), WAIT_S)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(streams[0].read(1), 0.1)
    link.treat()
    assert await end_of(streams) == "reset"
    assert await echo.ends.get() == "reset"
    assert echo.heard == b"hello"


async def test_one_way_may_be_swallowed_alone(proxy: Proxy, echo: Echo) -> None:
    streams, link = await through(proxy)
    link.treat(down=SWALLOWED)
    streams[1].write(b"world")
    await until(lambda: echo.heard == b"helloworld")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(streams[0].read(1), 0.05)


async def test_what_is_gathered_comes_when_it_is_enough_or_late_enough(proxy: Proxy) -> None:
    streams, link = await through(proxy)
    link.treat(down=Treatment(gather_bytes=10, gather_s=60.0))
    streams[1].write(b"01234")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(streams[0].read(1), 0.1)
    streams[1].write(b"56789")
    assert await got(streams, 10) == b"0123456789"
    link.treat(down=Treatment(gather_bytes=10, gather_s=0.05))
    streams[1].write(b"ab")
    assert await got(streams, 2) == b"ab"


# --- how it ends them


@pytest.mark.parametrize("how", ["reset", "fin"])
async def test_both_sides_of_a_cut_learn_it(proxy: Proxy, echo: Echo, how: str) -> None:
    streams, link = await through(proxy)
    link.cut("reset" if how == "reset" else "fin")
    assert await end_of(streams) == how
    assert await echo.ends.get() == how
    await emptied(proxy)


@pytest.mark.parametrize(("count", "arrives"), [(1, b"w"), (4, b"worl"), (5, b"world")])
async def test_a_cut_falls_at_the_very_byte(proxy: Proxy, count: int, arrives: bytes) -> None:
    """The proxy counts what it passed on. [It counted all of the chunk that it cut.]"""
    streams, link = await through(proxy)
    before = proxy.byte_counts["down"]
    link.cut_after(count, how="fin")
    streams[1].write(b"world")
    assert await asyncio.wait_for(streams[0].read(), WAIT_S) == arrives
    assert proxy.byte_counts["down"] - before == count


async def test_of_a_cut_link_nothing_more_is_counted(proxy: Proxy) -> None:
    """Even where it trickles, and more pieces of the chunk are left."""
    streams, link = await through(proxy)
    before = proxy.byte_counts["down"]
    link.treat(down=Treatment(trickle_bytes=2))
    link.cut_after(3, how="fin")
    streams[1].write(b"world")
    assert await asyncio.wait_for(streams[0].read(), WAIT_S) == b"wor"
    await emptied(proxy)
    assert proxy.byte_counts["down"] - before == 3


async def test_of_a_half_open_connection_the_client_knows_and_the_broker_does_not(
    proxy: Proxy, echo: Echo
) -> None:
    streams, link = await through(proxy)
    link.half_open("client")
    assert await end_of(streams) == "fin"
    streams[1].close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(echo.ends.get(), 0.1)
    assert proxy.links == [link]
    link.cut()
    assert await echo.ends.get() == "reset"


async def test_of_a_half_open_connection_the_broker_knows_and_the_client_does_not(
    proxy: Proxy, echo: Echo
) -> None:
    streams, link = await through(proxy)
    link.half_open("broker", "reset")
    assert await echo.ends.get() == "reset"
    streams[1].write(b"world")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(streams[0].read(1), 0.1)
    streams[1].close()
    await emptied(proxy)
    assert echo.heard == b"hello"


async def test_who_is_refused_is_reset(proxy: Proxy) -> None:
    proxy.is_refusing = True
    streams = await connected(proxy)
    assert await end_of(streams) == "reset"
    proxy.is_refusing = False
    await through(proxy)
    assert proxy.counts == {"connections": 2, "connections refused": 1}


async def test_there_are_no_more_connections_than_its_bound(echo: Echo) -> None:
    async with Proxy(echo.port, is_http=False, links_max=2) as proxy:
        first, _ = await through(proxy)
        await through(proxy)
        assert await end_of(await connected(proxy)) == "reset"
        first[1].close()
        await until(lambda: len(proxy.links) < 2)
        await through(proxy)


async def test_a_broker_that_is_not_there_is_a_reset() -> None:
    async with Echo() as echo:
        port = echo.port
    async with Proxy(port) as proxy:
        assert await end_of(await connected(proxy)) == "reset"


async def test_closing_the_proxy_ends_all_and_leaves_nothing(echo: Echo) -> None:
    proxy = Proxy(echo.port, is_http=False)
    async with proxy:
        held, link = await through(proxy)
        link.treat(up=HELD, down=HELD)
        other, _ = await through(proxy)
    assert [await end_of(held), await end_of(other)] == ["reset", "reset"]
    assert proxy.links == []
    await proxy.close()
    names = [repr(task.get_coro()) for task in asyncio.all_tasks()]
    assert not [name for name in names if "Link." in name or "Proxy." in name]


# --- WebSockets


async def test_an_upgrade_passes_where_nothing_is_said(http: Proxy, echo: Echo) -> None:
    streams = await connected(http)
    streams[1].write(POST + UPGRADE + b"frames, not HTTP\r\n\r\n")
    sent = POST + UPGRADE + b"frames, not HTTP\r\n\r\n"
    assert await got(streams, len(sent)) == sent
    assert http.links[0].is_websocket


@pytest.mark.parametrize("status", [400, 403])
async def test_an_upgrade_is_refused_and_other_requests_pass(
    http: Proxy, echo: Echo, status: int
) -> None:
    http.upgrades, http.refusal_status = "refuse", status
    streams = await connected(http)
    streams[1].write(POST)
    assert await got(streams, len(POST)) == POST
    streams[1].write(UPGRADE)
    assert await asyncio.wait_for(streams[0].read(), WAIT_S) == refusal(status)
    assert echo.heard == POST
    assert http.counts["upgrade: refuse"] == 1


async def test_an_upgrade_is_stripped(http: Proxy, echo: Echo) -> None:
    http.upgrades = "strip"
    streams = await connected(http)
    streams[1].write(UPGRADE)
    plain = b"GET /v1/ws HTTP/1.1\r\nHost: h\r\n\r\n"
    assert await got(streams, len(plain)) == plain
    assert not http.links[0].is_websocket


async def test_an_upgrade_is_never_answered_until_the_client_gives_up(
    http: Proxy, echo: Echo
) -> None:
    http.upgrades = "swallow"
    streams = await connected(http)
    streams[1].write(UPGRADE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(streams[0].read(1), 0.1)
    streams[1].close()
    await emptied(http)
    assert echo.heard == b""


def pieces(*data: bytes) -> list[tuple[bytes, bool]]:
    requests = Requests()
    return [piece for one in data for piece in requests.feed(one)]


def test_a_head_is_whole_however_its_bytes_come() -> None:
    sent = POST + POST + UPGRADE + b"\x81\x85raw"
    for size in (1, 7, 50, len(sent)):
        found = pieces(*(sent[i : i + size] for i in range(0, len(sent), size)))
        assert b"".join(piece for piece, _ in found) == sent
        assert [piece for piece, wants in found if wants] == [UPGRADE]


def test_a_body_that_looks_like_an_upgrade_is_a_body() -> None:
    body = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(UPGRADE)
    assert [wants for _, wants in pieces(body + UPGRADE)] == [False, False]


@pytest.mark.parametrize("over", [0, 1])
def test_what_has_no_head_is_passed_on_as_it_is(over: int) -> None:
    data = b"x" * (HEAD_BYTES_MAX + over)
    assert pieces(data) == ([(data, False)] if over else [])


def test_a_head_without_an_upgrade_says_nothing_of_it() -> None:
    assert without_upgrade(UPGRADE) == b"GET /v1/ws HTTP/1.1\r\nHost: h\r\n\r\n"

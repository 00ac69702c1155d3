"""Requests to nodes: kept connections, deadlines, and what is known of a request that failed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from metadata.service.protocol import HttpNodeTransport, NoAnswer, NotSent

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    """At the URL that this yields."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(once, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def asker() -> HttpNodeTransport:
    return HttpNodeTransport("secret", None, body_bytes_max=1000)


async def test_one_connection_serves_many_requests() -> None:
    heads: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"Content-Length: 4" in head:
                head += await reader.readexactly(4)
            heads.append(head)
            writer.write(OK)

    async with server(serve) as url:
        asking = asker()
        for body in (None, b"body", None):
            answer = await asking.ask(url, "POST" if body else "GET", "/x?y=1", body, timeout_s=5)
            assert (answer.status, answer.body) == (200, b"ok")
        await asking.close()
    assert connections == 1
    assert heads[0].startswith(b"GET /x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer secret\r\n" in heads[0]
    assert heads[1].endswith(b"Content-Length: 4\r\n\r\nbody")


async def test_nobody_there_was_not_sent() -> None:
    async with server(lambda reader, writer: asyncio.sleep(0)) as url:
        pass
    with pytest.raises(NotSent):
        await asker().ask(url, "GET", "/", None, timeout_s=5)


@pytest.mark.parametrize(
    "said",
    [
        b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart", b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(1500),
    ],
    ids=["closed", "cut off", "garbage", "too large"],
)  # fmt: skip
async def test_what_was_sent_and_has_no_whole_answer_may_have_happened(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()

    async with server(serve) as url:
        with pytest.raises(NoAnswer):
            await asker().ask(url, "GET", "/", None, timeout_s=5)


async def test_who_is_silent_is_given_up_in_time_and_asked_anew_on_another_connection() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections > 1:
            writer.write(OK)
            await writer.drain()
        await reader.read()

    async with server(serve) as url:
        asking = asker()
        with pytest.raises(NoAnswer, match=r"within 0\.2 s"):
            await asking.ask(url, "GET", "/", None, timeout_s=0.2)
        assert (await asking.ask(url, "GET", "/", None, timeout_s=5)).status == 200
        await asking.close()


async def test_a_connection_that_was_closed_meanwhile_is_not_used() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()

    async with server(serve) as url:
        asking = asker()
        for _ in range(3):
            assert (await asking.ask(url, "GET", "/", None, timeout_s=5)).status == 200
            await asyncio.sleep(0.05)  # its end is on its way
        await asking.close()


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 2\r\n\r\nok", b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"],
)
async def test_an_answer_that_offers_another_protocol_is_read_as_any_other(framing: bytes) -> None:
    """Apache with mod_http2 in front of a node says so in each answer."""
    offered = b"HTTP/1.1 200 OK\r\nUpgrade: h2,h2c\r\nConnection: Upgrade, Keep-Alive\r\n" + framing

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for byte in offered:
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)

    async with server(serve) as url:
        asking = asker()
        for _ in range(2):
            answer = await asking.ask(url, "GET", "/x", None, timeout_s=5)
            assert (answer.status, answer.body) == (200, b"ok")
        await asking.close()

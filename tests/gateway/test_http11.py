"""HTTP/1.1: deadlines for header and body, bounds for header and pipeline (P9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from gateway.auth import Auth
from gateway.conversation import Surroundings
from gateway.http11 import Http11Protocol, raw_problem
from gateway.registry import Registry
from push.errors import Refused
from tests.gateway.echo_broker import EchoBroker
from tests.gateway.wire import Wire, no_application, response, serve, session

SHORT_S = 0.2
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


class Patient(Http11Protocol):
    """Never times out in these tests."""

    header_timeout_s = 3600.0
    body_timeout_s = 3600.0


class HeaderHurried(Patient):
    header_timeout_s = SHORT_S


class BodyHurried(Patient):
    body_timeout_s = SHORT_S


def registry() -> Registry:
    return Registry(Surroundings(EchoBroker(), Auth(None)))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serve(registry(), http=Patient) as gateway:
        yield gateway.port


@pytest.fixture
async def header_hurried() -> AsyncIterator[int]:
    async with serve(registry(), http=HeaderHurried) as gateway:
        yield gateway.port


@pytest.fixture
async def body_hurried() -> AsyncIterator[int]:
    async with serve(registry(), http=BodyHurried) as gateway:
        yield gateway.port


async def dial(port: int, *data: bytes) -> Wire:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))
    wire.writer.write(b"".join(data))
    return wire


async def refusal(wire: Wire) -> tuple[int, str]:
    """Wait for a problem document and the end of the socket."""
    status, headers, body = await response(wire)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert await wire.ended() == b""
    await wire.close()
    return status, msgspec.json.decode(body)["code"]


async def answer(wire: Wire) -> bytes:
    status, _, body = await response(wire)
    assert status == 200
    return body


# --- Time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: y"],
)
async def test_a_header_that_never_ends_is_answered_408(header_hurried: int, begun: bytes) -> None:
    """Slowloris."""
    wire = await dial(header_hurried, begun)
    assert await refusal(wire) == (408, "request_timeout")


async def test_the_deadline_is_absolute_whatever_trickles_in(header_hurried: int) -> None:
    """Slowloris: a byte now and then buys no time."""
    wire = await dial(header_hurried, b"GET / HTTP/1.1\r\nX-Slow: ")

    async def trickle() -> None:
        while True:
            wire.writer.write(b"y")
            await wire.writer.drain()
            await asyncio.sleep(SHORT_S / 10)

    trickling = asyncio.create_task(trickle())
    status, _, _ = await response(wire)
    assert status == 408
    trickling.cancel()
    wire.writer.transport.abort()


async def test_a_connection_that_is_never_used_is_closed_without_a_word(
    header_hurried: int,
) -> None:
    wire = await dial(header_hurried)
    assert await wire.ended() == b""
    await wire.close()


async def test_line_ends_instead_of_a_request_do_not_keep_a_connection(
    header_hurried: int,
) -> None:
    """uvicorn's own idle timeout ends with the first byte of anything."""
    wire = await dial(header_hurried, GET)
    assert await answer(wire) == b"0"
    wire.writer.write(b"\r\n")
    assert await wire.ended() == b""
    await wire.close()


async def test_the_next_request_has_the_deadline_too(header_hurried: int) -> None:
    wire = await dial(header_hurried, GET)
    assert await answer(wire) == b"0"
    wire.writer.write(b"GET / HTTP/1.1\r\n")
    assert await refusal(wire) == (408, "request_timeout")


async def test_an_idle_connection_is_left_to_uvicorns_keep_alive() -> None:
    async with serve(registry(), http=HeaderHurried, keep_alive_s=1) as gateway:
        wire = await dial(gateway.port, GET)
        assert await answer(wire) == b"0"
        (protocol,) = gateway.state.connections
        assert isinstance(protocol, HeaderHurried)
        assert protocol._timer is None
        assert protocol.timeout_keep_alive_task is not None
        wire.writer.write(GET)
        assert await answer(wire) == b"0"
        await wire.close()


async def test_a_body_that_never_comes_is_answered_408(body_hurried: int) -> None:
    wire = await dial(body_hurried, POST, b"ab")
    assert await refusal(wire) == (408, "request_timeout")


async def test_a_body_in_time_is_answered(body_hurried: int) -> None:
    wire = await dial(body_hurried, POST, b"ab")
    await asyncio.sleep(0)
    wire.writer.write(b"cd")
    assert await answer(wire) == b"4"
    await wire.close()


async def test_who_is_not_read_is_not_late() -> None:
    """An application that does not take the body: that is our slowness, not the client's."""
    go_on, expired = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await no_application(scope, receive, send)

    class Noting(BodyHurried):
        def _expire(self, timeout_s: float) -> None:
            expired.set()
            super()._expire(timeout_s)

    async with serve(registry(), http=Noting, app=slow) as gateway:
        size = 1_000_000
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
        wire = await dial(gateway.port, head, b"x" * size)
        await expired.wait()
        go_on.set()
        assert await answer(wire) == b"%d" % size
        await wire.close()


async def test_an_answer_may_take_longer_than_any_deadline() -> None:
    """A long poll: the request is complete, so nobody is late."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(3 * SHORT_S)
        await no_application(scope, receive, send)

    class Hurried(Http11Protocol):
        header_timeout_s = SHORT_S
        body_timeout_s = SHORT_S

    async with serve(registry(), http=Hurried, app=slow) as gateway:
        wire = await dial(gateway.port, POST, b"abcd")
        assert await answer(wire) == b"4"
        await wire.close()


# --- Space --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"X-Large: " + b"y" * 20_000,
        b"\r\n".join(b"X-%d: y" % number for number in range(3000)),
    ],
    ids=["one", "many"],
)
async def test_a_header_over_its_bound_is_answered_431(port: int, header: bytes) -> None:
    wire = await dial(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n", header, b"\r\n\r\n")
    assert await refusal(wire) == (431, "header_too_large")


async def test_a_url_over_the_bound_is_answered_431(port: int) -> None:
    wire = await dial(port, b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert await refusal(wire) == (431, "header_too_large")


async def test_a_header_line_without_end_is_cut_off_early(port: int) -> None:
    """The parser shows a header only when it is whole: what it holds back counts too."""
    wire = await dial(port, b"GET / HTTP/1.1\r\nX-Endless: ")
    sent = 0
    while not wire.reader._buffer:  # type: ignore[attr-defined]
        wire.writer.write(b"y" * 1000)
        sent += 1000
        await asyncio.sleep(0)
        assert sent < 5_000_000
    status, _, _ = await response(wire)
    assert status == 431
    wire.writer.transport.abort()


async def test_a_header_within_its_bound_passes_in_pieces(port: int) -> None:
    wire = await dial(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    for number in range(10):
        wire.writer.write(b"X-%d: " % number + b"y" * 1500 + b"\r\n")
        await asyncio.sleep(0)
    wire.writer.write(b"\r\n")
    assert await answer(wire) == b"0"
    await wire.close()


async def test_a_large_body_is_not_taken_for_a_header(port: int) -> None:
    """Nor what is pipelined behind it."""
    size = 300_000
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
    wire = await dial(port, head, b"x" * size, b"GET / HTTP/1.1\r\nX-Split: ")
    assert await answer(wire) == b"%d" % size
    wire.writer.write(b"y\r\n\r\n")
    assert await answer(wire) == b"0"
    await wire.close()


async def test_a_few_pipelined_requests_are_answered_in_order(port: int) -> None:
    wire = await dial(port, GET, POST, b"abcd", GET)
    assert [await answer(wire) for _ in range(3)] == [b"0", b"4", b"0"]
    await wire.close()


async def test_a_flood_of_pipelined_requests_ends_the_connection(port: int) -> None:
    wire = await dial(port, GET * 5000)
    with suppress(ConnectionResetError):  # what was not read any more resets the socket
        assert (await wire.ended()).count(b"HTTP/1.1 200") <= Patient.pipelined_max + 1
    await wire.close()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00", b"NONSENSE\r\n\r\n", b"\0" * 40])
async def test_what_is_not_http_is_answered_400(port: int, data: bytes) -> None:
    wire = await dial(port, data)
    assert await refusal(wire) == (400, "invalid_request")


# --- Else ---------------------------------------------------------------------------------------


async def test_a_websocket_takes_no_deadline_along() -> None:
    async with serve(registry(), http=HeaderHurried) as gateway:
        wire = await session(gateway)
        await asyncio.sleep(2 * SHORT_S)
        await wire.send({"type": "ping"})
        assert await wire.receive() == {"type": "pong"}
        await wire.close()


def test_a_raw_problem_is_a_whole_response() -> None:
    head, _, body = raw_problem(Refused("unauthorized"), "x-more: 1").partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 401 Unauthorized"
    assert f"content-length: {len(body)}" in lines
    assert "x-more: 1" in lines
    assert msgspec.json.decode(body)["code"] == "unauthorized"

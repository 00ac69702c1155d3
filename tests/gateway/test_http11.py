"""HTTP/1.1: deadlines for header and body, bounds for header and pipeline (P9)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from gateway.auth import Auth
from gateway.http11 import PART_BYTES_MIN, Http11Protocol, raw_problem
from gateway.problems import SECURITY_HEADERS
from gateway.registry import Registry
from gateway.surroundings import Surroundings
from push.errors import Refused
from tests.gateway.echo_broker import EchoBroker
from tests.gateway.wire import (
    HANDSHAKE,
    Gateway,
    Wire,
    no_application,
    response,
    serve,
    session,
    until,
)

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


async def until_refused(gateway: Gateway) -> list[Any]:
    """The connections, when the only one has been refused."""
    while True:
        connections = list(gateway.state.connections)
        if connections and connections[0]._is_over():  # type: ignore[union-attr]
            return connections
        await asyncio.sleep(0)


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A client's bytes are no trouble of ours: nothing from a warning on is logged (P12)."""
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_who_reads_a_body_is_woken_when_it_is_worth_it() -> None:
    """P9: not for each byte that a slow client sends. On both sides; the rest comes at its end."""
    parts: list[int] = []

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            event = await receive()
            parts.append(len(event["body"]))
            more = event["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"read"})

    size = 3 * PART_BYTES_MIN
    async with serve(registry(), http=Patient, app=reads) as gateway:
        wire = await dial(gateway.port, b"POST / HTTP/1.1\r\nHost: localhost\r\n")
        wire.writer.write(b"Content-Length: %d\r\n\r\n" % size)
        await until(lambda: bool(gateway.state.tasks))
        (connection,) = gateway.state.connections
        assert isinstance(connection, Patient)
        for sent, seen in (
            (1, []),
            (PART_BYTES_MIN - 2, []),
            (1, [PART_BYTES_MIN]),
            (size - PART_BYTES_MIN - 1, [PART_BYTES_MIN, size - PART_BYTES_MIN - 1]),
            (1, [PART_BYTES_MIN, size - PART_BYTES_MIN - 1, 1]),
        ):
            connection.data_received(b"x" * sent)
            for _ in range(3):
                await asyncio.sleep(0)
            assert parts == seen
        assert await answer(wire) == b"read"
        await wire.close()


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


async def test_pipelined_requests_within_their_bound_are_all_answered(port: int) -> None:
    """One is being answered, `pipelined_max` wait behind it."""
    wire = await dial(port, GET * (1 + Patient.pipelined_max))
    for _ in range(1 + Patient.pipelined_max):
        assert await answer(wire) == b"0"
    wire.writer.write(POST + b"abcd")  # and the connection goes on
    assert await answer(wire) == b"4"
    await wire.close()


@pytest.mark.parametrize("over", [1, 34, 5000])
async def test_pipelined_requests_over_their_bound_are_refused_behind_the_others(
    port: int, over: int, caplog: pytest.LogCaptureFixture
) -> None:
    """P12: every request before the refusal has its answer, whatever is sent behind it."""
    wire = await dial(port, GET * (1 + Patient.pipelined_max + over))
    for _ in range(1 + Patient.pipelined_max):
        assert await answer(wire) == b"0"
    assert await refusal(wire) == (429, "too_many")
    assert_quiet(caplog)


@pytest.mark.parametrize(
    ("bad", "refused"),
    [
        (b"\xff\xff\r\n\r\n", (400, "invalid_request")),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", (400, "invalid_request")),
        (b"GET / HTTP/1.1\r\nX-Large: " + b"y" * 20_000 + b"\r\n\r\n", (431, "header_too_large")),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            (400, "invalid_request"),
        ),
    ],
    ids=["bytes", "target", "header", "chunk"],
)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
async def test_what_is_bad_is_refused_behind_the_answers_to_what_was_good(
    port: int, count: int, bad: bytes, refused: tuple[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    """P12: in order, with nothing lost, and no traceback in the log."""
    wire = await dial(port, (POST + b"abcd") * count, bad)
    for _ in range(count):
        assert await answer(wire) == b"4"
    assert await refusal(wire) == refused
    assert_quiet(caplog)


async def test_what_comes_behind_a_refusal_is_not_looked_at() -> None:
    release = asyncio.Event()
    paths = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await release.wait()
        await no_application(scope, receive, send)

    async with serve(registry(), http=Patient, app=slow) as gateway:
        wire = await dial(gateway.port, GET, b"\xff\xff\r\n\r\n", GET)
        (protocol,) = await until_refused(gateway)
        protocol.data_received(GET)
        release.set()
        assert await answer(wire) == b"0"
        assert await refusal(wire) == (400, "invalid_request")
    assert paths == ["/"]


async def test_a_client_that_leaves_stops_the_request_that_runs_and_those_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not only the one that was parsed last: what it wrote would be an error in the log."""
    begun, events = asyncio.Event(), asyncio.Queue[str]()

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        while (event := await receive())["type"] != "http.disconnect":
            events.put_nowait(event["type"])
        events.put_nowait(event["type"])
        await no_application(scope, receive, send)

    async with serve(registry(), http=Patient, app=waiting) as gateway:
        wire = await dial(gateway.port, GET, GET)
        await begun.wait()
        await wire.close()
        assert [await events.get() for _ in range(2)] == ["http.request", "http.disconnect"]
        assert events.empty()
    assert_quiet(caplog)


async def test_a_refusal_is_not_written_into_an_answer_that_has_begun() -> None:
    """It would be read as a part of it: the answer is cut off instead."""
    begun = asyncio.Event()

    async def eager(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b"rest"})

    async with serve(registry(), http=Patient, app=eager) as gateway:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire = await dial(gateway.port, head)
        await begun.wait()
        wire.writer.write(b"zz\r\n")
        said = await wire.ended()
        assert said.startswith(b"HTTP/1.1 200")
        assert said.endswith(b"\r\n\r\n4\r\npart\r\n")
        await wire.close()


async def test_a_server_that_stops_answers_what_is_owed_and_lingers_for_nobody() -> None:
    release, lost = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await no_application(scope, receive, send)

    class Noting(Patient):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async with serve(registry(), http=Noting, app=slow) as gateway:
        wire = await dial(gateway.port, GET, b"\xff\xff\r\n\r\n")
        (protocol,) = await until_refused(gateway)
        protocol.shutdown()
        release.set()
        assert await answer(wire) == b"0"
        assert (await response(wire))[0] == 400
        assert not lost.is_set()  # the client has yet to close
        protocol.shutdown()
        await lost.wait()
        await wire.close()


async def test_a_refused_client_that_never_closes_is_cut_off() -> None:
    lost = asyncio.Event()

    class Short(Patient):
        linger_s = SHORT_S

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async with serve(registry(), http=Short) as gateway:
        wire = await dial(gateway.port, GET, b"\xff\xff\r\n\r\n")
        assert await answer(wire) == b"0"
        assert (await response(wire))[0] == 400
        await lost.wait()
        wire.writer.transport.abort()


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00", b"NONSENSE\r\n\r\n", b"\0" * 40])
async def test_what_is_not_http_is_answered_400(port: int, data: bytes) -> None:
    wire = await dial(port, data)
    assert await refusal(wire) == (400, "invalid_request")


# --- Upgrades -----------------------------------------------------------------------------------


def handshake(port: int) -> bytes:
    lines = [f"{name}: {text}" for name, text in HANDSHAKE.items()]
    head = ["GET /v1/ws HTTP/1.1", f"Host: 127.0.0.1:{port}", *lines, "", ""]
    return "\r\n".join(head).encode()


async def test_frames_that_come_with_the_handshake_are_read(port: int) -> None:
    """A client shall wait for the 101 (RFC 6455, 4.1); what one that does not says is not lost."""
    hello = msgspec.json.encode({"type": "hello"})
    frame = Frame(Opcode.TEXT, hello).serialize(mask=True)
    wire = await dial(port, handshake(port), frame)
    status, _, _ = await response(wire)
    assert status == 101
    assert (await wire.receive())["type"] == "welcome"
    await wire.close()


async def test_frames_that_come_with_a_refused_handshake_are_not_read(port: int) -> None:
    wire = await dial(port, handshake(port).replace(b"/v1/ws", b"/v1/no"), b"\x81\x80abcd")
    status, _, _ = await response(wire)
    assert status == 404
    assert await wire.ended() == b""
    await wire.close()


async def test_a_handshake_behind_unanswered_requests_is_refused_in_its_turn(port: int) -> None:
    """Two protocols would write to one socket."""
    wire = await dial(port, GET, GET, handshake(port))
    assert [await answer(wire) for _ in range(2)] == [b"0", b"0"]
    assert await refusal(wire) == (400, "invalid_request")


async def test_a_handshake_behind_an_answered_request_is_accepted(port: int) -> None:
    wire = await dial(port, GET)
    assert await answer(wire) == b"0"
    wire.writer.write(handshake(port))
    assert (await response(wire))[0] == 101
    await wire.close()


async def test_an_upgrade_that_we_do_not_know_is_a_request_like_any_other(port: int) -> None:
    """As `curl --http2` sends it; what is pipelined behind it is answered too."""
    upgrade = GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    wire = await dial(port, upgrade, POST, b"abcd")
    assert [await answer(wire) for _ in range(2)] == [b"0", b"4"]
    await wire.close()


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
    for name, text in SECURITY_HEADERS:
        assert f"{name.lower()}: {text}" in lines
    assert msgspec.json.decode(body)["code"] == "unauthorized"

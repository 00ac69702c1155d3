"""HTTP/1.1: deadlines for header and body, bounds for header and pipeline (P9)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from gateway.auth.auth import Authenticator
from gateway.net.connections import Connections
from gateway.session.directory import SessionServices
from push.errors import Refused
from runtime.http1 import PART_BYTES_MIN, Http11Protocol, raw_problem
from runtime.listener import Listener, bind
from runtime.problems import SECURITY_HEADERS
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.raw_sockets import (
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


def connections() -> Connections:
    return Connections(SessionServices(broker_in_memory(), Authenticator(None)))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serve(connections(), http=Patient) as gateway:
        yield gateway.port


@pytest.fixture
async def header_hurried() -> AsyncIterator[int]:
    async with serve(connections(), http=HeaderHurried) as gateway:
        yield gateway.port


@pytest.fixture
async def body_hurried() -> AsyncIterator[int]:
    async with serve(connections(), http=BodyHurried) as gateway:
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
    async with serve(connections(), http=Patient, app=reads) as gateway:
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
    async with serve(connections(), http=HeaderHurried, keep_alive_s=1) as gateway:
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


async def test_a_body_that_goes_on_is_waited_for(body_hurried: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
    wire = await dial(body_hurried, head)
    began = asyncio.get_running_loop().time()
    for _ in range(30):
        wire.writer.write(b"x" * 2000)
        await asyncio.sleep(SHORT_S / 5)  # the line
    assert await answer(wire) == b"60000"
    assert asyncio.get_running_loop().time() - began > 4 * SHORT_S
    await wire.close()


async def test_a_body_is_cut_when_no_bytes_arrive(body_hurried: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 600000\r\n\r\n"
    wire = await dial(body_hurried, head, b"x" * 500_000)
    async with asyncio.timeout(10):  # what has come buys no rest of a minute
        assert await refusal(wire) == (408, "request_timeout")


async def test_a_body_of_a_byte_now_and_then_is_cut(body_hurried: int) -> None:
    """Slowloris: it moves, and a slow line moves more than that."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n"
    wire = await dial(body_hurried, head)

    async def trickle() -> None:
        while True:
            wire.writer.write(b"y")
            await wire.writer.drain()
            await asyncio.sleep(SHORT_S / 10)

    trickling = asyncio.create_task(trickle())
    async with asyncio.timeout(10):
        status, _, _ = await response(wire)
    assert status == 408
    trickling.cancel()
    wire.writer.transport.abort()


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

    async with serve(connections(), http=Noting, app=slow) as gateway:
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

    async with serve(connections(), http=Hurried, app=slow) as gateway:
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

    async with serve(connections(), http=Patient, app=slow) as gateway:
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

    async with serve(connections(), http=Patient, app=waiting) as gateway:
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

    async with serve(connections(), http=Patient, app=eager) as gateway:
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

    async with serve(connections(), http=Noting, app=slow) as gateway:
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

    async with serve(connections(), http=Short) as gateway:
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


TOKENS = ("h2c", "websocket", "h2c, websocket", "WebSocket/13", "TLS/1.0", "x")
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"


@dataclass
class Asked:
    """Requests that have reached an application, and their bodies."""

    seen: list[tuple[str, str, bytes]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event.get("body", b"")
            more = event.get("more_body", False)
        self.seen.append((scope["method"], scope["path"], body))
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def offer(method: str, token: str, framing: str, body: bytes = SMUGGLED) -> bytes:
    """A request that offers another protocol, with a body that is a request by itself."""
    lines = [f"{method} /asked HTTP/1.1", "Host: localhost", "Connection: Upgrade, HTTP2-Settings"]
    lines += [f"Upgrade: {token}", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"]
    if framing == "length":
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
    if framing == "none":
        return "\r\n".join([*lines, "", ""]).encode()
    chunks = [body[:7], body[7:]] if body else []
    parts = [b"%x;ext=1\r\n%b\r\n" % (len(one), one) for one in chunks]
    trailers = b"X-Trailer: 1\r\n" if framing == "trailers" else b""
    head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode()
    return head + b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize("framing", ["length", "chunked", "trailers", "none"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("pieces", ["whole", "head-first", "bytes"])
async def test_a_body_behind_an_offer_of_another_protocol_belongs_to_its_request(
    token: str, method: str, framing: str, pieces: str, caplog: pytest.LogCaptureFixture
) -> None:
    """P11, P12: what it holds is carried out as nobody's request, however it arrives, and what
    comes behind it is parsed when it has been answered (RFC 9110, section 7.8)."""
    asked = Asked()
    data = offer(method, token, framing)
    behind = b"PUT /behind HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok"
    async with serve(connections(), http=Patient, app=asked) as gateway:
        wire = await dial(gateway.port)
        await until(lambda: bool(gateway.state.connections))
        (connection,) = gateway.state.connections
        assert isinstance(connection, Patient)
        head = data.index(b"\r\n\r\n") + 4
        at_head = [at for at in (head - 1, head) if at < len(data)]
        cuts = {"whole": [], "head-first": at_head, "bytes": list(range(1, len(data)))}[pieces]
        for begin, end in pairwise([0, *cuts, len(data)]):
            connection.data_received(data[begin:end] + (behind if end == len(data) else b""))
        await until(lambda: bool(asked.seen))
        for _ in range(5):
            await asyncio.sleep(0)
        body = b"" if framing == "none" else SMUGGLED
        assert asked.seen == [(method, "/asked", body)]
        assert not connection.pipeline
        asked.may_answer.set()
        if method == "HEAD":
            await wire.reader.readuntil(b"\r\n\r\n")
        else:
            assert (await response(wire))[0] == 200
        assert (await response(wire))[0] == 200
        assert asked.seen[1:] == [("PUT", "/behind", b"ok")]
        wire.writer.write(GET)  # and the connection is kept
        assert (await response(wire))[0] == 200
        await wire.close()
    assert_quiet(caplog)


@pytest.mark.parametrize("framing", ["length", "chunked", "trailers", "none"])
async def test_offers_are_answered_in_order_among_other_requests(port: int, framing: str) -> None:
    """Pipelined, as any other request; several of them in one read."""
    offered = offer("POST", "h2c", framing)
    size = b"0" if framing == "none" else b"%d" % len(SMUGGLED)
    wire = await dial(port, POST, b"abcd", offered, GET, offered, offered, POST, b"ab")
    assert [await answer(wire) for _ in range(5)] == [b"4", size, b"0", size, size]
    wire.writer.write(b"cd")
    assert await answer(wire) == b"4"
    await wire.close()


async def test_an_answer_before_the_end_of_such_a_body_parses_nothing_of_it() -> None:
    """Whoever is refused by the header alone still has sent a body."""
    paths: list[str] = []

    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serve(connections(), http=Patient, app=hasty) as gateway:
        data = offer("POST", "h2c", "length")
        wire = await dial(gateway.port, data[:-20])
        assert (await response(wire))[0] == 401
        wire.writer.write(data[-20:] + GET)
        assert (await response(wire))[0] == 401
        await wire.close()
    assert paths == ["/asked", "/"]


@pytest.mark.parametrize(
    "chunks",
    [
        b"4\nabcd\r\n0\r\n\r\n",
        b"4\r\nabcde\r\n0\r\n\r\n",
        b"4\r\nabcd\n0\r\n\r\n",
        b"-4\r\nabcd\r\n0\r\n\r\n",
        b"0x4\r\nabcd\r\n0\r\n\r\n",
        b" 4\r\nabcd\r\n0\r\n\r\n",
        b"4 4\r\nabcd\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"4;" + b"e" * 2000,
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\n" + b"X-Y: z\r\n" * 2000,
        b"zz\r\n",
    ],
)
async def test_chunks_that_two_could_read_in_two_ways_end_the_connection(
    port: int, chunks: bytes
) -> None:
    """P11: where such a body ends is not certain, so nothing behind it is a request."""
    head = offer("POST", "h2c", "chunked", b"").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    wire = await dial(port, POST, b"abcd", head, chunks, GET)
    assert await answer(wire) == b"4"
    assert await refusal(wire) == (400, "invalid_request")


async def test_a_body_behind_an_offer_has_its_deadline_too(body_hurried: int) -> None:
    wire = await dial(body_hurried, offer("POST", "h2c", "length")[:-3])
    assert await refusal(wire) == (408, "request_timeout")


async def test_a_handshake_with_a_body_is_none(port: int) -> None:
    """Its body would be taken for the first frames."""
    with_body = handshake(port).replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\nabcd")
    wire = await dial(port, with_body, GET)
    assert [await answer(wire) for _ in range(2)] == [b"4", b"0"]
    await wire.close()


@pytest.mark.parametrize("target", [b"localhost:80", b"/healthz"])
async def test_who_takes_a_broker_for_a_proxy_is_refused(port: int, target: bytes) -> None:
    """What follows CONNECT is never HTTP (RFC 9110, section 9.3.6)."""
    wire = await dial(port, b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", GET)
    assert (await refusal(wire))[0] in (400, 405)


async def test_every_server_of_ours_reads_requests_in_this_way() -> None:
    """The admin socket, the port for metrics and a node of the metadata service, too: what no
    protocol class is named for."""
    asked, bound = Asked(), bind("127.0.0.1", 0)
    asked.may_answer.set()
    listener = Listener(asked, bound)
    await listener.start()
    wire = await dial(bound.getsockname()[1])
    for framing in ("length", "chunked"):
        data = offer("POST", "h2c", framing)
        head = data.index(b"\r\n\r\n") + 4
        wire.writer.write(data[:head])
        await until(lambda: bool(listener.server_state.tasks))
        wire.writer.write(data[head:])
        assert (await response(wire))[0] == 200
    wire.writer.write(handshake(0))
    assert (await response(wire))[0] == 200
    assert [one[1:] for one in asked.seen[:2]] == 2 * [("/asked", SMUGGLED)]
    await wire.close()
    await listener.finish(1)


# --- Codings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "coding",
    ["gzip, chunked", "gzip,chunked", "chunked, chunked", "identity", "deflate\r\nTransfer-Encoding"
     ": chunked", "GZIP , Chunked", "chunked, gzip", ", chunked"],
)  # fmt: skip
@pytest.mark.parametrize("offered", [False, True])
async def test_a_transfer_coding_other_than_chunked_is_refused(
    port: int, coding: str, offered: bool
) -> None:
    """What came of the chunks would be the compressed form, taken for the body."""
    lines = ["POST / HTTP/1.1", "Host: localhost", f"Transfer-Encoding: {coding}"]
    lines += ["Connection: Upgrade", "Upgrade: h2c"] if offered else []
    wire = await dial(port, "\r\n".join([*lines, "", ""]).encode(), b"0\r\n\r\n", GET)
    assert await refusal(wire) in ((415, "unsupported_encoding"), (400, "invalid_request"))


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
async def test_chunked_is_read_however_it_is_spelled(port: int, coding: str) -> None:
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n"
    wire = await dial(port, head.encode(), b"4\r\nabcd\r\n0\r\n\r\n", GET)
    assert [await answer(wire) for _ in range(2)] == [b"4", b"0"]
    await wire.close()


@pytest.mark.parametrize("offered", [False, True])
@pytest.mark.parametrize(
    "framing",
    [
        "HTTP/1.0\r\nTransfer-Encoding: chunked",
        "HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4",
        "HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked",
        "HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5",
        "HTTP/1.1\r\nContent-Length: 4, 4",
        "HTTP/1.1\r\nContent-Length: +4",
        "HTTP/1.1\r\nContent-Length: 99999999999999999999999",
    ],
)
async def test_a_body_whose_end_is_not_certain_is_refused(
    port: int, framing: str, offered: bool
) -> None:
    """P11: of two that read it in two ways, one is deceived (RFC 9112, section 6)."""
    more = "\r\nConnection: Upgrade\r\nUpgrade: h2c" if offered else ""
    wire = await dial(port, f"POST / {framing}{more}\r\nHost: localhost\r\n\r\n".encode(), GET)
    assert await refusal(wire) == (400, "invalid_request")


# --- Else ---------------------------------------------------------------------------------------


async def test_a_websocket_takes_no_deadline_along() -> None:
    async with serve(connections(), http=HeaderHurried) as gateway:
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

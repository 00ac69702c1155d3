"""Sockets: the handshake, RFC 6455, heartbeats, close codes, bounded memory, the drain.

Everything runs over real sockets, on asyncio's own loop and, at the end, once more on uvloop.
"""

import asyncio
import inspect
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
import uvicorn
import uvloop
from websockets.asyncio.client import connect as websockets_connect
from websockets.frames import Opcode

from gateway.auth.auth import Authenticator
from gateway.net.connections import (
    LOST_PER_TURN,
    PART_BYTES_SHARED,
    RESUMED_PER_TURN,
    Connections,
)
from gateway.net.handshake import answer_handshake
from gateway.net.websocket import (
    FULL_READ_BYTES,
    UNREAD_BYTES_MAX,
    ReadHold,
    WebSocketConnection,
    websocket_class,
)
from gateway.session.directory import SessionServices
from gateway.wire import frames
from gateway.wire.frames import Close
from gateway.wire.protocol import Timing
from loadtests.clients.wire import frame as wire_frame
from metadata.catalog import ANYBODY
from push import limits
from push.transit import INSTANT_S
from runtime.http1 import Http11Protocol, http_class
from tests.gateway.plain_metadata import MemoryBroker, running
from tests.gateway.raw_sockets import (
    HANDSHAKE,
    Gateway,
    Wire,
    connect,
    connection_of,
    no_application,
    request,
    serve,
    session,
    until,
)

TOKEN = "s3cret"
"""What has not come about by then does not."""


@asynccontextmanager
async def one_queue() -> AsyncIterator[MemoryBroker]:
    async with running(MemoryBroker()) as made:
        await made.add_queue("q", message_bytes_max=limits.MESSAGE_BYTES_MAX_MAX)
        yield made


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with one_queue() as made:
        yield made


@pytest.fixture
async def gateway(broker: MemoryBroker) -> AsyncIterator[Gateway]:
    async with serve(Connections(SessionServices(broker, Authenticator(None)))) as made:
        yield made


@pytest.fixture
async def locked(broker: MemoryBroker) -> AsyncIterator[Gateway]:
    async with serve(Connections(SessionServices(broker, Authenticator(TOKEN)))) as made:
        yield made


async def subscribed(gateway: Gateway, credit: int = 10_000) -> Any:
    wire = await session(gateway)
    subscribe = {"type": "subscribe", "ref": 0, "subscription": 1, "queue": "q", "group": "g"}
    await wire.send({**subscribe, "credit": credit})
    assert (await wire.receive())["type"] == "ok"
    return wire


# --- The handshake ------------------------------------------------------------------------------


async def refused(port: int, target: str = "/v1/ws", **headers: str | None) -> tuple[int, Any]:
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    wanted = {"Host": f"127.0.0.1:{port}", **HANDSHAKE, **more}
    given = {name: text for name, text in wanted.items() if text is not None}
    wire, status, answer, body = await request(port, given, target)
    assert await wire.ended() == b""
    await wire.close()
    assert answer["content-type"] == "application/problem+json"
    assert answer["connection"] == "close"
    problem = msgspec.json.decode(body)
    assert problem["status"] == status
    if status == 401:
        assert answer["www-authenticate"].startswith("bearer")
    return status, problem


@pytest.mark.parametrize("protocols", [None, "mqtt", "tocsin.v2, chat"])
async def test_without_the_subprotocol_the_handshake_says_what_to_do(
    gateway: Gateway, protocols: str | None
) -> None:
    status, problem = await refused(gateway.port, Sec_WebSocket_Protocol=protocols)
    assert (status, problem["code"]) == (400, "invalid_request")
    assert "tocsin.v1" in problem["detail"]


async def test_the_subprotocol_is_found_among_others(gateway: Gateway) -> None:
    wire = await connect(gateway, Sec_WebSocket_Protocol="chat, tocsin.v1")
    await wire.send({"type": "hello"})
    assert (await wire.receive())["type"] == "welcome"
    await wire.close()


@pytest.mark.parametrize("target", ["/", "/v1/ws/", "/v1/WS", "/v1/other?x=/v1/ws"])
async def test_another_path_is_not_found(gateway: Gateway, target: str) -> None:
    assert (await refused(gateway.port, target))[1]["code"] == "not_found"


@pytest.mark.parametrize(
    ("header", "text", "status"),
    [
        ("Sec_WebSocket_Key", None, 400),
        ("Sec_WebSocket_Key", "c2hvcnQ=", 400),
        ("Sec_WebSocket_Version", "12", 400),
        ("Sec_WebSocket_Version", None, 400),
    ],
)
async def test_a_handshake_that_breaks_rfc_6455_is_refused(
    gateway: Gateway, header: str, text: str | None, status: int
) -> None:
    headers: dict[str, Any] = {header: text}
    found, problem = await refused(gateway.port, **headers)
    assert (found, problem["code"]) == (status, "invalid_request")


def test_what_is_no_handshake_at_all_is_refused() -> None:
    handshake = answer_handshake(b"nonsense\r\n\r\n", Authenticator(None), now=0, wall=0)
    assert not handshake.is_accepted
    assert handshake.response.startswith(b"HTTP/1.1 400 ")


async def test_a_foreign_page_is_refused(gateway: Gateway, locked: Gateway) -> None:
    """P11: cross-site WebSocket."""
    for one in (gateway, locked):
        status, problem = await refused(one.port, Origin="https://evil.example")
        assert (status, problem["code"]) == (403, "origin_refused")
        wire = await connect(one, Origin=f"http://127.0.0.1:{one.port}")
        await wire.close()


async def test_a_rebound_host_is_refused(gateway: Gateway) -> None:
    """P11: DNS rebinding."""
    status, problem = await refused(gateway.port, Host="evil.example")
    assert (status, problem["code"]) == (403, "origin_refused")


async def test_a_wrong_token_in_the_header_is_refused(locked: Gateway) -> None:
    """P11."""
    status, problem = await refused(locked.port, Authorization="Bearer wrong")
    assert (status, problem["code"]) == (401, "unauthorized")


async def test_the_right_token_in_the_header_lets_in(locked: Gateway) -> None:
    wire = await connect(locked, Authorization=f"Bearer {TOKEN}", Origin="https://else.example")
    await wire.send({"type": "hello"})
    assert (await wire.receive())["type"] == "welcome"
    await wire.close()


async def test_the_right_token_in_hello_lets_in(locked: Gateway) -> None:
    wire = await session(locked, token=TOKEN)
    await wire.close()


@pytest.mark.parametrize("token", [{}, {"token": "wrong"}, {"token": ""}])
async def test_a_wrong_token_in_hello_closes_before_anything_is_done(
    locked: Gateway, broker: MemoryBroker, token: dict[str, str]
) -> None:
    """P11."""
    wire = await connect(locked)
    publish = {"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": 1}]}
    await wire.send({"type": "hello", **token}, publish)
    assert await wire.closed() == (4401, frames.UNAUTHORIZED.reason)
    assert broker.submitted == []
    await wire.close()


async def test_tokens_are_never_logged(locked: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await refused(locked.port, Authorization="Bearer not-the-token")
    wire = await session(locked, token=TOKEN)
    await wire.close()
    assert "handshake was refused" in caplog.text
    assert TOKEN not in caplog.text
    assert "not-the-token" not in caplog.text


# --- RFC 6455 -----------------------------------------------------------------------------------


async def test_a_known_client_library_gets_along(gateway: Gateway) -> None:
    async with websockets_connect(
        f"ws://127.0.0.1:{gateway.port}/v1/ws",
        subprotocols=["tocsin.v1"],  # type: ignore[list-item]
    ) as client:
        assert client.subprotocol == "tocsin.v1"
        assert client.response is not None
        assert "Sec-WebSocket-Extensions" not in client.response.headers  # no deflate
        await client.send('{"type":"hello"}')
        assert msgspec.json.decode(await client.recv())["type"] == "welcome"
        for size in (10, 200, 70_000):  # the three forms of a frame's length
            await client.send('{"type":"ping","ref":1}' + " " * size)
            assert await client.recv() == '{"type":"pong","ref":1}'
        await client.ping()
    assert client.close_code == 1000


@pytest.mark.parametrize("size", [0, 1, 117, 118, 119, 65_000, 65_528, 65_529, 300_000])
async def test_frames_of_every_length_arrive_however_the_network_cuts_them(
    gateway: Gateway, size: int
) -> None:
    wire = await session(gateway)
    for ref in range(3):
        await wire.send_text(b'{"type":"ping","ref":%d}' % ref + b" " * size)
    assert [(await wire.receive())["ref"] for _ in range(3)] == [0, 1, 2]
    await wire.close()


async def test_a_frame_may_come_byte_by_byte(gateway: Gateway) -> None:
    wire = await session(gateway)
    frame = b"\x81\x8f\0\0\0\0" + b'{"type":"ping"}'
    for start in range(len(frame)):
        wire.writer.write(frame[start : start + 1])
        await wire.writer.drain()
        await asyncio.sleep(0)  # lets the loop read what there is
    assert await wire.receive() == {"type": "pong"}
    await wire.close()


async def test_a_fragmented_message_is_one_message_with_pings_in_between(gateway: Gateway) -> None:
    wire = await session(gateway)
    await wire.send_frame(Opcode.TEXT, b'{"type":', fin=False)
    await wire.send_frame(Opcode.PING, b"in between")
    assert await wire.read() == (Opcode.PONG, b"in between")
    await wire.send_frame(Opcode.CONT, b"", fin=False)
    await wire.send_frame(Opcode.CONT, b'"ping"}', fin=True)
    assert await wire.receive() == {"type": "pong"}
    await wire.send({"type": "ping", "ref": 2})
    assert await wire.receive() == {"type": "pong", "ref": 2}
    await wire.close()


async def test_a_ping_is_answered_with_its_payload(gateway: Gateway) -> None:
    wire = await session(gateway)
    await wire.send_frame(Opcode.PING, b"payload")
    assert await wire.read() == (Opcode.PONG, b"payload")
    await wire.close()


async def test_a_close_is_answered_and_the_socket_ends(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    wire = await subscribed(gateway)
    assert len(broker.consumers) == 1
    await wire.send_frame(Opcode.CLOSE, b"\x03\xe8bye")
    assert await wire.read() == (Opcode.CLOSE, b"\x03\xe8bye")
    assert await wire.ended() == b""
    await until(lambda: not broker.consumers)
    await wire.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x02{}",  # not masked
        b"\xc1\x82\0\0\0\0{}",  # a reserved bit
        b"\x83\x82\0\0\0\0{}",  # an unknown opcode
        b"\x80\x82\0\0\0\0{}",  # continues nothing
        b"\x01\x82\0\0\0\0{}\x81\x82\0\0\0\0{}",  # a message inside a fragmented one
        b"\x09\x82\0\0\0\0{}",  # a fragmented ping
        b"\x89\xfe\0\x7e\0\0\0\0" + bytes(126),  # a ping too long
    ],
)
async def test_what_breaks_rfc_6455_closes_with_1002(gateway: Gateway, data: bytes) -> None:
    wire = await session(gateway)
    wire.writer.write(data)
    code, reason = await wire.closed()
    assert code == 1002
    assert reason
    await wire.close()


async def test_text_that_is_not_utf8_closes_with_1007(gateway: Gateway) -> None:
    wire = await session(gateway)
    await wire.send_text(b'{"type":"ping","client":"\xff"}')
    assert (await wire.receive())["code"] == "invalid_json"
    assert (await wire.closed())[0] == 1007
    await wire.close()


async def test_a_binary_message_closes_with_4500(gateway: Gateway) -> None:
    wire = await session(gateway)
    await wire.send_frame(Opcode.BINARY, b'{"type":"ping"}')
    assert (await wire.receive())["code"] == "invalid_request"
    assert (await wire.closed())[0] == 4500
    await wire.close()


async def test_a_frame_over_its_limit_closes_before_it_is_read(gateway: Gateway) -> None:
    """P9: by its announced length, not by its bytes."""
    wire = await session(gateway)
    size = limits.FRAME_BYTES_MAX + 1
    wire.writer.write(b"\x81\xff" + size.to_bytes(8, "big") + b"\0\0\0\0")
    assert (await wire.receive())["code"] == "request_too_large"
    assert (await wire.closed())[0] == 4509
    await wire.close()


async def test_before_hello_the_limit_is_lower(gateway: Gateway) -> None:
    """P9: whoever it is has not said so yet."""
    wire = await connect(gateway)
    await wire.send_text(b'{"type":"hello"}'.ljust(limits.HELLO_BYTES_MAX + 1))
    assert (await wire.receive())["code"] == "request_too_large"
    assert (await wire.closed())[0] == 4509
    await wire.close()


async def test_what_follows_hello_at_once_has_the_full_limit(gateway: Gateway) -> None:
    wire = await connect(gateway)
    await wire.send_text(b'{"type":"hello","producer":"p"}'.ljust(limits.HELLO_BYTES_MAX))
    await wire.send_text(b'{"type":"ping"}'.ljust(2 * limits.HELLO_BYTES_MAX))
    assert (await wire.receive())["type"] == "welcome"
    assert await wire.receive() == {"type": "pong"}
    await wire.close()


async def test_a_session_that_comes_back_has_the_full_limit_at_once(gateway: Gateway) -> None:
    """R22: what it says first may be all that its loss has left unanswered."""
    lost = await connect(gateway)
    await lost.send_text(b'{"type":"hello","linger_s":30}')
    name = (await lost.receive())["session"]
    wire = await connect(gateway)  # the old transport still stands
    await wire.send_text(b'{"type":"hello","linger_s":30,"session":"%b"}' % name.encode())
    assert (await wire.receive())["resumed"] == []
    await wire.send_text(b'{"type":"ping"}'.ljust(2 * limits.HELLO_BYTES_MAX))
    assert await wire.receive() == {"type": "pong"}
    await wire.close()
    await lost.close()


async def test_fragments_over_the_limit_together_close(gateway: Gateway) -> None:
    """P9."""
    wire = await session(gateway)
    part = b" " * (limits.FRAME_BYTES_MAX // 2)
    await wire.send_frame(Opcode.TEXT, part, fin=False)
    await wire.send_frame(Opcode.CONT, part, fin=False)
    await wire.send_frame(Opcode.CONT, b" ", fin=True)
    assert (await wire.receive())["code"] == "request_too_large"
    assert (await wire.closed())[0] == 4509
    await wire.close()


async def test_the_largest_frame_is_taken(gateway: Gateway) -> None:
    wire = await session(gateway)
    await wire.send_text(b'{"type":"ping"}'.ljust(limits.FRAME_BYTES_MAX))
    assert await wire.receive() == {"type": "pong"}
    await wire.close()


async def test_many_answers_travel_in_one_message(gateway: Gateway) -> None:
    wire = await session(gateway)
    await wire.send(*({"type": "ping", "ref": ref} for ref in range(100)))
    opcode, payload = await wire.read()
    assert opcode == Opcode.TEXT
    assert [frame["ref"] for frame in msgspec.json.decode(payload)] == list(range(100))
    await wire.close()


# --- The session's rules, over the socket -------------------------------------------------------


@pytest.mark.parametrize("second", [False, True])
async def test_hello_comes_first_and_once(gateway: Gateway, second: bool) -> None:
    wire = await (session(gateway) if second else connect(gateway))
    await wire.send({"type": "hello"} if second else {"type": "ping"})
    assert await wire.closed() == (4502, frames.HELLO_FIRST.reason)
    await wire.close()


async def test_an_unknown_type_is_an_error_and_the_session_goes_on(gateway: Gateway) -> None:
    """P12."""
    wire = await session(gateway)
    await wire.send({"type": "dance", "ref": 4})
    error = await wire.receive()
    assert (error["type"], error["code"], error["ref"]) == ("error", "invalid_request", 4)
    await wire.send({"type": "ping", "ref": 5})
    assert (await wire.receive())["ref"] == 5
    await wire.close()


async def test_seventeen_bad_messages_close(gateway: Gateway) -> None:
    wire = await session(gateway)
    for _ in range(17):
        await wire.send_text("nonsense")
    for _ in range(17):
        assert (await wire.receive())["code"] == "invalid_json"
    assert await wire.closed() == (4500, frames.PROTOCOL.reason)
    await wire.close()


@pytest.mark.parametrize("close", frames.CLOSES, ids=lambda close: str(close.code))
async def test_every_close_code_reaches_the_client_behind_what_was_queued(
    gateway: Gateway, broker: MemoryBroker, close: Close
) -> None:
    wire = await subscribed(gateway)
    connection = connection_of(gateway)
    connection.send(b'{"type":"pong"}')
    connection.close(close)
    connection.close(frames.PROTOCOL)  # once is enough
    connection.send(b'{"type":"pong","ref":1}')
    assert broker.consumers == []
    assert len(gateway.connections) == 0
    assert await wire.receive() == {"type": "pong"}
    assert await wire.closed() == (close.code, close.reason)
    assert await wire.ended() == b""
    await wire.close()


async def test_one_session_too_many_is_asked_to_come_back_later(broker: MemoryBroker) -> None:
    """P9."""
    connections = Connections(SessionServices(broker, Authenticator(None)), sessions_max=1)
    async with serve(connections) as gateway:
        first = await session(gateway)
        second = await connect(gateway)
        assert (await second.closed())[0] == 4003
        await first.send({"type": "ping"})
        assert await first.receive() == {"type": "pong"}
        await first.close()
        await second.close()


# --- Silence ------------------------------------------------------------------------------------


def timed(broker: MemoryBroker, **timing: float) -> Connections:
    return Connections(SessionServices(broker, Authenticator(None), timing=Timing(**timing)))


async def test_no_hello_in_time_closes(broker: MemoryBroker) -> None:
    async with serve(timed(broker, hello_timeout_s=0.05)) as gateway:
        wire = await connect(gateway)
        assert (await wire.closed())[0] == 4002
        await wire.close()


async def test_a_half_open_socket_is_pinged_found_dead_and_left(broker: MemoryBroker) -> None:
    """P6: what it held returns to its group."""
    connections = timed(broker, heartbeat_s=0.4, heartbeat_timeout_s=0.05)
    async with serve(connections) as gateway:
        wire = await subscribed(gateway)
        assert await wire.read() == (Opcode.PING, b"")
        assert (await wire.closed())[0] == 4001
        assert broker.consumers == []
        await wire.close()


@pytest.mark.parametrize("goes_on", [True, False], ids=["slow", "stalled"])
async def test_a_client_that_takes_a_large_message_slowly_is_alive(
    broker: MemoryBroker, *, goes_on: bool
) -> None:
    """P6: and one that has ceased to take it is not."""
    connections = timed(broker, heartbeat_s=0.2, heartbeat_timeout_s=0.4)
    async with serve(connections) as gateway:
        with socket.socket() as narrow:
            narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
            narrow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(narrow, ("127.0.0.1", gateway.port))
            head = "".join(f"{name}: {text}\r\n" for name, text in HANDSHAKE.items())
            request = f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n{head}\r\n"
            hello = wire_frame(b'{"type":"hello"}')
            await loop.sock_sendall(narrow, request.encode())
            assert b" 101 " in await loop.sock_recv(narrow, 4096)
            await loop.sock_sendall(narrow, hello)
            assert b"welcome" in await loop.sock_recv(narrow, 4096)
            connection = connection_of(gateway)
            connection.send(b'"' + b"x" * 2_000_000 + b'"')
            began, taken = loop.time(), 0
            while goes_on and taken < 1_500_000:  # the rest may be in this system's hands already
                taken += len(await loop.sock_recv(narrow, 16_384))
                await asyncio.sleep(0.03)  # the line
            if goes_on:
                assert loop.time() - began > 1.2, "it was slow"
                assert len(connections) == 1
            else:
                await until(lambda: len(connections) == 0)
                assert loop.time() - began > 0.5


async def test_who_is_sent_something_large_is_heard_meanwhile(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P6: on a slow line acks, extends and pongs come in while a large message waits for the
    socket; and whoever reads nothing is not heard for ever (P9)."""
    await broker.publish("q", "x" * 1_000_000)
    wire = await session(gateway)
    wire.stop_reading()
    connection = connection_of(gateway)
    connection._transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384
    )
    subscribe = {"type": "subscribe", "ref": 0, "subscription": 1, "queue": "q", "group": "g"}
    await wire.send({**subscribe, "credit": 10})
    await until(lambda: connection._transport.get_write_buffer_size() > 2 * UNREAD_BYTES_MAX)
    its_session = connection._session
    assert its_session is not None
    before, loop = its_session.received_at, asyncio.get_running_loop()
    await until(lambda: loop.time() > before)  # a clock of milliseconds may stand still
    await wire.send({"type": "ping", "ref": 1})
    await until(lambda: its_session.received_at > before)
    assert not connection._read_holds
    assert await flooded(wire, connection) < 1_000_000 + 2 * UNREAD_BYTES_MAX


async def flooded(wire: Wire, connection: WebSocketConnection) -> int:
    """How much waits for a client that asks, and does not read, when it is not heard any more."""
    flood = [{"type": "ping", "ref": ref} for ref in range(2, 200)]

    async def ask() -> None:
        while True:
            await wire.send(*flood)

    asking = asyncio.create_task(ask())
    await until(lambda: connection._read_holds & ReadHold.UNREAD > 0)
    asking.cancel()
    wire.writer.transport.abort()
    return connection._transport.get_write_buffer_size()


async def test_what_was_large_and_has_been_taken_buys_nothing(gateway: Gateway) -> None:
    """P9: whoever has taken many large messages and stops reading is not heard for ever."""
    wire = await session(gateway)
    connection = connection_of(gateway)
    large = b'{"type":"other","x":"' + b"x" * limits.ANNOUNCED_BYTES + b'"}'
    for _ in range(40):
        connection.send(large)
        assert [(await wire.receive())["type"] for _ in range(2)] == ["announce", "other"]
    wire.stop_reading()
    assert await flooded(wire, connection) < 2 * UNREAD_BYTES_MAX


async def test_what_is_yet_to_be_written_does_not_arrive_with_what_was_before(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20: a message is given in the very turn in which the client answers a mark."""
    monkeypatch.setattr(limits, "TRANSIT_SLOW_S", 0.0)
    wire = await session(gateway)
    connection = connection_of(gateway)
    large = b'{"type":"other","x":"' + b"x" * 300_000 + b'"}'
    connection.send(large)
    mark = await next_mark(wire)
    connection.send(b'{"type":"other"}')
    assert (await wire.receive())["type"] == "other"  # and there is no mark behind it
    connection.send(large)
    given_at = asyncio.get_running_loop().time()
    connection.data_received(wire_frame(mark, 0x80 | Opcode.PONG))
    await wire.send_frame(Opcode.PONG, await next_mark(wire))  # behind the small one
    mark = await next_mark(wire)
    transit = connection._transit
    assert transit is not None
    await until(lambda: len(transit._awaited) == 1)
    assert connection.lease_start(given_at) is None
    await wire.send_frame(Opcode.PONG, mark)
    await until(lambda: connection.lease_start(given_at) is not None)
    await wire.close()


async def next_mark(wire: Wire) -> bytes:
    while (read := await wire.read())[0] != Opcode.PING:
        pass
    return read[1]


@pytest.mark.parametrize("payload", [b"\0" * 8, b"\0" * 7 + b"\x02", b"mark"])
async def test_a_pong_that_answers_no_mark_is_a_sign_of_life_only(
    gateway: Gateway, broker: MemoryBroker, payload: bytes
) -> None:
    for _ in range(2):
        await broker.publish("q", "x" * 300_000)
    wire = await session(gateway)
    subscribe = {"type": "subscribe", "ref": 0, "subscription": 1, "queue": "q", "group": "g"}
    await wire.send({**subscribe, "credit": 10})
    mark, loop = await next_mark(wire), asyncio.get_running_loop()
    later = loop.time() + 2 * INSTANT_S
    await until(lambda: loop.time() > later)
    (place,), connection = broker.consumers, connection_of(gateway)
    assert not connection.writable()
    await wire.send_frame(Opcode.PONG, payload)
    await wire.send({"type": "ping", "ref": 1})
    assert (await wire.receive())["type"] == "pong"
    assert not connection.writable()
    assert place.given_total == 1
    await wire.send_frame(Opcode.PONG, mark)
    await until(lambda: place.given_total == 2)
    await wire.close()


async def test_a_large_frame_is_announced(gateway: Gateway) -> None:
    wire = await session(gateway)
    connection = connection_of(gateway)
    small = b'{"type":"other","x":"' + b"x" * (limits.ANNOUNCED_BYTES - 50) + b'"}'
    large = b'{"type":"other","x":"' + b"x" * limits.ANNOUNCED_BYTES + b'"}'
    connection.send(small)
    connection.send(large)
    assert (await wire.receive())["type"] == "other"
    opcode, announced = await wire.read()
    assert (opcode, msgspec.json.decode(announced)) == (
        Opcode.TEXT, {"type": "announce", "bytes": len(large)},
    )  # fmt: skip
    assert await wire.read() == (Opcode.TEXT, large)
    await wire.close()


async def test_parts_of_a_message_are_signs_of_life_in_both_directions(
    broker: MemoryBroker,
) -> None:
    async with serve(timed(broker, heartbeat_s=0.2, heartbeat_timeout_s=0.2)) as gateway:
        wire = await session(gateway)
        message = wire_frame(b'{"type":"ping","ref":1,"x":"' + b"x" * 60_000 + b'"}')
        for start in range(0, len(message), 3_000):
            wire.writer.write(message[start : start + 3_000])
            await asyncio.sleep(0.04)  # the line
        pongs = 0
        while (answer := await wire.receive())["type"] == "pong":
            pongs += 1
        assert answer["code"] == "invalid_request"  # at its end all of it was heard
        assert pongs >= 4
        await wire.close()


async def test_a_pong_keeps_a_session_alive(broker: MemoryBroker) -> None:
    async with serve(timed(broker, heartbeat_s=0.02, heartbeat_timeout_s=5)) as gateway:
        wire = await session(gateway)
        for _ in range(3):
            assert await wire.read() == (Opcode.PING, b"")
            await wire.send_frame(Opcode.PONG, b"")
        await wire.close()


async def test_a_socket_that_ignores_our_close_is_cut_off(broker: MemoryBroker) -> None:
    connections = Connections(SessionServices(broker, Authenticator(None)))
    async with serve(connections, close_timeout_s=0.05) as gateway:
        wire = await session(gateway)
        (connection,) = gateway.state.connections
        connection_of(gateway).close(frames.REVOKED)
        assert (await wire.closed())[0] == 4501
        with suppress(ConnectionError):
            while connection in gateway.state.connections:  # its own half stays open all the time
                await wire.send_frame(Opcode.PING, b"")
                await asyncio.sleep(0)
        await until(lambda: connection not in gateway.state.connections)
        await wire.close()


async def test_while_something_is_stored_each_read_gives_way(broker: MemoryBroker) -> None:
    """Of a WebSocket and of HTTP: on a core of their own the storage's thread and the loop's would
    else wait for each other's slices."""
    given = list[bool]()
    connections = Connections(SessionServices(broker, Authenticator(None)))
    connections.large_reads._give_way = lambda: given.append(True)
    async with serve(
        connections, http_class(connections.addresses, connections.large_reads)
    ) as gateway:
        wire = await session(gateway)
        assert not given
        broker.messages.held = []
        broker.publish("q", 1)
        await until(lambda: len(broker.publisher.commits) > 0)
        await wire.send({"type": "ping", "ref": 1})
        assert (await wire.receive())["type"] == "pong"
        assert given == [True]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"NONSENSE\r\n\r\n")
        assert b" 400 " in await reader.readline()
        assert given == [True, True]
        writer.close()
        await wire.close()


# --- Memory -------------------------------------------------------------------------------------


async def test_a_stalled_reader_holds_its_bound_and_loses_nothing(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P9, and P1: what it does not read waits in the log."""
    size, count = len('{"body":"' + "x" * 60_000 + '"}'), 400
    for _ in range(count):
        await broker.publish("q", "x" * 60_000)
    wire = await session(gateway)
    wire.stop_reading()
    subscribe = {"type": "subscribe", "ref": 0, "subscription": 1, "queue": "q", "group": "g"}
    await wire.send({**subscribe, "credit": 10_000})
    connection = connection_of(gateway)
    await until(lambda: bool(broker.consumers))
    (place,), given = broker.consumers, -1
    async with asyncio.timeout(20):  # the system's own buffers take more for a while
        while given != place.given_total or connection.writable():
            given = place.given_total
            await asyncio.sleep(0.02)
    waiting = connection._transport.get_write_buffer_size() + connection._outbox_bytes
    assert waiting <= limits.WRITE_BUFFER_BYTES_MAX + size + 1024
    handed_over = place.given_total * size
    assert handed_over <= limits.TRANSIT_BYTES_MIN + limits.WRITE_BUFFER_BYTES_MAX + size
    wire.go_on_reading()
    assert (await wire.receive())["type"] == "ok"
    for offset in range(count):
        assert (await wire.receive())["offset"] == offset
    assert connection.writable()
    await wire.close()


async def test_those_who_read_again_at_once_are_given_more_in_turns(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P9: others are heard in between. One that is full again, or gone, by then is passed over."""
    wires = [await session(gateway) for _ in range(2 * RESUMED_PER_TURN + 3)]
    connections = [one for one in list(gateway.connections) if isinstance(one, WebSocketConnection)]
    for connection in connections:
        connection.pause_writing()
        assert not connection.writable()
    for connection in connections:
        connection.resume_writing()
    full, gone = connections[-1], connections[-2]
    for _ in range(3 * RESUMED_PER_TURN):  # one place in the queue is enough
        gone.pause_writing()
        gone.resume_writing()
    full.pause_writing()
    gone._transport.abort()
    fed = [[one for one in connections if not one._has_blocked_push]]
    for _ in range(3):
        await asyncio.sleep(0)
        fed.append([one for one in connections if not one._has_blocked_push])
    assert [len(some) for some in fed] == [
        RESUMED_PER_TURN,
        2 * RESUMED_PER_TURN,
        2 * RESUMED_PER_TURN + 1,
        2 * RESUMED_PER_TURN + 1,
    ]
    assert fed[-1] == connections[:-2]
    full.resume_writing()
    assert not full._has_blocked_push
    for wire in wires:
        wire.writer.transport.abort()


async def test_who_asks_and_does_not_read_is_not_read_either(gateway: Gateway) -> None:
    """P9: a flood of pings whose pongs nobody takes."""
    wire = await session(gateway)
    connection = connection_of(gateway)
    wire.stop_reading()
    flood = b"".join(b"\x89\xfd\0\0\0\0" + bytes(125) for _ in range(2000))
    while not connection._read_holds:
        wire.writer.write(flood)
        await asyncio.sleep(0)
    assert connection._transport.get_write_buffer_size() < 2**22
    wire.go_on_reading()
    while connection._read_holds:
        await wire.read()
    wire.writer.transport.abort()


def messages_of(broker: MemoryBroker) -> int:
    """How many were submitted to `q`: frames that arrived in one read are one publish."""
    return sum(len(one.messages) for one in broker.submitted if one.queue.name == "q")


@asynccontextmanager
async def beside_others(broker: MemoryBroker) -> AsyncIterator[None]:
    """Several queues publish, and are remembered for all of the test."""
    await broker.add_queue("flooding")
    await broker.add_queue("beside")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("push.commit_sharing.WINDOW_S", 1000.0)
        await broker.publish("beside", 1)
        assert broker.publisher.is_shared
        yield


def flood(broker: MemoryBroker, *, mebibytes: int = 1) -> None:
    """From the next turn of the loop on one of them floods."""
    broker.publish("flooding", *["x" * 65_536] * (16 * mebibytes))
    broker.publish("beside", 2)


async def test_beside_others_a_flood_has_its_part_of_each_turn(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P8: what came at once is worked off in turns, in order, and others are heard in between. On
    both sides of its part; and a queue that is alone is not cut up."""
    flooding = await session(gateway)
    connection = connection_of(gateway)
    other = await session(gateway)

    def publishes(first: int, count: int) -> bytes:
        frames_ = (
            {"type": "publish", "ref": ref, "queue": "q", "messages": [{"body": "x" * 1000}]}
            for ref in range(first, first + count)
        )
        return b"".join(wire_frame(msgspec.json.encode(one)) for one in frames_)

    connection.data_received(publishes(0, 200))
    assert messages_of(broker) == 200
    async with beside_others(broker):
        connection.data_received(publishes(200, 30))
        assert messages_of(broker) == 230
        part = PART_BYTES_SHARED // 1000 + 1
        flood(broker)
        assert not broker.publisher.is_skewed
        await other.send({"type": "ping", "ref": 1})
        counts = [messages_of(broker)]
        connection.data_received(publishes(230, 200))
        async with asyncio.timeout(20):
            while counts[-1] < 430:
                counts.append(messages_of(broker))
                await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(counts)) <= part
        assert broker.publisher.is_skewed
        assert await other.receive() == {"type": "pong", "ref": 1}
        refs: list[int] = []
        while len(refs) < 430:
            refs.append((await flooding.receive())["ref"])
        assert refs == list(range(430))
        await flooding.send({"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": 1}]})
        assert (await flooding.receive())["ref"] == 1
        await other.close()
        await flooding.close()


async def test_other_clients_are_read_after_a_full_read(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P8: also where one queue is alone. On both sides of what is one."""
    wire = await session(gateway)
    connection = connection_of(gateway)
    head = 14  # of a frame that is longer than 65,535 bytes
    opening, closing = b'{"type":"ping","ref":1,"x":"', b'"}'
    for size, is_held in ((FULL_READ_BYTES - 1, False), (FULL_READ_BYTES, True)):
        padding = b"x" * (size - head - len(opening) - len(closing))
        said = wire_frame(opening + padding + closing)
        assert len(said) == size
        connection.data_received(said)
        assert bool(connection._read_holds) is is_held
        await asyncio.sleep(0)
        assert not connection._read_holds
        assert (await wire.receive())["ref"] == 1, "it was heard, although it knows no x"
    await wire.close()


async def test_beside_others_a_flood_is_read_as_the_storage_takes_it(
    gateway: Gateway, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8: not while enough of it waits; but after a while in any case, for it may be something
    else. What is small, and the first that a socket says, waits for nobody's turn."""
    flooding = await session(gateway)
    connection = connection_of(gateway)
    other = await session(gateway)
    one = wire_frame(
        msgspec.json.encode(
            {"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": "x" * 1000}]}
        )
    )
    monkeypatch.setattr("gateway.net.connections._WINDOW_S", float("inf"))
    monkeypatch.setattr("gateway.net.connections._DELAY_S_MAX", float("inf"))
    async with beside_others(broker):
        flood(broker)
        await until(lambda: broker.publisher.is_skewed)
        await until(lambda: not broker.publisher.pending_messages)
        connection.data_received(one * 40)
        await until(lambda: messages_of(broker) == 40)
        hold_flood(broker)
        connection.data_received(one * 5)
        connection.data_received(one * 3)
        assert messages_of(broker) == 43
        for ref in range(20):
            await other.send(
                {"type": "publish", "ref": ref, "queue": "q", "messages": [{"body": 1}]}
            )
            assert (await other.receive())["ref"] == ref
        assert broker.publisher.has_enough
        assert messages_of(broker) == 63
        monkeypatch.setattr("gateway.net.connections._DELAY_S_MAX", 0.0)
        broker.messages.let_go()
        await until(lambda: messages_of(broker) == 68)
        hold_flood(broker)
        connection.data_received(one * 5)
        await until(lambda: messages_of(broker) == 73)
        assert broker.publisher.has_enough
        await other.close()
        await flooding.close()


def hold_flood(broker: MemoryBroker) -> None:
    """More of the flood waits than the next commits take, and the storage takes none of it."""
    broker.messages.held_queue = broker.find_queue(ANYBODY, "flooding").queue_id
    broker.messages.held = []
    flood(broker, mebibytes=4)
    assert broker.publisher.has_enough


async def test_what_a_lost_socket_had_said_disturbs_nobody(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P8, P12: its turn comes when it is gone; those of the others go on."""
    async with beside_others(broker):
        lost = await session(gateway)
        connection = connection_of(gateway)
        frames_ = [
            {"type": "publish", "ref": ref, "queue": "q", "messages": [{"body": "x" * 1000}]}
            for ref in range(100)
        ]
        said = b"".join(wire_frame(msgspec.json.encode(one)) for one in frames_)
        connection.data_received(said + bytes((0x89, 0x80, 0, 0, 0, 0)))
        before = messages_of(broker)
        assert before < 100
        gateway.connections._lost.per_turn = 0
        connection._transport.abort()
        connection.connection_lost(None)
        wire = await session(gateway)
        connection_of(gateway).data_received(said)
        await until(lambda: messages_of(broker) == before + 100)
        assert [(await wire.receive())["ref"] for _ in range(100)] == list(range(100))
        gateway.connections._lost.per_turn = 9
        gateway.connections.on_lost(lambda: None)
        await wire.close()
        lost.writer.close()


async def test_sessions_whose_sockets_are_lost_at_once_end_in_turns(gateway: Gateway) -> None:
    """P9: others are heard in between; nobody is forgotten."""
    count = 2 * LOST_PER_TURN + 3
    wires = [await session(gateway) for _ in range(count)]
    sessions = []
    emptied = asyncio.ensure_future(gateway.connections.wait_until_empty())
    await asyncio.sleep(0)
    for connection in list(gateway.connections):
        assert isinstance(connection, WebSocketConnection)
        sessions.append(connection._session)
        connection.connection_lost(None)
    assert len(gateway.connections) == 0
    left = [count - LOST_PER_TURN]
    while left[-1]:
        assert not emptied.done()
        await asyncio.sleep(0)
        there = sum(one is not None and one.is_welcome for one in sessions)
        if there != left[-1]:
            left.append(there)
    assert left == [count - LOST_PER_TURN, 3, 0]
    await emptied
    for wire in wires:
        await wire.close()


async def test_endless_empty_fragments_cost_nothing(gateway: Gateway) -> None:
    """P9."""
    wire = await session(gateway)
    await wire.send_frame(Opcode.TEXT, b"{", fin=False)
    wire.writer.write(b"\0\x80\0\0\0\0" * 50_000)
    await wire.send_frame(Opcode.PING, b"")
    assert await wire.read() == (Opcode.PONG, b"")
    assert connection_of(gateway)._reader._fragments == bytearray(b"{")
    wire.writer.transport.abort()


async def test_a_fan_out_frames_a_payload_once(gateway: Gateway) -> None:
    """Thousands of sockets are given the same bytes object."""
    wires = [await session(gateway) for _ in range(3)]
    written: list[bytes] = []
    for connection in list(gateway.connections):
        assert isinstance(connection, WebSocketConnection)
        transport = connection._transport

        class Recording:
            def __getattr__(self, name: str, transport: Any = transport) -> Any:
                return getattr(transport, name)

            def write(self, data: bytes, transport: Any = transport) -> None:
                written.append(data)
                transport.write(data)

        connection._transport = Recording()  # type: ignore[assignment]
    push = b'{"type":"push"}'
    for connection in list(gateway.connections):
        connection.send(push)  # type: ignore[attr-defined]
    for wire in wires:
        assert await wire.receive() == {"type": "push"}
        await wire.close()
    assert len(written) == 3
    assert len({id(data) for data in written}) == 1


async def test_a_lost_socket_takes_no_other_sessions_frames_with_it(gateway: Gateway) -> None:
    """P9: it is lost in the very turn in which something was queued for it."""
    broken = await session(gateway)
    lost = connection_of(gateway)
    wire = await session(gateway)
    (other,) = {*list(gateway.connections)} - {lost}
    assert isinstance(other, WebSocketConnection)
    lost._transport.abort()
    for connection in (lost, other):
        connection.send(b'{"type":"push"}')
    assert await wire.receive() == {"type": "push"}
    await wire.close()
    broken.writer.transport.abort()


# --- The end ------------------------------------------------------------------------------------


async def test_a_drain_tells_every_session_when_to_come_back(
    gateway: Gateway, broker: MemoryBroker
) -> None:
    """P14."""
    wires = [await session(gateway) for _ in range(5)]
    await gateway.connections.drain(deadline_s=10, random=Random(1))
    moments = set()
    for wire in wires:
        drain = await wire.receive()
        assert drain["type"] == "drain"
        assert 0 <= drain["reconnect_after_s"] <= 5
        moments.add(drain["reconnect_after_s"])
        assert await wire.closed() == (4000, frames.DRAINING.reason)
        await wire.close()
    assert len(moments) == 5
    late = await connect(gateway)
    assert (await late.closed())[0] == 4000
    await late.close()


async def test_a_drain_waits_for_what_is_unsettled(gateway: Gateway, broker: MemoryBroker) -> None:
    """P14: nothing is given twice but what was unsettled at the deadline."""
    wire = await subscribed(gateway, credit=1)
    body = {"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": 1}, {"body": 2}]}
    await wire.send(body)
    received = [await wire.receive(), await wire.receive()]
    assert sorted(frame["type"] for frame in received) == ["ok", "push"]
    draining = asyncio.create_task(gateway.connections.drain(deadline_s=10, random=Random(1)))
    assert (await wire.receive())["type"] == "drain"
    await wire.send({"type": "credit", "subscription": 1, "granted": 2}, {"type": "ping"})
    assert await wire.receive() == {"type": "pong"}  # and no push
    await wire.send({"type": "ack", "ref": 2, "subscription": 1, "deliveries": [[0, 1, 1, 0, 0]]})
    assert (await wire.receive())["settled"] == 1
    assert (await wire.closed())[0] == 4000
    await draining
    await wire.close()


async def test_a_drain_ends_at_its_deadline(gateway: Gateway, broker: MemoryBroker) -> None:
    """P14."""
    wire = await subscribed(gateway)
    await wire.send({"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": 1}]})
    received = [await wire.receive(), await wire.receive()]
    assert sorted(frame["type"] for frame in received) == ["ok", "push"]
    await gateway.connections.drain(deadline_s=0.05, random=Random(1))
    assert broker.consumers == []
    assert (await wire.receive())["type"] == "drain"
    assert (await wire.closed())[0] == 4000
    await wire.close()


async def test_who_has_not_said_hello_is_sent_away_by_a_drain(gateway: Gateway) -> None:
    wire = await connect(gateway)
    await gateway.connections.drain(deadline_s=10, random=Random(1))
    assert (await wire.receive())["type"] == "drain"
    assert (await wire.closed())[0] == 4000
    await wire.close()


async def test_uvicorn_itself_starts_serves_and_stops_with_these_protocols(
    broker: MemoryBroker,
) -> None:
    """The contract with uvicorn's server, whose private parts we stand on."""
    connections = Connections(SessionServices(broker, Authenticator(None)))
    websockets = websocket_class(connections)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        no_application, http=Http11Protocol, ws=websockets, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    gateway = Gateway(connections, listening.getsockname()[1], server.server_state, websockets)
    wire = await session(gateway)
    assert len(server.server_state.connections) == 1
    server.should_exit = True
    assert (await wire.closed())[0] == 4000
    await wire.close()
    await serving
    assert len(server.server_state.connections) == 0
    connections.deadlines.close()


# --- Once more ----------------------------------------------------------------------------------

PLACES = {"gateway", "broker", "locked"}
ON_UVLOOP = [
    test
    for name, test in list(globals().items())
    if name.startswith("test_")
    and inspect.iscoroutinefunction(test)
    and set(inspect.signature(test).parameters) <= PLACES
]


@pytest.mark.parametrize("test", ON_UVLOOP, ids=lambda test: test.__name__)
def test_on_uvloop_too(test: Callable[..., Awaitable[None]]) -> None:
    """Its transports buffer, pause and close by code of their own."""

    async def run() -> None:
        async with (
            one_queue() as broker,
            serve(Connections(SessionServices(broker, Authenticator(None)))) as gateway,
            serve(Connections(SessionServices(broker, Authenticator(TOKEN)))) as locked,
        ):
            places = {"gateway": gateway, "broker": broker, "locked": locked}
            await test(**{name: places[name] for name in inspect.signature(test).parameters})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())

"""Those who send too much at once, beside somebody who does not: over sockets."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from typing import cast

import msgspec
import pytest

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.limits.limiter import Limiter
from gateway.limits.spec import OF_SESSION, parse_limits
from gateway.net.connections import PART_FRAMES_MAX, Connections, SessionConnection
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from loadtests.clients.wire import frame as wire_frame
from push import limits
from push.errors import Refused
from runtime.http1 import Http11Protocol
from runtime.loop.fairness import (
    LARGE_READ_BYTES,
    ArrivalGate,
    IncompleteBytesBudget,
    LargeReadGate,
)
from tests.gateway.asgi import client_of
from tests.gateway.plain_metadata import MemoryBroker, broker_in_memory
from tests.gateway.raw_sockets import (
    HANDSHAKE,
    Gateway,
    Wire,
    connection_of,
    response,
    serve,
    session,
    until,
)

BURST = 512
PER_S = 4000
LARGE = 2 * LARGE_READ_BYTES
EMPTY_FRAGMENT = b"\0\x80\0\0\0\0"
EMPTY_PING = b"\x89\x80\0\0\0\0"


def paced(incoming: IncompleteBytesBudget | None = None) -> Connections:
    limiter = Limiter(session=parse_limits(f"frames={PER_S}/s+{BURST}", OF_SESSION))
    return Connections(
        SessionServices(broker_in_memory(), Authenticator(None), limiter=limiter), incoming=incoming
    )


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with serve(paced()) as made:
        yield made


def pings(first: int, count: int) -> bytes:
    one = [{"type": "ping", "ref": ref} for ref in range(first, first + count)]
    return wire_frame(msgspec.json.encode(one))


async def test_a_session_that_floods_is_read_at_its_rate_and_loses_nothing(
    gateway: Gateway,
) -> None:
    """P9: frames that are no publishes, in large messages; somebody else is answered meanwhile."""
    flooding = await session(gateway)
    connection = connection_of(gateway)
    count, began = 4 * BURST, asyncio.get_running_loop().time()
    for first in range(0, count, 128):
        flooding.writer.write(pings(first, 128))
    other = await session(gateway)
    await other.send({"type": "ping", "ref": 1})
    assert (await other.receive())["ref"] == 1
    await until(lambda: bool(connection._read_holds))
    refs = [(await flooding.receive())["ref"] for _ in range(count)]
    assert refs == list(range(count))
    took_s = asyncio.get_running_loop().time() - began
    assert took_s >= (count - BURST - 128 - 64) / PER_S
    await until(lambda: not connection._read_holds)
    await other.close()
    await flooding.close()


@pytest.mark.parametrize("said", [EMPTY_FRAGMENT, EMPTY_PING])
async def test_frames_of_nothing_count_as_well(gateway: Gateway, said: bytes) -> None:
    """P9: each costs the same work, and its bytes say nothing about that."""
    wire = await session(gateway)
    connection = connection_of(gateway)
    if said is EMPTY_FRAGMENT:
        wire.writer.write(b"\x01\x81\0\0\0\0{")
    wire.writer.write(said * BURST)
    await wire.writer.drain()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not connection._read_holds
    wire.writer.write(said * 128)
    await until(lambda: bool(connection._read_holds))
    await until(lambda: not connection._read_holds)
    wire.writer.transport.abort()


async def test_publishes_are_not_what_is_counted(gateway: Gateway) -> None:
    """They have limits of their own."""
    wire = await session(gateway)
    connection = connection_of(gateway)
    broker = gateway.connections.services.broker
    assert isinstance(broker, MemoryBroker)
    await broker.add_queue("q")
    one = msgspec.json.encode(
        {"type": "publish", "ref": 1, "queue": "q", "messages": [{"body": 1}]}
    )
    connection.data_received(wire_frame(one) * 2 * BURST)
    assert sum(len(one.messages) for one in broker.submitted) == 2 * BURST
    assert not connection._read_holds
    await wire.close()


async def test_one_part_of_a_turn_has_a_bound_of_frames() -> None:
    """P9. On both sides; without a limit, the rest has its turns one after the other."""
    async with serve(
        Connections(SessionServices(broker_in_memory(), Authenticator(None)))
    ) as gateway:
        wire = await session(gateway)
        connection = connection_of(gateway)
        connection.data_received(EMPTY_PING * (PART_FRAMES_MAX - 1))
        assert not connection._read_holds
        connection.data_received(pings(0, 1) * (2 * PART_FRAMES_MAX + 1))
        assert connection._session is not None
        heard = connection._session._protocol
        before = heard.other_frames
        assert connection._read_holds
        await asyncio.sleep(0)
        assert heard.other_frames <= before + PART_FRAMES_MAX
        await until(lambda: not connection._read_holds)
        assert heard.other_frames == 1 + 2 * PART_FRAMES_MAX + 1, "with its hello"
        wire.writer.transport.abort()


async def test_what_waits_until_it_is_paid_for_counts_as_incomplete() -> None:
    """P9: a thousand sessions with a read each that is not worked off would be a thousand reads."""
    incoming = IncompleteBytesBudget(3000)
    async with serve(paced(incoming)) as gateway:
        wire = await session(gateway)
        connection = connection_of(gateway)
        said = EMPTY_PING * BURST + EMPTY_PING * 400
        connection.data_received(said)
        await until(lambda: incoming.total > 0 or connection._session is None)
        assert incoming.total < 400 * len(EMPTY_PING)
        await until(lambda: not incoming.total)
        connection.data_received(EMPTY_PING * (4 * BURST))
        await until(lambda: connection._session is None)
        wire.writer.transport.abort()


class Counting(LargeReadGate):
    """Counts who waits."""

    __slots__ = ("waits",)

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, read_on: Callable[[], None]) -> None:
        self.waits += 1
        super().wait(read_on)


async def test_large_messages_that_are_not_complete_are_read_in_turns() -> None:
    """P9; and come through. What is small, or complete, never waits."""
    connections = paced()
    gate = connections.large_reads = Counting()
    async with serve(connections) as gateway:
        wire = await session(gateway)
        body = b'{"type":"ping","ref":7,"x":"' + b"x" * (limits.FRAME_BYTES_MAX - 100) + b'"}'
        connection = connection_of(gateway)
        whole = wire_frame(b'{"type":"ping","ref":6,"x":"' + b"x" * LARGE + b'"}')
        connection.data_received(whole)
        assert (await wire.receive())["ref"] == 6
        connection.data_received(wire_frame(body)[: LARGE_READ_BYTES - 1])
        assert gate.waits == 0
        connection.data_received(wire_frame(body)[LARGE_READ_BYTES - 1 :][:LARGE_READ_BYTES])
        assert gate.waits == 1
        assert connection._read_holds
        await until(lambda: not connection._read_holds)
        connection.data_received(wire_frame(body)[2 * LARGE_READ_BYTES - 1 :])
        assert (await wire.receive())["ref"] == 7
        wire.writer.transport.abort()


async def test_what_is_not_wanted_any_more_is_read_in_turns_as_well() -> None:
    """P9: who is sent away may still have megabytes on their way."""
    connections = paced()
    gate = connections.large_reads = Counting()
    async with serve(connections) as gateway:
        wire = await session(gateway)
        connection = connection_of(gateway)
        wire.writer.write(b"\x81\xff" + (2**24).to_bytes(8) + bytes(4))
        assert (await wire.receive())["code"] == "request_too_large"
        connection.data_received(bytes(LARGE_READ_BYTES - 1))
        assert gate.waits == 0
        connection.data_received(bytes(LARGE_READ_BYTES))
        assert gate.waits == 1
        wire.writer.write(bytes(2**24))
        assert (await wire.closed())[0] == 4509
        wire.writer.write_eof()
        assert await wire.ended() == b""
        await wire.close()


class Shared(Http11Protocol):
    """With gates, of which one counts."""


async def test_large_bodies_are_read_in_turns_and_come_through() -> None:
    """P9."""
    gate = Shared.large_reads = Counting()
    Shared.arrivals = ArrivalGate()
    async with serve(paced(), http=Shared) as gateway:
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", gateway.port)) for _ in range(3)]
        size = 20 * LARGE_READ_BYTES
        for wire in wires:
            head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
            wire.writer.write(head.encode() + bytes(size))
        for wire in wires:
            status, _, body = await response(wire)
            assert (status, body) == (200, str(size).encode())
        assert gate.waits >= 3
        waits = gate.waits
        for wire in wires:
            wire.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nxx")
            assert (await response(wire))[2] == b"2"
            await wire.close()
        assert gate.waits == waits


async def test_of_a_crowd_of_handshakes_each_has_its_turn_and_what_it_said_early() -> None:
    """P9: frames behind a handshake that waits are heard when it is through."""
    Shared.arrivals = ArrivalGate()
    async with serve(paced(), http=Shared) as gateway:
        lines = ["GET /v1/ws HTTP/1.1", f"Host: 127.0.0.1:{gateway.port}"]
        lines += [f"{name}: {text}" for name, text in HANDSHAKE.items()]
        head = "\r\n".join([*lines, "", ""]).encode()
        hello = wire_frame(b'{"type":"hello"}')
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", gateway.port)) for _ in range(20)]
        for number, wire in enumerate(wires):
            wire.writer.write(head + hello + pings(number, 1))
        wires.pop().writer.transport.abort()
        for number, wire in enumerate(wires):
            assert b"101" in (await wire.reader.readuntil(b"\r\n\r\n"))[:15]
            assert (await wire.receive())["type"] == "welcome"
            assert await wire.receive() == {"type": "pong", "ref": number}
            await wire.send({"type": "ping", "ref": 99})
            assert (await wire.receive())["ref"] == 99
            await wire.close()


async def test_by_long_poll_the_pace_is_the_same() -> None:
    """The next post is heard when those before are paid for."""
    connections = paced()
    application = Application(broker_in_memory(), Authenticator(None), LongPolls(connections))
    async with client_of(application) as http:
        opened = (await http.post("/v1/sessions", json={"type": "hello"})).json()
        path = f"/v1/sessions/{opened['session']}/frames"
        said = [{"type": "ping", "ref": ref} for ref in range(256)]
        loop = asyncio.get_running_loop()
        began = took_s = loop.time()
        for number in range(1, 6):
            answer = await http.post(path, params={"number": str(number)}, json=said)
            assert answer.status_code == 202, answer.text
            took_s = loop.time() - began  # polls, too: what was posted is paid for meanwhile
            polled = await http.get(path, params={"after": str(number), "wait_s": "0"})
            assert len(polled.json()["frames"]) == 256
        assert took_s >= (4 * 256 - BURST - 64) / PER_S


async def test_who_is_refused_leaves_nothing_to_the_collector(broker: Broker) -> None:
    """P9: a body of megabytes would live on until it comes around."""
    application = Application(broker, Authenticator(None), incoming=IncompleteBytesBudget(100))
    gc.collect()
    before = _refusals()
    gc.disable()
    try:
        async with client_of(application) as http:
            answer = await http.put("/v1/queues/q", content=b" " * 200 + b"{}")
            assert answer.json()["code"] == "overloaded"
        assert _refusals() == before
    finally:
        gc.enable()


async def test_an_ended_session_leaves_nothing_to_the_collector(gateway: Gateway) -> None:
    """P9: thousands that end would live on until it comes around, and hold everybody up then:
    one that asked for what takes a task and hung up, and one that broke the protocol."""
    gc.collect()
    gc.disable()
    try:
        before = _sessions()
        wire = await session(gateway)
        subscribe = {"type": "subscribe", "ref": 1, "subscription": 1, "queue": "q", "credit": 1}
        connection_of(gateway).data_received(wire_frame(msgspec.json.encode(subscribe)))
        assert (await wire.receive())["code"] == "queue_not_found"
        assert _sessions() == before + 1
        await wire.close()
        wire = await session(gateway)
        connection_of(gateway).data_received(wire_frame(b"{"))
        assert (await wire.receive())["code"] == "invalid_json"
        await wire.close()
        await until(lambda: _sessions() == before)
    finally:
        gc.enable()


def _sessions() -> int:
    return sum(isinstance(one, Session) for one in gc.get_objects())


def _refusals() -> list[Refused]:
    """Return those that are alive; other tests may have left some."""
    return [one for one in gc.get_objects() if isinstance(one, Refused)]


class Broken:
    """A connection with a bug in it."""

    def take(self) -> list[bytes]:
        raise ZeroDivisionError

    def process_rest(self, rest: object) -> None:
        raise ZeroDivisionError


class Sound:
    """A connection that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def take(self) -> list[bytes]:
        return [b"{}"]

    def write(self, encoded: list[bytes]) -> None:
        self.calls.append("write")

    def process_rest(self, rest: object) -> None:
        self.calls.append("read")


async def test_a_connection_with_a_bug_keeps_no_other_from_reading_and_writing() -> None:
    """P12: they would stand still until they are lost."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.append(repr(context["exception"]))
    )
    connections, sound = paced(), Sound()
    for connection in (Broken(), sound):
        connections.schedule_flush(cast(SessionConnection, connection))
        connections.defer(connection, iter(()))
    await until(lambda: len(sound.calls) == 2)
    assert sorted(sound.calls) == ["read", "write"]
    assert told == ["ZeroDivisionError()"] * 2

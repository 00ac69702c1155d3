"""What is not complete yet, of all clients together (P9)."""

import asyncio
from collections.abc import Callable

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.net.connections import Connections
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.wire import frames
from runtime.loop.fairness import LARGE_INCOMPLETE_BYTES, IncompleteBytesBudget
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.raw_sockets import Wire, serve, session

LARGE = 300_000


class Holder:
    """Keeps count of how often it was told to give up."""

    def __init__(self) -> None:
        self.given_up = 0

    def give_up(self) -> None:
        self.given_up += 1


def test_who_began_first_gives_up_and_only_beyond_the_bound() -> None:
    incoming = IncompleteBytesBudget(100)
    first, second, third = Holder(), Holder(), Holder()
    incoming.hold(first, 40)
    incoming.hold(second, 10)
    incoming.hold(first, 50)
    incoming.hold(third, 40)
    assert incoming.total == 100
    assert not first.given_up + second.given_up + third.given_up
    incoming.hold(third, 41)
    assert (first.given_up, second.given_up, third.given_up) == (1, 0, 0)
    assert incoming.total == 51
    incoming.hold(third, 0)
    incoming.hold(third, 0)
    incoming.hold(first, 0)
    assert incoming.total == 10
    incoming.hold(first, 101)  # behind the second, and too much alone
    assert (first.given_up, second.given_up, third.given_up) == (2, 1, 0)
    assert incoming.total == 0


def test_a_large_one_gives_up_before_a_small_one_that_is_older() -> None:
    incoming = IncompleteBytesBudget(2 * LARGE_INCOMPLETE_BYTES)
    slow, large, last = Holder(), Holder(), Holder()
    incoming.hold(slow, LARGE_INCOMPLETE_BYTES - 1)
    incoming.hold(large, LARGE_INCOMPLETE_BYTES)
    incoming.hold(last, 2)
    assert (slow.given_up, large.given_up, last.given_up) == (0, 1, 0)
    assert incoming.total == LARGE_INCOMPLETE_BYTES + 1


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn until it is."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def begun(wire: Wire) -> None:
    """All of a message but its last byte, in its first fragment."""
    wire.writer.write(bytes((0x01, 0xFF)) + LARGE.to_bytes(8) + bytes(4) + b" " * LARGE)
    await wire.writer.drain()


async def test_a_session_that_hoards_is_sent_away_and_the_others_go_on() -> None:
    """And what it held is given back: at its own end, and when its message is whole."""
    incoming = IncompleteBytesBudget(2 * LARGE + 100)  # and the headers of their frames
    around = SessionServices(broker_in_memory(), Authenticator(None))
    async with serve(Connections(around, incoming=incoming)) as gateway:
        first, second, third = [await session(gateway) for _ in range(3)]
        await begun(first)
        await until(lambda: incoming.total >= LARGE)
        await begun(second)
        await begun(third)
        assert (await first.receive())["code"] == "overloaded"
        assert await first.closed() == (frames.OVERLOADED.code, frames.OVERLOADED.reason)
        ping = b'{"type":"ping","ref":1}'
        second.writer.write(bytes((0x80, 0x80 | len(ping))) + bytes(4) + ping)
        assert await second.receive() == {"type": "pong", "ref": 1}
        await until(lambda: incoming.total <= LARGE + 20)
        await third.close()
        await until(lambda: not incoming.total)
        await first.close()
        await second.close()


async def test_a_body_that_hoards_is_refused_and_the_others_go_on(broker: Broker) -> None:
    """As a session; HTTP's answer is a 503."""
    incoming = IncompleteBytesBudget(2 * LARGE + 100)
    application = Application(broker, Authenticator(None), incoming=incoming)
    around = SessionServices(broker_in_memory(), Authenticator(None))
    async with serve(Connections(around, incoming=incoming), app=application) as gateway:
        sockets = [
            Wire(*await asyncio.open_connection("127.0.0.1", gateway.port)) for _ in range(3)
        ]
        for number, wire in enumerate(sockets):
            size = LARGE + number  # so that the sums tell who is there
            head = f"PUT /v1/queues/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size + 2}"
            wire.writer.write(head.encode() + b"\r\n\r\n" + b" " * size)
            held = (LARGE, 2 * LARGE + 1, 2 * LARGE + 3)[number]
            await until(lambda held=held: incoming.total == held)  # type: ignore[misc]
        for wire, status in zip(sockets, (b"503", b"201", b"200"), strict=True):
            wire.writer.write(b"{}")
            assert (await wire.reader.readline()).split()[1] == status
            await wire.close()
        assert incoming.total == 0

"""Those who connect come in gate, and nobody who connected is forgotten."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from runtime.listener import AT_ONCE, Accepting, bind
from runtime.loop.fairness import ArrivalGate
from tests.waiting import becomes

CROWD = 5 * AT_ONCE


class Hearing(asyncio.Protocol):
    """Says so when it is there, and echoes."""

    def __init__(self, there: list["Hearing"]) -> None:
        self.there = there
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.there.append(self)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class ClosedGate(ArrivalGate):
    """The test says when an arrival begins."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Callable[[], None]] = []

    def begin(self, work: Callable[[], None]) -> bool:
        self.asked.append(work)
        return False


class Short(socket.socket):
    """It has no descriptor left for one more, for a while."""

    is_short = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_short:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@asynccontextmanager
async def accepting(
    there: list[Hearing], gate: ArrivalGate, bound: socket.socket | None = None
) -> AsyncIterator[int]:
    """The port."""
    bound = bound or bind("127.0.0.1", 0)
    here = Accepting(bound, lambda: Hearing(there), gate, {})
    here.start(100)
    try:
        yield bound.getsockname()[1]
    finally:
        here.close()
        bound.close()
        await here.wait_closed()
        for one in there:
            assert one.transport is not None
            one.transport.abort()


async def connected(port: int, count: int) -> list[socket.socket]:
    loop, made = asyncio.get_running_loop(), []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", port))
        made.append(one)
    return made


async def waiting(port: int, gate: ClosedGate) -> socket.socket:
    """A client whose turn is asked for."""
    (client,) = await connected(port, 1)
    await becomes(lambda: bool(gate.asked))
    return client


async def test_a_crowd_is_accepted_a_few_in_each_turn() -> None:
    there: list[Hearing] = []
    gate = ClosedGate()
    async with accepting(there, gate) as port:
        clients = await connected(port, CROWD)
        for turn in range(1, CROWD // AT_ONCE + 1):
            await becomes(lambda: bool(gate.asked))
            assert len(gate.asked) == 1
            gate.asked.pop()()
            await becomes(lambda turn=turn: len(there) == turn * AT_ONCE)  # type: ignore[misc]
        for one in clients:
            one.close()


async def test_every_client_of_a_crowd_is_read() -> None:
    there: list[Hearing] = []
    loop = asyncio.get_running_loop()
    async with accepting(there, ArrivalGate()) as port:
        for one in await connected(port, CROWD):
            await loop.sock_sendall(one, b"here")
            assert await loop.sock_recv(one, 10) == b"here"
            one.close()
    assert len(there) == CROWD


async def test_who_cannot_be_accepted_now_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process has no file descriptor left: those who are there go on, and others come later."""
    monkeypatch.setattr("runtime.listener.PAUSE_S", 0.01)
    there: list[Hearing] = []
    with bind("127.0.0.1", 0) as plain:
        bound = Short(fileno=plain.detach())
    async with accepting(there, ArrivalGate(), bound) as port:
        (client,) = await connected(port, 1)
        await becomes(lambda: "no connections are accepted" in caplog.text)
        assert there == []
        bound.is_short = False
        await becomes(lambda: len(there) == 1)
        client.close()


async def test_who_is_accepted_at_the_very_end_is_sent_away() -> None:
    """The broker goes down in the turn in which his connection was taken: its socket is closed, and
    he need not wait for his own time limit."""
    there: list[Hearing] = []
    gate = ClosedGate()
    async with accepting(there, gate) as port:
        client = await waiting(port, gate)
        gate.asked.pop()()
    assert there == []
    async with asyncio.timeout(10):
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
    client.close()


async def test_nobody_is_accepted_behind_the_end() -> None:
    """Whose turn comes when the broker is going down already."""
    there: list[Hearing] = []
    gate = ClosedGate()
    async with accepting(there, gate) as port:
        client = await waiting(port, gate)
    gate.asked.pop()()
    assert there == []
    client.close()

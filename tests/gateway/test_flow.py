"""When the socket of an HTTP connection is read."""

import asyncio
from collections.abc import Callable

from gateway.auth import Auth
from gateway.flow import EXCUSED_S, PIECES_AT_ONCE, Flow
from gateway.http11 import Http11Protocol
from gateway.intake import LARGE_READ_BYTES, Intake
from gateway.registry import Registry
from gateway.surroundings import Surroundings
from tests.gateway.echo_broker import EchoBroker
from tests.gateway.wire import Wire, response, serve, until

TIMEOUT_S = 7.0


class Waiting(Intake):
    """Whose turn never comes by itself."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []

    def rest(self, read_on: Callable[[], None]) -> None:
        self.waiting.append(read_on)


class Socket(asyncio.Transport):
    """Whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def is_closing(self) -> bool:
        return False


def made() -> tuple[Flow, Socket, Waiting, Waiting]:
    socket, large, small = Socket(), Waiting(), Waiting()
    return Flow(socket, large, small), socket, large, small


def test_a_request_in_a_few_pieces_is_read_as_it_comes_and_then_has_its_turn() -> None:
    """P9. On both sides of the bound; who has said all begins anew."""
    flow, socket, large, small = made()
    for _ in range(3):
        for _ in range(PIECES_AT_ONCE):
            flow.have_read(1, is_complete=False)
        flow.have_read(1, is_complete=True)
    assert socket.is_read
    for _ in range(PIECES_AT_ONCE + 1):
        assert socket.is_read
        flow.have_read(1, is_complete=False)
    assert not socket.is_read
    assert (len(large.waiting), len(small.waiting)) == (0, 1)
    small.waiting.pop()()
    assert socket.is_read
    flow.have_read(1, is_complete=False)
    assert not socket.is_read


def test_large_reads_have_turns_of_their_own() -> None:
    """P9."""
    flow, socket, large, small = made()
    flow.have_read(LARGE_READ_BYTES - 1, is_complete=False)
    assert socket.is_read
    for _ in range(2 * PIECES_AT_ONCE):
        flow.have_read(LARGE_READ_BYTES, is_complete=False)
        assert not socket.is_read
        large.waiting.pop()()
    assert not small.waiting


def test_whom_we_do_not_read_is_not_late_but_who_says_it_byte_by_byte_is_excused_once() -> None:
    flow, _, large, small = made()
    assert flow.excuse_s(TIMEOUT_S) == 0
    flow.have_read(LARGE_READ_BYTES, is_complete=False)
    for _ in range(3):
        assert flow.excuse_s(TIMEOUT_S) == TIMEOUT_S
    large.waiting.pop()()
    assert flow.excuse_s(TIMEOUT_S) == 0
    flow.pause_reading()
    assert flow.excuse_s(TIMEOUT_S) == TIMEOUT_S
    flow.resume_reading()
    for _ in range(2):
        for _ in range(PIECES_AT_ONCE + 1):
            flow.have_read(1, is_complete=False)
        assert flow.excuse_s(TIMEOUT_S) == EXCUSED_S
        assert flow.excuse_s(TIMEOUT_S) == 0
        small.waiting.pop()()
        flow.have_read(1, is_complete=True)


class Slow(Http11Protocol):
    """With little time."""

    header_timeout_s = 0.2


async def test_byte_by_byte_a_request_is_read_in_turns_and_is_late_all_the_same() -> None:
    """P9, P12."""
    pieces = Slow.pieces = Waiting()
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with serve(Registry(Surroundings(EchoBroker(), Auth(None))), http=Slow) as gateway:
        for is_late in (False, True):
            wire = Wire(*await asyncio.open_connection("127.0.0.1", gateway.port))
            await until(lambda: len(gateway.state.connections) == 1)
            (connection,) = gateway.state.connections
            for place in range(PIECES_AT_ONCE + 1):
                assert not pieces.waiting
                connection.data_received(request[place : place + 1])
            read_on = pieces.waiting.pop()
            wire.writer.write(request[PIECES_AT_ONCE + 1 :])
            if not is_late:
                read_on()
            assert (await response(wire))[0] == (408 if is_late else 200)
            await wire.close()
            await until(lambda: not gateway.state.connections)

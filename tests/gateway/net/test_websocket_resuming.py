"""Sockets that are lost, and sessions that go on over another one."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from websockets.frames import Frame, Opcode

from gateway.auth.auth import Authenticator
from gateway.net.connections import Connections
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from gateway.wire.frames import OVERLOADED
from tests.gateway.plain_metadata import MemoryBroker, running
from tests.gateway.raw_sockets import Gateway, Wire, connect, connection_of, serve
from tests.histories.house import eventually

HELLO = {"type": "hello", "linger_s": 30}


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with (
        running(MemoryBroker()) as broker,
        serve(Connections(SessionServices(broker, Authenticator(None)))) as gateway,
    ):
        await broker.add_queue("q")
        yield gateway


async def joined(gateway: Gateway) -> tuple[Wire, str]:
    """A client in a group, and its session."""
    wire = await connect(gateway)
    await wire.send(HELLO)
    session: str = (await wire.receive())["session"]
    await wire.send(
        {"type": "subscribe", "ref": 0, "subscription": 1, "queue": "q", "group": "g", "credit": 9}
    )
    assert (await wire.receive())["ref"] == 0
    return wire, session


def lose(gateway: Gateway) -> Session:
    """The only socket is lost, and its session not told before `tell`; it is given nothing more."""
    gateway.connections._lost.per_turn = 0
    connection = connection_of(gateway)
    session = connection._session
    assert session is not None
    connection._transport.abort()
    connection.connection_lost(None)
    assert not session.writable()
    return session


async def tell(gateway: Gateway) -> None:
    """It is the turn of all that were lost."""
    gateway.connections._lost.per_turn = 9
    turns: list[None] = []
    gateway.connections.on_lost(lambda: turns.append(None))
    gateway.connections.on_lost(lambda: turns.append(None))
    await eventually(lambda: len(turns) == 2 and not gateway.connections._lost)


def text(value: object) -> bytes:
    return Frame(Opcode.TEXT, msgspec.json.encode(value), True).serialize(mask=True)


async def test_what_comes_right_behind_a_resuming_hello_reaches_the_session(
    gateway: Gateway,
) -> None:
    """P12: two messages in one segment. The second is the resumed session's, and is answered."""
    wire, session = await joined(gateway)
    await wire.close()
    sessions = gateway.connections.services.sessions
    await eventually(lambda: len(sessions) == 1)
    back = await connect(gateway)
    back.writer.write(text({**HELLO, "session": session}) + text({"type": "ping", "ref": 7}))
    welcome = await back.receive()
    assert (welcome["session"], welcome["resumed"]) == (session, [1])
    assert await back.receive() == {"type": "pong", "ref": 7}
    assert len(sessions) == 0
    await back.close()


async def test_a_replaced_socket_is_notified_and_takes_nothing_along(
    gateway: Gateway,
) -> None:
    """R22: the old socket's end is not the session's."""
    wire, session = await joined(gateway)
    back = await connect(gateway)
    await back.send({**HELLO, "session": session})
    assert (await back.receive())["resumed"] == [1]
    assert (await wire.closed())[0] == 4503
    await wire.close()
    await eventually(lambda: len(gateway.connections) == 1)
    await back.send({"type": "ping", "ref": 8})
    assert await back.receive() == {"type": "pong", "ref": 8}
    await back.close()


async def test_who_is_back_before_it_was_told_that_its_socket_is_lost_stays(
    gateway: Gateway,
) -> None:
    """R22: many are lost at once, and this one's turn to hear so comes when it is here again."""
    wire, session = await joined(gateway)
    lose(gateway)
    back = await connect(gateway)
    await back.send({**HELLO, "session": session})
    assert (await back.receive())["resumed"] == [1]
    await tell(gateway)
    lingering = len(gateway.connections.services.sessions)
    if not lingering:
        await back.send({"type": "ping", "ref": 8})
        assert await back.receive() == {"type": "pong", "ref": 8}
    await back.close()
    await wire.close()
    assert lingering == 0


async def test_who_has_not_been_told_that_its_socket_is_lost_has_its_place_still() -> None:
    """P9: else as many again are let in while those that were lost wait to linger."""
    async with (
        running(MemoryBroker()) as broker,
        serve(Connections(SessionServices(broker, Authenticator(None)), sessions_max=1)) as gateway,
    ):
        await broker.add_queue("q")
        wire, _ = await joined(gateway)
        lose(gateway)
        assert len(gateway.connections) == 0
        assert len(gateway.connections.services.sessions) == 0
        other = await connect(gateway)
        await other.send({"type": "hello"})
        assert (await other.closed())[0] == OVERLOADED.code
        await other.close()
        await wire.close()
        await tell(gateway)
        assert len(gateway.connections.services.sessions) == 1


async def test_who_is_revoked_before_it_was_told_that_its_socket_is_lost_is_gone(
    gateway: Gateway,
) -> None:
    """P11: it does not linger."""
    wire, _ = await joined(gateway)
    session = lose(gateway)
    session.revoked()
    assert not session.is_welcome
    await tell(gateway)
    assert len(gateway.connections.services.sessions) == 0
    await wire.close()


@pytest.mark.parametrize("code", [b"", b"\x03\xe8", b"\x03\xe9"])
async def test_who_says_good_bye_does_not_linger(gateway: Gateway, code: bytes) -> None:
    """P6: a close frame without a code, or with 1000 or 1001, is the end."""
    wire, _ = await joined(gateway)
    await wire.send_frame(Opcode.CLOSE, code)
    await wire.ended()
    await wire.close()
    await eventually(lambda: not len(gateway.connections))
    assert len(gateway.connections.services.sessions) == 0


async def test_a_full_gateway_takes_back_who_is_here_already_and_nobody_else() -> None:
    """P9: a session without a transport counts, and yet does not shut itself out; neither does
    one whose old socket the gateway still believes in."""
    async with (
        running(MemoryBroker()) as broker,
        serve(Connections(SessionServices(broker, Authenticator(None)), sessions_max=2)) as gateway,
    ):
        await broker.add_queue("q")
        wire, session = await joined(gateway)
        other, second = await joined(gateway)
        for one in (wire, other):
            await one.close()
        await eventually(lambda: len(gateway.connections.services.sessions) == 2)
        stranger = await connect(gateway)
        await stranger.send(HELLO)
        assert (await stranger.closed())[0] == 4003
        await stranger.close()
        back = [await connect(gateway), await connect(gateway)]
        for one, name in zip(back, (session, second), strict=True):
            await one.send({**HELLO, "session": name})
            assert (await one.receive())["resumed"] == [1]
        assert len(gateway.connections.services.sessions) == 0
        for one in back:
            await one.close()

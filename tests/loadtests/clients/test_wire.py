"""The lean WebSocket client, against the server of an independent implementation."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from loadtests.clients import wire


class Inbox:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def wire(self, url: str) -> wire.Wire:
        return await wire.connect(url, self.messages.put_nowait, on_closed=self.closed.set)


async def behave(socket: ServerConnection) -> None:
    async for message in socket:
        if message == "fragments":
            await socket.send(["one ", "two ", "three"])
        elif message == "ping":
            await (await socket.ping())
            await socket.send("answered")
        elif message == "close":
            await socket.close(4000, "come back")
        else:
            await socket.send(message)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serve(
        behave, "127.0.0.1", 0, subprotocols=[Subprotocol("tocsin.v1")], max_size=None
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 3_000_000])
async def test_message_of_every_length_form_comes_back(url: str, size: int) -> None:
    inbox = Inbox()
    client = await inbox.wire(url)
    client.send_all([b"x" * size, b"after"])
    assert await inbox.messages.get() == b"x" * size
    assert await inbox.messages.get() == b"after"
    client.close()
    await inbox.closed.wait()


async def test_fragments_are_joined(url: str) -> None:
    inbox = Inbox()
    client = await inbox.wire(url)
    client.send(b"fragments")
    assert await inbox.messages.get() == b"one two three"
    client.close()
    await inbox.closed.wait()


async def test_ping_is_answered(url: str) -> None:
    inbox = Inbox()
    client = await inbox.wire(url)
    client.send(b"ping")
    assert await inbox.messages.get() == b"answered"
    client.close()
    await inbox.closed.wait()


async def test_close_code_is_kept(url: str) -> None:
    inbox = Inbox()
    client = await inbox.wire(url)
    client.send(b"close")
    await inbox.closed.wait()
    assert (client.close_code, client.close_reason) == (4000, "come back")


async def test_turn_follows_the_messages_of_a_read(url: str) -> None:
    seen: list[bytes] = []
    turned = asyncio.Event()

    def turn() -> None:
        if len(seen) == 3:
            turned.set()

    closed = asyncio.Event()
    client = await wire.connect(url, seen.append, turn, closed.set)
    client.send_all([b"a", b"b", b"c"])
    await turned.wait()
    assert seen == [b"a", b"b", b"c"]
    client.abort()
    await closed.wait()


async def test_server_without_our_protocol_is_refused() -> None:
    async with serve(behave, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        with pytest.raises(wire.WireError, match=r"tocsin\.v1"):
            await Inbox().wire(f"http://127.0.0.1:{port}")


async def test_binary_messages_go_without_a_subprotocol() -> None:
    inbox = Inbox()
    async with serve(behave, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client = await wire.connect(
            f"http://127.0.0.1:{port}", inbox.messages.put_nowait, on_closed=inbox.closed.set,
            speech=wire.Speech("/", None, wire.BINARY),
        )  # fmt: skip
        client.send_all([b"\x00\xff", b"fragments"])
        assert await inbox.messages.get() == b"\x00\xff"
        assert await inbox.messages.get() == b"fragments"  # the text alone is a command
        client.close()
        await inbox.closed.wait()


async def test_a_message_of_the_other_kind_ends_it(url: str) -> None:
    inbox = Inbox()
    client = await inbox.wire(url)
    assert client.transport is not None
    client.transport.write(wire.frame(b"binary", wire.BINARY))
    await inbox.closed.wait()
    assert "0x82" in client.close_reason


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"push","subscription":3,"partition":2,"epoch":5,"push":7,"offset":40,'
        b'"attempt":2,"id_prefix":"x","published_unix_ms":1,"messages":[{"body":"a"},{"body":2}]}'
    ],
)
def test_push_is_opened_without_its_messages(data: bytes) -> None:
    head, start, end = wire.open_push(data)
    assert head == wire.Push(3, 2, 5, 7, 40, 2)
    assert data[start:end] == b'{"body":"a"},{"body":2}'


def test_split_takes_arrays_apart() -> None:
    assert wire.split(b'[{"a":1},{"b":[2]}]') == [b'{"a":1}', b'{"b":[2]}']
    assert wire.split(b'{"a":1}') == [b'{"a":1}']

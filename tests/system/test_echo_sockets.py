"""The target of the Autobahn test suite, in short; the suite itself is `make autobahn`."""

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError
from websockets.typing import Subprotocol

from tests.system.echo_sockets import echoing


async def test_texts_bytes_and_fragments_come_back_and_bad_utf8_does_not() -> None:
    """The protocol class without its session: RFC 6455, 5.4, 5.6 and 8.1."""
    async with echoing() as port:
        url = f"ws://127.0.0.1:{port}/v1/ws"
        async with connect(
            url, subprotocols=[Subprotocol("tocsin.v1")], proxy=None, compression=None
        ) as socket:
            for message in ("", "é" * 40_000, b"", bytes(range(256)) * 300):
                await socket.send(message)
                assert await socket.recv() == message
            await socket.send(["a", "", "b"])
            assert await socket.recv() == "ab"
            await socket.send([b"\xff", b"\x00"])
            assert await socket.recv() == b"\xff\x00"
            await socket.send(b"\xc3\x28", text=True)
            with pytest.raises(ConnectionClosedError) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1007

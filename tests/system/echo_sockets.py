"""Our own WebSocket protocol class with an echo in place of a session, as the target of the
Autobahn test suite. Handshake, reading, judging and closing are the shipped ones.

The subprotocol has no binary messages, so the class does not pass their payloads on. Here its
reader keeps the last one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from gateway.auth.auth import Authenticator
from gateway.models import Admission
from gateway.net.connections import Connections
from gateway.net.websocket import WebSocketConnection
from gateway.session.directory import SessionServices
from gateway.session.session import Session
from gateway.wire.protocol import INVALID_UTF8
from gateway.wire.rfc6455 import BINARY, MessageReader, Portion, encode_frame
from metadata.catalog import ANYBODY
from push import limits
from tests.gateway.plain_metadata import broker_in_memory
from tests.gateway.raw_sockets import serve


class _Reader(MessageReader):
    """Our reader, which keeps its last payload."""

    __slots__ = ("payload",)

    def receive(self, data: bytes) -> Iterator[Portion]:
        for portion in super().receive(data):
            self.payload = portion[1][-1]
            yield portion


class _Echo(Session):
    """A session that sends back what comes. It needs no `hello`, and never ends by itself."""

    __slots__ = ("_connection",)

    def __init__(self, connection: "_EchoConnection") -> None:
        now = asyncio.get_running_loop().time()
        admission = Admission(ANYBODY)
        super().__init__(connection.connections.services, connection, "echo", admission, now=now)
        self._connection = connection

    is_welcome = True

    def receive(self, *messages: bytes, now: float) -> int:
        for data in messages:
            try:
                data.decode()  # the session's decoder does this for us: gateway.wire.frames.decode
            except UnicodeDecodeError:
                self._connection.close(INVALID_UTF8)
                break
            self._connection.write([encode_frame(data)])
        return len(messages)

    def receive_binary(self) -> None:
        self._connection.write([encode_frame(self._connection.reader.payload, BINARY)])

    def next_deadline(self) -> None:
        return None


class _EchoConnection(WebSocketConnection):
    __slots__ = ("reader",)

    def _open(self, admission: Admission | None) -> None:
        super()._open(admission)
        self.reader = self._reader = _Reader(limits.FRAME_BYTES_MAX)
        self._session = _Echo(self)


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """Run an echo server on a free port of loopback; yield the port."""
    connections = Connections(SessionServices(broker_in_memory(), Authenticator(None)))

    class Bound(_EchoConnection):
        __slots__ = ()

    Bound.connections = connections
    async with serve(connections, websockets=Bound) as gateway:
        yield gateway.port

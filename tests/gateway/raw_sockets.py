"""A WebSocket client that may say anything, and a gateway of sockets around an inside."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import msgspec
import uvicorn
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from gateway.net.connections import Connections
from gateway.net.websocket import WebSocketConnection, websocket_class
from runtime.http1 import Http11Protocol

HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "tocsin.v1",
}


async def no_application(scope: Any, receive: Any, send: Any) -> None:
    """Reads the request body, answers 200 with its length."""
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        size += len(event.get("body", b""))
        more = event.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


@dataclass
class Gateway:
    """A gateway's sockets."""

    connections: Connections
    port: int
    state: ServerState
    websockets: type[WebSocketConnection]


@asynccontextmanager
async def serve(
    connections: Connections,
    http: type[Http11Protocol] = Http11Protocol,
    app: Any = no_application,
    keep_alive_s: int = 5,
    close_timeout_s: float = 5.0,
    *,
    websockets: type[WebSocketConnection] | None = None,
) -> AsyncIterator[Gateway]:
    """uvicorn's protocols, ours among them, on a free port, without uvicorn's own main loop."""
    websockets = websockets or websocket_class(connections)
    websockets.close_timeout_s = close_timeout_s
    config = uvicorn.Config(
        app, http=http, ws=websockets, lifespan="off", log_config=None,
        timeout_keep_alive=keep_alive_s,
    )  # fmt: skip
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: http(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield Gateway(connections, server.sockets[0].getsockname()[1], state, websockets)
    finally:
        server.close()
        for connection in list(state.connections):
            transport = getattr(connection, "_transport", None) or connection.transport
            transport.abort()
        for wire in _opened:  # of a test that failed, and so did not close them
            if not wire.writer.is_closing():
                wire.writer.transport.abort()
        for _ in range(5):  # connection_lost comes a turn of the loop later
            await asyncio.sleep(0)
        connections.deadlines.close()


_opened: WeakSet["Wire"] = WeakSet()
"""The client sockets of the test that runs."""


class Wire:
    """A client socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        _opened.add(self)
        self.frames: list[dict[str, Any]] = []

    async def send_frame(self, opcode: int, payload: bytes, fin: bool = True) -> None:
        """One masked frame."""
        self.writer.write(Frame(Opcode(opcode), payload, fin).serialize(mask=True))
        await self.writer.drain()

    async def send(self, *values: object) -> None:
        """One text message: a frame, or an array of several."""
        value = values[0] if len(values) == 1 else list(values)
        await self.send_frame(Opcode.TEXT, msgspec.json.encode(value))

    async def send_text(self, text: str | bytes) -> None:
        """One text message, whatever it is."""
        await self.send_frame(Opcode.TEXT, text.encode() if isinstance(text, str) else text)

    async def read(self) -> tuple[int, bytes]:
        """The next WebSocket frame of the broker: opcode and payload."""
        head, size = await self.reader.readexactly(2)
        assert head & 0x70 == 0, "reserved bits"
        assert head & 0x80, "fragmented"
        assert size < 128, "a server does not mask"
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return head & 0x0F, await self.reader.readexactly(size)

    async def receive(self) -> dict[str, Any]:
        """The next frame of the protocol."""
        while not self.frames:
            opcode, payload = await self.read()
            if opcode == Opcode.PING and payload:
                await self.send_frame(Opcode.PONG, payload)
                continue
            assert opcode == Opcode.TEXT, (opcode, payload)
            value = msgspec.json.decode(payload)
            self.frames += value if isinstance(value, list) else [value]
        return self.frames.pop(0)

    async def closed(self) -> tuple[int, str]:
        """Wait for the close frame: code and reason. Nothing but it may come."""
        assert not self.frames, self.frames
        opcode, payload = await self.read()
        assert opcode == Opcode.CLOSE, (opcode, payload)
        return struct.unpack("!H", payload[:2])[0], payload[2:].decode()

    def stop_reading(self) -> None:
        """Take nothing more from the socket."""
        transport: Any = self.writer.transport
        transport.pause_reading()

    def go_on_reading(self) -> None:
        """Take it again."""
        transport: Any = self.writer.transport
        transport.resume_reading()

    async def ended(self) -> bytes:
        """Wait for the end of the socket; what came before it."""
        return await self.reader.read()

    async def close(self) -> None:
        """Close the socket, without ceremony."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def request(
    port: int, headers: Mapping[str, str], target: str = "/v1/ws", limit: int = 2**22
) -> tuple[Wire, int, dict[str, str], bytes]:
    """Send a GET; the socket, the answer's status, headers and body (a body has a length)."""
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port, limit=limit))
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
    wire.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    return wire, *await response(wire)


async def response(wire: Wire) -> tuple[int, dict[str, str], bytes]:
    """Read one HTTP answer."""
    head = (await wire.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    answer = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    if "chunked" in answer.get("transfer-encoding", ""):
        chunk, rest = await wire.reader.readuntil(b"\r\n"), b""
        while size := int(chunk, 16):
            rest += (await wire.reader.readexactly(size + 2))[:-2]
            chunk = await wire.reader.readuntil(b"\r\n")
        await wire.reader.readexactly(2)
        return int(head[0].split()[1]), answer, rest
    body = await wire.reader.readexactly(int(answer.get("content-length", 0)))
    return int(head[0].split()[1]), answer, body


async def connect(gateway: Gateway, **headers: str) -> Wire:
    """An open WebSocket, before `hello`. Header names have _ for -."""
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    host = {"Host": f"127.0.0.1:{gateway.port}"}
    wire, status, _, body = await request(gateway.port, {**host, **HANDSHAKE, **more})
    assert status == 101, body
    return wire


async def session(gateway: Gateway, **hello: object) -> Wire:
    """An open session, after `welcome`."""
    wire = await connect(gateway)
    await wire.send({"type": "hello", **hello})
    welcome = await wire.receive()
    assert welcome["type"] == "welcome"
    return wire


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn until it is."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


def connection_of(gateway: Gateway) -> WebSocketConnection:
    """The only one."""
    (connection,) = list(gateway.connections)
    assert isinstance(connection, WebSocketConnection)
    return connection

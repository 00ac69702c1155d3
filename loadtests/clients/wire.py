"""A WebSocket client that costs next to nothing, so that the server is what is measured.

It implements only a part of RFC 6455: no compression, whole frames, all of one kind: text, unless
its Speech says binary. A client must mask what it sends. The mask 00000000 is valid and leaves the
payload as it is. A Wire passes every message of the server to a callback as bytes, on the loop, and
copies nothing more than once.

Below the socket are the parts of frames that clients read and write: the head of a push, offsets
with gaps, and the delivery lists by which acks name deliveries.
"""

import asyncio
import base64
import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

_ACCEPT_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MASKED: Final = 0x80
_NO_MASK: Final = bytes(4)
TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x81, 0x82, 0x80, 0x88, 0x89, 0x8A
_HEADER_BYTES_MAX: Final = 16 * 1024
CONNECT_TIMEOUT_S: Final = 30.0


class WireError(ConnectionError):
    """The handshake was refused, or the server broke the WebSocket protocol."""


class Speech(NamedTuple):
    """The protocol spoken over a WebSocket, and its path."""

    path: str
    subprotocol: str | None
    """None: no subprotocol is requested, and the server must choose none."""
    data: int = TEXT
    """The first byte of a message: TEXT or BINARY."""


TOCSIN: Final = Speech("/v1/ws", "tocsin.v1")


def frame(payload: bytes, head: int = TEXT) -> bytes:
    """Return the bytes of one masked client frame."""
    length = len(payload)
    if length < 126:
        return bytes((head, _MASKED | length)) + _NO_MASK + payload
    if length < 1 << 16:
        return struct.pack("!BBH", head, _MASKED | 126, length) + _NO_MASK + payload
    return struct.pack("!BBQ", head, _MASKED | 127, length) + _NO_MASK + payload


def _nothing() -> None:
    pass


class Wire(asyncio.Protocol):
    """A socket after its handshake.

    `on_message(bytes)` gets every message. `on_turn()` follows once after all messages of one read,
    the moment to send answers. `on_closed()` is called once when the socket has closed, with
    `close_code` set if the server gave one.
    """

    __slots__ = (
        "_accept", "_data", "_fragments", "_opened", "_rest", "_subprotocol", "close_code",
        "close_reason", "closed", "on_closed", "on_message", "on_turn", "transport",
    )  # fmt: skip

    def __init__(
        self,
        on_message: Callable[[bytes], None],
        on_turn: Callable[[], None] = _nothing,
        on_closed: Callable[[], None] = _nothing,
        speech: Speech = TOCSIN,
    ) -> None:
        self._data = speech.data
        self._subprotocol = speech.subprotocol
        self.on_message = on_message
        self.on_turn = on_turn
        self.on_closed = on_closed
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self.close_code: int | None = None
        self.close_reason = ""
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accept = b""
        self._rest = b""
        self._fragments: list[bytes] = []

    # --- opening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    async def handshake(self, host: str, path: str, headers: dict[str, str]) -> None:
        """Ask the server for the upgrade to a WebSocket, and wait until it has answered. Raises
        WireError when the server refuses."""
        assert self.transport is not None
        key = base64.b64encode(os.urandom(16))
        digest = hashlib.sha1(key + _ACCEPT_GUID, usedforsecurity=False).digest()
        self._accept = base64.b64encode(digest)
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key.decode()}",
            *([f"Sec-WebSocket-Protocol: {self._subprotocol}"] if self._subprotocol else []),
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        self.transport.write("\r\n".join([*lines, "", ""]).encode())
        await self._opened

    def _read_handshake(self, data: bytes) -> bytes | None:
        """Return the bytes after the answer's header; None while it is incomplete, or if it is a
        refusal."""
        self._rest += data
        head, end, rest = self._rest.partition(b"\r\n\r\n")
        if not end:
            if len(self._rest) > _HEADER_BYTES_MAX:
                self._refused("the handshake's answer has no end")
            return None
        status, *lines = head.split(b"\r\n")
        fields = {
            name.strip().lower(): text.strip()
            for name, _, text in (line.partition(b":") for line in lines)
        }
        if b" 101 " not in status + b" ":
            self._refused(f"{status.decode('latin-1')}: {rest.decode(errors='replace')[:300]}")
        elif fields.get(b"sec-websocket-accept") != self._accept:
            self._refused("the handshake's answer is not for this handshake")
        elif fields.get(b"sec-websocket-protocol", b"").decode("latin-1") != (
            self._subprotocol or ""
        ):
            self._refused(f"the server did not choose {self._subprotocol or 'no subprotocol'}")
        else:
            self._rest = b""
            if not self._opened.done():
                self._opened.set_result(None)
            return rest
        return None

    def _refused(self, why: str) -> None:
        if not self._opened.done():
            self._opened.set_exception(WireError(why))
        self.abort()

    # --- receiving

    def data_received(self, data: bytes) -> None:
        if not self._opened.done():
            rest = self._read_handshake(data)
            if not rest:
                return
            data = rest
        if self._rest:
            data = self._rest + data
        place, end, whole = 0, len(data), self._data
        while end - place >= 2:
            head, length = data[place], data[place + 1]
            start = place + 2
            if length == 126:
                if end - start < 2:
                    break
                length = (data[start] << 8) | data[start + 1]
                start += 2
            elif length == 127:
                if end - start < 8:
                    break
                (length,) = struct.unpack_from("!Q", data, start)
                start += 8
            if end - start < length:
                break
            place = start + length
            if head == whole:
                self.on_message(data[start:place])
            else:
                self._rare(head, data[start:place])
        self._rest = data[place:] if place < end else b""
        self.on_turn()

    def _rare(self, head: int, payload: bytes) -> None:
        if head == PING:
            self._write(frame(payload, PONG))
        elif head == CLOSE:
            if len(payload) >= 2:
                self.close_code = int.from_bytes(payload[:2], "big")
                self.close_reason = payload[2:].decode(errors="replace")
            self._write(frame(payload[:2], CLOSE))
            self.close()
        elif head == self._data & 0x0F:  # the first fragment of a message
            self._fragments = [payload]
        elif head in (0x00, CONTINUATION):
            self._fragments.append(payload)
            if head == CONTINUATION:
                self.on_message(b"".join(self._fragments))
                self._fragments = []
        elif head != PONG:
            self.close_reason = f"a frame that starts with 0x{head:02x}"
            self.abort()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self._opened.done():
            self._opened.set_exception(WireError(f"closed during the handshake: {exc}"))
        self.on_closed()

    # --- sending

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def send(self, payload: bytes) -> None:
        """Send one message. On a closed socket nothing happens."""
        self._write(frame(payload, self._data))

    def send_all(self, payloads: list[bytes]) -> None:
        """Send several messages, a frame each, in one write."""
        if payloads:
            head = self._data
            self._write(b"".join([frame(payload, head) for payload in payloads]))

    def close(self) -> None:
        """Close after the buffered bytes are sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once; buffered bytes are lost."""
        if self.transport is not None:
            self.transport.abort()


async def connect(
    url: str,
    on_message: Callable[[bytes], None],
    on_turn: Callable[[], None] = _nothing,
    on_closed: Callable[[], None] = _nothing,
    *,
    token: str | None = None,
    local: str | None = None,
    speech: Speech = TOCSIN,
) -> Wire:
    """Return a Wire to `url` (http://host:port), after its handshake. `local`: the address of this
    machine to connect from; each has some 28,000 ports.

    Raises:
        OSError: no server listens there; WireError (also an OSError) when the upgrade is refused;
        TimeoutError after CONNECT_TIMEOUT_S.
    """
    place = urlsplit(url)
    if place.scheme != "http" or place.hostname is None:
        raise WireError(f"the load client speaks plain http://host:port, not {url}")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        transport, wire = await loop.create_connection(
            lambda: Wire(on_message, on_turn, on_closed, speech), place.hostname, place.port or 80,
            local_addr=None if local is None else (local, 0),
        )  # fmt: skip
        try:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            await wire.handshake(place.netloc, speech.path, headers)
        except BaseException:
            transport.abort()
            raise
    return wire


# --- Frames of the broker ------------------------------------------------------------------------


class Push(msgspec.Struct, gc=False):
    """The head of a push frame to any client; `messages` are read separately."""

    subscription: int
    partition: int
    epoch: int = 0
    push: int = 0
    offset: int = 0
    attempt: int = 1
    skips: list[int] = []

    def places(self, count: int) -> Sequence[int]:
        """Return the offsets of its `count` messages, in order."""
        return offsets_of(self.offset, count, self.skips)


def offsets_of(first: int, count: int, skips: list[int]) -> Sequence[int]:
    """Return `count` offsets from `first` on, without those in `skips`."""
    whole = range(first, first + count + len(skips))
    if not skips:
        return whole
    gone = set(skips)
    return [offset for offset in whole if offset not in gone]


_PUSH: Final = msgspec.json.Decoder(Push)
_MANY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_MESSAGES: Final = b'"messages":['
_PUSH_START: Final = b'{"type":"push"'


def split(message: bytes) -> list[bytes]:
    """Return the frames in one WebSocket message: itself, or the members of an array."""
    if message[:1] == b"[":
        return [bytes(raw) for raw in _MANY.decode(message)]
    return [message]


def is_push(data: bytes) -> bool:
    """Whether this frame is a push; the broker puts its type first."""
    return data.startswith(_PUSH_START)


def open_push(data: bytes) -> tuple[Push, int, int]:
    """Return the head of a push frame, and where its messages begin and end, brackets excluded.

    Only the head is parsed. The messages are the frame's last field, so a client that does not need
    them does not pay for them.
    """
    place = data.index(_MESSAGES) + len(_MESSAGES)
    return _PUSH.decode(data[: place - 1] + b"0}"), place, len(data) - 2


Place = tuple[int, int, int, int]
"""(partition, epoch, push, offset) of one delivery."""


def places(deliveries: list[list[int]]) -> list[Place]:
    """Return the deliveries that a delivery list names."""
    return [
        (partition, epoch, push, offset)
        for partition, epoch, push, *ranges in deliveries
        for first, last in zip(ranges[::2], ranges[1::2], strict=True)
        for offset in range(first, last + 1)
    ]


def delivery_list(named: list[Place]) -> list[list[int]]:
    """Return the delivery list that names these deliveries."""
    lists: dict[tuple[int, int, int], list[int]] = {}
    for partition, epoch, push, offset in sorted(named):
        ranges = lists.setdefault((partition, epoch, push), [])
        if ranges and ranges[-1] == offset - 1:
            ranges[-1] = offset
        else:
            ranges += [offset, offset]
    return [[*place, *ranges] for place, ranges in lists.items()]

"""WebSocket frames, as far as a server without extensions needs them (RFC 6455). Pure.

The sans-I/O protocol of the `websockets` library keeps kilobytes for each idle connection, and
takes ten times as long for each frame. This reader keeps nothing between messages. The tests
compare the two.
"""

import struct
from collections.abc import Iterator
from typing import Final

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # in C where there is C

from gateway.wire.frames import TOO_LARGE, Close

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
Event = tuple[int, bytes]
"""An event of a client: (TEXT or BINARY, a whole message) or (CLOSE, PING or PONG, its payload).
(CONTINUATION, nothing) is a fragment that completes no message, so that callers can count it."""
Portion = tuple[int, list[bytes]]
"""Several text messages that follow each other and begin like a publish, or one event of any kind:
its opcode, and the messages or the payload."""
PORTION_BYTES_MAX: Final = 32 * 1024
"""Size in bytes from which a portion takes no further publish. It is as much as is processed of one
session in one go while several queues publish."""
_PUBLISH: Final = b'{"type":"publish"'
"""Beginning of most clients' publishes. A publish that begins otherwise is a portion of its own."""
_FIN: Final = 0x80
_OPCODES: Final = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
_CONTROL_BYTES_MAX: Final = 125
_CLOSE_CODES: Final = frozenset((1000, 1001, 1002, 1003, *range(1007, 1015)))
"""Codes that may be in a close frame, in addition to 3000-4999 (7.4)."""
_PROTOCOL_ERROR: Final = 1002
_INVALID_DATA: Final = 1007


# --- Writing: a server's frames are not masked (5.1) --------------------------------------------

_SHORT: Final = struct.Struct("!BB")
_MEDIUM: Final = struct.Struct("!BBH")
_LONG: Final = struct.Struct("!BBQ")


def encode_frame(payload: bytes, opcode: int = TEXT) -> bytes:
    """Frame a message in one piece, or a control frame's payload."""
    size = len(payload)
    if size < 126:
        return _SHORT.pack(_FIN | opcode, size) + payload
    if size < 65_536:
        return _MEDIUM.pack(_FIN | opcode, 126, size) + payload
    return _LONG.pack(_FIN | opcode, 127, size) + payload


def control_frame(opcode: int, payload: bytes = b"") -> bytes:
    """Make a close, ping or pong frame. Its payload has at most 125 bytes (5.5)."""
    assert len(payload) <= _CONTROL_BYTES_MAX, payload
    return encode_frame(payload, opcode)


def close_frame(close: Close) -> bytes:
    """Make a close frame."""
    return control_frame(CLOSE, struct.pack("!H", close.code) + close.reason.encode())


# --- Reading ------------------------------------------------------------------------------------


PIECE_BYTES: Final = 64 * 1024
"""Number of bytes of an incomplete frame from which they become a piece. Without it, a client that
sends byte by byte would fill a list of objects that take fifty times the bytes."""


class MessageReader:
    """Bytes of a client in, portions of whole messages out. It holds at most one incomplete
    message.

    When the client breaks the rules, `violation` is set to the code to close with. Nothing is read
    after that, nor after a close frame.
    """

    __slots__ = (
        "_buffer",
        "_bytes_needed",
        "_fragments",
        "_is_text",
        "_pieces",
        "_size",
        "bytes_max",
        "unread_bytes",
        "violation",
    )

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        """Largest size of a message. It may change between two messages."""
        self._buffer: bytearray | None = None
        """The end of what was received of an incomplete frame, less than PIECE_BYTES; the rest is
        in `_pieces`. None: no frame is incomplete."""
        self._pieces: list[bytes] | None = None
        """The pieces of an incomplete frame before `_buffer`; None if there are none."""
        self._size = 0
        """Number of bytes in `_buffer` and `_pieces` together."""
        self._bytes_needed = 0
        """Number of buffered bytes that are needed before parsing can go on."""
        self._fragments: bytearray | None = None
        """Payloads of the fragments of an incomplete message, in one buffer; None if there are
        none. In a list, millions of empty ones would take much memory (P9)."""
        self._is_text = False
        self.unread_bytes = 0
        """Number of bytes that `receive` was given and that are after the last portion, while it
        yields portions."""
        self.violation: Close | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it holds no part of a frame or message."""
        return self._buffer is None and self._fragments is None

    @property
    def buffered_bytes(self) -> int:
        """Size of the incomplete message."""
        return self._size + len(self._fragments or b"")

    def discard(self) -> None:
        """Drop the incomplete message. Nothing may be read any more."""
        self._buffer = self._pieces = self._fragments = None
        self._size = self.unread_bytes = 0

    def _append(self, data: bytes) -> None:
        """Append bytes to the incomplete frame. A large frame is a list of pieces, joined once. A
        growing buffer would be copied again and again, and would fragment the heap."""
        if self._buffer is None:
            self._buffer = bytearray()
        self._size += len(data)
        if len(data) < PIECE_BYTES:
            self._buffer += data
            if len(self._buffer) < PIECE_BYTES:
                return
            data = b""
        if self._pieces is None:
            self._pieces = []
        self._pieces += [piece for piece in (bytes(self._buffer), data) if piece]
        self._buffer = bytearray()

    def _take_buffered(self) -> bytes:
        """Take all buffered bytes."""
        data = bytes(self._buffer or b"")
        if self._pieces is not None:
            data = b"".join((*self._pieces, data))
        self._buffer = self._pieces = None
        self._size = 0
        return data

    def receive(self, data: bytes) -> Iterator[Portion]:
        """Yield what is complete with these bytes, in order. Iterate to the end, unless the
        connection ends before."""
        if self._buffer is not None:
            self._append(data)
            if self._size < self._bytes_needed:
                return
            data = self._take_buffered()
        publishes: list[bytes] = []
        place, portion_bytes, total = 0, 0, len(data)
        while place < total:
            header, size = self._header(data, place)
            if self.violation is not None:
                break
            start = place + header
            end = start + size
            if end > total:
                self._bytes_needed = end - place
                self._append(data[place:])
                break
            opcode = TEXT
            payload = apply_mask(data[start:end], data[start - 4 : start]) if size else b""
            if data[place] != _FIN | TEXT:
                opcode, payload = self._event(data[place], payload)
                if self.violation is not None:
                    break
            if opcode == TEXT and payload.startswith(_PUBLISH):
                publishes.append(payload)
                portion_bytes += len(payload)
                if portion_bytes >= PORTION_BYTES_MAX:
                    self.unread_bytes = total - end
                    yield TEXT, publishes
                    publishes, portion_bytes = [], 0
            else:
                if publishes:
                    self.unread_bytes = total - place
                    yield TEXT, publishes
                    publishes, portion_bytes = [], 0
                self.unread_bytes = total - end
                yield opcode, [payload]
                if opcode == CLOSE:
                    return
            place = end
        self.unread_bytes = 0
        if publishes:
            yield TEXT, publishes

    def _header(self, data: bytes, place: int) -> tuple[int, int]:
        """Return the sizes of the frame's header and payload. (n, 0) means that n bytes are needed
        to know more. Also judges the frame, before its payload has arrived."""
        left = len(data) - place
        if left < 2:
            return 2, 0
        first, size = data[place], data[place + 1] - 0x80
        header = 6
        if size == 126:
            if left < 4:
                return 4, 0
            header, size = 8, data[place + 2] << 8 | data[place + 3]
        elif size == 127:
            if left < 10:
                return 10, 0
            header, size = 14, int.from_bytes(data[place + 2 : place + 10])
        if size < 0:
            self._fail(_PROTOCOL_ERROR, "frames of a client are masked")  # 5.1
        elif first != _FIN | TEXT or self._fragments is not None:
            self._check_header(first, size)
        elif size > self.bytes_max:
            self.violation = TOO_LARGE
        return header, size

    def _check_header(self, first: int, size: int) -> None:
        opcode = first & 0x0F
        if first & 0x70:
            self._fail(_PROTOCOL_ERROR, "reserved bits must be 0")  # 5.2: no extensions
        elif opcode not in _OPCODES:
            self._fail(_PROTOCOL_ERROR, "unknown opcode")
        elif opcode >= CLOSE:
            if size > _CONTROL_BYTES_MAX or not first & _FIN:  # 5.5
                self._fail(_PROTOCOL_ERROR, "control frames are short and not fragmented")
        elif (opcode == CONTINUATION) is (self._fragments is None):  # 5.4
            self._fail(_PROTOCOL_ERROR, "fragments out of order")
        elif size + len(self._fragments or b"") > self.bytes_max:
            self.violation = TOO_LARGE

    def _event(self, first: int, payload: bytes) -> Event:
        """Return the event that a complete frame brings. The caller checks whether it breaks a
        rule."""
        opcode = first & 0x0F
        if opcode >= CLOSE:
            if opcode == CLOSE:
                self._check_close(payload)
            return opcode, payload
        if first & _FIN and opcode != CONTINUATION:
            return opcode, payload
        if self._fragments is None:
            self._fragments, self._is_text = bytearray(), opcode == TEXT
        self._fragments += payload
        if not first & _FIN:
            return CONTINUATION, b""
        message, self._fragments = bytes(self._fragments), None
        return (TEXT if self._is_text else BINARY), message

    def _check_close(self, payload: bytes) -> None:
        """Check the payload of a close frame: empty, or a code and a reason (7.1.5, 7.1.6)."""
        try:
            payload[2:].decode()
        except UnicodeDecodeError:
            self._fail(_INVALID_DATA, "a close reason that is not UTF-8")
            return
        code = int.from_bytes(payload[:2])
        if payload and (len(payload) == 1 or not (code in _CLOSE_CODES or 3000 <= code < 5000)):
            self._fail(_PROTOCOL_ERROR, "invalid close code")

    def _fail(self, code: int, reason: str) -> None:
        self.violation = Close(code, reason)

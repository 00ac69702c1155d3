"""Where requests of one connection begin and end, and which of them ask for a WebSocket. Pure."""

from collections.abc import Iterator
from typing import Final

HEAD_BYTES_MAX: Final = 64 * 1024
_END: Final = b"\r\n\r\n"
_CONNECTION: Final = frozenset({b"upgrade", b"connection"})


class Requests:
    """Takes what a client sends, piece by piece, and gives the very same bytes back, cut so that a
    request for an upgrade stands alone. What follows such a request, and what is no HTTP, is passed
    on as it comes."""

    def __init__(self) -> None:
        self._head = b""
        self._body_left = 0
        self._is_raw = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """(bytes, whether they are the whole head of a request for an upgrade); nothing while a
        head is incomplete."""
        while data:
            if self._is_raw:
                yield data, False
                return
            if self._body_left:
                piece, data = data[: self._body_left], data[self._body_left :]
                self._body_left -= len(piece)
                yield piece, False
                continue
            data, self._head = self._head + data, b""
            head, end, rest = data.partition(_END)
            if not end:
                if len(data) <= HEAD_BYTES_MAX:
                    self._head = data
                    return
                self._is_raw = True
                continue
            data = rest
            wants_upgrade = self._begin(head)
            yield head + end, wants_upgrade

    def _begin(self, head: bytes) -> bool:
        """A request has begun; whether it asks for an upgrade."""
        fields = {
            name.strip().lower(): text.strip().lower()
            for name, _, text in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        length = fields.get(b"content-length", b"0")
        self._is_raw = b"upgrade" in fields or b"transfer-encoding" in fields
        self._is_raw = self._is_raw or not length.isdigit()
        self._body_left = 0 if self._is_raw else int(length)
        return fields.get(b"upgrade") == b"websocket"


def without_upgrade(head: bytes) -> bytes:
    """The head as a proxy that knows no WebSocket passes it on: it is not asked for any more."""
    lines = head.removesuffix(_END).split(b"\r\n")
    kept = [line for line in lines if line.partition(b":")[0].strip().lower() not in _CONNECTION]
    return b"\r\n".join(kept) + _END


def refusal(status: int) -> bytes:
    """The answer of a proxy that does not let a WebSocket through."""
    text = {400: "Bad Request", 403: "Forbidden"}.get(status, "Refused")
    return f"HTTP/1.1 {status} {text}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()

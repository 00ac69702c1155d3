"""Every way in for a credential, over blocking sockets, so that only the broker is between request
and answer.

A way presents one credential and returns (seconds, answer); None if it cannot carry a credential of
this form. The answer is without its date, and without anything else that differs by itself.
"""

import json
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from loadtests.clients.load import LoadFailed
from loadtests.clients.wire import frame

TIMEOUT_S: Final = 30.0
ENTRY_BYTES_MAX: Final = 1000
"""The largest body of a request for access that a way sends, in bytes; the broker refuses somewhat
larger ones."""
_HELLO: Final = b'{"type":"hello"}'
_UPGRADE: Final = (
    "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
_SUBPROTOCOL: Final = "Sec-WebSocket-Protocol: tocsin.v1"
_PLAIN: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
"""The allowed values of a header."""
_LISTED: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The allowed names of a subprotocol (RFC 9110, 5.6.2)."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: close by a reset, so that a hundred thousand sockets leave no port waiting."""

Told = tuple[float, bytes]
Way = Callable[[str], Told | None]


class Answer(NamedTuple):
    """An HTTP answer."""

    status: bytes
    head: bytes
    body: bytes


class Line:
    """A blocking socket."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._heard = b""

    def say(self, data: bytes) -> None:
        """Send all bytes."""
        self._socket.sendall(data)

    def answer(self) -> Answer:
        """Return the next HTTP answer. Raises LoadFailed if the broker closed the socket before the
        answer's end."""
        while b"\r\n\r\n" not in self._heard:
            self._hear()
        head, _, self._heard = self._heard.partition(b"\r\n\r\n")
        found = re.search(rb"(?im)^content-length: *(\d+)", head)
        size = int(found[1]) if found else 0
        while len(self._heard) < size:
            self._hear()
        body, self._heard = self._heard[:size], self._heard[size:]
        return Answer(head.partition(b"\r\n")[0], head, body)

    def message(self) -> bytes:
        """Return the next short WebSocket frame: the byte with its opcode, then its payload. Raises
        LoadFailed if the broker closed the socket before the frame's end."""
        while len(self._heard) < 2 or len(self._heard) < self._frame_end():
            self._hear()
        end = self._frame_end()
        said, self._heard = self._heard[:end], self._heard[end:]
        return said[:1] + said[2 if end < 128 else 4 :]

    def _frame_end(self) -> int:
        length = self._heard[1]
        if length < 126:
            return 2 + length
        return 4 + int.from_bytes(self._heard[2:4]) if len(self._heard) >= 4 else 4

    def _hear(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise LoadFailed("the broker closed a socket that it had to answer on")
        self._heard += data

    def close(self) -> None:
        """Close by a reset."""
        self._socket.close()


class Ways:
    """All ways into one broker. Each takes a credential as text. `cookie`: the name of the broker's
    cookie."""

    def __init__(self, url: str, cookie: str) -> None:
        place = urlsplit(url)
        self._host, self._port, self._netloc = place.hostname or "", place.port or 80, place.netloc
        self._cookie = cookie
        self._kept: Line | None = None
        self.all: Final[dict[str, Way]] = {
            "REST, header": self.rest,
            "REST, cookie": self.rest_cookie,
            "REST, ticket for a cookie": self.entry,
            "long poll, header": self.long_poll,
            "WebSocket, header": self.websocket,
            "WebSocket, subprotocol": self.subprotocol,
            "WebSocket, cookie": self.websocket_cookie,
            "WebSocket, hello": self.hello,
        }

    def close(self) -> None:
        """Close the connection that the ways over HTTP share."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    # --- HTTP: one connection for all -----------------------------------------------------------

    def ask(self, method: str, path: str, *lines: str, body: bytes = b"") -> tuple[float, Answer]:
        """Send a request over the connection that the ways over HTTP share; return (seconds,
        answer)."""
        if self._kept is None:
            self._kept = Line(self._host, self._port)
        if body:
            lines = (*lines, "Content-Type: application/json", f"Content-Length: {len(body)}")
        data = self._head(method, path, *lines) + body
        began = time.perf_counter()
        self._kept.say(data)
        answer = self._kept.answer()
        took = time.perf_counter() - began
        if b"connection: close" in answer.head.lower():
            self.close()
        return took, answer

    def _head(self, method: str, path: str, *lines: str) -> bytes:
        said = (f"{method} {path} HTTP/1.1", f"Host: {self._netloc}", *lines, "", "")
        return "\r\n".join(said).encode()

    def _asked(self, method: str, path: str, *lines: str, body: bytes = b"") -> Told:
        took, answer = self.ask(method, path, *lines, body=body)
        return took, answer.status + b"\n" + answer.body

    def rest(self, text: str) -> Told | None:
        """Present a credential as `Authorization` in a request. None if a header cannot carry
        it."""
        if not _PLAIN.fullmatch(text):
            return None
        return self._asked("GET", "/v1/queues", f"Authorization: Bearer {text}")

    def long_poll(self, text: str) -> Told | None:
        """Present a credential as `Authorization` in the first request of a long-poll session. None
        if a header cannot carry it."""
        if not _PLAIN.fullmatch(text):
            return None
        header = f"Authorization: Bearer {text}"
        return self._asked("POST", "/v1/sessions", header, body=_HELLO)

    def entry(self, text: str) -> Told | None:
        """Present a ticket in a request for a cookie. None if its body would exceed
        ENTRY_BYTES_MAX."""
        body = json.dumps({"ticket": text}).encode()
        if len(body) > ENTRY_BYTES_MAX:
            return None
        return self._asked("POST", "/v1/access", body=body)

    def _cookie_lines(self, text: str) -> tuple[str, str]:
        return f"Cookie: {self._cookie}={text}", f"Origin: http://{self._netloc}"

    def rest_cookie(self, text: str) -> Told | None:
        """Present a browser's cookie in a request. None if a header cannot carry it."""
        if not _PLAIN.fullmatch(text):
            return None
        return self._asked("GET", "/v1/queues", *self._cookie_lines(text))

    # --- WebSocket: a new one each time ---------------------------------------------------------

    def _shake(self, *lines: str) -> Told:
        line = Line(self._host, self._port)
        data = self._head("GET", "/v1/ws", *_UPGRADE, *lines)
        began = time.perf_counter()
        line.say(data)
        answer = line.answer()
        took = time.perf_counter() - began
        line.close()
        return took, answer.status + b"\n" + answer.body

    def websocket(self, text: str) -> Told | None:
        """Present a credential as `Authorization` in a handshake. None if a header cannot carry
        it."""
        if not _PLAIN.fullmatch(text):
            return None
        return self._shake(_SUBPROTOCOL, f"Authorization: Bearer {text}")

    def subprotocol(self, text: str) -> Told | None:
        """Present a ticket among a handshake's subprotocols. None if a subprotocol cannot carry
        it."""
        if not _LISTED.fullmatch(text):
            return None
        return self._shake(f"{_SUBPROTOCOL}, tocsin.ticket.{text}")

    def websocket_cookie(self, text: str) -> Told | None:
        """Present a browser's cookie in a handshake, then say hello. A wrong cookie does not
        prevent the socket from opening; the broker refuses the hello. The time covers both. None if
        a header cannot carry the cookie."""
        if not _PLAIN.fullmatch(text):
            return None
        line = Line(self._host, self._port)
        data = self._head("GET", "/v1/ws", *_UPGRADE, _SUBPROTOCOL, *self._cookie_lines(text))
        said = frame(_HELLO)
        began = time.perf_counter()
        line.say(data)
        status = line.answer().status
        line.say(said)
        told = line.message()
        took = time.perf_counter() - began
        line.close()
        return took, status + b"\n" + told

    def hello(self, text: str) -> Told | None:
        """Present a token in the hello of an open socket. The time covers only the hello."""
        line = Line(self._host, self._port)
        line.say(self._head("GET", "/v1/ws", *_UPGRADE, _SUBPROTOCOL))
        line.answer()
        said = frame(json.dumps({"type": "hello", "token": text}).encode())
        began = time.perf_counter()
        line.say(said)
        told = line.message()
        took = time.perf_counter() - began
        line.close()
        return took, told

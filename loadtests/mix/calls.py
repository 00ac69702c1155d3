"""Frames and requests, as blocking calls of the mix's users and of their launcher.

`Frame` is any frame of the broker, as far as users need its fields. `Http` is a plain connection
for requests. Every failure of a connection is a `Gone`. The launcher imports this module, so it
needs neither Locust nor a library for WebSockets.
"""

import http.client
import json
import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from loadtests.clients.wire import offsets_of


class Failure(msgspec.Struct, gc=False):
    """The reason why one message of a publish was not stored."""

    code: str
    detail: str = ""
    retry: bool = False


class Given(msgspec.Struct, gc=False):
    """A message of a push."""

    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()


class Verdict(msgspec.Struct, gc=False):
    """The place at which a reader continues in a partition."""

    partition: int
    generation: int = 1
    verdict: str = ""
    start: int = msgspec.field(name="from", default=0)


class Frame(msgspec.Struct, gc=False):
    """Any frame of the broker. Fields that its type does not have keep their defaults."""

    type: str
    ref: int | None = None
    code: str = ""
    detail: str = ""
    retry: bool = False
    retry_after_s: float | None = None
    reconnect_after_s: float = 0.0
    receipts: list[list[int | bool] | Failure] = []
    subscription: int = 0
    partition: int = 0
    epoch: int = 0
    push: int = 0
    offset: int = 0
    skips: list[int] = []
    offsets: list[int] = []
    next: int = -1
    gap: list[int] = []
    messages: list[Given] = []
    deliveries: list[list[int]] = []
    stale: list[list[int]] = []
    queue_id: str = ""
    positions: list[Verdict] | dict[str, list[int]] = []

    @property
    def places(self) -> Sequence[int]:
        """Return the offsets of a push's messages to a consumer."""
        return offsets_of(self.offset, len(self.messages), self.skips)


_FRAME: Final = msgspec.json.Decoder(Frame)
_FRAMES: Final = msgspec.json.Decoder(list[Frame])
encode: Final = msgspec.json.Encoder().encode


def decode(message: bytes) -> list[Frame]:
    """Return the frames of one message. Raises msgspec.DecodeError."""
    return _FRAMES.decode(message) if message[:1] == b"[" else [_FRAME.decode(message)]


ANSWER_TIMEOUT_S: Final = 60.0
_REASON_CHARS: Final = 80


class Gone(ConnectionError):
    """The connection has ended, or the session with it; connect again.

    `reason` says why in words that are the same each time, without ports, paths and numbers. A
    table that counts failures by their reason has a row for each reason.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        """Without `reason`, the text is the reason."""
        super().__init__(text)
        self.reason = reason or text


def reason(error: Exception) -> str:
    """Return why a connection failed, for `Gone`."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "closed without an answer"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)[:_REASON_CHARS] or type(error).__name__


class Http:
    """A keep-alive connection, which is opened anew after it has broken. It carries one request at
    a time."""

    def __init__(self, url: str, token: str | None) -> None:
        """`url`: http://host:port of a broker."""
        place = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(place.hostname or "", place.port, timeout=ANSWER_TIMEOUT_S)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(
        self, method: str, path: str, body: object = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> tuple[int, bytes]:
        """Send a request and return (status, body). Raises Gone when no answer came; whether the
        broker did it is unknown then.

        An idle connection may have been closed meanwhile. A request that met this is sent again
        over a new connection. The mix repeats only requests whose ids or numbers make them count
        once.
        """
        data = None if body is None else encode(body)
        was_open = self._connection.sock is not None
        try:
            try:
                return self._exchange(method, path, data, timeout_s)
            except (ConnectionResetError, BrokenPipeError):
                if not was_open:
                    raise
                self._connection.close()
                return self._exchange(method, path, data, timeout_s)
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            raise Gone(f"{method} {path}: {error}", reason(error)) from None

    def _exchange(
        self, method: str, path: str, data: bytes | None, timeout_s: float
    ) -> tuple[int, bytes]:
        headers = self._headers | ({"Content-Type": "application/json"} if data else {})
        connection = self._connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[str, object]:
        """Send a request and return the JSON of the answer. Raises RuntimeError with the broker's
        words for a status of 400 or above, and Gone."""
        status, answer = self.request(method, path, body, timeout_s=timeout_s)
        if status >= 400:
            text = answer.decode(errors="replace")
            raise RuntimeError(f"{method} {path} was answered {status}: {text}")
        found: dict[str, object] = json.loads(answer) if answer else {}
        return found

    def close(self) -> None:
        """Close; the next request opens a new connection."""
        self._connection.close()

"""A session as blocking calls, over WebSocket or by long poll, for code that runs in a greenlet.

Locust replaces the standard library's sockets by gevent's when it is imported. A blocking call then
holds up one user and no other. Without Locust it blocks a thread. This module works the same in
both cases.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from websocket import (
    ABNF,
    WebSocket,
    WebSocketBadStatusException,
    WebSocketException,
    WebSocketTimeoutException,
)

from loadtests.mix.calls import ANSWER_TIMEOUT_S, Frame, Gone, Http, decode, encode, reason

POLL_S_MAX: Final = 20.0
"""The longest wait of one poll. The broker allows at most 30 s; a longer wait takes several
polls."""
_POLL_MARGIN_S: Final = 30.0
"""Time after a poll's wait until its connection counts as dead."""


class Transport(Protocol):
    """The transport of a session. Every method may raise Gone."""

    def open(self, hello: dict[str, object]) -> Frame:
        """Connect, say hello, and return the welcome."""

    def send(self, frames: Sequence[object]) -> None:
        """Send frames in this order."""

    def receive(self, timeout_s: float) -> list[Frame]:
        """Return the broker's next frames; empty if none came in time."""

    def close(self) -> None:
        """Leave, and tell the broker, so that held deliveries return at once."""

    def cut(self) -> None:
        """Leave without a word, as after a network failure."""


MakeTransport = Callable[[str, str | None], Transport]
"""Makes a transport from a broker's address and a token. It does not connect before `open`."""


class Socket:
    """A session over a WebSocket of its own."""

    def __init__(self, url: str, token: str | None) -> None:
        """`url`: http://host:port of a broker."""
        place = urlsplit(url)
        self._address = f"{'wss' if place.scheme == 'https' else 'ws'}://{place.netloc}/v1/ws"
        self._headers = [f"Authorization: Bearer {token}"] if token else []
        self._socket: Any = WebSocket(skip_utf8_validation=True)  # some of it has no types

    def open(self, hello: dict[str, object]) -> Frame:
        try:
            self._socket.connect(
                self._address, timeout=ANSWER_TIMEOUT_S, header=self._headers,
                subprotocols=["tocsin.v1"], suppress_origin=True, http_no_proxy=["*"],
            )  # fmt: skip
        except WebSocketBadStatusException as error:
            why = f"the handshake was answered {error.status_code}"
            raise Gone(f"no WebSocket: {error}", why) from None
        except (WebSocketException, OSError) as error:
            raise Gone(f"no WebSocket: {error}", reason(error)) from None
        return _welcomed(self, lambda: self._said(hello))

    def _said(self, hello: dict[str, object]) -> list[Frame]:
        self.send([hello])
        return self.receive(ANSWER_TIMEOUT_S)

    def send(self, frames: Sequence[object]) -> None:
        said = frames[0] if len(frames) == 1 else frames
        try:
            self._socket.settimeout(ANSWER_TIMEOUT_S)
            self._socket.send(encode(said).decode())
        except (WebSocketException, OSError) as error:
            raise Gone(f"cannot send: {error}", reason(error)) from None

    def receive(self, timeout_s: float) -> list[Frame]:
        """Return the broker's next frames. A message of which a part came in time is kept for the
        next call, because websocket-client continues it."""
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            opcode, data = self._socket.recv_data()
        except WebSocketTimeoutException:
            return []
        except (WebSocketException, OSError) as error:
            raise Gone(f"cannot receive: {error}", reason(error)) from None
        if opcode == ABNF.OPCODE_CLOSE:
            code = int.from_bytes(data[:2], "big") if len(data) >= 2 else 0
            text = bytes(data[2:]).decode(errors="replace")
            raise Gone(f"closed with {code}: {text}", f"closed with {code}")
        return decode(bytes(data))

    def close(self) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            if self._socket.connected:
                self._socket.send_close()
        self.cut()

    def cut(self) -> None:
        with contextlib.suppress(WebSocketException, OSError):
            self._socket.shutdown()


class _Batch(msgspec.Struct):
    """The answer to a poll, or to the request that opens the session."""

    session: str
    batch: int
    frames: list[Frame]
    close: dict[str, object] | None = None


_BATCH: Final = msgspec.json.Decoder(_Batch)


class Poll:
    """A session by long poll. After a broken connection a post or a poll is repeated once, at once,
    under the same number, so that it counts once."""

    def __init__(self, url: str, token: str | None) -> None:
        """`url`: http://host:port of a broker."""
        self._http = Http(url, token)
        self._path = ""
        self._batch = 0
        self._number = 0

    def open(self, hello: dict[str, object]) -> Frame:
        return _welcomed(self, lambda: self._said(hello))

    def _said(self, hello: dict[str, object]) -> list[Frame]:
        status, answer = self._http.request("POST", "/v1/sessions", hello)
        if status != 201:
            text = answer.decode(errors="replace")
            raise Gone(f"no session: {status}: {text}", f"no session: {status}")
        opened = _BATCH.decode(answer)
        self._path, self._batch = f"/v1/sessions/{opened.session}/frames", opened.batch
        return opened.frames or self.receive(POLL_S_MAX)

    def send(self, frames: Sequence[object]) -> None:
        self._number += 1
        said = frames[0] if len(frames) == 1 else frames
        self._again("POST", f"{self._path}?number={self._number}", said, ANSWER_TIMEOUT_S)

    def receive(self, timeout_s: float) -> list[Frame]:
        """Return the broker's next frames; after POLL_S_MAX it may be empty before `timeout_s` is
        over."""
        wait_s = min(timeout_s, POLL_S_MAX)
        path = f"{self._path}?after={self._batch}&wait_s={wait_s:.3f}"
        batch = _BATCH.decode(self._again("GET", path, None, wait_s + _POLL_MARGIN_S))
        if batch.close is not None and not batch.frames:
            raise Gone(f"closed: {batch.close}", f"closed with {batch.close.get('code')}")
        self._batch = batch.batch
        return batch.frames

    def _again(self, method: str, path: str, body: object, timeout_s: float) -> bytes:
        try:
            status, answer = self._http.request(method, path, body, timeout_s=timeout_s)
        except Gone:
            status, answer = self._http.request(method, path, body, timeout_s=timeout_s)
        if status >= 400:
            text = answer.decode(errors="replace")
            raise Gone(f"{method}: {status}: {text}", f"{method} was answered {status}")
        return answer

    def close(self) -> None:
        if self._path:
            with contextlib.suppress(Gone):
                self._http.request("DELETE", self._path.removesuffix("/frames"))
        self.cut()

    def cut(self) -> None:
        self._http.close()


def _welcomed(transport: Transport, say: Callable[[], list[Frame]]) -> Frame:
    """Return the welcome among the frames that `say` returns. Without one, the transport is
    closed."""
    try:
        return _welcome(say())
    except Gone:
        transport.cut()
        raise


def _welcome(frames: list[Frame]) -> Frame:
    if not frames or frames[0].type != "welcome":
        told = f"{frames[0].code}: {frames[0].detail}" if frames else "nothing"
        code = frames[0].code or frames[0].type if frames else "nothing"
        raise Gone(f"hello was answered by {told}", f"hello was answered by {code}")
    return frames[0]

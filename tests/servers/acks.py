"""A replica's way to its primary, on which acknowledgements get lost: a TCP proxy of the test's own
that reads what the replica says."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self

from tests.servers.node import Node

Mode = Literal["pass", "deaf", "held"]
"""`deaf`: the replica gets everything, and what it confirms does not arrive. `held`: nor does it
get anything, until the mode changes; nothing of that is lost, and the connections stand."""
CHUNK_BYTES: Final = 64 << 10
ACK: Final = b"REPLCONF\r\n$3\r\nACK\r\n"


class Way:
    """Listens on `port`; each connection goes on to the primary. Use it as a context manager."""

    def __init__(self, primary: Node) -> None:
        self._primary = (primary.address, primary.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.dropped = 0
        """Acknowledgements that did not arrive."""
        self._mode: Mode = "pass"
        self._flows = threading.Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, name="replica's way", daemon=True).start()

    @property
    def mode(self) -> Mode:
        """Return what is done to the bytes."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode == "held":
            self._flows.clear()
        else:
            self._flows.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.mode = "pass"
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                replica, _ = self._listener.accept()
                primary = socket.create_connection(self._primary)
                self._sockets += [replica, primary]
                for work, ends in (
                    (self._down, (primary, replica)),
                    (self._up, (replica, primary)),
                ):
                    threading.Thread(target=_until_it_ends, args=(work, *ends), daemon=True).start()

    def _down(self, primary: socket.socket, replica: socket.socket) -> None:
        while data := primary.recv(CHUNK_BYTES):
            self._flows.wait()
            replica.sendall(data)

    def _up(self, replica: socket.socket, primary: socket.socket) -> None:
        kept = b""
        while data := replica.recv(CHUNK_BYTES):
            kept += data
            while (size := _frame_bytes(kept)) > 0:
                frame, kept = kept[:size], kept[size:]
                if self._mode != "pass" and ACK in frame:
                    self.dropped += 1
                else:
                    primary.sendall(frame)


def _until_it_ends(
    work: Callable[[socket.socket, socket.socket], None],
    source: socket.socket,
    sink: socket.socket,
) -> None:
    with contextlib.suppress(OSError):
        work(source, sink)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _frame_bytes(data: bytes) -> int:
    """How long the first command in it is: an array of strings, or a bare line; 0: it is not all
    there. Source: https://redis.io/docs/latest/develop/reference/protocol-spec/"""
    end = data.find(b"\n") + 1
    if not end or data[:1] != b"*":
        return end
    for _ in range(int(data[1:end])):
        line = data.find(b"\n", end) + 1
        if not line:
            return 0
        end = line + int(data[end + 1 : line]) + 2
    return end if end <= len(data) else 0

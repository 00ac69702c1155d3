"""`python -m loadtests.trials.visitors.process URL COUNT`: consumers that come and go at once.

Each connects, says hello, subscribes, and resets its socket. They have a process of their own and
plain sockets, so that they come as fast as possible.
"""

import socket
import struct
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec

from loadtests.clients.wire import frame
from loadtests.server import raise_file_limit
from loadtests.trials.fuzz.frames import handshake

QUEUE: Final = "jobs"
GROUP: Final = "workers"
SHAPES: Final = ("stream", "patient", "crowd")
_ENCODE: Final = msgspec.json.Encoder().encode
_RESET: Final = struct.pack("ii", 1, 0)
_TIMEOUT_S: Final = 60.0


class _Visitor:
    """A consumer that comes and goes: a WebSocket over a socket of its own, which `reset` ends."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname or "", place.port or 80))
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.sendall(handshake(place.netloc))
        self._until(b"\r\n\r\n")

    def _until(self, mark: bytes) -> None:
        data = b""
        while mark not in data:
            more = self._socket.recv(65536)
            if not more:
                raise click.ClickException(f"the broker hung up: {data[:400]!r}")
            data += more

    def greet(self, linger_s: float) -> None:
        hello = {"type": "hello", "client": "visitor", "linger_s": linger_s}
        self._socket.sendall(frame(_ENCODE(hello)))
        self._until(b'"welcome"')

    def subscribe(self) -> None:
        said = {"type": "subscribe", "subscription": 1, "queue": QUEUE, "group": GROUP}
        self._socket.sendall(frame(_ENCODE({**said, "credit": 100, "ref": 1})))

    def joined(self) -> None:
        self._until(b'"queue_id"')

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()


@click.command()
@click.argument("url")
@click.argument("count", type=click.IntRange(1, 50_000))
@click.option(
    "--shape", type=click.Choice(SHAPES), default=SHAPES[0], show_default=True,
    help="One after the other; patient: the same, each waits for the answer to its subscribe; all "
    "connect, all subscribe, and all are reset.",
)  # fmt: skip
@click.option("--linger", default=0.0, show_default=True, help="The sessions' linger_s.")
def visit(url: str, count: int, shape: str, linger: float) -> None:
    """Run COUNT consumers of the group `workers` of the queue `jobs` that come and go.

    They connect to URL, say hello, subscribe, and reset their sockets.
    """
    if shape != "crowd":
        for _ in range(count):
            one = _Visitor(url)
            one.greet(linger)
            one.subscribe()
            if shape == "patient":
                one.joined()
            one.reset()
        return
    raise_file_limit(count + 100)
    crowd = [_Visitor(url) for _ in range(count)]
    for one in crowd:
        one.greet(linger)
    for one in crowd:
        one.subscribe()
    for one in crowd:
        one.reset()


if __name__ == "__main__":
    visit()

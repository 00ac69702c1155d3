"""The state that survivors share: the log of raw frames, the running numbers, and missing
messages."""

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import BinaryIO, Final

import msgspec

_IDENTITY: Final = re.compile(rb"p(\d+)-(\d+)-")
QUEUE: Final = "soak"
GROUP: Final = "workers"
GROUP_PLACE: Final = f"{QUEUE}/{GROUP}"
KEYS: Final = 200


class ClientFailed(RuntimeError):
    """The broker gave an answer that it never should, or none in time; the run ends as failed."""


class Recorder:
    """A writer of the log that `loadtests.checker.history` reads: raw frames, in the order they
    were seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)

    def ws(self, server: int, socket: int, way: bytes, frame: bytes) -> None:
        """Log a WebSocket message that a client sent (`way` is `out`) or received (`in`)."""
        self._file.write(
            b'{"at":%d,"server":%d,"socket":%d,"via":"ws","way":"%b","frame":%b}\n'
            % (time.monotonic_ns(), server, socket, way, frame)
        )

    def pull(
        self, server: int, socket: int, way: bytes, call: str, frame: bytes, *, status: int = 200
    ) -> None:
        """Log a request of a pulling client, or its answer."""
        self._file.write(
            b'{"at":%d,"server":%d,"socket":%d,"via":"pull","way":"%b","call":"%b",'
            b'"status":%d,"queue":"%b","group":"%b","frame":%b}\n'
            % (
                time.monotonic_ns(), server, socket, way, call.encode(), status,
                QUEUE.encode(), GROUP.encode(), frame or b"null",
            )
        )  # fmt: skip

    def read(self, server: int, socket: int, reader: str, frame: bytes) -> None:
        """Log a frame that a reader received."""
        self._file.write(
            b'{"at":%d,"server":%d,"socket":%d,"via":"read","way":"in","queue":"%b","group":"%b",'
            b'"frame":%b}\n'
            % (time.monotonic_ns(), server, socket, QUEUE.encode(), reader.encode(), frame)
        )

    def world(self, call: str, *, server: int = 0, socket: int = 0, **told: object) -> None:
        """Log an event outside the frames; `loadtests.checker.history` lists them."""
        self._file.write(
            b'{"at":%d,"server":%d,"socket":%d,"via":"world","way":"out","call":"%b","frame":%b}\n'
            % (time.monotonic_ns(), server, socket, call.encode(), msgspec.json.encode(told))
        )

    def size(self) -> int:
        """Flush the log, and return the number of bytes written so far."""
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Door:
    """The address of a gateway. `server`: the number of its latest start, counted over the starts
    of all gateways."""

    url: str
    server: int = 0


@dataclass(frozen=True)
class Habits:
    """The behaviour of a run's clients."""

    rates_per_s: tuple[int, ...] = (300, 1500, 9000)
    """Rates in messages a second, of which a producer draws one at each connect: idle, busy, and
    more than the consumers can take."""
    token: str | None = None
    silence_s: float = 0.0
    """Seconds of silence after which a client leaves a gateway for the next one; over a WebSocket
    it pings before. 0: a client over a WebSocket waits until its socket closes."""
    at_other_doors: bool = False
    """Whether acks and nacks of pulled messages go to random gateways, and not only to the one that
    gave the messages (R24)."""


class RunState:
    """The shared state of all clients of a run: the brokers' addresses, and the progress of all."""

    def __init__(
        self, doors: Sequence[Door] | str, log: Path, random: Random, habits: Habits | None = None
    ) -> None:
        """`doors`: the gateways; a text is the address of the only one."""
        self.doors = [Door(doors)] if isinstance(doors, str) else list(doors)
        self.serving = self.doors
        """The gateways that consumers use."""
        self.habits = habits or Habits()
        self.log = Recorder(log)
        self.random = random
        self.sockets = itertools.count(1)
        self.stopping = False
        self.producing = True
        self.acknowledged = 0
        self.missing: set[int] = set()
        """Messages acknowledged to their producer whose ack is not confirmed to a consumer."""
        self.delivered_at = 0.0
        """The monotonic time, in seconds, of the last delivery to a consumer, or of the beginning
        of the drain if that is later."""
        self.consumed = {"ws": 0, "pull": 0}
        """Number of messages whose ack was confirmed, over WebSockets (`ws`) and to pulling clients
        (`pull`)."""
        self._settled: set[int] = set()

    @property
    def server(self) -> int:
        """The number of the first gateway's start."""
        return self.doors[0].server

    @server.setter
    def server(self, number: int) -> None:
        self.doors[0].server = number

    def stored(self, identity: int) -> None:
        """Note that a producer has a receipt."""
        self.acknowledged += 1
        if identity not in self._settled:
            self.missing.add(identity)

    def settled(self, via: str, identity: int) -> None:
        """Note that a consumer's ack was confirmed."""
        self.consumed[via] += 1
        self._settled.add(identity)
        self.missing.discard(identity)

    def was_given(self, messages: int) -> None:
        """Note that a consumer received messages."""
        if messages:
            self.delivered_at = time.monotonic()


def identity(body: bytes) -> int:
    """Return the number of the message with this body. Raises ClientFailed if no client sent it."""
    found = _IDENTITY.search(body)
    if found is None:
        raise ClientFailed(f"a body that nobody sent: {body[:100]!r}")
    return int(found[1]) << 40 | int(found[2])


def message(producer: int, sequence: int, random: Random) -> bytes:
    """Return the JSON of a message with a unique body. Bodies have several shapes, each with
    something that a careless re-encoding would change (spaces, escapes, number forms, the order of
    members)."""
    name = b"p%d-%d-" % (producer, sequence)
    filler = b"x" * random.randrange(200)
    shapes = (
        b'"%b%b"' % (name, filler),
        b'{ "z" : "%b", "a":1.50e3,"a b":[ ]}' % name,
        b'["%b",1.0,12345678901234567890,null, "\\u00e9\\n\\/"]' % name,
        b'{"id":"%b","text":"%b\xc3\xa4\xe2\x82\xac"}' % (name, filler),
    )
    return b'{"key":"k%d","body":%b}' % (random.randrange(KEYS), shapes[sequence % len(shapes)])

"""Where survivors meet: the log of raw frames, the running numbers, and what is still to come."""

import itertools
import re
import time
from pathlib import Path
from random import Random
from typing import BinaryIO, Final

_IDENTITY: Final = re.compile(rb"p(\d+)-(\d+)-")
QUEUE: Final = "soak"
GROUP: Final = "workers"
GROUP_PLACE: Final = f"{QUEUE}/{GROUP}"
KEYS: Final = 200


class ClientFailed(RuntimeError):
    """The broker gave an answer that it never should: the run ends, red."""


class Recorder:
    """Writes the log that `loadtests.history` reads: raw frames, in the order they were seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)

    def ws(self, server: int, socket: int, way: bytes, frame: bytes) -> None:
        """A WebSocket message went `out` or came `in`."""
        self._file.write(
            b'{"at":%d,"server":%d,"socket":%d,"via":"ws","way":"%b","frame":%b}\n'
            % (time.monotonic_ns(), server, socket, way, frame)
        )

    def pull(
        self, server: int, socket: int, way: bytes, call: str, frame: bytes, *, status: int = 200
    ) -> None:
        """A request of a pulling client went out, or its answer came in."""
        self._file.write(
            b'{"at":%d,"server":%d,"socket":%d,"via":"pull","way":"%b","call":"%b",'
            b'"status":%d,"queue":"%b","group":"%b","frame":%b}\n'
            % (
                time.monotonic_ns(), server, socket, way, call.encode(), status,
                QUEUE.encode(), GROUP.encode(), frame or b"null",
            )
        )  # fmt: skip

    def size(self) -> int:
        """Bytes written so far; what lies before was seen before now."""
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        """Finish."""
        self._file.close()


class Field:
    """What all clients of a run share. `server` counts the starts of the broker."""

    def __init__(self, url: str, log: Path, random: Random) -> None:
        self.url = url
        self.log = Recorder(log)
        self.random = random
        self.server = 0
        self.sockets = itertools.count(1)
        self.stopping = False
        self.producing = True
        self.acknowledged = 0
        self.missing: set[int] = set()
        """Acknowledged to its producer, its ack not confirmed to a consumer."""
        self.delivered_at = 0.0
        """When something was delivered last, monotonic seconds."""
        self.consumed = {"ws": 0, "pull": 0}
        """Confirmed acks, by the way they went."""
        self._settled: set[int] = set()

    def stored(self, identity: int) -> None:
        """A producer has a receipt."""
        self.acknowledged += 1
        if identity not in self._settled:
            self.missing.add(identity)

    def settled(self, via: str, identity: int) -> None:
        """A consumer's ack was confirmed."""
        self.consumed[via] += 1
        self._settled.add(identity)
        self.missing.discard(identity)

    def was_given(self, messages: int) -> None:
        """A consumer was given messages."""
        if messages:
            self.delivered_at = time.monotonic()


def identity(body: bytes) -> int:
    """The number of the message that this body belongs to. Raises ClientFailed: it is not ours."""
    found = _IDENTITY.search(body)
    if found is None:
        raise ClientFailed(f"a body that nobody sent: {body[:100]!r}")
    return int(found[1]) << 40 | int(found[2])


def message(producer: int, sequence: int, random: Random) -> bytes:
    """The JSON of a message with a body of its own: several shapes, each with something that a
    careless re-encoding would change (spaces, escapes, number forms, the order of members)."""
    name = b"p%d-%d-" % (producer, sequence)
    filler = b"x" * random.randrange(200)
    shapes = (
        b'"%b%b"' % (name, filler),
        b'{ "z" : "%b", "a":1.50e3,"a b":[ ]}' % name,
        b'["%b",1.0,12345678901234567890,null, "\\u00e9\\n\\/"]' % name,
        b'{"id":"%b","text":"%b\xc3\xa4\xe2\x82\xac"}' % (name, filler),
    )
    return b'{"key":"k%d","body":%b}' % (random.randrange(KEYS), shapes[sequence % len(shapes)])

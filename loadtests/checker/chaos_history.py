"""What a run with faults logs besides frames: what the world did, what readers were given. Pure.

Three kinds of lines stand between those of `loadtests.checker.history`, in the same form and by the
same clock; `via` tells them apart:

    via "world"   `call` says what happened, `frame` to whom: the nemesis and the clients' own ends
    via "read"    a frame that a reader's socket brought; `queue` is its queue, `group` the reader
    via "pull"    as before, but the receipts are opened: they name the epoch of their owner

`server` counts starts of gateways: each start of each has a number of its own.
"""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from loadtests.checker.history import Delivered, Event, Interpreter, Line, Unreadable
from loadtests.clients.wire import offsets_of

_RECEIPT: Final = struct.Struct(">BIIQQQ")
"""How a receipt begins: version, generation, partition, epoch, push, offset. Behind it is a MAC."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A client's connection has ended, or the client has given it up."""

    at: int
    stream: str


@dataclass(frozen=True, slots=True)
class Serves:
    """A gateway was started: its number, and its name over all starts."""

    at: int
    server: int
    gateway: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A gateway's process was killed, or has ended."""

    at: int
    server: int


@dataclass(frozen=True, slots=True)
class FaultBegins:
    """A fault begins. `gateways`: those that it touches; empty: the store, so all of them."""

    at: int
    number: int
    kind: str
    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultEnds:
    """All links stand again, and all processes have been started again."""

    at: int
    number: int


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """A replica is away from now on, and publishing waits until somebody takes it out."""

    at: int


@dataclass(frozen=True, slots=True)
class ReplicaIn:
    """It is counted again. `within_s`: for so long nobody's publishing may have waited since."""

    at: int
    within_s: float


@dataclass(frozen=True, slots=True)
class Drained:
    """A backlog was given out and settled while nobody published."""

    at: int
    messages: int
    seconds: float
    healthy: bool
    """Before the first fault: what later ones are held against."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """Producers begin, or stop: nothing is expected of them from here on."""

    at: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Read:
    """A reader was given a message."""

    at: int
    queue: str
    reader: str
    partition: int
    offset: int
    key: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class ReaderTold:
    """What a reader was told of a partition when it came back: `resumed`, `gap` or `unknown`."""

    at: int
    queue: str
    reader: str
    partition: int
    verdict: str


World = (
    Lost | Serves | Ended | FaultBegins | FaultEnds | ReplicaGone | ReplicaIn
    | Drained | Publishing | Read | ReaderTold
)  # fmt: skip
Call = Literal[
    "lost", "serves", "ended", "begins", "ends", "replica-gone", "replica-in", "drained",
    "publishing",
]  # fmt: skip


class _Told(msgspec.Struct, gc=False):
    """The frame of a "world" line; what a call does not have stays at its default."""

    gateway: str = ""
    fault: int = 0
    kind: str = ""
    gateways: tuple[str, ...] = ()
    messages: int = 0
    seconds: float = 0.0
    within_s: float = 0.0
    healthy: bool = False
    goes_on: bool = False


class _Message(msgspec.Struct, gc=False):
    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()


class _Position(msgspec.Struct, gc=False):
    partition: int = -1
    verdict: str = ""


class _Frame(msgspec.Struct, gc=False):
    type: str = ""
    partition: int = -1
    offset: int | None = None
    offsets: list[int] = []
    skips: list[int] = []
    messages: list[_Message] = []
    positions: list[_Position] | dict[str, list[int]] = []


_TOLD: Final = msgspec.json.Decoder(_Told)
_FRAME: Final = msgspec.json.Decoder(_Frame)
_FRAMES: Final = msgspec.json.Decoder(list[_Frame])


def receipt_epoch(text: str) -> tuple[int, int]:
    """(epoch, push) of the delivery that a pull's receipt names. Raises Unreadable."""
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        _, _, _, epoch, push, _ = _RECEIPT.unpack_from(body)
    except (ValueError, struct.error) as error:
        raise Unreadable(f"a receipt {text!r}: {error}") from None
    return epoch, push


class ChaosInterpreter:
    """Turns the lines of a run with faults into events, in order."""

    def __init__(self) -> None:
        self._frames = Interpreter()

    def events(self, line: Line) -> Iterator[Event | World]:
        """The events of one line. Raises Unreadable."""
        if line.via == "world":
            yield _world(line)
        elif line.via == "read":
            yield from _read(line)
        else:
            for event in self._frames.events(line):
                if line.via == "pull" and isinstance(event, Delivered):
                    epoch, push = receipt_epoch(event.by)
                    yield replace(event, epoch=epoch, push=push)
                else:
                    yield event


def _world(line: Line) -> World:
    try:
        told = _TOLD.decode(line.frame)
    except msgspec.DecodeError as error:
        raise Unreadable(f"{line.call}: {error}") from None
    match line.call:
        case "lost":
            return Lost(line.at, f"s{line.socket}")
        case "serves":
            return Serves(line.at, line.server, told.gateway)
        case "ended":
            return Ended(line.at, line.server)
        case "begins":
            return FaultBegins(line.at, told.fault, told.kind, told.gateways)
        case "ends":
            return FaultEnds(line.at, told.fault)
        case "replica-gone":
            return ReplicaGone(line.at)
        case "replica-in":
            return ReplicaIn(line.at, told.within_s)
        case "drained":
            return Drained(line.at, told.messages, told.seconds, told.healthy)
        case "publishing":
            return Publishing(line.at, told.goes_on)
    raise Unreadable(f"the world did {line.call!r}")


def _read(line: Line) -> Iterator[World]:
    data = bytes(line.frame)
    try:
        frames = _FRAMES.decode(data) if data[:1] == b"[" else [_FRAME.decode(data)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"read: {error}: {data[:200]!r}") from None
    for frame in frames:
        if frame.type == "push" and frame.messages:
            count = len(frame.messages)
            offsets = frame.offsets or offsets_of(frame.offset or 0, count, frame.skips)
            for offset, message in zip(offsets, frame.messages, strict=True):
                yield Read(
                    line.at, line.queue, line.group, frame.partition, offset, message.key,
                    bytes(message.body),
                )  # fmt: skip
        elif frame.type == "ok" and isinstance(frame.positions, list):
            for one in frame.positions:
                yield ReaderTold(line.at, line.queue, line.group, one.partition, one.verdict)

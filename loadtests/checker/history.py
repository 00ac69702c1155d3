"""The events of a history, from the raw frames that clients logged. Pure.

A log is JSON lines, one per frame or request on a connection, in the order in which the clients saw
them:

    {"at":ns,"server":n,"socket":n,"via":"ws","way":"out","frame":<the frame as it was sent>}
    {"at":ns,"server":n,"socket":n,"via":"pull","way":"in","call":"pull","queue":..,"group":..,
     "frame":<the answer as it came>}

`at` is monotonic, the same clock for all logs of a machine. `server` counts the starts of the
broker, `socket` the connections; a socket belongs to one start. A pull's request and its answer
have a `socket` number of their own per client and a `call` of pull, ack or nack.

A run with faults also logs faults, process ends and the frames that readers received. Three more
kinds of lines are among those of clients, in the same form and by the same clock. `via`
distinguishes them:

    via "world"   `call` says what happened, `frame` to whom: the nemesis and the clients' own ends
    via "read"    a frame that a reader's socket brought; `queue` is its queue, `group` the reader
    via "pull"    as before, but the receipts are opened: they name the epoch of their owner

In such a log, `server` counts starts of gateways: each start of each has a number of its own.
"""

import base64
import heapq
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import msgspec

from loadtests.clients.wire import offsets_of


class Line(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """A line of a log."""

    at: int
    server: int
    socket: int
    via: Literal["ws", "pull", "world", "read"]
    way: Literal["out", "in"]
    frame: msgspec.Raw
    call: str = ""
    status: int = 200
    queue: str = ""
    group: str = ""


class Unreadable(ValueError):
    """A line of another form than expected: the broker sent no JSON, or a log is damaged."""


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt:
    """A message was sent to the broker; the same sequence may be sent again."""

    at: int
    producer: str
    sequence: int
    queue: str
    key: str | None
    body: bytes


Outcome = Literal["ok", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Answered:
    """The broker's answer to one attempt. `partition` and `offset` are -1 unless `outcome` is
    ok."""

    at: int
    producer: str
    sequence: int
    outcome: Outcome
    partition: int = -1
    offset: int = -1
    code: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message was given to a consumer. `by` names the delivery as acks do. Deliveries share a
    `stream` only if the broker may give a later message of a key on it while an earlier one is in
    flight. A socket is such a stream; each pull is a stream of its own."""

    at: int
    server: int
    stream: str
    group: str
    partition: int
    offset: int
    key: str | None
    body: bytes
    by: str
    epoch: int = 0
    push: int = 0
    session: str = ""


@dataclass(frozen=True, slots=True)
class Acked:
    """A client sent an ack of deliveries, or (`returned`) a nack. The answer is a `Confirmed`."""

    at: int
    ref: str
    by: tuple[str, ...]
    returned: bool = False
    server: int = 0
    """The number of the broker's start to which the frame was sent; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker's ok to an ack or nack, or to a frame whose ok has no event of its own, such as a
    subscribe. An ack is durable then, except for the deliveries in `stale`."""

    at: int
    ref: str
    stale: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Revoked:
    """The broker revoked these deliveries."""

    at: int
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extended:
    """A client asked for more time for these deliveries."""

    at: int
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Welcomed:
    """A session begins, or continues (`resumed`) over another transport."""

    at: int
    stream: str
    resumed: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """A client asked for a place in a group, or (`group` empty) left its place."""

    at: int
    stream: str
    subscription: int
    group: str


@dataclass(frozen=True, slots=True)
class Held:
    """A returning client reported its held deliveries of a subscription, and the number of messages
    that it has received on that subscription."""

    at: int
    stream: str
    subscription: int
    received: int
    by: tuple[str, ...]


Event = (
    Attempt | Answered | Delivered | Acked | Confirmed | Revoked | Extended | Welcomed | Joined
    | Held
)  # fmt: skip


# --- reading --------------------------------------------------------------------------------------


class _Message(msgspec.Struct, gc=False):
    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    partition: int = -1
    offset: int = -1
    receipt: str = ""


class _Error(msgspec.Struct, gc=False):
    code: str


class _Frame(msgspec.Struct, gc=False):
    """Any frame or pull body; fields that a kind does not have keep their defaults."""

    type: str = ""
    ref: int | None = None
    queue: str = ""
    group: str | None = None
    producer: str | None = None
    session: str = ""
    sequence: int | None = None
    subscription: int = 0
    partition: int = -1
    offset: int | None = None
    epoch: int = 0
    push: int = 0
    skips: list[int] = []
    code: str = ""
    messages: list[_Message] = []
    receipts: list[str | list[int | bool] | _Error] = []
    """The receipts in the answer to a publish, or the texts in an ack or nack of pulled
    messages."""
    deliveries: list[list[int]] = []
    stale: list[list[int] | str] = []
    not_delivered: list[list[int]] = []
    revoked: list[list[int]] = []
    resumed: list[int] | None = None
    received: int = 0


_LINE: Final = msgspec.json.Decoder(Line)
_FRAME: Final = msgspec.json.Decoder(_Frame)
_FRAMES: Final = msgspec.json.Decoder(list[_Frame])
_UNKNOWN_CODES: Final = frozenset({"unknown", "internal"})


def read_lines(lines: Iterable[bytes]) -> Iterator[Line]:
    """Read the lines of one log. Raises Unreadable. A damaged last line without a line end is left
    out, because its writer was stopped within it."""
    for number, text in enumerate(lines, 1):
        try:
            yield _LINE.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not text.endswith(b"\n"):
                return
            raise Unreadable(f"line {number}: {error}: {text[:200]!r}") from None


def merge(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Merge several logs by time."""
    return heapq.merge(*logs, key=lambda line: line.at)


@dataclass(slots=True)
class _Socket:
    producer: str = ""
    session: str = ""
    publishes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """ref → (first sequence, number of messages)."""
    groups: dict[int, str] = field(default_factory=dict)
    """Subscription → queue/group."""
    held: dict[int, int] = field(default_factory=dict)
    """ref of a `held` → subscription."""


def place_name(stream: str, subscription: int, partition: int, epoch: int, push: int) -> str:
    """Return the common beginning of the names (`Delivered.by`) of a push's deliveries. `:<offset>`
    after it completes the name of one delivery."""
    return f"{stream}:{subscription}:{partition}:{epoch}:{push}"


class Interpreter:
    """An interpreter that turns lines into events, and remembers what each socket sent before."""

    def __init__(self) -> None:
        self._sockets: dict[int, _Socket] = {}
        self._pulls = 0

    def events(self, line: Line) -> Iterator[Event]:
        """Yield the events of one line. Raises Unreadable."""
        data = bytes(line.frame)
        try:
            frames = _FRAMES.decode(data) if data[:1] == b"[" else [_FRAME.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unreadable(f"{line.via} {line.way}: {error}: {data[:200]!r}") from None
        if line.via == "pull":
            yield from self._pull(line, frames[0])
            return
        socket = self._sockets.setdefault(line.socket, _Socket())
        for frame in frames:
            if line.way == "out":
                yield from self._sent(line, socket, frame)
            else:
                yield from self._received(line, socket, frame)

    def _sent(self, line: Line, socket: _Socket, frame: _Frame) -> Iterator[Event]:
        stream = f"s{line.socket}"
        if frame.type == "hello":
            socket.producer = frame.producer or ""
        elif frame.type == "publish" and frame.ref is not None and frame.sequence is not None:
            socket.publishes[frame.ref] = (frame.sequence, len(frame.messages))
            for index, message in enumerate(frame.messages):
                yield Attempt(
                    line.at, socket.producer, frame.sequence + index, frame.queue, message.key,
                    bytes(message.body),
                )  # fmt: skip
        elif frame.type == "subscribe" and frame.group is not None:
            group = socket.groups[frame.subscription] = f"{frame.queue}/{frame.group}"
            yield Joined(line.at, stream, frame.subscription, group)
        elif frame.type == "unsubscribe" and frame.subscription in socket.groups:
            yield Joined(line.at, stream, frame.subscription, "")
        elif frame.type in {"ack", "nack", "extend", "held"}:
            by = tuple(_names(stream, frame.subscription, frame.deliveries))
            if frame.type == "extend":
                yield Extended(line.at, by)
            elif frame.type == "held":
                socket.held[frame.ref or 0] = frame.subscription
                yield Held(line.at, stream, frame.subscription, frame.received, by)
            else:
                nack = frame.type == "nack"
                yield Acked(line.at, f"{stream}:{frame.ref}", by, nack, line.server)

    def _received(self, line: Line, socket: _Socket, frame: _Frame) -> Iterator[Event]:
        stream = f"s{line.socket}"
        if frame.type == "welcome":
            socket.session = frame.session
            yield Welcomed(line.at, stream, frame.resumed is not None)
        elif frame.type == "push" and frame.subscription in socket.groups:
            place = place_name(stream, frame.subscription, frame.partition, frame.epoch, frame.push)
            offsets = offsets_of(frame.offset or 0, len(frame.messages), frame.skips)
            for offset, message in zip(offsets, frame.messages, strict=True):
                yield Delivered(
                    line.at, line.server, stream, socket.groups[frame.subscription],
                    frame.partition, offset, message.key, bytes(message.body),
                    f"{place}:{offset}", frame.epoch, frame.push, socket.session,
                )  # fmt: skip
        elif frame.type == "revoked":
            yield Revoked(line.at, tuple(_names(stream, frame.subscription, frame.deliveries)))
        elif frame.type == "ok" and frame.ref in socket.publishes:
            yield from _receipts(line.at, socket, frame)
        elif frame.type == "ok" and frame.ref in socket.held:
            subscription = socket.held.pop(frame.ref)
            yield Revoked(line.at, tuple(_names(stream, subscription, frame.revoked)))
        elif frame.type == "ok":
            lists = [entry for entry in frame.stale if isinstance(entry, list)]
            stale = [
                name
                for subscription in socket.groups
                for name in _names(stream, subscription, [*lists, *frame.not_delivered])
            ]
            yield Confirmed(line.at, f"{stream}:{frame.ref}", tuple(stale))
        elif frame.type == "error" and frame.ref in socket.publishes:
            first, count = socket.publishes.pop(frame.ref)
            outcome: Outcome = "unknown" if frame.code in _UNKNOWN_CODES else "refused"
            for sequence in range(first, first + count):
                yield Answered(line.at, socket.producer, sequence, outcome, code=frame.code)

    def _pull(self, line: Line, frame: _Frame) -> Iterator[Event]:
        group, ref = f"{line.queue}/{line.group}", f"p{line.socket}"
        if line.call == "pull" and line.way == "in" and line.status == 200:
            self._pulls += 1
            for message in frame.messages:
                yield Delivered(
                    line.at, line.server, f"pull{self._pulls}", group, message.partition,
                    message.offset, message.key, bytes(message.body), message.receipt,
                )  # fmt: skip
        elif line.call in {"ack", "nack"} and line.way == "out":
            receipts = tuple(text for text in frame.receipts if isinstance(text, str))
            yield Acked(line.at, ref, receipts, line.call == "nack", line.server)
        elif line.call in {"ack", "nack"} and line.status == 200:
            yield Confirmed(line.at, ref, tuple(x for x in frame.stale if isinstance(x, str)))


def _receipts(at: int, socket: _Socket, frame: _Frame) -> Iterator[Answered]:
    assert frame.ref is not None
    first, count = socket.publishes.pop(frame.ref)
    if len(frame.receipts) != count:
        raise Unreadable(f"{count} messages were answered with {len(frame.receipts)} (R5)")
    for sequence, receipt in enumerate(frame.receipts, first):
        if isinstance(receipt, _Error):
            outcome: Outcome = "unknown" if receipt.code in _UNKNOWN_CODES else "refused"
            yield Answered(at, socket.producer, sequence, outcome, code=receipt.code)
        elif isinstance(receipt, list) and len(receipt) >= 2:
            yield Answered(at, socket.producer, sequence, "ok", int(receipt[0]), int(receipt[1]))
        else:
            raise Unreadable(f"a receipt {receipt!r}")


def _names(stream: str, subscription: int, deliveries: Iterable[list[int]]) -> Iterator[str]:
    for partition, epoch, push, *ranges in deliveries:
        place = place_name(stream, subscription, partition, epoch, push)
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            for offset in range(first, last + 1):
                yield f"{place}:{offset}"


_RECEIPT: Final = struct.Struct(">BIIQQQ")
"""The beginning of a pull's receipt: version, generation, partition, epoch, push, offset. A MAC
follows."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A client's connection has ended, or the client has given it up."""

    at: int
    stream: str


@dataclass(frozen=True, slots=True)
class Serves:
    """A gateway was started. `server` is the number of this start, `gateway` the name that the
    gateway has in all its starts."""

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
    """A fault begins. `gateways`: those that it affects; empty if it affects the store, and so
    all."""

    at: int
    number: int
    kind: str
    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultEnds:
    """A fault has ended: all links work again, and all processes have been started again."""

    at: int
    number: int


@dataclass(frozen=True, slots=True)
class ReplicaGone:
    """A replica of the store is away from now on. Publishing waits until that replica is no longer
    counted."""

    at: int


@dataclass(frozen=True, slots=True)
class ReplicaIn:
    """The replica that was away is counted again. `within_s`: the longest that a producer may have
    been without a receipt since the replica went away."""

    at: int
    within_s: float


@dataclass(frozen=True, slots=True)
class Drained:
    """A backlog was delivered and settled while no producer published."""

    at: int
    messages: int
    seconds: float
    healthy: bool
    """Whether the drain was before the first fault. Drains after faults are compared with such
    drains."""


@dataclass(frozen=True, slots=True)
class Publishing:
    """Producers begin (`goes_on`), or stop. In both cases no producer waits any more for its first
    receipt after an earlier fault."""

    at: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Read:
    """A reader received a message."""

    at: int
    queue: str
    reader: str
    partition: int
    offset: int
    key: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class ReaderTold:
    """The broker's verdict on a reader's position in one partition, given when the reader
    subscribes: `resumed`, `gap` or `unknown`."""

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
    """The details of a "world" line, which notes an event of the run itself, such as the begin of a
    fault or the start of a gateway. Fields that the event does not have keep their defaults."""

    gateway: str = ""
    fault: int = 0
    kind: str = ""
    gateways: tuple[str, ...] = ()
    messages: int = 0
    seconds: float = 0.0
    within_s: float = 0.0
    healthy: bool = False
    goes_on: bool = False


class _ReadMessage(msgspec.Struct, gc=False):
    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()


class _Position(msgspec.Struct, gc=False):
    partition: int = -1
    verdict: str = ""


class _ReadFrame(msgspec.Struct, gc=False):
    type: str = ""
    partition: int = -1
    offset: int | None = None
    offsets: list[int] = []
    skips: list[int] = []
    messages: list[_ReadMessage] = []
    positions: list[_Position] | dict[str, list[int]] = []


_TOLD: Final = msgspec.json.Decoder(_Told)
_READ_FRAME: Final = msgspec.json.Decoder(_ReadFrame)
_READ_FRAMES: Final = msgspec.json.Decoder(list[_ReadFrame])


def receipt_epoch(text: str) -> tuple[int, int]:
    """Return (epoch, push) of the delivery that a pull's receipt names. Raises Unreadable."""
    try:
        body = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        _, _, _, epoch, push, _ = _RECEIPT.unpack_from(body)
    except (ValueError, struct.error) as error:
        raise Unreadable(f"a receipt {text!r}: {error}") from None
    return epoch, push


class ChaosInterpreter:
    """An interpreter of the lines of a run with faults."""

    def __init__(self) -> None:
        self._frames = Interpreter()

    def events(self, line: Line) -> Iterator[Event | World]:
        """Yield the events of one line. Raises Unreadable."""
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
        frames = _READ_FRAMES.decode(data) if data[:1] == b"[" else [_READ_FRAME.decode(data)]
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

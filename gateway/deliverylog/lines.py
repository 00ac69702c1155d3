"""The lines of the delivery log, as docs/operations/delivery-log.md documents them. Pure.

A field that has its default is left out of its line. Times are unix microseconds of the gateway's
clock (`gateway.deliverylog.log`); runs are [partition, first offset, count].
"""

from collections.abc import Sequence
from typing import Final, Literal, cast

import msgspec

from push.delivery import ranges_of
from push.places import Durability

SCHEMA: Final = 2
"""Raised when a field changes or goes; new fields and kinds do not raise it."""

Runs = Sequence[tuple[int, int, int]]
Named = list[int | str | None]
"""[partition, when it was given out, first, last, first, last, …], as it is acked; or [partition,
when, first, mask], the mask hexadecimal with 0x: its lowest bit is `first`, the next one is the
offset behind it."""
Pushes = list[Named]
"""An entry for each push."""
Packed = bytes
Carrier = Literal["websocket", "long_poll", "http", "internal"]
"""Carrier of a publish or delivery: `http` is a request, a publish or a pull; `internal` the broker
itself."""
Cause = Literal[
    "none",
    "backlog",
    "credit",
    "in_flight",
    "socket",
    "paused",
    "moving",
    "key_held",
    "key_backoff",
    "key_parked",
    "lease",
    "replay",
]
"""Why messages were not given out when they were certified:

none         they were
backlog      they were read from the storage: their consumer came later, or was behind
credit       no credit was open
in_flight    as much was in flight as may be
socket       the client's socket was full
paused       the queue was
moving       the partition changed its owner
key_held     an earlier message of the key awaited retry, or was on its way
key_backoff  they were nacked, or failed, and waited for their backoff
key_parked   their key was parked, and was released
lease        their earlier delivery ended: by its lease, or because its consumer was gone
replay       a reader started in the past, or had fallen behind
"""
SettlementOutcome = Literal[
    "acked", "nacked", "expired", "returned", "dying", "dead_lettered", "parked", "gone"
]
"""Outcomes of deliveries:

acked          an ack took effect
nacked         returned by their consumer
expired        their lease ended
returned       taken back without having counted: with an earlier message of their key, or because
               the consumer went, or came back without them
dying          it is durable that they go to the dead letters, where they are not yet; what is
               behind them of their keys goes on
dead_lettered  they are in the dead-letter queue, and settled here
parked         their key was parked; the head of it
gone           nothing is retained in their place any more: passed, and given to nobody
"""
Event = Literal["owned", "kept", "released"]
"""Why a position is logged: an epoch begins; it goes on; it has ended."""


class _Line(msgspec.Struct, tag_field="kind", kw_only=True, omit_defaults=True, gc=False):
    schema: int
    gateway: str
    """Name of one start of a process: 16 hexadecimal digits."""


class _Span(_Line, kw_only=True, gc=False):
    stepped_us: int = 0
    """Sum of the wall clock's steps since the gateway began. All times of a line have it in them;
    without it they are exact within one gateway."""
    tenant: str
    queue: str
    queue_id: str


class CertifiedLine(_Span, tag="certified", kw_only=True, gc=False):
    """Messages that a session, or a request, published to a queue at one time and went with one
    commit."""

    runs: Runs = []
    outcome: Literal["certified", "unknown", "late"] = "certified"
    """unknown: its publisher was told so, and it has no runs; late: it was certified after that."""
    messages: int = 0
    """Where that is not known by the runs: of what is unknown."""
    producer: str | None = None
    """The principal."""
    session: str | None = None
    transport: Carrier
    level: Durability | None = None
    produced_unix_us: int | None = None
    """Time of the oldest message; by the client's own clock where there is no `clock_offset_us`."""
    clock_offset_us: int | None = None
    """This clock less the client's, as the client estimated it."""
    accepted_unix_us: int
    asked_unix_us: int | None = None
    """When it was handed to the storage."""
    certified_unix_us: int | None = None
    """When the storage said that they are as safe as the level wants. At `local` they may have to
    wait then until what stands before them is safe, too."""
    bytes: int = 0
    """Size of the new messages, as JSON."""
    keys: Packed | None = None
    """The key hashes, 8 bytes each, little-endian, in the order of the runs; 0: no key. In base64
    in the line."""
    duplicates: int = 0
    duplicate_runs: Runs = []
    """Where the originals are."""
    trace: str | None = None
    """A W3C trace id."""


class DispatchedLine(_Span, tag="dispatched", kw_only=True, gc=False):
    """Messages that a subscription, or a pull, was given at once, for one cause and in one
    attempt."""

    runs: Runs = []
    group: str | None = None
    """None: a reader."""
    session: str | None = None
    sessions: list[str] = []
    """Readers that were given the same at once."""
    recipients: int = 1
    transport: Carrier | None = None
    attempt: int
    cause: Cause
    certified_unix_us: int | None = None
    """None: this gateway was not there, or it is not the first time."""
    published_unix_ms: int
    """Time by the clock of the gateway that published it."""
    dispatched_unix_us: int
    written_unix_us: int | None = None
    """When its socket took it (up to 64 KiB may wait there), or a poll or pull did. None: nobody
    did, or that is not known."""


class SettledLine(_Span, tag="settled", kw_only=True, gc=False):
    """Deliveries that came to an end, or returned, in one place of a group at once."""

    group: str
    session: str | None = None
    transport: Carrier | None = None
    """None: its session had none at that moment."""
    outcome: SettlementOutcome
    reason: str | None = None
    """Reason of dead letters: exhausted, rejected, expired, overflow, skipped."""
    settled_unix_us: int
    pushes: Pushes
    """A time of None: that is not known."""

    @property
    def runs(self) -> Runs:
        """Runs, like those of the other spans."""
        return runs_of(self.pushes)


class PositionLine(_Span, tag="position", kw_only=True, gc=False):
    """Where a group stands in a partition, as the owner of an epoch knows it: everything below
    `frontier` is settled, but for `open` messages."""

    group: str
    group_id: str
    partition: int
    epoch: int
    event: Event
    at_unix_us: int
    frontier: int
    open: int = 0
    """In flight, back, held, aside or dying; of `owned` those aside and dying alone, since what
    else was passed and is not settled stands above the frontier."""
    dying: int = 0
    """Number of the open ones that are on their way to the dead letters."""
    ahead: int | None = None
    """In `owned`: offset below which owners before had passed something. None: nothing above the
    frontier."""
    certified_below: int | None = None
    """In `owned`: offset below which everything had been certified by then, so that owners before
    may have given it. Later messages are new to the epoch."""
    is_clean: bool = False
    """Whether, in `released`, everything that was settled is durable."""


class UnloggedLine(_Line, tag="unlogged", kw_only=True, gc=False):
    """Numbers of spans, and of messages of each kind, that are not in the log."""

    stepped_us: int = 0
    since_unix_us: int
    until_unix_us: int
    spans: int
    certified: int
    dispatched: int
    settled: int
    reason: Literal["full", "failed", "killed"]
    """full: it came faster than it could be written; failed: the disk did not take it; killed: the
    process was, before it was written."""


class ClockSteppedLine(_Line, tag="clock", kw_only=True, gc=False):
    """The wall clock was stepped."""

    seen_unix_us: int
    step_us: int
    stepped_us: int = 0


class EndLine(_Line, tag="end", kw_only=True, gc=False):
    """The last line of a finished file."""

    lines: int
    crc32: int
    """Checksum of all bytes before this line."""
    began_unix_ms: int | None = None
    """When the process began, by its own clock."""
    number: int | None = None
    """Which of its files this is, from 1."""
    recovered: bool = False
    """Another start has finished it."""
    is_last: bool = False
    """The process ended its log in order: there is no file behind this one."""


Line = (
    CertifiedLine
    | DispatchedLine
    | SettledLine
    | PositionLine
    | UnloggedLine
    | ClockSteppedLine
    | EndLine
)
encode: Final = msgspec.json.Encoder().encode


def as_written(pushes: list[bytes]) -> Pushes:
    """Return pushes that were encoded one by one, for a line that is only to be encoded."""
    return cast(Pushes, msgspec.Raw(b"[" + b",".join(pushes) + b"]"))


def runs_of(pushes: Pushes) -> Runs:
    """Return the runs of pushes, in order. ValueError, TypeError, IndexError: something is no
    push."""
    runs: list[tuple[int, int, int]] = []
    for push in pushes:
        numbers = cast(list[int], push)
        if isinstance(push[3], str):
            named = ranges_of(int(push[3], 16), numbers[2])
        else:
            named = [*zip(numbers[2::2], numbers[3::2], strict=True)]
        runs += [(numbers[0], first, last - first + 1) for first, last in named]
    return runs


def messages_of(runs: Runs) -> int:
    """How many."""
    return sum([count for _, _, count in runs])  # a list: this is asked for each span

"""The lines of the delivery log, which docs/operations/delivery-log.md documents. Pure.

A field with its default value is left out of its line. Times are unix microseconds of the gateway's
clock (`gateway.deliverylog.log`). Runs are [partition, first offset, count].
"""

from collections.abc import Sequence
from typing import Final, Literal, cast

import msgspec

from push.delivery import ranges_of
from push.places import Durability

SCHEMA: Final = 3
"""Version of the lines. It is raised when a field changes or is removed, but not for new fields and
kinds."""

Runs = Sequence[tuple[int, int, int]]
Named = list[int | str | None]
"""Deliveries of one push, as an ack names them: [partition, time when it was given out, first,
last, first, last, …]. Or [partition, time, first, mask], with the mask in hexadecimal with 0x: its
lowest bit is `first`, the next one is the following offset."""
Pushes = list[Named]
"""Deliveries of several pushes, an entry for each."""
Packed = bytes
Carrier = Literal["websocket", "long_poll", "http", "internal"]
"""Carrier of a publish or delivery. `http` is a request that publishes or pulls; `internal` is the
broker itself."""
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
"""Causes for which messages were not given out at the moment when they were certified:

none         they were given out at that moment
backlog      they were read from the storage, because their consumer came later, or was behind
credit       no credit was open
in_flight    the bound of messages in flight was reached
socket       the client's socket was full
paused       the queue was paused
moving       the partition changed its owner
key_held     an earlier message of the key awaited retry, or was on its way
key_backoff  they were nacked, or failed, and waited for their backoff
key_parked   their key was parked, and was released
lease        their earlier delivery ended, because its lease ended or its consumer was gone
replay       a reader started in the past, or had fallen behind
"""
SettlementOutcome = Literal[
    "acked", "nacked", "expired", "returned", "dying", "dead_lettered", "parked", "gone"
]
"""Outcomes of deliveries:

acked          an ack took effect
nacked         returned by their consumer
expired        their lease ended, or the time of a drain did
returned       taken back without having counted: with an earlier message of their key, or because
               the consumer went, or came back without them
dying          it is durable that they go to the dead letters, but they are not there yet; later
               messages of their keys go on
dead_lettered  they are in the dead-letter queue, and settled here
parked         their key was parked; only its first message is logged
gone           they are no longer retained; they were passed, and given to no consumer
"""
Event = Literal["owned", "kept", "released"]
"""Reasons why a position is logged: an epoch begins; it goes on; it has ended."""


class _Line(msgspec.Struct, tag_field="kind", kw_only=True, omit_defaults=True, gc=False):
    schema: int
    gateway: str
    """Name of one start of a process: 16 hexadecimal digits."""


class _Span(_Line, kw_only=True, gc=False):
    stepped_us: int = 0
    """Sum of the wall clock's steps since the gateway began. All times of a line contain it. Minus
    this sum, times of one gateway can be compared exactly."""
    tenant: str
    queue: str
    queue_id: str


class CertifiedLine(_Span, tag="certified", kw_only=True, gc=False):
    """Messages that a session, a request or the broker itself published to a queue at one time, and
    that one commit stored, or of which it is unknown whether it did."""

    runs: Runs = []
    outcome: Literal["certified", "unknown", "late", "scheduled"] = "certified"
    """certified: the messages are stored. unknown: their publisher got this answer, and the line
    has no runs. late: they were certified after that answer. scheduled: they wait until they are
    due, have no places yet, and the line has no runs."""
    messages: int = 0
    """Number of messages, if the line has no runs; otherwise 0, because these say it."""
    producer: str | None = None
    """Name of the principal that published them; None: the broker itself."""
    session: str | None = None
    transport: Carrier
    level: Durability | None = None
    produced_unix_us: int | None = None
    """Time when the oldest message was produced, as its client stated it. Without `clock_offset_us`
    it is by the client's own clock."""
    clock_offset_us: int | None = None
    """The gateway's clock minus the client's, as the client estimated it."""
    accepted_unix_us: int
    asked_unix_us: int | None = None
    """Time when the messages were handed to the storage."""
    certified_unix_us: int | None = None
    """Time when the storage answered that the messages are as safe as the level demands. At `local`
    they may then have to wait until earlier messages are safe too."""
    bytes: int = 0
    """Size of the new messages, as JSON."""
    keys: Packed | None = None
    """The key hashes, 8 bytes each, little-endian, in the order of the runs; 0: no key. The line
    has them in base64."""
    duplicates: int = 0
    duplicate_runs: Runs = []
    """Runs of the stored messages whose duplicates were published."""
    trace: str | None = None
    """The W3C trace id of the request or of the first message."""
    due_unix_us: int | None = None
    """Time when the first of the messages was due, if they were scheduled. The line tells then that
    the broker has moved them into the log; no line tells that they were published."""


class DispatchedLine(_Span, tag="dispatched", kw_only=True, gc=False):
    """Messages that a subscription, or a pull, was given at once, for one cause and in one
    attempt."""

    runs: Runs = []
    group: str | None = None
    """Name of the group; None: a reader."""
    session: str | None = None
    sessions: list[str] = []
    """Readers that were given the same messages at once."""
    recipients: int = 1
    transport: Carrier | None = None
    attempt: int
    cause: Cause
    certified_unix_us: int | None = None
    """Time of certification; None: this gateway did not learn it, or this is not the first
    delivery."""
    published_unix_ms: int
    """Time when their record was published, by the clock of the gateway that published it."""
    dispatched_unix_us: int
    written_unix_us: int | None = None
    """Time when the socket took the messages (up to 64 KiB may wait there), or a poll or pull.
    None: they were not taken, or that is not known."""


class SettledLine(_Span, tag="settled", kw_only=True, gc=False):
    """Deliveries that came to an end, or returned, in one place of a group at once."""

    group: str
    session: str | None = None
    transport: Carrier | None = None
    """Transport of the consumer's session; `http` for pulls, `internal` without a consumer. None:
    the session had no transport when the message was settled."""
    outcome: SettlementOutcome
    reason: str | None = None
    """Reason of dead letters: exhausted, rejected, expired, overflow, skipped."""
    settled_unix_us: int
    pushes: Pushes
    """The deliveries, an entry for each push. If its time is None, it is not known when it was
    given."""

    @property
    def runs(self) -> Runs:
        """The messages of `pushes` as runs, like those of the other spans."""
        return runs_of(self.pushes)


class PositionLine(_Span, tag="position", kw_only=True, gc=False):
    """Position of a group in a partition, as the owner of an epoch knows it. Everything below
    `frontier` is settled, except `open` messages."""

    group: str
    group_id: str
    partition: int
    epoch: int
    event: Event
    at_unix_us: int
    frontier: int
    open: int = 0
    """Number of messages below the frontier that are not settled: in flight, returned, held, aside
    or dying. In `owned` only those aside and dying count, because other messages that were passed
    and are not settled are above the frontier."""
    dying: int = 0
    """Number of the `open` messages that are on their way to the dead letters."""
    ahead: int | None = None
    """Offset below which previous owners had passed messages, in `owned`. None: they had passed
    none above the frontier."""
    certified_below: int | None = None
    """Offset below which everything had been certified by then, in `owned`, so that previous owners
    may have given it. Later messages are new to the epoch."""
    is_clean: bool = False
    """Whether, in `released`, everything that was settled is durable."""


class UnloggedLine(_Line, tag="unlogged", kw_only=True, gc=False):
    """Numbers of spans, and of messages of each kind, that are missing in the log."""

    stepped_us: int = 0
    since_unix_us: int
    until_unix_us: int
    spans: int
    certified: int
    dispatched: int
    settled: int
    reason: Literal["full", "failed", "killed"]
    """full: lines came faster than they could be written; failed: they could not be written to the
    disk; killed: the process was killed before they were written."""


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
    """Time when the process began its log, by its own clock."""
    number: int | None = None
    """Number of this file among those of the process, from 1."""
    recovered: bool = False
    """Whether a later start of the gateway has finished the file."""
    is_last: bool = False
    """Whether the process ended its log in order, so that no file follows this one."""


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
    """Return pushes that were encoded one by one, as the field of a line that will only be
    encoded."""
    return cast(Pushes, msgspec.Raw(b"[" + b",".join(pushes) + b"]"))


def runs_of(pushes: Pushes) -> Runs:
    """Return the runs of pushes, in order. Raises ValueError, TypeError or IndexError if one is no
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
    """Return the number of messages in runs."""
    return sum([count for _, _, count in runs])  # a list is faster, and this runs for each span

"""Scheduled messages: what a due store keeps, and how they are named.

Beside its log, each partition has a **due store**: messages that are stored durably, and that come
into the log when they are due. They are sorted by (due time, number). The **number** counts the
scheduled messages of the partition, and is never given twice. With the partition it is the
message's **ticket**, which its receipt names in place of an offset, because it has no offset yet.

A due message is stored by itself, whatever record it was published in, because the others of the
record are due at other times. Its header stays plain, so that no key is needed to sort, and is
bound to its payload as a record's is:

    version u8, due_unix_ms u64, published_unix_ms u64, key hash u64, id hash u64,
    id digest 32 bytes

All little-endian. A zero hash or digest: there is no key, or no client id.

`ClockGuard` judges the wall clock, by which it is decided what is due. A wall clock may be set. If
the year jumps ahead, everything that was scheduled would be delivered at once, and nothing takes it
back. So the clock is compared with one that nobody can set. After a jump it is not believed for a
while, in which an operator can set it right, or say that it is right. Slow corrections, as NTP
makes them, are no jump. A storage that is another server has a wall clock of its own. With that one
the clock is compared as well: so one that was wrong already when the gateway started is noticed.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Final, NamedTuple

import msgspec

from push import limits
from push.errors import Refused
from push.message import Message
from push.places import Partition
from push.record import NO_DIGEST, RecordDamaged

VERSION: Final = 1
_HEADER: Final = struct.Struct("<BQQQQ32s")
TICKET: Final = 1 << 52
"""Added to a number where the place of a message is one number: an offset, or a ticket. Offsets are
below it, and all of them are exact in a double."""
CANCELLED: Final = (1 << 53) - 1
"""The place of a scheduled message that was cancelled."""


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A message in a due store."""

    partition: Partition
    number: int
    version: int
    """Number of changes so far. A move or a change names the version that its caller has seen."""
    due_unix_ms: int
    published_unix_ms: int
    key_hash: int
    id_hash: int
    digest: bytes
    """Digest by which deduplication remembers the client id; NO_DIGEST: there is none."""
    payload: bytes
    """The message's JSON."""

    def header(self) -> bytes:
        """Return the plain header."""
        return _HEADER.pack(
            VERSION,
            self.due_unix_ms,
            self.published_unix_ms,
            self.key_hash,
            self.id_hash,
            self.digest,
        )

    @classmethod
    def load(
        cls, partition: Partition, number: int, version: int, header: bytes, payload: bytes
    ) -> "DueMessage":
        """Return the message with this header. Raises RecordDamaged: it is no header."""
        try:
            form, due, published, key_hash, id_hash, digest = _HEADER.unpack(header)
        except struct.error as error:
            raise RecordDamaged(f"header of a scheduled message: {error}") from None
        if form != VERSION:
            raise RecordDamaged(f"scheduled message of version {form}; this reads {VERSION}")
        return cls(partition, number, version, due, published, key_hash, id_hash, digest, payload)


@dataclass(frozen=True, slots=True)
class DueTicket:
    """The place of a message that waits until it is due, or did so: its number in the partition's
    due store. `due_unix_ms`: when it is due; 0: that is not known, because it is a duplicate."""

    partition: int
    number: int
    due_unix_ms: int
    duplicate: bool


class DuePlace(NamedTuple):
    """The place of a message in the order of a due store."""

    due_unix_ms: int
    number: int


@dataclass(frozen=True, slots=True)
class DueRead:
    """Scheduled messages in their order. `next_unix_ms`: when the first one is due that follows
    them; None: no other one is there. `damaged`: the numbers of those that were found damaged, and
    are not in the due store any more (R30)."""

    messages: tuple[DueMessage, ...]
    next_unix_ms: int | None = None
    damaged: tuple[int, ...] = ()
    generation: int = 0
    """The partition's generation; 0: it is not known, because there is no such partition."""
    store_unix_ms: int | None = None
    """The time by the clock of the server that has the partition; None: it is this machine's."""


@dataclass(frozen=True, slots=True)
class DueState:
    """The due store of a partition. `next_number`: the number that the next message gets."""

    partition: Partition
    messages: int
    bytes: int
    next_number: int
    first_unix_ms: int | None
    """When its first message is due; None: it is empty."""
    store_unix_ms: int | None = None
    """The time by the clock of the server that has the partition; None: it is this machine's."""


def place_in_order(message: DueMessage) -> DuePlace:
    """Return a message's place in the order of its due store."""
    return DuePlace(message.due_unix_ms, message.number)


def fate_mark(number: int) -> bytes:
    """Return the digest under which a partition remembers, among the client ids, what became of a
    scheduled message: the offset that it has now, or CANCELLED. No client id has this digest but by
    a collision of 256 bits."""
    return b"scheduled".ljust(24, b"\0") + struct.pack("<Q", number)


def has_id(digest: bytes) -> bool:
    """Whether a digest is that of a client id."""
    return digest != NO_DIGEST


def ticket_text(id_prefix: str, partition: int, number: int) -> str:
    """Return a ticket as text. It is also the id of a scheduled message to which the client gave
    none. `id_prefix`: as in receipts (queue id and generation)."""
    return f"{id_prefix}{partition}-t{number}"


def parse_ticket(text: str) -> tuple[str, int, int] | None:
    """Return (id prefix, partition, number) of a ticket's text; None: it is none."""
    prefix, dash, last = text.rpartition("-t")
    before, dash_before, partition = prefix.rpartition("-")
    if not (dash and dash_before and last.isdecimal() and partition.isdecimal()):
        return None
    if not (last.isascii() and partition.isascii()) or len(last) > 13 or len(partition) > 4:
        return None  # no partition has given it out
    return f"{before}-", int(partition), int(last)


def sizes_of(messages: Sequence[DueMessage]) -> int:
    """Return the bytes of these messages as JSON."""
    return sum(len(message.payload) for message in messages)


# --- Publishing ----------------------------------------------------------------------------------


def due_unix_ms(message: Message, now_unix_ms: float) -> int:
    """Return when a message is due, by its own words; 0: now, because it names no time, or one that
    has passed. `now_unix_ms`: when the broker got it.

    Raises:
        Refused: invalid_message: it is due in more than SCHEDULE_S_MAX.
    """
    due = message.deliver_at_unix_ms
    if due is None:
        if not message.delay_s:
            return 0
        due = ceil(now_unix_ms + message.delay_s * 1000)
    if due > ceil(now_unix_ms) + limits.SCHEDULE_S_MAX * 1000:
        raise Refused(
            "invalid_message",
            f"deliver_at_unix_ms is at most {limits.SCHEDULE_S_MAX} s (400 days) ahead",
        )
    return due if due > now_unix_ms else 0


def scheduled(message: Message, due: int) -> Message:
    """Return the form of a message in which it is stored: it has the time at which it is due, and
    no delay. `due`: as `due_unix_ms` returned it; 0 leaves the message's own time."""
    if message.delay_s is None and not due:
        return message
    time = due or message.deliver_at_unix_ms
    return msgspec.structs.replace(message, deliver_at_unix_ms=time, delay_s=None)


def id_hash(hash_key: bytes, message_id: str | None) -> int:
    """Return the hash by which a scheduled message is found without its key; 0: it has no id."""
    if message_id is None:
        return 0
    digest = blake2b(message_id.encode(), digest_size=8, key=hash_key, person=b"id").digest()
    return int.from_bytes(digest, "little") or 1


# --- The clock --------------------------------------------------------------------------------

JUMP_S: Final = 60.0
"""A change of the clock, in seconds since the last look, above which it is not believed for
DOUBT_S."""
DOUBT_S: Final = 300.0


# enforces: R32
class ClockGuard:
    """Judge of one wall clock. `monotonic_s`: seconds of a clock that is never set; all calls name
    its present time. `unix_s`: seconds of the wall clock."""

    def __init__(self, unix_s: float, monotonic_s: float) -> None:
        self._lead_s = unix_s - monotonic_s
        self._ahead_s: dict[int, float] = {}
        """Number of a server → how far the wall clock is ahead of the server's, in seconds."""
        self._until_s = float("-inf")
        self.jumps = 0
        """Number of jumps so far."""
        self.jump_s = 0.0
        """The last jump, in seconds; negative: the clock was set back."""
        self.is_apart = False
        """Whether the last jump was one between this clock and a server's. `jump_s` is how much
        further ahead of it this clock is since then."""

    def look(self, unix_s: float, monotonic_s: float) -> bool:
        """Compare the two clocks. Returns whether the wall clock is believed now. Called at least
        once in a few seconds, because slow corrections add up."""
        jump_s = unix_s - monotonic_s - self._lead_s
        self._lead_s += jump_s
        for server in self._ahead_s:
            self._ahead_s[server] += jump_s
        self._judge(jump_s, monotonic_s, is_apart=False)
        return monotonic_s >= self._until_s

    def compare(
        self, server: int, asked_ahead_s: float, answered_ahead_s: float, monotonic_s: float
    ) -> bool:
        """Compare the wall clock, which was looked at a moment ago, with the one of a server, which
        has said its time. The wall clock was ahead of that time by `asked_ahead_s` when the server
        was asked, and by `answered_ahead_s` when it had answered. So it is ahead of the server's
        clock by something between the two, whatever the answer took. Returns whether the wall clock
        is believed now. At first both clocks should be the same."""
        known_s = self._ahead_s.get(server, 0.0)
        least_s, most_s = sorted((asked_ahead_s, answered_ahead_s))
        ahead_s = min(max(known_s, least_s), most_s)
        self._ahead_s[server] = ahead_s
        self._judge(ahead_s - known_s, monotonic_s, is_apart=True)
        return monotonic_s >= self._until_s

    def _judge(self, jump_s: float, monotonic_s: float, *, is_apart: bool) -> None:
        if abs(jump_s) > JUMP_S:
            self.jumps += 1
            self.jump_s = jump_s
            self.is_apart = is_apart
            self._until_s = monotonic_s + DOUBT_S

    def doubt_s(self, monotonic_s: float) -> float:
        """Return for how many seconds more the clock is not believed; 0: it is."""
        return max(0.0, self._until_s - monotonic_s)

    def believe(self, monotonic_s: float) -> None:
        """Believe the clock as it is, because an operator says that it is right."""
        self._until_s = min(self._until_s, monotonic_s)

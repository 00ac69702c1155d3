"""The storage port: everything that the rules need of the world, its values and its guarantees.

Every method of `Storage` is one atomic act. For example, `append` stores records of several
partitions, and returns where. An act returns when it is durable as its durability level says
(`local`, `quorum`, `all`: embedded, all three are one fsync), or it raises:

* `push.errors.Unknown`: the act may or may not have happened. Acts are idempotent: appends by
  sequence and id, cursor writes because they are absolute. Asking again is always safe.
* `push.errors.Refused`: it did not happen, and why.
* `push.errors.Fenced`: a newer owner exists; it did not happen.

Nothing beyond the certified offset leaves a storage (R10).

A storage asks one thing of encryption, its `Sealer`: a record's payload is sealed where it is
written, and opened where it is read. The header stays plain (R9), and is bound to its payload.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Protocol

from push import limits
from push.due import DueMessage, DuePlace, DueRead, DueState
from push.histogram import Took
from push.letters import Inbox
from push.places import CursorPlace, Durability, Parked, ParkedLine, Partition
from push.ranges import Dead, Range
from push.record import Header, Record

OWNER_BYTES: Final = 16


def is_same_owner(token: bytes, other: bytes) -> bool:
    """Whether two owner tokens are of one owner. Their first OWNER_BYTES name it, the rest is
    random each time. An empty token names no owner."""
    return bool(token) and token[:OWNER_BYTES] == other[:OWNER_BYTES]


# --- Appending ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """A record for a partition. Records of one call are appended in their order."""

    partition: Partition
    header: bytes
    payload: bytes
    durability: Durability = "all"
    dedup_window_s: float = 300.0
    messages_max: int = 0
    """Number of messages of the whole queue that this storage retains; 0: no bound. Those beyond it
    are `queue_full`."""
    bytes_max: int = 0
    """The same for the bytes of the messages, as JSON."""
    message_bytes_max: int = 0
    """Bytes that a single message may have, as JSON; 0: no bound. A larger one is
    `message_too_large`: it never fits, however much leaves the queue."""
    due_messages_max: int = 0
    """Number of messages of the whole queue that may wait in this storage until they are due; 0: no
    bound. Those beyond it are `schedule_full`."""
    due_bytes_max: int = 0
    """The same for their bytes, as JSON."""
    parsed: Header | None = field(default=None, compare=False, repr=False)
    """The content of `header`, from the gateway that has just made it. It is not checked."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message's own place, or for a duplicate that of the original."""

    offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The outcome of a message that waits in the due store, or did so: its number there
    (`push.due`), for a duplicate that of the original."""

    number: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class NotStored:
    """The outcome of a message that was not stored. `code` is one of sequence_too_old,
    out_of_sequence, message_too_large, limit_reached, queue_full, schedule_full,
    too_many_in_flight, storage_full, queue_not_found, storage_unavailable (the partition is
    sealed), cancelled (it was scheduled before, and then cancelled)."""

    code: str


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append of one record.

    `outcomes` is None in the ordinary case: message i is stored at `first + i`. Else it holds one
    outcome per message of the record, in order (R5), and `skips` the indexes without an offset of
    their own. `count` is the number of messages that were stored; `certified` is the partition's
    certified end afterwards: the offset after the last one that may be given to anybody.
    """

    first: int
    count: int
    certified: int
    generation: int
    outcomes: "tuple[Outcome, ...] | None" = None
    skips: tuple[int, ...] = ()


Outcome = Stored | Scheduled | NotStored


# --- Cursors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempts of a message: how many count, and the wall time before which it is not tried
    again."""

    offset: int
    attempts: int
    due_unix_ms: int = 0
    nack: bytes | None = None
    """The reason of the last nack that gave one, as the gateway sealed it. In a write None keeps
    what is stored."""
    rejected: bool = False
    """Whether a consumer said that no further attempt can help. The message is exhausted then,
    however often it was tried."""

    def after(self, before: "Retry | None") -> "Retry":
        """Return the retry to remember now. The reason of `before` stays if this has none."""
        if before is None or self.nack is not None or before.nack is None:
            return self
        return replace(self, nack=before.nack)


@dataclass(frozen=True, slots=True)
class Side:
    """Offsets of one key that are set aside, in order, in the key's durable side line (R18)."""

    key_hash: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The progress of a group in a partition.

    Passed are the offsets below `floor` and those in `passed`: settled, or set aside in a side
    line. Offsets in a side line are passed and not settled: they are not read from the log again,
    and their records stay.
    """

    floor: int
    passed: tuple[Range, ...] = ()
    retries: tuple[Retry, ...] = ()
    lines: tuple[tuple[int, int], ...] = ()
    """(key hash, number of offsets) of each side line."""
    parked: tuple[Parked, ...] = ()
    ended: tuple[Range, ...] = ()
    """Offsets that were given out and that no ack settles: they are dead or dead-lettered, or no
    longer retained. Acks of them are stale (R21)."""
    dead: tuple[Dead, ...] = ()
    """Messages on their way to the dead letters, by offset, that are not known to be there. They
    are not settled, and most are not passed either."""


@dataclass(frozen=True, slots=True)
class Owned:
    """The answer to `own`: the new epoch, and the cursor it starts from."""

    epoch: int
    cursor: Cursor
    certified: int
    generation: int
    previous: int | None = None
    """The epoch before, if it was the same owner's (R22) and no seek or restore came since."""


@dataclass(frozen=True, slots=True)
class CursorWrite:
    """A fenced change of a cursor; all of it or nothing.

    Applied in this order: `settled` (absolute ranges, also removes retries and side line entries of
    these offsets), `retries` (a row per offset; one of a settled offset is refused and comes back
    in the answer), `aside` (appended to the keys' side lines and thereby passed), `parked`,
    `unparked` (key hashes: the mark goes, the line stays), `dead` (what is settled by then is
    refused and comes back in the answer; offsets in a side line leave it, and are passed. Their
    records stay until they are settled).
    """

    place: CursorPlace
    epoch: int
    token: bytes
    settled: tuple[Range, ...] = ()
    retries: tuple[Retry, ...] = ()
    aside: tuple[Side, ...] = ()
    parked: tuple[Parked, ...] = ()
    unparked: tuple[int, ...] = ()
    dead: tuple[Dead, ...] = ()
    ended: tuple[Range, ...] = ()
    """The offsets of `settled` or `dead` that were given out and that no ack settles (dead,
    dead-lettered, or no longer retained). The cursor keeps up to ENDED_RANGES_MAX such ranges, so
    that the next owner recognizes an ack that comes too late (R21)."""


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a CursorWrite. `refused`: offsets of `retries` and of `dead` that are settled
    already; they must not be given (R16), and have no dead letter (P5). `fenced`: nothing was
    written, a newer owner exists."""

    refused: tuple[int, ...] = ()
    fenced: bool = False


# --- Lanes --------------------------------------------------------------------------------------


class Lane(NamedTuple):
    """The part of a storage that fails together: the acts of one level at one of its servers.

    They take effect in the order of the calls. If a replica is away, the lane of the level `all`
    fails and that of `local` goes on; if one primary of a Cluster is, its lanes fail, and no
    others. A partition's lane becomes another one when its queue's level is changed, or when the
    partition moves. A caller that needs its appends in order (R7) has them under way in one lane at
    a time.
    """

    number: int
    doubts: int
    """Number of acts that failed there as a whole (Unknown, or no store there). If two lanes are
    equal, nothing has failed there in between."""


ONE_LANE: Final = Lane(0, 0)
"""The lane of a storage that is one store, and whose failure ends the process."""


# --- Reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Damage:
    """A row that failed its checksum: quarantined, reported, passed over (R30)."""

    partition: Partition
    first: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Read:
    """Certified records in order, from the one on that holds or follows the requested offset. None
    of them: nothing certified is there. `start` is the partition's first retained offset."""

    records: tuple[Record, ...]
    start: int
    certified: int
    damage: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition. Offsets from `start` to below `end` are retained (single records in
    between may be gone, R12). `sealed_at`: the end at which it was sealed (R27); None: it is not
    sealed."""

    partition: Partition
    start: int
    end: int
    certified: int
    generation: int
    messages: int
    bytes: int
    sealed_at: int | None = None


@dataclass(frozen=True, slots=True)
class CursorState:
    """The state of a group's cursor in a partition, for inspection."""

    place: CursorPlace
    epoch: int
    floor: int
    settled_above: int
    """Number of offsets passed above the floor: settled, or set aside."""
    aside: int
    parked: int
    aside_first: int | None = None
    """The lowest offset in a side line; None: there is none."""
    dead: int = 0
    """Number of messages on their way to the dead letters that are not known to be there."""
    dead_passed: int = 0
    """Number of those of them that are passed, because they were in a side line."""
    dead_first: int | None = None
    """The lowest offset of them; None: there is none."""


class MessageStatus(NamedTuple):
    """The state of a message for a group, for inspection, as far as it is durable. `waiting` and
    `parked` messages are in side lines; what an owner holds in memory is `ready` here. `dying`: on
    its way to the dead letters."""

    state: Literal["ready", "settled", "waiting", "parked", "dying"]
    attempts: int = 0
    """Number of attempts that count."""
    nack: bytes | None = None
    """The sealed reason of the last nack that gave one."""
    ended: bool = False
    """The message was given out, and then settled by no ack: it was dead-lettered, or is no longer
    retained."""


Start = Literal["earliest", "latest"] | int
"""The place where a new group starts in a partition; a number is an offset."""


@dataclass(frozen=True, slots=True)
class StorageState:
    """The state for /readyz and /healthz. `reasons` is empty when everything is well."""

    writable: bool
    publishable: bool
    reasons: tuple[str, ...] = ()
    detail: dict[str, str] = field(default_factory=dict)
    took: tuple[Took, ...] = ()


WakeUp = Callable[[Partition, int], None]
"""Callback with (partition, certified end). The storage calls it on the event loop after an append
became certified."""


class StorageInspection(Protocol):
    """The half of `Storage` that shows and changes nothing (P9).

    Each call answers from one moment; two calls may be of two.
    """

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        """Return the state of every partition of a queue; empty: the queue is unknown."""

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        """Return the state of every cursor of a group; empty: the group is unknown."""

    async def cursor(self, place: CursorPlace) -> Cursor | None:
        """Return a cursor as its next owner would find it; None: it is unknown."""

    async def standings(self, place: CursorPlace, first: int, last: int) -> list[MessageStatus]:
        """Return the status for a group of each of the offsets first..last; empty: the place is
        unknown."""

    async def parked(self, place: CursorPlace) -> list[ParkedLine]:
        """Return the parked keys of a (group, partition), by hash; empty: it is unknown."""

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        """Return how many messages `Storage.trim` would delete with this retention in a slice of
        the partition, from the offset `after` on. Second, the offset to go on from; None: that was
        the last slice."""

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        """Return for each (partition, offset) when the record was published that holds the offset
        or is the first one after it, in unix milliseconds; None: nothing is retained from there on,
        or the partition is unknown."""


class DueStore(Protocol):
    """The due stores of a storage's partitions (`push.due`). Messages come into them by
    `Storage.append`: a record whose header says when its messages are due goes there whole. Such an
    append certifies nothing. Deduplication spans log and due store (P4): a message that comes again
    has the outcome of the first time, also after it was moved."""

    async def first(
        self, partition: Partition, until_unix_ms: int, *, count_max: int, bytes_max: int
    ) -> DueRead:
        """Return the first messages that are due at `until_unix_ms` or before, in order: at most
        `count_max` of at most `bytes_max` bytes as JSON together, but at least one."""

    async def move(self, messages: Sequence[DueMessage], append: Append) -> Appended | None:
        """Append a record to the log, and remove these messages, all of its partition, from the due
        store: one act. The record has their forms in the log, in their order, and neither producers
        nor ids. No bound of the queue is judged, because they count since they were published. The
        ids are remembered for the append's `dedup_window_s` from now on.

        Returns None, and nothing happened, if one of them is not in the due store any more in the
        version that is named: it was moved, cancelled, changed or purged. Raises as
        `Storage.append` does; after Unknown, look at `first` again.
        """

    async def find(self, partition: Partition, numbers: Sequence[int]) -> list[DueMessage]:
        """Return those of these messages that wait in the due store, in the order of `numbers`."""

    async def look(
        self,
        partition: Partition,
        *,
        key_hash: int | None = None,
        id_hash: int | None = None,
        after: DuePlace | None = None,
        count_max: int = 100,
        bytes_max: int = limits.LOOK_BYTES_MAX,
    ) -> DueRead:
        """Return the first messages after a place, in order, also those that are not due: all, or
        those with this hash of the key, of the id, or both. Bounded as `first` is."""

    async def cancel(self, partition: Partition, number: int, *, remember_s: float) -> bool:
        """Remove a message for good. Returns False, and nothing happened, if it does not wait
        there. Its id and its sequence are answered `cancelled` from then on, its id for at least
        `remember_s` seconds."""

    async def change(
        self, message: DueMessage, *, bytes_max: int = 0, due_bytes_max: int = 0
    ) -> bool:
        """Give the message of this number, which is in the due store in the version of `message`,
        the due time and payload of `message`; its version grows by one. Number, key and id stay.
        Returns False, and nothing happened, if it does not wait there in this version.

        Raises:
            Refused: nothing happened, because the payload is larger than before, and there is no
                room. queue_full: the queue would have more than `bytes_max` bytes in this storage
                (0: no bound). schedule_full: its due stores would have more than `due_bytes_max`
                (0: no bound). storage_full.
        """

    async def fate(self, partition: Partition, number: int) -> Stored | NotStored | None:
        """Return what became of a message that is not in the due store: where it is in the log, or
        NotStored("cancelled"). None: it waits, was never there, or that is forgotten
        (`dedup_window_s` after the move)."""

    async def known(self, partition: Partition, digest: bytes) -> Outcome | None:
        """Return the outcome that a message with this client id would have if it came again; None:
        the id is not known, or is forgotten. Changes nothing."""

    async def states(self, queue_id: str) -> list[DueState]:
        """Return the state of each partition's due store; empty: the queue is unknown."""

    def on_due(self, noticed: Callable[[Partition, int], None]) -> None:
        """Register the one callback that is called on the event loop with a partition and the time,
        in unix milliseconds, at which its first message is due, after something was scheduled
        there or changed. Over a shared store it is also called for what others have scheduled, as a
        rule. Notices may be lost."""


class Storage(StorageInspection, Protocol):
    """The port. Calls may overlap; acts on one partition take effect in the order of the calls."""

    @property
    def due(self) -> DueStore:
        """The due stores of the partitions."""

    @property
    def inbox(self) -> Inbox | None:
        """The inboxes through which requests reach owners at other gateways (R24); None: there are
        no other gateways."""

    async def incarnation(self) -> str:
        """Return the name of the store's history. `tocsin admin restore` makes another one
        (R30)."""

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        """Make its partitions, empty. If they exist already, nothing happens. Raises Refused if the
        queue was dropped."""

    async def drop_queue(self, queue_id: str) -> None:
        """Delete its partitions, cursors and dedup state, in slices. Making it later is Refused."""

    async def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        """Make one cursor per partition, durable when this returns (R11). `starts` has one entry
        per partition. Cursors that exist already stay as they are. Refused: it was dropped."""

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        """Delete the group's cursors and side lines, if it has any. Making it later is Refused
        (R12)."""

    async def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        """Set every cursor to a fresh one at `starts` and raise its epoch, so that the owners of
        before are fenced and nothing they settle counts."""

    async def purge(self, queue_id: str, group_id: str | None) -> int:
        """Pass for a group all messages that are in the queue at this moment, like a `seek` to the
        end. With None, do so for every group, and retain nothing of before: `start` is the end.
        Returns how many messages the group had not settled, or the queue retained.

        Raises Refused: queue_not_found, group_not_found; nothing happened.
        """

    def copies(self, partition: Partition, level: Durability) -> int:
        """Return on how many disks a record of this level is when its append is answered. Asks no
        server."""

    def lane(self, partition: Partition, level: Durability) -> Lane:
        """Return the lane of acts of this level at this moment. Appends have their queue's level,
        cursor writes `all`. The lane's doubts grow before a failure is raised. Asks no server."""

    def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> Awaitable[list[Appended]]:
        """Append records; deduplicate by producer sequence (R6, R7) and client id (R8).

        `lane`: the lane of all of them when it was decided that they come next. If it is another
        one by now, messages before them may not be stored, so they are refused (R7).

        Each record has an outcome of its own. An append to an unknown partition is answered with
        `NotStored("queue_not_found")` throughout. A record without any new message still writes
        something, so that a replication wait after it means something (R9). The append may begin at
        once. When awaited it raises Unknown if the outcome is not known.
        """

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, until: int | None = None
    ) -> Read:
        """Read certified records from the one that holds `offset` (or the first after it) on, at
        most `bytes_max` bytes of memory (`Record.memory_bytes`) but at least one record; none that
        begins above `until`."""

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        """Read for each of these offsets (ascending) the certified record that holds it; None:
        there is none. Answers as many of the first offsets as have at most `bytes_max` bytes of
        memory, but at least one. Refused: a record exists and is not certified. It was certified
        before (R10), and is not lost."""

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        """Find the first retained offset published at or after this time; if none, the certified
        end."""

    async def own(
        self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int = 0
    ) -> Owned:
        """Become the owner: raises and persists the epoch above both the stored one and
        `epoch_seen` (R15), remembers the `token`, waits for the level `all`. The token names the
        owner, and the rest of it is random (see `is_same_owner`). An owner that owned the place
        last under its name learns under which epoch (R22). A repetition with the same token, whose
        answer was lost, leaves the epoch and gets the same answer.

        Raises:
            Fenced: `assignment` is older than one that owned this place before (R14).
            Refused: group_not_found: no such cursor.
        """

    def write_cursors(self, writes: Sequence[CursorWrite]) -> Awaitable[list[Written]]:
        """Make fenced cursor changes (see CursorWrite), one answer each. Settling above the
        certified end is Refused for the whole call, because it is a bug of the caller. The write
        may begin at once, as an append."""

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        """Read the offsets of a key's side line above `after` (-1: from the start), in order."""

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        """Delete a slice of the records that every group has settled and whose retention has
        passed (R12): a record, not a prefix. `keep_all`: there is no group yet and no retention,
        so nothing goes. Returns the bytes freed; 0: nothing is left to do now."""

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        """Accept no further append; returns the certified end S, durable with the successors
        (R27). Sealed already: the same answer."""

    def on_certified(self, wake_up: WakeUp) -> None:
        """Register the one wake-up. It is called before an append is answered; if the answer got
        lost, seconds later."""

    async def state(self) -> StorageState:
        """Return whether the storage can be written to, and if not, why."""

    async def close(self) -> None:
        """Finish what was accepted, then close. Calls after it raise Refused."""


SEALED: Final = 1
"""The first byte of a sealed payload. A plain one is JSON and begins with "{"."""


def is_sealed(payload: bytes) -> bool:
    """Whether a stored payload is sealed. False: it is plain."""
    return payload[:1] == b"\x01"


class Sealer(Protocol):
    """Seals and opens payloads, in the storage's threads: it never waits for the event loop. One
    thread at a time seals; several open."""

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        """Return the payload of a record of `count` messages in the form that is stored. It is only
        opened again with the same queue id, partition number and header.

        Raises:
            Refused: storage_unavailable: nothing can be sealed at the moment, and why.
        """

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        """Return the payload that `seal` was given; one that was stored plain is returned as it is.

        Raises:
            RecordDamaged: it was changed or belongs elsewhere, its key is not known, or its form
                is of another version. The error's text holds nothing of the payload.
            Refused: storage_unavailable: its key cannot be had at the moment.
        """


class _Plain:
    """The sealer that stores payloads as they are."""

    def seal(self, partition: Partition, header: bytes, payload: bytes, count: int) -> bytes:
        return payload

    def unseal(self, partition: Partition, header: bytes, sealed: bytes) -> bytes:
        return sealed


PLAIN: Final[Sealer] = _Plain()

"""The common part of storage tests: a clock, records, and the storages themselves."""

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.encryption.sealer import RecordSealer
from push.places import CursorPlace, Parked, Partition
from push.ranges import Dead, Range
from push.record import NO_DIGEST, Header, RecordDamaged
from push.storage_port import (
    PLAIN,
    Append,
    Appended,
    CursorWrite,
    Outcome,
    Retry,
    Scheduled,
    Sealer,
    Side,
    Storage,
    Stored,
)
from storage.memory import MemoryStorage
from storage.sharded import ClusterMap, ShardedStorage
from storage.sqlite.store import SqliteStorage

P0 = Partition("q-1", 0)
P1 = Partition("q-1", 1)
G0 = CursorPlace("g-1", P0)
ANN = b"producer-ann----"
BEN = b"producer-ben----"
START_UNIX_S = 1_700_000_000.0
TOKEN = b"token-1"


@dataclass
class Clock:
    """A wall clock, moved by hand."""

    unix_s: float = START_UNIX_S

    def __call__(self) -> float:
        return self.unix_s


@asynccontextmanager
async def memory_store(
    _folder: Path, clock: Clock, *, sealer: Sealer = PLAIN
) -> AsyncIterator[Storage]:
    """Yield the verified fake."""
    store = MemoryStorage(wall=clock, sealer=sealer)
    yield store
    await store.close()


@asynccontextmanager
async def placed_store(
    _folder: Path, clock: Clock, *, sealer: Sealer = PLAIN
) -> AsyncIterator[Storage]:
    """Yield two storages in memory, like two storage clusters; they hold a queue's partitions
    alternately."""
    stores = [MemoryStorage(wall=clock, sealer=sealer) for _ in range(3)]
    clusters = {"a": stores[0], "b": stores[1]}
    store = ShardedStorage(ClusterMap(clusters, stores[2], lambda _: ("a", "b")))
    yield store
    await store.close()


@asynccontextmanager
async def sqlite_store(
    folder: Path,
    clock: Clock,
    *,
    on_fatal: Callable[[str], None] | None = None,
    sealer: Sealer = PLAIN,
) -> AsyncIterator[Storage]:
    """Yield the embedded storage in this folder."""
    store = await SqliteStorage.open(
        folder / "store.sqlite",
        free_bytes_reserve=0,
        wall=clock,
        on_fatal=on_fatal,
        sealer=sealer,
    )
    try:
        yield store
    finally:
        await store.close()


def sealing(key: bytes = b"k" * 32) -> RecordSealer:
    """Return a sealer like the broker's, with one data key."""

    def unknown(key_id: bytes) -> bytes:
        raise RecordDamaged(f"its data key {key_id.hex()} is not known")

    sealer = RecordSealer(unknown)
    sealer.begin(key[:8], key)
    return sealer


def digest(name: str) -> bytes:
    """Return an id digest of 32 bytes."""
    return name.encode().ljust(32, b".")


def append(
    partition: Partition = P0,
    *,
    messages: int = 0,
    runs: Sequence[tuple[bytes | None, int, Sequence[int]]] = (),
    ids: Sequence[str | None] = (),
    size: int = 20,
    sizes: Sequence[int] = (),
    published_unix_s: float = START_UNIX_S,
    dedup_window_s: float = 300.0,
    messages_max: int = 0,
    bytes_max: int = 0,
    message_bytes_max: int = 0,
    due: Sequence[float] = (),
    id_hashes: Sequence[int] = (),
    due_messages_max: int = 0,
    due_bytes_max: int = 0,
) -> Append:
    """Return a record: `messages` without sequences, or runs of (producer, resolved, sequences).
    `sizes`: the size of each message, if they are not all of one `size`. `due`: when each message
    is due, if they are scheduled, in seconds after START_UNIX_S."""
    contexts, indexes, numbers, bodies = _columns(
        runs or [(None, 0, [0] * (messages or len(ids) or len(sizes) or len(due)))], sizes, size
    )
    names = [*ids, *[None] * (len(bodies) - len(ids))]
    header = Header(
        tenant=0,
        record_id=b"r" * 16,
        published_unix_ms=int(published_unix_s * 1000),
        ring_epoch=1,
        sizes=array("I", map(len, bodies)),
        key_hashes=array("Q", [7] * len(bodies)),
        producers=contexts,
        producer_indexes=array("H", indexes if contexts else []),
        sequences=array("Q", numbers if contexts else []),
        digests=[digest(name) if name else NO_DIGEST for name in names] if any(ids) else [],
        expires_unix_ms=array("Q"),
        deliver_at_unix_ms=array("Q", [due_unix_ms(after_s) for after_s in due]),
        priorities=b"",
        id_hashes=array("Q", id_hashes or [0] * len(due)),
    )
    return Append(
        partition,
        header.encode(),
        b",".join(bodies),
        dedup_window_s=dedup_window_s,
        messages_max=messages_max,
        bytes_max=bytes_max,
        message_bytes_max=message_bytes_max,
        due_messages_max=due_messages_max,
        due_bytes_max=due_bytes_max,
    )


def _columns(
    runs: Sequence[tuple[bytes | None, int, Sequence[int]]], sizes: Sequence[int], size: int
) -> tuple[list[tuple[bytes, int]], list[int], list[int], list[bytes]]:
    """Return the contexts of a record of these runs, and for each message the index of its context,
    its sequence and its body."""
    contexts: list[tuple[bytes, int]] = []
    indexes: list[int] = []
    numbers: list[int] = []
    bodies: list[bytes] = []
    for producer, resolved, sequences in runs:
        if producer is not None:
            contexts.append((producer, resolved))
        for sequence in sequences:
            indexes.append(len(contexts) if producer is not None else 0)
            numbers.append(sequence)
            own = sizes[len(bodies)] if sizes else size
            bodies.append(body(sequence if producer is not None else len(bodies), own))
    return contexts, indexes, numbers, bodies


def due_unix_ms(after_s: float) -> int:
    """Return the time so many seconds after START_UNIX_S."""
    return int((START_UNIX_S + after_s) * 1000)


def body(number: int, size: int = 20) -> bytes:
    """Return a message's JSON of exactly this many bytes, at least 12."""
    return f'{{"body":{number}}}'.encode().ljust(size, b" ")


def outcomes(appended: Appended) -> list[int | str]:
    """Return one outcome per message: the offset, the negative offset - 1 of a duplicate, or the
    code. "due 3": scheduled under this number; "due 3 again": a duplicate of it."""
    if appended.outcomes is None:
        return list(range(appended.first, appended.first + appended.count))
    return [*map(_outcome, appended.outcomes)]


def _outcome(outcome: Outcome) -> int | str:
    if isinstance(outcome, Stored):
        return -outcome.offset - 1 if outcome.duplicate else outcome.offset
    if isinstance(outcome, Scheduled):
        return f"due {outcome.number} again" if outcome.duplicate else f"due {outcome.number}"
    return outcome.code


async def one(store: Storage, record: Append) -> list[int | str]:
    """Append a record; return the outcomes of its messages."""
    (appended,) = await store.append([record])
    return outcomes(appended)


async def sequences(
    store: Storage,
    numbers: Sequence[int],
    *,
    resolved: int = 0,
    producer: bytes = ANN,
    messages_max: int = 0,
) -> list[int | str]:
    """Append one record of a producer's messages."""
    return await one(store, append(runs=[(producer, resolved, numbers)], messages_max=messages_max))


async def with_group(store: Storage, *, messages: int = 0, partitions: int = 2) -> None:
    """Create a queue with a group that starts at its first message, and an owner of partition 0
    under epoch 1 and TOKEN."""
    await store.create_queue("q-1", partitions)
    await store.create_group("g-1", "q-1", ["earliest"] * partitions)
    await store.own(G0, token=TOKEN, assignment=1)
    if messages:
        await store.append([append(messages=messages)])


def change(
    *,
    place: CursorPlace = G0,
    epoch: int = 1,
    token: bytes = TOKEN,
    settled: Sequence[Range] = (),
    retries: Sequence[Retry] = (),
    aside: Sequence[Side] = (),
    ended: Sequence[Range] = (),
    parked: Sequence[Parked] = (),
    dead: Sequence[Dead] = (),
) -> CursorWrite:
    """Return a cursor write of the owner that `with_group` made."""
    return CursorWrite(
        place,
        epoch,
        token,
        settled=tuple(settled),
        retries=tuple(retries),
        aside=tuple(aside),
        ended=tuple(ended),
        parked=tuple(parked),
        dead=tuple(dead),
    )

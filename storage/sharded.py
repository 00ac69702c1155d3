"""Several storage clusters as one storage.

`ClusterMap` says which cluster has a partition, without waiting. A queue's row in the catalog has a
list of names of clusters. Its partitions go through the list in turn, and begin again at its end.
The list is fixed when the queue is made, so a remembered list is never out of date.

`ShardedStorage` sends each request to the cluster of its partition. Every cluster that has some of
a queue's partitions knows the whole queue: it has rows for all partitions. Only the rows of the
partitions that are placed there count. So each cluster's acts are the same as with one cluster
alone, and a request about a whole queue goes to all of its clusters. Such an act is not atomic any
more: if it fails in the middle it is `Unknown`, and can be done again.

`ShardedInbox` finds each inbox beside its cursor (`push.letters.Inbox`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from push import limits
from push.due import DueMessage, DuePlace, DueRead, DueState
from push.errors import TocsinError, Unknown
from push.letters import AnyLetter, Inbox
from push.places import CursorPlace, Durability, ParkedLine, Partition
from push.record import Record
from push.storage_port import (
    Append,
    Appended,
    Cursor,
    CursorState,
    CursorWrite,
    DueStore,
    Lane,
    MessageStatus,
    NotStored,
    Outcome,
    Owned,
    PartitionState,
    Read,
    Start,
    Storage,
    StorageState,
    Stored,
    WakeUp,
    Written,
)

KNOWN_MAX: Final = 200_000
"""Number of queues whose clusters a `ClusterMap` remembers, twice as many queues as may exist."""
FIRST: Final = 0
"""The lane of the first cluster, which has queues whose row names none."""


class ClusterMap:
    """Clusters by their number, the **lane**, in the order in which the settings name them. The
    last lane is no cluster. It has the partitions placed at a cluster that is not in this gateway's
    settings, and its storage refuses everything.

    `placed` returns the names in a queue's row; None: the queue does not exist, or was deleted.
    Known names are remembered after the deletion, because requests under way then still go to the
    same clusters.
    """

    def __init__(
        self,
        clusters: Mapping[str, Storage],
        elsewhere: Storage,
        placed: Callable[[str], Sequence[str] | None],
    ) -> None:
        self.names = tuple(clusters)
        self.all = tuple(clusters.values())
        """The storages of the clusters, by lane."""
        self.stores = (*self.all, elsewhere)
        """The storages of all lanes, the last one included."""
        self._lanes = {name: lane for lane, name in enumerate(self.names)}
        self._placed = placed
        self._known: dict[str, Sequence[int]] = {}
        """Queue → the lanes that its partitions go through in turn."""

    def _turns(self, queue_id: str) -> Sequence[int]:
        """Return the lanes that a queue's partitions go through in turn. FIRST alone, if the queue
        is unknown or its row names no cluster."""
        names = self._placed(queue_id)
        if names is None:
            return (FIRST,)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        lanes = tuple(self._lanes.get(name, len(self.all)) for name in names) or (FIRST,)
        self._known[queue_id] = lanes
        return lanes

    def lane(self, partition: Partition) -> int:
        """Return the lane of a partition."""
        turns = self._known.get(partition.queue_id) or self._turns(partition.queue_id)
        return turns[partition.number % len(turns)]

    def lanes_of(self, queue_id: str) -> list[int]:
        """Return the lanes in which a queue has partitions, each once."""
        return list(dict.fromkeys(self._known.get(queue_id) or self._turns(queue_id)))

    def having(self, queue_id: str) -> list[Storage]:
        """Return the storages of the lanes in which a queue has partitions."""
        return [self.stores[lane] for lane in self.lanes_of(queue_id)]

    def dropping(self, queue_id: str) -> Sequence[Storage]:
        """Return the storages at which a queue is to be dropped: its own, including the last lane's
        for a cluster that is not in this gateway's settings, because only a queue that is dropped
        everywhere is forgotten. All clusters of the settings, if the queue is not known here any
        more."""
        here = self.having(queue_id)
        return here if queue_id in self._known else self.all

    def share(self, queue_id: str, lane: int) -> tuple[int, int]:
        """Return (how many names in the queue's row are of this lane, how many names it has): the
        share of the queue that the lane has. A queue that is unknown, or whose row names no
        cluster, is whole in the first lane."""
        turns = self._known.get(queue_id) or self._turns(queue_id)
        return turns.count(lane), len(turns)


class ShardedInbox:
    """`push.letters.Inbox` over several clusters. Each request goes to the cluster that has the
    cursor."""

    def __init__(self, places: ClusterMap, inboxes: Sequence[Inbox]) -> None:
        """`inboxes`: the inbox of each lane, by lane."""
        self._places = places
        self._inboxes = inboxes

    def _at(self, place: CursorPlace) -> Inbox:
        return self._inboxes[self._places.lane(place.partition)]

    async def post(self, place: CursorPlace, letter_id: str, letter: AnyLetter) -> str | None:
        return await self._at(place).post(place, letter_id, letter)

    async def letters(self, place: CursorPlace) -> list[tuple[str, bytes]]:
        return await self._at(place).letters(place)

    async def places(self, queue_id: str) -> list[CursorPlace]:
        """Return the places at the clusters that answer. If none does, raises the error of one."""
        inboxes = [self._inboxes[lane] for lane in self._places.lanes_of(queue_id)]
        found = await asyncio.gather(
            *(inbox.places(queue_id) for inbox in inboxes), return_exceptions=True
        )
        answers = [one for one in found if not isinstance(one, BaseException)]
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if not answers or not isinstance(error, TocsinError):
                raise error
        return [place for some in answers for place in some]

    async def answer(
        self, place: CursorPlace, answers: Mapping[str, str], epoch: int | None
    ) -> bool:
        return await self._at(place).answer(place, answers, epoch)

    def on_letter(self, came: Callable[[CursorPlace], None]) -> None:
        for inbox in self._inboxes:
            inbox.on_letter(came)

    def on_answer(self, asker: str, came: Callable[[str], None]) -> None:
        for inbox in self._inboxes:
            inbox.on_answer(asker, came)


class ShardedDueStore:
    """`push.storage_port.DueStore` over several clusters. Each partition's due store is beside its
    log."""

    def __init__(self, places: ClusterMap) -> None:
        self._places = places

    def _at(self, partition: Partition) -> DueStore:
        return self._places.stores[self._places.lane(partition)].due

    async def first(
        self, partition: Partition, until_unix_ms: int, *, count_max: int, bytes_max: int
    ) -> DueRead:
        at = self._at(partition)
        return await at.first(partition, until_unix_ms, count_max=count_max, bytes_max=bytes_max)

    async def move(self, messages: Sequence[DueMessage], append: Append) -> Appended | None:
        return await self._at(append.partition).move(messages, append)

    async def find(self, partition: Partition, numbers: Sequence[int]) -> list[DueMessage]:
        return await self._at(partition).find(partition, numbers)

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
        return await self._at(partition).look(
            partition,
            key_hash=key_hash,
            id_hash=id_hash,
            after=after,
            count_max=count_max,
            bytes_max=bytes_max,
        )

    async def cancel(self, partition: Partition, number: int, *, remember_s: float) -> bool:
        return await self._at(partition).cancel(partition, number, remember_s=remember_s)

    async def change(
        self, message: DueMessage, *, bytes_max: int = 0, due_bytes_max: int = 0
    ) -> bool:
        here, of = self._places.share(
            message.partition.queue_id, self._places.lane(message.partition)
        )
        return await self._at(message.partition).change(
            message,
            bytes_max=share_of_bound(bytes_max, here, of),
            due_bytes_max=share_of_bound(due_bytes_max, here, of),
        )

    async def fate(self, partition: Partition, number: int) -> Stored | NotStored | None:
        return await self._at(partition).fate(partition, number)

    async def known(self, partition: Partition, digest: bytes) -> Outcome | None:
        return await self._at(partition).known(partition, digest)

    async def states(self, queue_id: str) -> list[DueState]:
        """Return the state of each partition's due store, from the cluster that has it."""
        lanes = self._places.lanes_of(queue_id)
        works = [self._places.stores[lane].due.states(queue_id) for lane in lanes]
        found = read_results(await asyncio.gather(*works, return_exceptions=True))
        states = [
            state
            for lane, some in zip(lanes, found, strict=True)
            for state in some
            if self._places.lane(state.partition) == lane
        ]
        return sorted(states, key=lambda state: state.partition.number)

    def on_due(self, noticed: Callable[[Partition, int], None]) -> None:
        for store in self._places.stores:
            store.due.on_due(noticed)


LANES_EACH: Final = 1 << 20
"""Distance between the lane numbers of two clusters, more than a cluster has lanes: at most three
for each slot's primary."""
LANES_BELOW: Final = 8
"""Added to the lane numbers of a cluster, which may be as low as -LANES_BELOW."""
T = TypeVar("T")
PartT = TypeVar("PartT")


class ShardedStorage:
    """`push.storage_port.Storage` over several clusters. Requests about a queue that is not known
    any more go to the first cluster, which answers as for any deleted queue."""

    def __init__(self, places: ClusterMap) -> None:
        self._places = places
        self._stores = places.stores
        inboxes = [store.inbox for store in places.stores if store.inbox is not None]
        has_inboxes = len(inboxes) == len(places.stores)
        self.due = ShardedDueStore(places)
        self.inbox: Inbox | None = ShardedInbox(places, inboxes) if has_inboxes else None

    def _at(self, partition: Partition) -> Storage:
        return self._stores[self._places.lane(partition)]

    async def incarnation(self) -> str:
        """Return the incarnation of the first cluster, which the catalog notes as the storage's."""
        return await self._stores[0].incarnation()

    # --- Queues and groups -------------------------------------------------------------------

    async def _everywhere(
        self, stores: Sequence[Storage], begin: Callable[[Storage], Awaitable[T]]
    ) -> list[T]:
        """Call `begin` with each of these storages, even if one fails, and return the answers.

        Raises:
            Refused: nothing has happened anywhere.
            Unknown: it has or may have happened at some of them, and has to be done again.
        """
        found = await asyncio.gather(*map(begin, stores), return_exceptions=True)
        return action_results(found)

    async def create_queue(self, queue_id: str, partitions: int) -> None:
        """Create the queue at each cluster that has some of its partitions."""
        stores = self._places.having(queue_id)
        await self._everywhere(stores, lambda store: store.create_queue(queue_id, partitions))

    async def drop_queue(self, queue_id: str) -> None:
        """Drop the queue at each cluster that may have some of it."""
        stores = self._places.dropping(queue_id)
        await self._everywhere(stores, lambda store: store.drop_queue(queue_id))

    async def create_group(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        stores = self._places.having(queue_id)
        await self._everywhere(stores, lambda s: s.create_group(group_id, queue_id, starts))

    async def drop_group(self, group_id: str, queue_id: str) -> None:
        """Drop the group at each cluster that may have some of it."""
        stores = self._places.dropping(queue_id)
        await self._everywhere(stores, lambda store: store.drop_group(group_id, queue_id))

    async def seek(self, group_id: str, queue_id: str, starts: Sequence[Start]) -> None:
        stores = self._places.having(queue_id)
        await self._everywhere(stores, lambda s: s.seek(group_id, queue_id, starts))

    async def purge(self, queue_id: str, group_id: str | None) -> int:
        stores = self._places.having(queue_id)
        return sum(await self._everywhere(stores, lambda s: s.purge(queue_id, group_id)))

    # --- Appending ---------------------------------------------------------------------------

    def copies(self, partition: Partition, level: Durability) -> int:
        return self._at(partition).copies(partition, level)

    def lane(self, partition: Partition, level: Durability) -> Lane:
        """Return the lane of a level. Each cluster has lanes of its own."""
        at = self._places.lane(partition)
        inner = self._stores[at].lane(partition, level)
        return Lane(at * LANES_EACH + inner.number + LANES_BELOW, inner.doubts)

    async def append(
        self, appends: Sequence[Append], *, lane: Lane | None = None
    ) -> list[Appended]:
        """Append each record at its partition's cluster. With a `lane`, all records are meant to be
        in that lane, so at one cluster. Without, they may be at several; if one of these clusters
        fails, the call raises, and no record gets an answer."""

        def begin(at: int, part: Sequence[Append]) -> Awaitable[list[Appended]]:
            inner = None
            if lane is not None:
                number = lane.number - at * LANES_EACH - LANES_BELOW
                inner = Lane(number, lane.doubts)  # of another cluster, so none of this one's
            return self._stores[at].append([self._bounded(one, at) for one in part], lane=inner)

        return await self._in_parts(appends, lambda append: append.partition, begin, action_results)

    def _bounded(self, append: Append, at: int) -> Append:
        """Return the append with the part of the queue's bounds that the cluster of lane `at`
        has."""
        bounds = (append.messages_max, append.bytes_max)
        if not (any(bounds) or append.due_messages_max or append.due_bytes_max):
            return append
        here, of = self._places.share(append.partition.queue_id, at)
        bytes_max = share_of_bound(append.bytes_max, here, of)
        return replace(
            append,
            messages_max=share_of_bound(append.messages_max, here, of),
            bytes_max=bytes_max,
            due_messages_max=share_of_bound(append.due_messages_max, here, of),
            due_bytes_max=share_of_bound(append.due_bytes_max, here, of),
            message_bytes_max=min(filter(None, (append.message_bytes_max, bytes_max)), default=0),
        )

    async def _in_parts(
        self,
        asked: Sequence[PartT],
        partition_of: Callable[[PartT], Partition],
        begin: Callable[[int, Sequence[PartT]], Awaitable[list[T]]],
        answers: Callable[[Sequence[list[T] | BaseException]], list[list[T]]],
    ) -> list[T]:
        """Call `begin` once for each lane, with the elements of `asked` whose partitions are there,
        and return the answers about all elements, in order. `answers` takes the outcomes of several
        lanes, and raises if they have an error; that of one lane alone is raised as it is."""
        parts: dict[int, list[int]] = {}
        for number, one in enumerate(asked):
            parts.setdefault(self._places.lane(partition_of(one)), []).append(number)
        if len(parts) == 1:  # begins at once; a cancelled caller takes nothing back
            return await begin(next(iter(parts)), asked)
        works = [
            begin(lane, [asked[number] for number in numbers]) for lane, numbers in parts.items()
        ]
        found = answers(await asyncio.gather(*works, return_exceptions=True))
        told: dict[int, T] = {}
        for numbers, some in zip(parts.values(), found, strict=True):
            told.update(zip(numbers, some, strict=True))
        return [told[number] for number in sorted(told)]

    def on_certified(self, wake_up: WakeUp) -> None:
        for store in self._stores:
            store.on_certified(wake_up)

    # --- Reading -----------------------------------------------------------------------------

    async def read(
        self, partition: Partition, offset: int, bytes_max: int, *, until: int | None = None
    ) -> Read:
        return await self._at(partition).read(partition, offset, bytes_max, until=until)

    async def read_each(
        self, partition: Partition, offsets: Sequence[int], bytes_max: int
    ) -> tuple[Record | None, ...]:
        return await self._at(partition).read_each(partition, offsets, bytes_max)

    async def offset_at(self, partition: Partition, unix_ms: int) -> int:
        return await self._at(partition).offset_at(partition, unix_ms)

    async def published(self, places: Sequence[tuple[Partition, int]]) -> list[int | None]:
        def begin(lane: int, part: Sequence[tuple[Partition, int]]) -> Awaitable[list[int | None]]:
            return self._stores[lane].published(part)

        return await self._in_parts(places, lambda place: place[0], begin, read_results)

    async def partitions(self, queue_id: str) -> list[PartitionState]:
        """Return the state of each partition, from the cluster that has it."""
        states = [
            state
            for lane, some in await self._seen(queue_id, lambda store: store.partitions(queue_id))
            for state in some
            if self._places.lane(state.partition) == lane
        ]
        return sorted(states, key=lambda state: state.partition.number)

    async def _seen(
        self, queue_id: str, look: Callable[[Storage], Awaitable[T]]
    ) -> list[tuple[int, T]]:
        """Call `look` with each storage that has partitions of the queue, and return (lane, answer)
        of each. Raises the error of one that failed."""
        lanes = self._places.lanes_of(queue_id)
        works = [look(self._stores[lane]) for lane in lanes]
        found = read_results(await asyncio.gather(*works, return_exceptions=True))
        return list(zip(lanes, found, strict=True))

    # --- Cursors -----------------------------------------------------------------------------

    async def own(
        self, place: CursorPlace, *, token: bytes, assignment: int, epoch_seen: int = 0
    ) -> Owned:
        store = self._at(place.partition)
        return await store.own(place, token=token, assignment=assignment, epoch_seen=epoch_seen)

    async def write_cursors(self, writes: Sequence[CursorWrite]) -> list[Written]:
        """Make each write at its partition's cluster. If one of several clusters fails, the call
        raises, and no write gets an answer."""

        def begin(lane: int, part: Sequence[CursorWrite]) -> Awaitable[list[Written]]:
            return self._stores[lane].write_cursors(part)

        return await self._in_parts(
            writes, lambda write: write.place.partition, begin, action_results
        )

    async def read_side(
        self, place: CursorPlace, key_hash: int, after: int, count_max: int
    ) -> tuple[int, ...]:
        return await self._at(place.partition).read_side(place, key_hash, after, count_max)

    async def cursors(self, queue_id: str, group_id: str) -> list[CursorState]:
        states = [
            state
            for lane, some in await self._seen(queue_id, lambda s: s.cursors(queue_id, group_id))
            for state in some
            if self._places.lane(state.place.partition) == lane
        ]
        return sorted(states, key=lambda state: state.place.partition)

    async def cursor(self, place: CursorPlace) -> Cursor | None:
        return await self._at(place.partition).cursor(place)

    async def standings(self, place: CursorPlace, first: int, last: int) -> list[MessageStatus]:
        return await self._at(place.partition).standings(place, first, last)

    async def trimmable(
        self, partition: Partition, *, retention_s: float, keep_all: bool, after: int = 0
    ) -> tuple[int, int | None]:
        return await self._at(partition).trimmable(
            partition, retention_s=retention_s, keep_all=keep_all, after=after
        )

    async def parked(self, place: CursorPlace) -> list[ParkedLine]:
        return await self._at(place.partition).parked(place)

    # --- Upkeep ------------------------------------------------------------------------------

    async def trim(self, partition: Partition, *, retention_s: float, keep_all: bool) -> int:
        store = self._at(partition)
        return await store.trim(partition, retention_s=retention_s, keep_all=keep_all)

    async def seal(self, partition: Partition, successors: Sequence[Partition]) -> int:
        return await self._at(partition).seal(partition, successors)

    async def state(self) -> StorageState:
        """Return one state for all clusters of the settings. It is writable (and publishable) if
        one cluster is. `reasons` has those of every cluster, with its name."""
        states = await asyncio.gather(*(store.state() for store in self._places.all))
        named = list(zip(self._places.names, states, strict=True))
        return StorageState(
            any(state.writable for _, state in named),
            any(state.writable and state.publishable for _, state in named),
            tuple(f"cluster {name}: {why}" for name, state in named for why in state.reasons),
            {f"{name} {key}": said for name, state in named for key, said in state.detail.items()},
            tuple(
                one._replace(place=f"{name} {one.place}".rstrip())
                for name, state in named
                for one in state.took
            ),
        )

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self._stores))


def action_results(found: Sequence[T | BaseException]) -> list[T]:
    """Return the answers of several clusters, if all have given one.

    Raises:
        Refused, Fenced: the first error, if all refused.
        Unknown: some refused or failed, and others did it or may have.
    """
    errors = errors_in(found)
    if not errors:
        return read_results(found)
    if len(errors) == len(found) and not any(isinstance(error, Unknown) for error in errors):
        raise errors[0]
    raise Unknown(f"not at every storage cluster: {'; '.join(one.detail for one in errors)}")


def read_results(found: Sequence[T | BaseException]) -> list[T]:
    """Return the answers of several clusters to a request that changes nothing. Raises the first
    error, if there is one."""
    for error in errors_in(found):
        raise error
    return [one for one in found if not isinstance(one, BaseException)]


def errors_in(found: Sequence[T | BaseException]) -> list[TocsinError]:
    """Return the storages' errors among these outcomes. Raises any other error: a bug, or a
    cancellation."""
    errors = [one for one in found if isinstance(one, BaseException)]
    for error in errors:
        if not isinstance(error, TocsinError):
            raise error
    return [error for error in errors if isinstance(error, TocsinError)]


def share_of_bound(bound: int, here: int, of: int) -> int:
    """Return the part of a queue's bound that holds at a cluster with `here` of the `of` shares of
    the queue; 0: no bound. A bound gives each cluster at least 1; but for that, the parts of all
    clusters are together not above it."""
    return max(1, bound * here // of) if bound else 0

"""Moves of dead letters from their queue to its dead-letter queue.

    a message's end has come ──one cursor write──▶ dead ──append──▶ in the dead letters ──▶ settled

The owner of a partition decides that a message goes there, durably and under its epoch, before
anything is appended (push.delivery.waiting). So the next owner of the partition moves it too, and
gives it to nobody (P3, P5). Each letter keeps key, body and headers, and says in more headers where
it comes from and why it is here. Letters are moved in the order of the log, many with one append,
each under an id made of its place and group. A crash after the append repeats it, and deduplication
answers the repetition (R8).

If an append is answered `unknown`, its letters are searched for before they are sent again. Sent
again, each would be a second one as soon as its id is forgotten, and a queue may remember no ids at
all. The search reads everything appended since, as soon as all of that is certified. It is not
certified while a copy is away (R10).

    [A replica is away for an hour, and a letter is tried every second: with a window of 300 s there
    would be twelve of it, with none 3,600.]
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from gateway.delivery.owned_partition import OwnedPartition
from gateway.publish.batch import Outcome, PendingPublish, is_duplicate
from gateway.publish.publisher import Publisher
from metadata.catalog import Queue
from push import limits
from push.delivery import DeadLetter
from push.errors import Refused, TocsinError, Unknown
from push.message import Message, dead_letter_headers
from push.places import Partition
from push.record import Record
from push.storage_port import PartitionState, Storage

_MESSAGES: Final = msgspec.json.Decoder(list[Message])


class LetterSearch:
    """Search of the dead-letter queue `target` for letters that one append sent, and whose outcome
    is unknown. `before`: states of the queue's partitions from before that append. `gave_up_on`:
    called with a queue's id; returns whether a commit to that queue was answered `unknown` and may
    yet store messages."""

    def __init__(
        self,
        storage: Storage,
        target: Queue,
        letter_ids: set[str],
        before: Sequence[PartitionState],
        gave_up_on: Callable[[str], bool],
    ) -> None:
        self._storage = storage
        self._target = target
        self._letter_ids = letter_ids
        self._gave_up_on = gave_up_on
        self._before = {state.partition: state for state in before}
        self._ends: dict[Partition, int] = {}
        """Partition → lowest end of its log that the search has seen. The letters can only be below
        that offset. The lowest counts, because a failover may have lost the end of the log."""

    async def found(self) -> set[str]:
        """Return the ids of those searched letters that the dead-letter queue has; none if the
        queue was deleted.

        Raises:
            Unknown: a commit may yet store some, or the queue's log is not certified to its end;
                searching again later is safe.
            Refused: the storage does not answer.
        """
        if self._gave_up_on(self._target.queue_id):
            raise Unknown("it may be stored soon, because its commit has not ended")
        states = await self._storage.partitions(self._target.queue_id)
        for state in states:
            # The end may be lower than before, because offsets that only a primary had were lost
            # with it.
            known = self._ends.get(state.partition, state.end)
            self._ends[state.partition] = min(known, state.end)
        if any(state.certified < self._ends[state.partition] for state in states):
            raise Unknown("it may be stored but not certified, because a copy is away")
        found: set[str] = set()
        for state in states:
            found |= await self._in(state)
        return found

    async def _in(self, state: PartitionState) -> set[str]:
        found: set[str] = set()
        before, end = self._before.get(state.partition), self._ends[state.partition]
        offset = state.start
        if before is not None and before.generation == state.generation:
            offset = max(offset, before.certified)
        while offset < end:
            read = await self._storage.read(state.partition, offset, limits.READ_BYTES_MAX)
            for record in read.records:
                messages = _MESSAGES.decode(b"[" + record.payload + b"]")
                found.update(self._letter_ids.intersection(one.id for one in messages if one.id))
            if not read.records:
                break
            offset = read.records[-1].last + 1
        return found


MOVE_AGAIN_S: Final = 1.0
"""Seconds between two tries to move dead letters of a partition that could not be moved."""
LOOKED_S: Final = 10.0
"""Age in seconds up to which the last look at a dead-letter queue is reused as the state before
letters are sent. A search for letters in doubt begins at that state."""
RUN_MIN: Final = 4
"""Smallest number of dead messages at consecutive offsets that are read as one range of the log.
Fewer are read by their single offsets."""
logger = logging.getLogger("tocsin.dead_letters")


class DeadLetters:
    """Moves of dead letters from this gateway's owned partitions to dead-letter queues. `queue_of`
    returns the dead-letter queue of a queue, and creates it if necessary."""

    def __init__(
        self,
        storage: Storage,
        publisher: Publisher,
        queue_of: Callable[[Queue], Awaitable[Queue]],
    ) -> None:
        self._storage = storage
        self._publisher = publisher
        self._queue_of = queue_of
        self._looks: dict[str, tuple[float, list[PartitionState]]] = {}
        """Id of a dead-letter queue → (time of the last look at it, by the loop's clock; states of
        its partitions then)."""
        self.moved_total = 0

    # enforces: P1
    async def move(self, owned: OwnedPartition) -> None:
        """Move the dead messages of this owned partition to the dead-letter queue. Returns when
        none is left, the owned partition has ended, or it leaves the rest to the next owner
        (`moves_dead_letters`). Messages that could not be moved are tried again after MOVE_AGAIN_S;
        `dead_letters_wait` has the reason meanwhile. A message that is no longer in the log (its
        record was deleted or damaged) is only settled."""
        left: list[DeadLetter] = []
        search: LetterSearch | None = None
        while not owned.ended:
            room = limits.DEAD_PER_MOVE_MAX - len(left)
            fresh = owned.delivery.take_dead_letters(room) if owned.moves_dead_letters else []
            batch = sorted([*left, *fresh])
            if not batch:
                return
            try:
                if search is not None:
                    left = batch
                    found = await search.found()
                    self._count(owned, len(found))
                    owned.dead_lettered([one for one in batch if owned.letter_id(one) in found])
                    batch = [one for one in batch if owned.letter_id(one) not in found]
                    search = None
                left, search = await self._send(owned, batch)
            except TocsinError as error:
                left = batch
                self._held_up(owned, error)
            if left:
                await asyncio.sleep(MOVE_AGAIN_S)
            else:
                owned.dead_letters_wait = None

    def _held_up(self, owned: OwnedPartition, error: TocsinError) -> None:
        if owned.dead_letters_wait is None:
            logger.warning("%r waits for its dead-letter queue: %s", owned.delivery, error)
        owned.dead_letters_wait = error

    async def _send(
        self, owned: OwnedPartition, batch: Sequence[DeadLetter]
    ) -> tuple[list[DeadLetter], LetterSearch | None]:
        """Move a batch. Returns (the messages that are not known to have arrived, a search for
        those of them whose outcome is unknown; None: no outcome is unknown)."""
        messages = await self._read(owned.partition, [one.offset for one in batch])
        gone = [one for one in batch if one.offset not in messages]
        if gone:
            owned.dead_lettered(gone, are_gone=True)
        batch = [one for one in batch if one.offset in messages]
        if not batch:
            return [], None
        target = await self._queue_of(owned.queue)
        before = await self._look(target)
        await owned.find_reasons(batch)
        letters = [_letter(owned, one, messages[one.offset]) for one in batch]
        answer = await self._publish(owned, target, batch, letters)
        left: list[DeadLetter] = []
        unknown: list[DeadLetter] = []
        for one, outcome in zip(batch, answer.outcomes, strict=True):
            if isinstance(outcome, TocsinError):
                left.append(one)
                self._held_up(owned, outcome)
            if isinstance(outcome, Unknown):
                unknown.append(one)
        if not unknown:
            return left, None
        ids = {owned.letter_id(one) for one in unknown}
        gave_up_on = self._publisher.commits.has_given_up
        return left, LetterSearch(self._storage, target, ids, before, gave_up_on)

    async def _publish(
        self,
        owned: OwnedPartition,
        target: Queue,
        batch: Sequence[DeadLetter],
        letters: Sequence[Message],
    ) -> PendingPublish:
        """Append `letters`, and settle the messages of `batch` whose letters are stored, unless the
        owned partition has ended by then. New letters are counted even then; letters that the
        dead-letter queue had already are not."""
        done: asyncio.Future[PendingPublish] = asyncio.get_running_loop().create_future()

        def answered(answer: PendingPublish) -> None:
            stored = zip(batch, answer.outcomes, strict=True)
            arrived = [one for one, outcome in stored if not isinstance(outcome, TocsinError)]
            if arrived and not owned.ended:
                owned.dead_lettered(arrived)
            self._count(owned, sum(_is_new(outcome) for outcome in answer.outcomes))
            if not done.done():
                done.set_result(answer)

        self._publisher.submit(PendingPublish(target, letters, answered, is_checked=True))
        return await done

    def _count(self, owned: OwnedPartition, count: int) -> None:
        self.moved_total += count
        owned.count_dead_letters(count)

    # --- Reading -------------------------------------------------------------------------------

    async def _read(self, partition: Partition, offsets: Sequence[int]) -> dict[int, Message]:
        """Return offset → message for these offsets, which ascend. Messages that the log no longer
        has are left out.

        Raises:
            Refused: the storage does not answer, or does not have the messages certified at the
                moment.
        """
        messages: dict[int, Message] = {}
        place = 0
        while place < len(offsets):
            end = place + 1
            while end < len(offsets) and offsets[end] == offsets[end - 1] + 1:
                end += 1
            if end - place >= RUN_MIN:
                await self._read_run(partition, offsets[place], offsets[end - 1], messages)
                place = end
                continue
            while end < len(offsets) and not _begins_run(offsets, end):
                end += 1
            while place < end:
                some = offsets[place:end]
                records = await self._storage.read_each(partition, some, limits.READ_BYTES_MAX)
                for offset, record in zip(some, records, strict=False):
                    if record is not None:
                        messages[offset] = _decoded(record, offset, offset)[0]
                place += max(1, len(records))
        return messages

    async def _read_run(
        self, partition: Partition, first: int, last: int, messages: dict[int, Message]
    ) -> None:
        while first <= last:
            read = await self._storage.read(partition, first, limits.READ_BYTES_MAX, until=last)
            for record in read.records:
                low, high = max(first, record.first), min(last, record.last)
                if low <= high:
                    decoded = _decoded(record, low, high)
                    messages.update(zip(range(low, high + 1), decoded, strict=True))
            if not read.records:
                if last >= read.certified and await self._is_there(partition, last):
                    raise Refused("storage_unavailable", "a record is not certified at the moment")
                return
            first = read.records[-1].last + 1

    async def _look(self, target: Queue) -> list[PartitionState]:
        """Return the states of the queue's partitions, up to LOOKED_S old."""
        now = asyncio.get_running_loop().time()
        looked_at, states = self._looks.get(target.queue_id, (-LOOKED_S, []))
        if now - looked_at >= LOOKED_S:
            states = list(await self._storage.partitions(target.queue_id))
            self._looks = {
                one: look for one, look in self._looks.items() if now - look[0] < LOOKED_S
            }
            self._looks[target.queue_id] = (now, states)
        return states

    async def _is_there(self, partition: Partition, offset: int) -> bool:
        """Whether the partition's log reaches beyond this offset. The message there was certified
        before. After a failover the storage may not know that for a moment (R10), and the message
        is not lost."""
        states = await self._storage.partitions(partition.queue_id)
        return any(state.partition == partition and offset < state.end for state in states)


def _letter(owned: OwnedPartition, dead: DeadLetter, message: Message) -> Message:
    """Return the copy of a dead message that goes to the dead-letter queue. Its headers say where
    the message was and why it is dead."""
    headers = dead_letter_headers(
        message.headers,
        reason=dead.reason,
        queue=owned.queue.name,
        group=owned.group.name,
        partition=str(owned.partition.number),
        offset=str(dead.offset),
        attempts=str(dead.attempts),
        id=message.id if message.id is not None else f"{owned.id_prefix}{dead.offset}",
        nack=owned.reasons.get(dead.offset),
    )
    return msgspec.structs.replace(message, headers=headers, id=owned.letter_id(dead), ttl_s=None)


def _is_new(outcome: Outcome) -> bool:
    return not (isinstance(outcome, TocsinError) or is_duplicate(outcome))


def _begins_run(offsets: Sequence[int], place: int) -> bool:
    run = offsets[place : place + RUN_MIN]
    return len(run) == RUN_MIN and run[-1] - run[0] == RUN_MIN - 1


def _decoded(record: Record, first: int, last: int) -> list[Message]:
    return _MESSAGES.decode(b"[" + record.slice(first, last) + b"]")

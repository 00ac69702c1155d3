"""Dead letters: a message that can go no further moves to the queue its queue names for them.

It keeps key, body and headers, and says in more headers where it comes from and why it is here.
The move is an append under an id made of its place and group, then a settle: a crash in between
repeats the append, which deduplication answers (R8). Where the append's own answer is `unknown`,
the letter is looked for before it is sent again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from gateway.graves import HEADER
from gateway.letter_search import LetterSearch
from gateway.publisher import Publisher
from gateway.routing import Answer
from gateway.slot import Slot
from metadata.catalog import Queue
from push.errors import Refused, TocsinError, Unknown
from push.message import Message
from push.ports import Partition, PartitionState, Storage
from push.record import Record
from push.waiting import DeadLetter

_MESSAGE = msgspec.json.Decoder(Message)
BURY_AGAIN_S: Final = 1.0
"""Between two tries to move a message that the dead-letter queue does not take."""
LOOKED_S: Final = 10.0
"""How long what was seen of a dead-letter queue stands for how it is before a letter is sent: so
much of it more is looked through where one is in doubt."""
logger = logging.getLogger("tocsin.dead_letters")


class _Sent(NamedTuple):
    answer: "asyncio.Future[Answer]"
    search: LetterSearch
    """Should the answer be `unknown`."""


class DeadLetters:
    """Moves them. `queue_of` finds or makes the dead-letter queue of a queue."""

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
        """Of dead-letter queues, by id: when each was looked at, and how it was."""
        self.moved_total = 0

    async def bury(self, slot: Slot, dead: DeadLetter) -> None:
        """Move one message; tries again until it is there. When the message itself is gone (its
        record was deleted or damaged), nothing happens.

        Those of one slot are put on their way in the order in which they are asked for, many at a
        time; one that has to be tried again may fall behind others.
        """
        in_doubt: LetterSearch | None = None
        while True:
            try:
                if in_doubt is not None and await in_doubt.found():
                    break
                async with slot.burying:
                    sent = await self._send(slot, dead)
                if sent is None:
                    return
                (outcome,) = (await sent.answer).outcomes
                in_doubt = sent.search if isinstance(outcome, Unknown) else None
                if not isinstance(outcome, TocsinError):
                    break
                raise outcome
            except TocsinError as error:
                logger.warning("%r waits for its dead-letter queue: %s", slot.delivery, error)
                await asyncio.sleep(BURY_AGAIN_S)
        self.moved_total += 1

    async def _send(self, slot: Slot, dead: DeadLetter) -> _Sent | None:
        """Hand it to the publisher: the future has its outcome. None: the message is gone."""
        read = await self._storage.read(slot.partition, dead.offset, 1, until=dead.offset)
        record = read.records[0] if read.records else None
        if record is None or not record.first <= dead.offset <= record.last:
            if dead.offset >= read.certified and await self._is_there(slot.partition, dead.offset):
                raise Refused("storage_unavailable", "its record is not certified at the moment")
            return None
        target = await self._queue_of(slot.queue)
        before = await self._look(target)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not done.done():
                done.set_result(answer)

        self._publisher.submit(target, [self._letter(slot, dead, record)], answered, checked=True)
        letter_id = self._letter_id(slot, dead)
        gave_up_on = self._publisher.commits.gave_up_on
        return _Sent(done, LetterSearch(self._storage, target, letter_id, before, gave_up_on))

    @staticmethod
    def _letter_id(slot: Slot, dead: DeadLetter) -> str:
        return f"{slot.id_prefix}{dead.offset}.{slot.group.group_id}"

    async def _look(self, target: Queue) -> list[PartitionState]:
        """How it is, or was not long ago."""
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
        """Whether the log has come so far. It was given out, so it was certified: a failover may
        know nothing of that for a moment (R10), and the message is not gone."""
        states = await self._storage.partitions(partition.queue_id)
        return any(state.partition == partition and offset < state.end for state in states)

    def _letter(self, slot: Slot, dead: DeadLetter, record: Record) -> Message:
        """The message as it stands in the dead-letter queue."""
        message = _MESSAGE.decode(record.slice(dead.offset, dead.offset))
        place = f"{slot.id_prefix}{dead.offset}"
        headers = {
            **(message.headers or {}),
            HEADER + "reason": dead.reason,
            HEADER + "queue": slot.queue.name,
            HEADER + "group": slot.group.name,
            HEADER + "partition": str(slot.partition.number),
            HEADER + "offset": str(dead.offset),
            HEADER + "attempts": str(dead.attempts),
            HEADER + "id": message.id if message.id is not None else place,
        }
        if dead.offset in slot.reasons:
            headers[HEADER + "nack"] = slot.reasons[dead.offset]
        return msgspec.structs.replace(
            message, headers=headers, id=self._letter_id(slot, dead), ttl_s=None
        )

"""Dead letters: a message that can go no further moves to the queue its queue names for them.

It keeps key, body and headers, and says in more headers where it comes from and why it is here.
The move is an append under an id made of its place and group, then a settle: a crash in between
repeats the append, which deduplication answers (R8).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from gateway.publisher import Publisher
from gateway.routing import Answer
from gateway.slot import Slot
from metadata.catalog import Queue
from push.errors import Refused, TocsinError
from push.message import Message
from push.ports import Partition, Storage
from push.record import Record
from push.waiting import DeadLetter

_MESSAGE = msgspec.json.Decoder(Message)
HEADER: Final = "tocsin-dead-letter-"
BURY_AGAIN_S: Final = 1.0
"""Between two tries to move a message that the dead-letter queue does not take."""
logger = logging.getLogger("tocsin.dead_letters")


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
        self.moved_total = 0

    async def bury(self, slot: Slot, dead: DeadLetter) -> None:
        """Move one message; tries again until it is there. When the message itself is gone (its
        record was deleted or damaged), nothing happens.

        Those of one slot are put on their way in the order in which they are asked for, many at a
        time; one that has to be tried again may fall behind others.
        """
        while True:
            try:
                async with slot.burying:
                    sent = await self._send(slot, dead)
                outcome = (await sent).outcomes[0] if sent is not None else None
                if isinstance(outcome, TocsinError):
                    raise outcome
            except TocsinError as error:
                logger.warning("%r waits for its dead-letter queue: %s", slot.delivery, error)
                await asyncio.sleep(BURY_AGAIN_S)
            else:
                self.moved_total += sent is not None
                return

    async def _send(self, slot: Slot, dead: DeadLetter) -> "asyncio.Future[Answer] | None":
        """Hand it to the publisher: the future has its outcome. None: the message is gone."""
        read = await self._storage.read(slot.partition, dead.offset, 1, until=dead.offset)
        record = read.records[0] if read.records else None
        if record is None or not record.first <= dead.offset <= record.last:
            if dead.offset >= read.certified and await self._is_there(slot.partition, dead.offset):
                raise Refused("storage_unavailable", "its record is not certified at the moment")
            return None
        target = await self._queue_of(slot.queue)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not done.done():
                done.set_result(answer)

        letter = self._letter(slot, dead, record)
        self._publisher.submit(target, [letter], answered, checked=True)
        return done

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
            message, headers=headers, id=f"{place}.{slot.group.group_id}", ttl_s=None
        )

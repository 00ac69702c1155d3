"""Dead letters: a message that can go no further moves to the queue its queue names for them.

It keeps key, body and headers, and says in more headers where it comes from and why it is here.
The move is an append under an id made of its place and group, then a settle: a crash in between
repeats the append, which deduplication answers (R8).
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from gateway.publisher import Publisher
from gateway.routing import Answer
from gateway.slot import Slot
from metadata.catalog import Queue
from push.errors import TocsinError
from push.message import Message
from push.record import Record
from push.waiting import DeadLetter

_MESSAGE = msgspec.json.Decoder(Message)
HEADER = "tocsin-dead-letter-"


class DeadLetters:
    """Moves them. `queue_of` finds or makes the dead-letter queue of a queue."""

    def __init__(self, publisher: Publisher, queue_of: Callable[[Queue], Awaitable[Queue]]) -> None:
        self._publisher = publisher
        self._queue_of = queue_of
        self.moved_total = 0

    async def move(self, slot: Slot, dead: DeadLetter, record: Record) -> None:
        """Append it to the dead-letter queue; durable when this returns.

        Raises:
            TocsinError: it is not there (yet).
        """
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
        letter = msgspec.structs.replace(
            message, headers=headers, id=f"{place}.{slot.group.group_id}", ttl_s=None
        )
        target = await self._queue_of(slot.queue)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if not done.done():
                done.set_result(answer)

        self._publisher.submit(target, [letter], answered, checked=True)
        outcome = (await done).outcomes[0]
        if isinstance(outcome, TocsinError):
            raise outcome
        self.moved_total += 1

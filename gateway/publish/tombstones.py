"""Tombstones of deleted queues: messages that still arrive go to the queue's dead letters.

Their reason is `queue_deleted`. The producer's receipt names their place there, as for any message
that is stored. A message that is sent again is a duplicate there, by its id or sequence. These
count for the deleted queue alone.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from gateway.publish.batch import PendingPublish
from metadata.catalog import (
    DELETED_QUEUES_MARK,
    DeletedQueue,
    Principal,
    Queue,
    QueueSettings,
    find_deleted_queue,
)
from metadata.port import Metadata
from push import limits
from push.errors import Refused
from push.message import Message, check_message, dead_letter_headers

REASON: Final = "queue_deleted"


class Tombstone(msgspec.Struct, frozen=True):
    """A deleted queue, and the queue that its messages go to."""

    deleted: DeletedQueue
    dead: Queue
    """The queue that takes its dead letters."""

    def redirect(self, publish: PendingPublish) -> None:
        """Make a publish to the deleted queue one to its dead letters."""
        messages, queue = publish.messages, self.dead
        publish.names = self.names(messages)
        publish.letters = list(map(self.letter, messages))
        publish.queue, publish.producer = queue, self.producer(publish.producer)
        if publish.origin is not None:
            publish.origin.queue = queue  # where they are stored

    def letter(self, message: Message) -> Message:
        """Return the dead letter that is stored in a message's place."""
        headers = dead_letter_headers(
            message.headers, reason=REASON, queue=self.deleted.name, attempts="0"
        )
        return msgspec.structs.replace(message, headers=headers, ttl_s=None)

    def names(self, messages: Sequence[Message]) -> list[str | None]:
        """Return the names under which the messages are remembered. They name the deleted queue,
        because several queues may share these dead letters (R8)."""
        return [
            f"{self.deleted.queue_id}.{message.id}" if message.id is not None else None
            for message in messages
        ]

    def producer(self, producer: bytes | None) -> bytes | None:
        """Return the producer under which the sequences of the deleted queue count (R6)."""
        if producer is None:
            return None
        queue_id = self.deleted.queue_id.encode()
        return blake2b(producer + queue_id, digest_size=16, person=b"buried").digest()


class Tombstones:
    """Tombstones of deleted queues that were published to since. `queue_of` finds or makes a
    queue's dead-letter queue."""

    def __init__(self, metadata: Metadata, queue_of: Callable[[Queue], Awaitable[Queue]]) -> None:
        self._metadata = metadata
        self._queue_of = queue_of
        self.by_queue: dict[str, Tombstone] = {}
        """Tombstones by the ids of deleted queues."""

    async def take(
        self, error: Refused, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        """Return the deleted queue of this name, to publish `messages` to. Its tombstone is made if
        any of them can be stored. Raises `error`, which the lookup of the name raised, if that is
        not queue_not_found, or if no such queue was deleted lately."""
        mark, unix_ms = self._metadata.mark(DELETED_QUEUES_MARK), int(time.time() * 1000)
        deleted = find_deleted_queue(mark, principal.tenant, name, unix_ms)
        if deleted is None or error.code.name != "queue_not_found":
            raise error
        stone = tombstone_queue(deleted)
        if any_storable(messages, stone.settings.message_bytes_max):
            dead = await self._queue_of(stone)
            self.by_queue[deleted.queue_id] = Tombstone(deleted, dead)
        return stone


def tombstone_queue(deleted: DeletedQueue) -> Queue:
    """Return a deleted queue as far as a publish to it needs it. No other queue has this id."""
    settings = QueueSettings(
        partitions=1,
        message_bytes_max=limits.MESSAGE_BYTES_MAX_MAX,
        dead_letter_queue=deleted.dead_letters,
    )
    return Queue(
        queue_id=deleted.queue_id,
        name=deleted.name,
        tenant=deleted.tenant,
        holder=deleted.holder,
        created_unix_ms=0,
        settings=settings,
        ring_epoch=1,
        members=(0,),
        hash_key=bytes(16),
    )


def any_storable(messages: Sequence[Message], message_bytes_max: int) -> bool:
    """Whether at least one is a message that a queue may take."""
    for message in messages:
        try:
            check_message(message, message_bytes_max)
        except Refused:
            continue
        return True
    return False


def missing_queue(principal: Principal, name: str, settings: QueueSettings) -> Queue:
    """Return a queue that neither catalog nor storage has. All that is published to it is refused,
    and each bad message with its reason. No other queue has this id."""
    return Queue(
        queue_id="",
        name=name,
        tenant=principal.tenant,
        holder=principal.name,
        created_unix_ms=0,
        settings=settings,
        ring_epoch=1,
        members=(0,),
        hash_key=bytes(16),
    )

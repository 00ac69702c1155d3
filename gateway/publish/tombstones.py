"""What still arrives for a queue that was deleted goes to its dead letters, reason `queue_deleted`.

Who publishes is told where it stands there, as of any message that is stored. Sent again it is a
duplicate there: under its id or sequence, which mean something for the deleted queue alone.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from gateway.publish.batch import any_storable
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
from push.letters import letter_headers
from push.message import Message

REASON: Final = "queue_deleted"


class Tombstone(msgspec.Struct, frozen=True):
    """Where what arrives for a deleted queue goes."""

    deleted: DeletedQueue
    dead: Queue
    """The queue that takes its dead letters."""

    def letter(self, message: Message) -> Message:
        """What is stored in its place."""
        headers = letter_headers(
            message.headers, reason=REASON, queue=self.deleted.name, attempts="0"
        )
        return msgspec.structs.replace(message, headers=headers, ttl_s=None)

    def names(self, messages: Sequence[Message]) -> list[str | None]:
        """Under what each is remembered: several queues may have these dead letters (R8)."""
        return [
            f"{self.deleted.queue_id}.{message.id}" if message.id is not None else None
            for message in messages
        ]

    def producer(self, producer: bytes | None) -> bytes | None:
        """Whose sequences are those of the deleted queue (R6)."""
        if producer is None:
            return None
        queue_id = self.deleted.queue_id.encode()
        return blake2b(producer + queue_id, digest_size=16, person=b"buried").digest()


class Tombstones:
    """Finds them. `queue_of` finds or makes the dead-letter queue of a queue; `burials` has, by the
    ids of deleted queues, where the publisher puts what is meant for them."""

    def __init__(
        self,
        metadata: Metadata,
        queue_of: Callable[[Queue], Awaitable[Queue]],
        burials: dict[str, Tombstone],
    ) -> None:
        self._metadata = metadata
        self._queue_of = queue_of
        self._burials = burials

    async def take(
        self, error: Refused, principal: Principal, name: str, messages: Sequence[Message]
    ) -> Queue:
        """The queue to publish these to, of a name that was looked up in vain. Raises what that
        said, where no such queue was deleted lately."""
        mark, unix_ms = self._metadata.mark(DELETED_QUEUES_MARK), int(time.time() * 1000)
        deleted = find_deleted_queue(mark, principal.tenant, name, unix_ms)
        if deleted is None or error.code.name != "queue_not_found":
            raise error
        stone = tombstone_queue(deleted)
        if any_storable(messages, stone.settings.message_bytes_max):
            dead = await self._queue_of(stone)
            self._burials[deleted.queue_id] = Tombstone(deleted, dead)
        return stone


def tombstone_queue(deleted: DeletedQueue) -> Queue:
    """What is left of it as a queue, for who is about to publish to it. No other has this id."""
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

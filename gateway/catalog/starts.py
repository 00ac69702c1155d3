"""Where the cursors of a new group begin."""

from collections.abc import Sequence

from metadata.catalog import GroupStart, Queue
from push.places import Partition
from push.ports import Start, Storage


async def starts_of(storage: Storage, queue: Queue, start: GroupStart) -> Sequence[Start]:
    """One for each partition. Raises TocsinError: the storage does not say what was when."""
    if isinstance(start, int):
        return [
            await storage.offset_at(Partition(queue.queue_id, number), start)
            for number in queue.members
        ]
    return [start] * len(queue.members)

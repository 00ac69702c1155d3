"""Dead letters of partitions that nobody owns: decided, and left behind unmoved.

A consumer leaves, or a gateway dies, between the decision that messages go to the dead letters and
their arrival there. The next owner moves them. Where none comes, this does, through the caretaker.
"""

import logging

from gateway.delivery.caretaker import Caretaker
from gateway.delivery.groups import Groups
from gateway.delivery.slot_context import Context
from metadata.catalog import Group, Principal, Queue
from metadata.client import Metadata
from push.errors import TocsinError

logger = logging.getLogger("tocsin.orphaned_letters")


class OrphanedLetters:
    """See the module."""

    def __init__(
        self, context: Context, groups: Groups, metadata: Metadata, caretaker: Caretaker
    ) -> None:
        self._context = context
        self._groups = groups
        self._metadata = metadata
        self._caretaker = caretaker

    async def look(self, *, is_all: bool) -> None:
        """Move what slots of this gateway have left behind; `is_all`: in every queue, whoever left
        it. What cannot be moved now is looked at again."""
        left, self._context.orphans = self._context.orphans, set()
        if is_all:
            left |= {queue.queue_id for queue in self._metadata.list_all_queues()}
        for queue_id in left:
            queue = self._metadata.queue_by_id(queue_id)
            if queue is None:
                continue
            try:
                await self._relieve(queue)
            except TocsinError as error:
                logger.info("dead letters of %s wait: %s", queue.name, error)
                self._context.orphans.add(queue_id)

    async def _relieve(self, queue: Queue) -> None:
        for group in self._metadata.list_groups(Principal(queue.holder, queue.tenant), queue):
            states = await self._context.storage.cursors(queue.queue_id, group.group_id)
            places = [state.place for state in states if state.dead]
            if places and await self._is_ours(group):
                for place in places:
                    async with self._caretaker.own(queue, group, place.partition):
                        pass  # its slot ends when they have arrived

    async def _is_ours(self, group: Group) -> bool:
        """Whether nobody will come and move them, nor another gateway sees to it."""
        row = await self._groups.row(group, fresh=True)
        if self._caretaker.is_served(group) or self._groups.others(row):
            return False
        return self._groups.presence.is_chosen(group.group_id)

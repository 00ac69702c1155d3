"""What was dropped is not made again: who still makes it comes late (R1: no id is used twice)."""

from typing import Final

from push.errors import Refused

KNOWN_MAX: Final = 10_000
"""Where one process has a store, only what is under way in it may still make something that was
dropped, and ends with it: so the latest are enough, and no file need know them."""


class Dropped:
    """Ids of the queues and groups that this process dropped last."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def add(self, any_id: str) -> None:
        """It was dropped, or is not there."""
        self._ids[any_id] = None
        if len(self._ids) > KNOWN_MAX:
            del self._ids[next(iter(self._ids))]

    def check_queue(self, queue_id: str) -> None:
        """Raises Refused(queue_not_found): it was."""
        if queue_id in self._ids:
            raise Refused("queue_not_found", f"the queue {queue_id} was dropped")

    def check_group(self, group_id: str) -> None:
        """Raises Refused(group_not_found): it was."""
        if group_id in self._ids:
            raise Refused("group_not_found", f"the group {group_id} was dropped")

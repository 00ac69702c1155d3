"""Looks now and then how far the logs are that somebody here follows, where other gateways append
too: a notice of theirs may be lost, and their process may die between the append and the notice
(R10)."""

import asyncio
import logging
from typing import Final

from gateway.tail import Tail
from push.errors import TocsinError
from push.ports import Storage

EVERY_S: Final = 2.0
logger = logging.getLogger("tocsin.watch")


class Watch:
    """See the module. `storage`: looks are answered or refused in time."""

    def __init__(self, storage: Storage, tail: Tail) -> None:
        self._storage = storage
        self._tail = tail
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="watch")

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for queue_id in self._tail.followed():
                try:
                    await self._look(queue_id)
                except TocsinError as error:
                    logger.debug("queue %s could not be looked at: %s", queue_id, error)
                except Exception:
                    logger.exception("looking at queue %s: unexpected", queue_id)

    async def _look(self, queue_id: str) -> None:
        for state in await self._storage.partitions(queue_id):
            if state.certified > self._tail.ends.get(state.partition, 0):
                self._tail.certified(state.partition, state.certified)

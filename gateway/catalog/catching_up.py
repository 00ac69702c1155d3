"""What other gateways have changed in the catalog a moment ago, for who asks for a name that is not
known here: perhaps the same client has just made it, through another one.

Everybody who comes while the catalog is read waits for the next time that it is: what is being read
may be from before. So there is one read at a time, and not more than one in CATCH_UP_EVERY_S,
however many names that nobody has are asked for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from metadata.catalog import Principal, Queue
from metadata.client import Metadata
from push.errors import Refused

CATCH_UP_EVERY_S: Final = 0.02


class CatchingUp:
    """See the module. `read` reads what has changed, and raises TocsinError: nobody answers."""

    def __init__(self, read: Callable[[], Awaitable[None]]) -> None:
        self._read = read
        self._next: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._began = float("-inf")

    async def __call__(self) -> None:
        """What had been changed before this was called is known when it returns. Raises what the
        reading raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._in_turn())
        await asyncio.shield(self._next)

    async def _in_turn(self) -> None:
        if self._reading is not None:
            await asyncio.wait([self._reading])  # however it ends: that is told who asked for it
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._began + CATCH_UP_EVERY_S - loop.time()))
        self._began = loop.time()
        self._reading, self._next = self._next, None
        await self._read()


async def find_queue(metadata: Metadata, principal: Principal, name: str) -> Queue:
    """The queue of this name, also where it was made through another gateway just now. Raises
    Refused: queue_not_found, metadata_unavailable."""
    try:
        return metadata.find_queue(principal, name)
    except Refused as error:
        if not metadata.is_shared or error.code.name != "queue_not_found":
            raise
    await metadata.catch_up()
    return metadata.find_queue(principal, name)

"""Keeping a reader's position: when it is saved, and that no earlier one replaces a later one.

A message is done when the next one is asked for, or the reader is closed in order. Saved is the
position behind what is done: a reader that dies in a message is given it again.
"""

import asyncio
import logging
from collections.abc import Callable
from inspect import isawaitable

from tocsin.api.positions import LockingPositionStore, PositionStore
from tocsin.proto.wire import Position

logger = logging.getLogger("tocsin")


class Keeper:
    """Saves what `position` returns, under `name`: after `every` messages that were done, or
    `every_s` seconds after the first of them, and when it is closed."""

    def __init__(
        self,
        store: PositionStore,
        name: str,
        *,
        every: int,
        every_s: float,
        position: Callable[[], Position | None],
    ) -> None:
        if every < 1 or not every_s > 0:
            raise ValueError(
                "a position is saved every 1 or more messages, every 0 or more seconds"
            )
        self._store = store
        self._name = name
        self._every = every
        self._every_s = every_s
        self._position = position
        self._saved: Position | None = None
        self._done = self._done_saved = 0
        self._moves = 0
        self._one_at_a_time = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._saving: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def load(self) -> Position | None:
        """What was kept; None: nothing. Raises what the store raises."""
        found = self._store.load(self._name)
        self._saved = await found if isawaitable(found) else found
        return self._saved

    def moved(self, done: int, moves: int) -> None:
        """`done` messages in all are done; `moves` is another number than before if the position
        has moved."""
        self._done = done
        if moves == self._moves:
            return
        self._moves = moves
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._every_s, self._save_soon)

    async def save_if_due(self) -> None:
        """Save, if so much is done that it is time. Raises what the store raised, now or when it
        was called last by the clock; what was not saved then is saved the next time."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._done - self._done_saved >= self._every:
            await self.save()

    async def save(self) -> None:
        """Save, unless nothing has moved. Raises what the store raises."""
        async with self._one_at_a_time:
            done, position = self._done, self._position()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if position is not None and position != self._saved:
                saved = self._store.save(self._name, position)
                if isawaitable(saved):
                    await saved
                self._saved = position
            self._done_saved = done

    def _save_soon(self) -> None:
        self._timer = None
        self._saving = asyncio.get_running_loop().create_task(
            self._save_by_the_clock(), name="tocsin-position"
        )

    async def _save_by_the_clock(self) -> None:
        try:
            await self.save()
        except Exception as error:
            logger.warning("the position of reader %s was not saved: %s", self._name, error)
            self._failure = error

    async def close(self) -> None:
        """Save for the last time and let go of the name. Raises what the store raises."""
        try:
            if self._saving is not None:
                await asyncio.wait((self._saving,))
            await self.save()
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the name."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(self._store, LockingPositionStore):
            self._store.release(self._name)

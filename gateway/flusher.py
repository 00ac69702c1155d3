"""Cursor writes of all deliveries of this gateway, gathered.

A cursor that moved is written with the next flush: at once when somebody waits for it (a
confirmed ack, a redelivery, an overflowing line), else after a few milliseconds, so that thousands
of acks become one row. Storage puts the writes into the group commit that is next. Those of one
lane (`push.lanes`) are written, and fail, together, and hold up nobody else's.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from push.errors import TocsinError, Unknown
from push.ports import CursorWrite, Partition, Storage, Written

FLUSH_AFTER_S: Final = 0.02
"""What a crash may make come again, of acks that nobody asked to be confirmed and that their client
does not say again."""
RETRY_AFTER_S: Final = 0.5


class Writer(Protocol):
    """Who has a cursor to write."""

    def take_write(self, *, wall_unix_ms: int) -> CursorWrite | None:
        """The change to write now; None: nothing, or one is under way."""

    def written(self, answer: Written) -> None:
        """It is durable."""

    def not_written(self, error: TocsinError) -> None:
        """It is not, or nobody knows; the change is kept."""

    def fenced(self) -> None:
        """A newer owner exists."""


class Flusher:
    """See the module."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._dirty: dict[Writer, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._flushes: set[asyncio.Task[None]] = set()
        self.fenced_writes = 0
        """Writes that the storage refused, because somebody else owned the place by then."""
        self.on_written: Callable[[Partition], None] = lambda _: None
        """Called with each partition of which something was settled: there may be room now."""

    def mark(self, writer: Writer, *, urgent: bool = False) -> None:
        """It has something to write; `urgent`: somebody waits for it."""
        self._dirty[writer] = None
        loop = asyncio.get_running_loop()
        if urgent:
            if self._soon is None:
                self._soon = loop.call_soon(self._flush)
        elif self._timer is None and self._soon is None:
            self._timer = loop.call_later(FLUSH_AFTER_S, self._flush)

    def _flush(self) -> None:
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None
        dirty, self._dirty = self._dirty, {}
        wall_unix_ms = int(time.time() * 1000)
        taken = [
            (writer, write)
            for writer in dirty
            if (write := writer.take_write(wall_unix_ms=wall_unix_ms)) is not None
        ]
        lanes: dict[int, list[tuple[Writer, CursorWrite]]] = {}
        for writer, write in taken:
            number = self._storage.lane(write.place.partition, "all").number
            lanes.setdefault(number, []).append((writer, write))
        for some in lanes.values():
            task = asyncio.get_running_loop().create_task(self._write(some), name="flush")
            self._flushes.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._flushes.discard(task)
        task.result()

    async def _write(self, taken: list[tuple[Writer, CursorWrite]]) -> None:
        try:
            answers = await self._storage.write_cursors([write for _, write in taken])
        except TocsinError as error:
            if error.code.retry or len(taken) == 1:
                self._not_written(taken, error)
            else:  # it says something of one of them; none was written
                await asyncio.gather(*(self._write([one]) for one in taken))
            return
        except Exception as error:  # a bug: nobody's write stays under way for ever
            self._not_written(taken, Unknown(f"internal: {error!r}"))
            raise
        failed: Exception | None = None
        for (writer, write), answer in zip(taken, answers, strict=True):
            try:
                self._written(writer, write, answer)
            except Exception as error:  # of one: the others hear of theirs
                failed = failed or error
        if failed is not None:
            raise failed

    def _not_written(self, taken: list[tuple[Writer, CursorWrite]], error: TocsinError) -> None:
        loop = asyncio.get_running_loop()
        for writer, _ in taken:
            writer.not_written(error)
            # Whatever it was: nobody else would write it, and a slot that ends waits for that.
            # After a failover what was certified is not, for a moment (R10).
            loop.call_later(RETRY_AFTER_S, self.mark, writer)

    def _written(self, writer: Writer, write: CursorWrite, answer: Written) -> None:
        if answer.fenced:
            self.fenced_writes += 1
            writer.fenced()
        else:
            self.on_written(write.place.partition)
            writer.written(answer)

    async def drain(self) -> None:
        """Write everything that is dirty."""
        while self._dirty or self._flushes:
            self._flush()
            if self._flushes:
                await asyncio.wait(self._flushes)

"""Cursor writer, which gathers the cursor writes of all deliveries of this gateway.

A cursor that moved is written with the next flush. The flush comes at once when something waits for
it (a confirmed ack, a redelivery, an overflowing line). Otherwise it comes after FLUSH_AFTER_S, so
that thousands of acks become one row. The storage puts the writes into its next transaction.
Writes of one lane (`push.storage_port.Lane`) succeed or fail together, and hold up no other
lane's.

If a commit of published records is under way in the lane, or one is expected soon
(`push.commit_sharing`), the writes wait here and go with the records published next. Handed over
meanwhile, they would be a transaction of their own, which costs as much as one of messages, and
which the next records would wait for. If commits are large, or none comes, the writes are handed
over all the same.
"""

import asyncio
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Final, Protocol

from gateway.publish.commits import GroupCommit
from push.errors import TocsinError, Unknown
from push.places import CursorPlace, Partition
from push.storage_port import CursorWrite, Storage, Written
from runtime.loop.end_of_turn import call_guarded, report_bug

FLUSH_AFTER_S: Final = 0.02
"""Seconds after which a changed cursor is flushed, if nothing waits for the write. The write may
then wait for a commit (commits.HELD_S). A crash may lose the unconfirmed acks of both times, and
their messages come again."""
RETRY_AFTER_S: Final = 0.5


class CursorSource(Protocol):
    """Something that has a cursor to write: an owned partition."""

    @property
    def place(self) -> CursorPlace:
        """The (group, partition) of the cursor."""

    def take_write(self, *, wall_unix_ms: int) -> CursorWrite | None:
        """Return the change to write now; None: nothing, or one is under way."""

    def written(self, answer: Written) -> None:
        """Note that the change that was taken last is durable."""

    def not_written(self, error: TocsinError) -> None:
        """Keep the change that was taken last, because it is not durable, or that is not known."""

    def fenced(self) -> None:
        """End, because a newer owner exists."""


Taken = list[tuple[CursorSource, CursorWrite]]
"""Cursors, with the change of each that is being written."""


class CursorWriter:
    """Writer of all cursors of this gateway, by lane. `commits`: the commits of published records,
    which the writes of a lane wait for; None: nothing is published here."""

    def __init__(self, storage: Storage, commits: GroupCommit | None = None) -> None:
        self._storage = storage
        self._commits = commits
        if commits is not None:
            commits.on_begin.append(self.on_begin)
            commits.on_end.append(self.on_end)
        self._dirty: dict[CursorSource, None] = {}
        self._held: dict[int, dict[CursorSource, None]] = {}
        """Lane number → cursors whose writes wait for a commit of published records there."""
        self._until: dict[int, tuple[float, asyncio.Handle]] = {}
        """Lane number → (loop's time, timer) at which the wait of its cursors in `_held` ends.
        uvloop's handle has no time if that is less than half a millisecond away."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._flushes: set[asyncio.Future[list[Written]]] = set()
        self.fenced_writes = 0
        """Number of writes that the storage refused, because the place had a newer owner."""
        self._watchers: list[Callable[[Partition], None]] = []

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def mark(self, source: CursorSource, *, urgent: bool = False) -> None:
        """Write a cursor with the next flush. `urgent`: something waits for the write, so the flush
        is in the next turn of the loop."""
        self._dirty[source] = None
        if urgent:
            if self._soon is None:
                self._soon = self._loop.call_soon(self._flush)
        elif self._timer is None and self._soon is None:
            self._timer = self._loop.call_later(FLUSH_AFTER_S, self._flush)

    def watch(self, written: Callable[[Partition], None]) -> None:
        """Call `written` with the partition of each cursor write that has become durable. If
        messages were settled, there may be room now."""
        self._watchers.append(written)

    def on_begin(self, lane: int) -> None:
        """Hand over to the storage the writes that wait in this lane, where a commit has begun."""
        until = self._until.pop(lane, None)
        if until is not None:
            until[1].cancel()
        held = self._held.pop(lane, None)
        if held:
            self._write_those(held)

    def on_end(self, lane: int) -> None:
        """Hand over the writes that wait in this lane, unless the next commit is near."""
        if lane not in self._held:
            return
        wait_s = self._commits.cursors_wait_s(lane) if self._commits is not None else 0.0
        if wait_s:
            self._hold_for(lane, wait_s)
        else:
            self.on_begin(lane)

    def _flush(self) -> None:
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None
        dirty, self._dirty = self._dirty, {}
        lanes: set[int] = set()
        for source in dirty:
            number = self._storage.lane(source.place.partition, "all").number
            self._held.setdefault(number, {})[source] = None
            lanes.add(number)
        for number in lanes:
            self.on_end(number)
            if number in self._held:
                self._loop.call_soon(self.on_end, number)  # if the commit that is near never comes

    def _hold_for(self, number: int, wait_s: float) -> None:
        """End the wait of a lane in `wait_s`, or before, if that is set already."""
        until, at = self._until.get(number), self._loop.time() + wait_s
        if until is None or until[0] > at:
            if until is not None:
                until[1].cancel()
            self._until[number] = (at, self._loop.call_at(at, self._on_late, number))

    def _on_late(self, number: int) -> None:
        """Hand over the writes of a lane whose next commit has not begun in time."""
        if self._commits is not None:
            self._commits.on_missed(number)
        self.on_begin(number)

    def _write_those(self, sources: dict[CursorSource, None]) -> None:
        """Hand over to the storage the writes of these cursors, all of one lane."""
        wall_unix_ms = int(time.time() * 1000)
        taken: Taken = []
        for source in sources:
            try:
                write = source.take_write(wall_unix_ms=wall_unix_ms)
            except Exception as error:  # the others, and commits, go on
                report_bug(error)
            else:
                if write is not None:
                    taken.append((source, write))
        if taken:
            self._hand_over(taken)

    def _hand_over(self, taken: Taken) -> None:
        written = asyncio.ensure_future(self._storage.write_cursors([one[1] for one in taken]))
        self._flushes.add(written)
        written.add_done_callback(partial(self._on_answer, taken))

    def _on_answer(self, taken: Taken, written: asyncio.Future[list[Written]]) -> None:
        """Pass the storage's answer on to each cursor. Bugs are raised, to the loop, when all of
        them have theirs."""
        self._flushes.discard(written)
        if written.cancelled():  # the loop ends
            return
        error = written.exception()
        if error is None:
            for (source, write), answer in zip(taken, written.result(), strict=True):
                call_guarded(self._written, source, write, answer)
        elif not isinstance(error, TocsinError):  # a bug; no write stays under way for ever
            self._not_written(taken, Unknown(f"internal: {error!r}"))
            raise error
        elif error.code.retry or len(taken) == 1:
            self._not_written(taken, error)
        else:  # the answer is about one of them, and it changes nothing to write others again
            for one in taken:
                self._hand_over([one])

    def _not_written(self, taken: Taken, error: TocsinError) -> None:
        for source, _ in taken:
            source.not_written(error)
            # Whatever the error was, nothing else would write it, and an owned partition that ends
            # waits for that. After a failover certified offsets are not certified for a moment
            # (R10).
            self._loop.call_later(RETRY_AFTER_S, self.mark, source)

    def _written(self, source: CursorSource, write: CursorWrite, answer: Written) -> None:
        if answer.fenced:
            self.fenced_writes += 1
            source.fenced()
        else:
            for written in self._watchers:
                written(write.place.partition)
            source.written(answer)

    async def drain(self) -> None:
        """Write all changed cursors. Returns when no write is waiting or under way. One that fails
        is written again later, and not waited for."""
        while self._dirty or self._held or self._flushes:
            self._flush()
            for number in list(self._held):
                self.on_begin(number)
            if self._flushes:
                await asyncio.wait(self._flushes)

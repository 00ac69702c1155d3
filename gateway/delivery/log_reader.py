"""Reads of an owned partition: records of the log in order, and single records for its lines.

Reads happen in the background; `wake` is called when one has ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Final

from gateway.deliverylog.log import CommitTimes
from gateway.publish.tail import Tail
from push import limits
from push.errors import Refused, TocsinError
from push.places import Partition
from push.record import Record
from push.storage_port import Storage

LINES_PER_READ_MAX: Final = 64
DEAD: Final = "dead"
"""Name of the job that moves dead letters."""
KEPT_MAX: Final = 16
KEPT_BYTES_MAX: Final = 2048
"""Size in bytes up to which a message is kept in memory after it was read for a line; the latest
KEPT_MAX are. The head of a stuck key is tried again and again, and each time its whole record would
be read for it (P8)."""
RETRY_AFTER_S: Final = 0.5


class LogPrefetch:
    """Reader of the log for one owned partition, by jobs in the background: records ahead of the
    frontier, and messages that wait in lines."""

    def __init__(
        self, storage: Storage, tail: Tail, partition: Partition, wake: Callable[[], None]
    ) -> None:
        self._storage = storage
        self._tail = tail
        self._partition = partition
        self._wake = wake
        self._ahead: deque[Record] = deque()
        self._current: tuple[Record, CommitTimes | None] | None = None
        self._lines: dict[int, Record | None] = {}
        self._kept: dict[int, Record] = {}
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self.next_number = count().__next__
        """Function that returns 0, 1, 2 …, a number for the name of each job that must run,
        whichever others are running."""
        self.nothing_until = 0
        """Certified end at the last read that brought no record. From where that read began,
        nothing is retained below this offset. 0: there was no such read."""

    @property
    def reading(self) -> bool:
        """Whether the log is being read."""
        return "log" in self._jobs

    @property
    def reads(self) -> bool:
        """Whether anything that may be given is being read: the log, or messages in a line."""
        return any(name != DEAD for name in self._jobs)

    def log(self, offset: int) -> tuple[Record, CommitTimes | None] | None:
        """Return (the record that holds `offset` or else the next one retained, the times of its
        commit if they are in memory). None: the record is not in memory. It is being read then,
        unless `nothing_until` is above `offset`."""
        current = self._current
        if current is not None and current[0].first <= offset <= current[0].last:
            return current
        self._current = None
        while self._ahead and self._ahead[0].last < offset:
            self._take_ahead()
        if self._ahead:
            self._current = (self._take_ahead(), None)
        else:
            self._current = self._tail.get(self._partition, offset)
        if self._current is None and self.nothing_until <= offset:
            self.job("log", self._read_log(offset))
        return self._current

    def _take_ahead(self) -> Record:
        record = self._ahead.popleft()
        self._tail.ahead_bytes -= record.memory_bytes
        return record

    async def _read_log(self, offset: int) -> None:
        tail = self._tail
        is_ample = tail.ahead_bytes < limits.AHEAD_BYTES_MAX
        bytes_max = limits.READ_BYTES_MAX if is_ample else limits.PUSH_BYTES_MAX
        tail.ahead_bytes += bytes_max  # many partitions may begin to read in one turn of the loop
        try:
            read = await tail.read(self._partition, offset, bytes_max)
        finally:
            tail.ahead_bytes -= bytes_max
        self._ahead.extend(read.records)
        tail.ahead_bytes += sum(record.memory_bytes for record in read.records)
        if not read.records:
            if read.certified <= offset:
                # A caller that knew of more reads again, but not at once: a store knows less after
                # a failover.
                raise Refused("storage_unavailable", "a record is not certified at the moment")
            self.nothing_until = read.certified

    def line(self, offset: int) -> tuple[Record | None] | None:
        """Return (the record that holds the message at `offset`, which waits in a line; or None if
        the log no longer has it). None: the record is not in memory (see `read_lines`)."""
        current = self._current
        if current is not None and current[0].first <= offset <= current[0].last:
            return (current[0],)
        kept = self._kept.pop(offset, None)
        if kept is not None:
            self._kept[offset] = kept
            return (kept,)
        if offset not in self._lines:
            return None
        record = self._lines.pop(offset)
        if record is not None:
            self._keep(record, offset)
        return (record,)

    def _keep(self, record: Record, offset: int) -> None:
        if record.header.sizes[offset - record.first] <= KEPT_BYTES_MAX:
            self._kept[offset] = record.alone(offset)
            if len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]

    def read_lines(self, offsets: Sequence[int]) -> None:
        """Read the records of these messages in the background, but for those in memory. If such a
        read is under way, nothing happens. The caller names LINES_PER_READ_MAX at most."""
        if "lines" not in self._jobs:
            wanted = [o for o in offsets if o not in self._lines and o not in self._kept]
            if wanted:
                self.job("lines", self._read_lines(wanted))

    async def _read_lines(self, offsets: Sequence[int]) -> None:
        """Read the records with one call. One after another, each would wait for a turn of the
        reader's thread and one of the loop."""
        wanted = sorted(offsets)
        records = await self._storage.read_each(self._partition, wanted, limits.READ_BYTES_MAX)
        self._lines.update(zip(wanted, records, strict=False))

    def job(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background and call `wake` after it, after RETRY_AFTER_S if it failed.

        If a job of this name is running, or has just finished, `work` is dropped. Work that must
        not be dropped uses a name of its own (`next_number`).
        """
        if name in self._jobs:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {self._partition}")
        self._jobs[name] = task
        task.add_done_callback(lambda task: self._ended(name, task))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._jobs[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._wake()
        elif isinstance(error, TocsinError):
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._wake)
        else:
            raise error

    def cancel(self) -> None:
        """Cancel all jobs, also the move of dead letters. `wake` is not called any more, and no
        longer referenced. Otherwise each owned partition that has ended would wait for the garbage
        collector."""
        self._wake = _nobody
        for task in list(self._jobs.values()):
            task.cancel()
        while self._ahead:
            self._take_ahead()


def _nobody() -> None:
    """Do nothing. Called in place of `wake` when the owned partition has ended."""

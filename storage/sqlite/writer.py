"""The writer of the embedded store: one thread, one connection, one transaction at a time.

While a commit runs, the next acts queue up; together they are the next transaction. That is the
group commit: as large as the load makes it, never delayed by a timer. What nobody waits for goes
beside it, one act to a transaction, so that nobody waits because of it either.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from push.errors import Refused, TocsinError, Unknown
from push.histogram import Histogram, Took
from push.places import Partition
from push.storage_port import WakeUp
from storage.sqlite.backup import BackupCopy
from storage.sqlite.checkpoint import Checkpointer
from storage.sqlite.open import WAL_BYTES_MAX, StoreConnections, mark_clean
from storage.sqlite.scheduling import CommitHandoff, SharedCore, cores
from storage.sqlite.state import WriteState
from storage.sqlite.trim import Trimmer

T = TypeVar("T")
BYTES_PER_COMMIT_MAX: Final = 8 * 1_048_576
ACTS_PER_COMMIT_MAX: Final = 4096
"""A transaction takes what is queued up to these bounds: memory, and the time others wait."""
_BATCHES_PER_SWEEP: Final = 16
"""Under load, one slice of garbage goes with every so many batches."""
REST_S: Final = 0.25
"""Nobody has come for so long: what is left in the WAL goes into the file."""
BESIDE_S: Final = 0.005
"""Nobody else has come for so long: what goes beside others goes alone."""
_COMMITS_PER_LOOK: Final = 64
"""Between two looks at the length of the WAL; 64 of the largest commits are 512 MiB."""


@dataclass(slots=True)
class WriteTask:
    """Something that happens wholly or not at all; `run` is called in the writer's thread."""

    run: Callable[[], Any]
    future: "asyncio.Future[Any]"
    size: int
    is_beside: bool = False
    """As `submit` has it."""


Answer = tuple["asyncio.Future[Any]", Any, Exception | None]


class StoreWriter:
    """Executes acts in their order. After a failed commit it refuses everything (R31). `readers`
    is held by whoever reads the file."""

    def __init__(
        self,
        opened: StoreConnections,
        books: WriteState,
        trimmer: Trimmer,
        loop: asyncio.AbstractEventLoop,
        *,
        readers: threading.Lock,
        on_fatal: Callable[[str], None] | None,
    ) -> None:
        self.failure = ""
        """What went wrong, so that nothing is accepted any more; empty: nothing."""
        self.wake_up: WakeUp | None = None
        self.commits = 0
        self._commit_s = Histogram()
        self.took = (Took("fsync", "", "", self._commit_s),)
        """How long each COMMIT took, its fsync included. The thread's; to be read from any."""
        self._opened = opened
        self._connection: sqlite3.Connection = opened.writer
        self._books = books
        self._trimmer = trimmer
        self._loop = loop
        self._on_fatal = on_fatal
        self._wal = Path(f"{opened.path}-wal")
        self._readers = readers
        self._queue: queue.SimpleQueue[WriteTask | None] = queue.SimpleQueue()
        self._beside: deque[WriteTask] = deque()
        """The thread's: what goes beside others, and has come for that."""
        self._ended = float("-inf")
        """When the last transaction of others did."""
        self._copies: deque[BackupCopy] = deque()
        self._batches = 0
        self._carrier = Checkpointer(
            opened.writer, opened.mark, opened.slicer, opened.file, on_broken=self.fail
        )
        self._turn = CommitHandoff()
        self._closing = False
        self._refusal = ""
        self._thread = threading.Thread(target=self._run, name="tocsin-store-writer", daemon=True)
        self._thread.start()
        self._core = SharedCore(loop, self._thread.native_id or -1, cores())

    def submit(
        self, run: Callable[[], T], size: int = 0, *, is_beside: bool = False
    ) -> "asyncio.Future[T]":
        """Execute an act: it is handed over when this returns, and the future has its answer once
        that is durable. Who gives the future up does not take back the act. `is_beside`: nobody
        waits for it. One of these goes with each transaction of others, in front of them, and alone
        where nobody else comes.

        What the future raises:
            Unknown: the commit failed, or nobody knows whether it did.
            TocsinError: what the act itself raised; it changed nothing. Refused: nothing is
                accepted any more.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self.failure or self._refusal:
            future.set_exception(Refused("storage_unavailable", self.failure or self._refusal))
        else:
            self._core.handed_over(size)
            if not is_beside and self._turn.wanted(size):
                self._loop.call_soon(self._turn.stand)  # what goes with it is handed over by then
            self._queue.put(WriteTask(run, future, size, is_beside))
        return future

    def refuse(self, why: str) -> None:
        """Accept nothing any more; what was accepted is executed."""
        self._refusal = why
        self._core.part()

    async def copy(self, copying: BackupCopy) -> None:
        """Copy the store, with all that was accepted before this call, while acts go on. Raises
        what `BackupCopy.wait` and `submit` raise."""
        if self.failure:
            raise Refused("storage_unavailable", self.failure)
        begun: asyncio.Future[None] = self._loop.create_future()
        begun.add_done_callback(lambda done: copying.end_if(done.exception()))
        self._queue.put(WriteTask(lambda: self._copies.append(copying), begun, 0))
        await copying.wait()

    def close(self) -> None:
        """Finish what was accepted, mark the file as cleanly closed, end the thread. Blocks."""
        self._queue.put(None)
        self._thread.join()

    def fail(self, reason: str) -> None:
        """Accept nothing any more, and tell who can stop the process. From any thread."""
        if not self.failure:
            self.failure = reason
            if self._on_fatal is not None:
                self._call(self._on_fatal, reason)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    # --- In the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            is_free = self._queue.empty() and not self.failure
            if not self.failure and self._carrier.is_due(is_free=is_free):
                self._carrier.carry()
            elif is_free and self._trimmer.pending():
                self._batches += 1
                self._commit(self._with_one([]), sweep=True)
            else:
                self._execute(self._wait())
            while self._copies:
                self._copies.popleft().run(self._connection, self._turn_of_copy)
        self._carrier.let_go()
        self._carrier.close()
        if not self.failure:
            try:
                mark_clean(self._connection)
            except sqlite3.Error as error:
                self.fail(f"the store could not be closed: {error}")

    def _turn_of_copy(self, wait_s: float) -> None:
        """One batch in the middle of a copy, if there is one within `wait_s`."""
        if not self._closing and not self.failure:
            batch: list[WriteTask] = []
            with contextlib.suppress(queue.Empty):
                first = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
                batch = self._take(first)
            self._execute(self._with_one(batch))
            if batch and not self.failure and self._carrier.is_due(is_free=False):
                self._carrier.carry()
        if self._closing or self.failure:
            why = self.failure or "the broker is going down"
            raise Refused("storage_unavailable", f"the copy was stopped: {why}")

    def _wait(self) -> list[WriteTask]:
        """What comes next; where nobody comes, first what goes beside others, then the file has
        everything."""
        batch: list[WriteTask] = []
        while not (batch or self._closing or self.failure):
            wait_s: float | None = None
            if self._beside and self._queue.empty() and self._trimmer.pending():
                return []  # they go with a slice of garbage
            if self._beside:
                wait_s = max(0.0, self._ended + BESIDE_S - time.perf_counter())
            elif self._carrier.has_rest:
                wait_s = REST_S
            try:
                batch = self._take(self._sleep(wait_s))
            except queue.Empty:
                if self._beside:
                    break
                self._carrier.finish()
        if self.failure and not (batch or self._closing):
            return self._take()
        return self._with_one(batch)

    def _sleep(self, wait_s: float | None) -> WriteTask | None:
        """Until something comes; raises queue.Empty when that takes too long."""
        self._turn.is_idle = True
        try:
            return self._queue.get(timeout=wait_s)
        finally:
            self._turn.is_idle = False

    def _with_one(self, batch: list[WriteTask]) -> list[WriteTask]:
        """And one of what goes beside others, if there is one. In front: it writes down first what
        the books have, and they have nothing yet of the others'."""
        return [self._beside.popleft(), *batch] if self._beside else batch

    def _execute(self, batch: list[WriteTask]) -> None:
        self._batches += 1
        if self.failure:
            self._refuse([*batch, *self._beside])
            self._beside.clear()
        elif batch:
            busy_sweep = self._batches % _BATCHES_PER_SWEEP == 0 and self._trimmer.has_garbage
            self._commit(batch, sweep=busy_sweep)
            self._turn.over()
            if not batch[-1].is_beside:  # others stand behind it
                self._ended = time.perf_counter()

    def _take(self, *first: WriteTask | None) -> list[WriteTask]:
        """Everything that is queued, within the bounds, behind what was taken before; waits for at
        least one act. What goes beside others is put aside. Sets `_closing` when it meets the end:
        nothing is left aside then."""
        batch: list[WriteTask] = []
        size = 0
        taken = list(first)
        while size < BYTES_PER_COMMIT_MAX and len(batch) < ACTS_PER_COMMIT_MAX:
            if not taken and (batch or self._beside) and self._queue.empty():
                break
            act = taken.pop() if taken else self._queue.get()
            if act is None:
                self._closing = True
                batch += self._beside
                self._beside.clear()
                break
            if act.is_beside:
                self._beside.append(act)
                continue
            batch.append(act)
            size += act.size
        return batch

    def _commit(self, batch: list[WriteTask], *, sweep: bool) -> None:
        books = self._books
        answers: list[Answer] = []
        try:
            for act in batch:
                try:
                    answers.append((act.future, act.run(), None))
                except TocsinError as error:
                    answers.append((act.future, None, error))
            if sweep:
                books.flush()
                self._trimmer.sweep()
            books.flush()
            if self._connection.in_transaction:
                self._turn.over()
                began = time.perf_counter()
                self._connection.execute("COMMIT")
                self._commit_s.add(time.perf_counter() - began)
                self._carrier.committed(sum(act.size for act in batch))
                self.commits += 1
                if self.commits % _COMMITS_PER_LOOK == 0:
                    self._cut_wal()
        except Exception as error:
            # The books are ahead of the file now, and after a failed fsync nobody knows what the
            # file is: the process has to start again from it. [Pages are marked clean after a
            # failed fsync: a second COMMIT succeeds, and lies.]
            reason = f"a commit failed ({type(error).__name__}: {error}): stopped"
            self.fail(reason)
            self._call(self._deliver, [(act.future, None, Unknown(reason)) for act in batch], {})
            return
        certified, books.certified = books.certified, {}
        if answers:
            self._call(self._deliver, answers, certified)
        books.shrink()

    def _cut_wal(self) -> None:
        """Readers that never pause keep the WAL from starting anew: when it has grown too long,
        they wait until it has been carried into the file and cut (R31)."""
        if self._wal.exists() and self._wal.stat().st_size > WAL_BYTES_MAX:
            with self._readers:
                self._carrier.let_go()
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _refuse(self, batch: list[WriteTask]) -> None:
        refused = Refused("storage_unavailable", self.failure)
        self._call(self._deliver, [(act.future, None, refused) for act in batch], {})

    # --- On the loop ---------------------------------------------------------------------------

    def _deliver(self, answers: list[Answer], certified: dict[Partition, int]) -> None:
        try:
            if self.wake_up is not None:
                for partition, end in certified.items():
                    self.wake_up(partition, end)
        finally:
            for future, result, failure in answers:
                if future.done():  # its caller was cancelled
                    continue
                if failure is not None:
                    future.set_exception(failure)
                else:
                    future.set_result(result)

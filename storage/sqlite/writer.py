"""The writer of the embedded store: one thread, one connection, one transaction at a time.

While a transaction runs, the next tasks queue up; together they are the next one. It is as large
as the load makes it, and the writer never waits for more. A background task, which no
caller waits for, goes with each transaction, one at a time, so that it delays no other task.

The loop hands tasks over to the writer's thread, and both need the interpreter's lock for nearly
all they do. Two devices keep a small commit from waiting for it:

`SharedCore` keeps the writer's thread on the core of the loop while commits are small. Linux puts a
thread that wakes up on a core that is idle, so each turn woke another core. That takes a tenth of a
millisecond if the core was halted, and its caches have nothing of what the other thread has just
written. On one core a turn is a switch. With large commits there is enough work that needs no lock
(SQLite, the kernel), and two cores do more. The loop itself runs wherever the kernel puts it,
because threads and processes that it starts would stay where it was kept. measured:
docs/benchmarks/tuning.md#the-writer-on-the-loops-core

`CommitHandoff` gives the interpreter's lock to the writer's thread from the beginning of a commit
until its COMMIT. The writer has slept, has to wake up, and only then asks for the lock. The loop,
which goes from socket to socket, gives the lock up at each of them for as long as a read takes. It
takes the lock back before the writer is awake, and each time Python's timer of half a millisecond,
which would force the loop to give it up, starts again. So the writer began milliseconds after it
had been handed a commit, and waited as long again between two statements (measured:
docs/benchmarks/tuning.md#the-loop-waits-until-the-writers-commit). Therefore the loop waits for as
long as the statements take. It would need the lock for anything else that it did meanwhile. For the
fsync, which needs no lock, it does not wait.
"""

import asyncio
import contextlib
import ctypes
import os
import queue
import sqlite3
import threading
import time
from asyncio import AbstractEventLoop, TimerHandle
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
from storage.sqlite.open import WAL_BYTES_MAX, StoreConnections
from storage.sqlite.state import WriteState
from storage.sqlite.trim import Trimmer

T = TypeVar("T")
BYTES_PER_COMMIT_MAX: Final = 8 * 1_048_576
TASKS_PER_COMMIT_MAX: Final = 4096
"""Most tasks of one transaction, because of the memory, and the time that later tasks wait."""
_BATCHES_PER_SWEEP: Final = 16
"""Batches between two slices of garbage under load."""
IDLE_S: Final = 0.25
"""Time in seconds without a task after which the rest of the WAL is copied into the file."""
BACKGROUND_S: Final = 0.005
"""Time in seconds without another transaction after which a background task has one of its own."""
_COMMITS_PER_WAL_CHECK: Final = 64
"""Commits between two looks at the length of the WAL; 64 of the largest are 512 MiB."""
SMALL_BYTES: Final = 128 * 1024
"""Largest size in bytes of a task for which the writer is pinned to the loop's core."""
PINNED_S: Final = 0.25
"""Time in seconds after which a pinned writer is released, until the next small task. So the thread
of an idle store is not pinned."""
UNPINNED_S: Final = 1.0
"""Time in seconds after a large task for which the writer is not pinned."""
HANDOFF_S_MAX: Final = 0.002
"""Longest time in seconds that the loop waits for the writer to reach its COMMIT, doing nothing
else."""
HANDOFF_BYTES_MIN: Final = 4 * 1024
"""Size in bytes of a task below which the loop does not wait, because it has hardly anything else
to do, and gives the lock up by itself."""
HANDOFF_BYTES_MAX: Final = 128 * 1024
"""Size in bytes of a task above which the loop does not wait, because the commit takes longer than
HANDOFF_S_MAX, and would begin no sooner."""


class Cores:
    """The kernel's interface: `sched_getcpu(3)`, `sched_setaffinity(2)`. Raises AttributeError if
    the system does not have them."""

    def __init__(self) -> None:
        # PyDLL keeps the interpreter's lock, as the other two do. Otherwise the writer, woken up by
        # one task, would begin without those that are handed over after it in the same turn of the
        # loop.
        self.current: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
        """Return the core that the caller runs on."""
        self.allowed: Callable[[int], set[int]] = os.sched_getaffinity
        """Return the cores that a thread may run on."""
        self.pin: Callable[[int, set[int]], None] = os.sched_setaffinity
        """Restrict a thread to these cores."""


def cores() -> Cores | None:
    """Return the cores of this machine; None if they cannot be chosen."""
    with contextlib.suppress(AttributeError, OSError):  # macOS
        return Cores()
    return None


class SharedCore:
    """Pinning of one store's writer to the loop's core. All methods are called in the loop's
    thread; `writer` is the native id of the writer's thread. If `cores` is None, nothing ever
    happens."""

    def __init__(self, loop: AbstractEventLoop, writer: int, cores: Cores | None) -> None:
        self._loop = loop
        self._cores = cores
        self._writer = writer
        self._allowed: set[int] = set()
        """The cores on which the writer may run when it is released; empty while it is not
        pinned."""
        self._core = -1
        self._unpinned_until = float("-inf")
        self._timer: TimerHandle | None = None

    def on_task(self, size: int) -> None:
        """Note that a task of this size is on its way to the writer."""
        if size > SMALL_BYTES:
            self.release()
            self._unpinned_until = self._loop.time() + UNPINNED_S
        elif self._cores is not None:
            current = self._cores.current()
            if current == self._core and self._allowed:
                return
            if self._allowed or self._loop.time() >= self._unpinned_until:
                self._pin(self._cores, current)

    def _pin(self, cores: Cores, current: int) -> None:
        try:
            allowed = self._allowed or cores.allowed(self._writer)
            if len(allowed) < 2 or current not in allowed:
                # There is no choice, or another program has pinned it; try again later.
                self._unpinned_until = self._loop.time() + UNPINNED_S
                return
            cores.pin(self._writer, {current})
        except OSError:  # not allowed in here, or the thread has ended
            self._cores = None
            return
        if not self._allowed:
            self._allowed = allowed
            self._timer = self._loop.call_later(PINNED_S, self.release)
        self._core = current

    def release(self) -> None:
        """Let the writer run wherever the kernel puts it. Nothing happens while it is not pinned,
        or if another program has pinned it elsewhere meanwhile."""
        allowed, self._allowed = self._allowed, set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if allowed and self._cores is not None:
            with contextlib.suppress(OSError):  # it has ended
                if self._cores.allowed(self._writer) == {self._core}:
                    self._cores.pin(self._writer, allowed)


class CommitHandoff:
    """Hand-over of the interpreter's lock from the loop to the writer's thread. Everything here
    happens under that lock, except the waiting itself."""

    def __init__(self) -> None:
        self.is_idle = False
        """Whether the writer waits for a task. Set by its thread; `prepare` resets it."""
        self._gate: threading.Lock | None = None

    def prepare(self, size: int) -> bool:
        """Prepare for a task of `size` bytes, before the loop hands it over. Returns whether the
        loop should `wait`, once the other tasks of this turn are handed over, too."""
        if not (self.is_idle and HANDOFF_BYTES_MIN <= size <= HANDOFF_BYTES_MAX):
            return False
        self.is_idle = False
        self._gate = threading.Lock()
        self._gate.acquire()
        return True

    def wait(self) -> None:
        """Block the loop until the writer is at its COMMIT, or has ended the batch without one, for
        HANDOFF_S_MAX at most. Returns at once if the writer is that far already."""
        gate = self._gate
        if gate is not None:
            gate.acquire(timeout=HANDOFF_S_MAX)

    def release(self) -> None:
        """End the waiting of the loop, from the writer, when everything that needs the lock is
        done. Nothing happens if the loop does not wait."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.release()


@dataclass(slots=True)
class WriteTask:
    """An act that happens wholly or not at all; the writer's thread calls `run`, and the loop sets
    the result of the `future`. `size`: about how many bytes are written."""

    run: Callable[[], Any]
    future: "asyncio.Future[Any]"
    size: int
    is_background: bool = False
    """Whether no caller waits for it. One such task goes with each transaction of others."""


Answer = tuple["asyncio.Future[Any]", Any, Exception | None]


class StoreWriter:
    """The writer's thread, which executes tasks in their order, background tasks when there is
    time. After a failed commit it refuses everything (R31). `readers`: the lock that the reader
    holds during each of its transactions."""

    def __init__(
        self,
        connections: StoreConnections,
        state: WriteState,
        trimmer: Trimmer,
        loop: asyncio.AbstractEventLoop,
        *,
        readers: threading.Lock,
        on_fatal: Callable[[str], None] | None,
    ) -> None:
        self.failure = ""
        """The failure after which nothing is accepted any more; empty: none has happened."""
        self.wake_up: WakeUp | None = None
        self.due_noticed: WakeUp | None = None
        """Callback with (partition, due time in unix milliseconds) of what was scheduled."""
        self.commits = 0
        self._commit_s = Histogram()
        self.took = (Took("fsync", "", "", self._commit_s),)
        """Duration of each COMMIT, its fsync included. The writer's thread adds to it, and any
        thread may read it."""
        self._connections = connections
        self._connection: sqlite3.Connection = connections.writer
        self._state = state
        self._trimmer = trimmer
        self._loop = loop
        self._on_fatal = on_fatal
        self._wal = Path(f"{connections.path}-wal")
        self._readers = readers
        self._queue: queue.SimpleQueue[WriteTask | None] = queue.SimpleQueue()
        self._background: deque[WriteTask] = deque()
        """Background tasks that have been taken from the queue. Used by the thread alone."""
        self._last_commit = float("-inf")
        """The time (`perf_counter`) at which the last transaction with other than background tasks
        ended."""
        self._copies: deque[BackupCopy] = deque()
        self._batches = 0
        self._checkpointer = Checkpointer(
            connections.writer,
            connections.mark,
            connections.slicer,
            connections.file,
            on_broken=self.fail,
        )
        self._handoff = CommitHandoff()
        self._closing = False
        self._refusal = ""
        self._thread = threading.Thread(target=self._run, name="tocsin-store-writer", daemon=True)
        self._thread.start()
        self._core = SharedCore(loop, self._thread.native_id or -1, cores())

    def submit(
        self, run: Callable[[], T], size: int = 0, *, is_background: bool = False
    ) -> "asyncio.Future[T]":
        """Have a task executed. It is handed over when this returns, and the future has its answer
        once that is durable. Cancelling the future does not take the task back. `is_background`: no
        caller waits for it. One background task goes with each transaction of other tasks, in front
        of them, or alone if no others come.

        What the future raises:
            Unknown: the commit failed, or it is not known whether it did.
            TocsinError: the task itself raised it, and changed nothing. Refused: nothing is
                accepted any more.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        if self.failure or self._refusal:
            future.set_exception(Refused("storage_unavailable", self.failure or self._refusal))
        else:
            self._core.on_task(size)
            if not is_background and self._handoff.prepare(size):
                self._loop.call_soon(self._handoff.wait)  # what goes with it is handed over by then
            self._queue.put(WriteTask(run, future, size, is_background))
        return future

    def refuse(self, why: str) -> None:
        """Accept no further task; later ones are refused with `why`. Accepted tasks are
        executed."""
        self._refusal = why
        self._core.release()

    async def copy(self, copy: BackupCopy) -> None:
        """Copy the store, with all that was accepted before this call, while tasks go on. Raises
        the errors of `BackupCopy.wait` and `submit`."""
        if self.failure:
            raise Refused("storage_unavailable", self.failure)
        begun: asyncio.Future[None] = self._loop.create_future()
        begun.add_done_callback(lambda done: copy.end_if(done.exception()))
        self._queue.put(WriteTask(lambda: self._copies.append(copy), begun, 0))
        await copy.wait()

    def close(self) -> None:
        """Finish what was accepted, mark the file as cleanly closed, end the thread. Blocks."""
        self._queue.put(None)
        self._thread.join()

    def fail(self, reason: str) -> None:
        """Accept nothing any more, and call `on_fatal` with the reason on the loop, so that the
        process is stopped. A second call does nothing. Callable from any thread."""
        if not self.failure:
            self.failure = reason
            if self._on_fatal is not None:
                self._call(self._on_fatal, reason)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return  # the loop is closed, and no caller waits

    # --- In the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            is_free = self._queue.empty() and not self.failure
            if not self.failure and self._checkpointer.is_due(is_free=is_free):
                self._checkpointer.advance()
            elif is_free and self._state.is_sweep_due():
                self._execute(self._with_background_task([]), sweep=True)
            else:
                self._execute(self._next_batch())
            while self._copies:
                self._copies.popleft().run(self._connection, self._commit_during_copy)
        self._checkpointer.release_mark()
        self._checkpointer.close()
        if not self.failure:
            try:
                self._connections.mark_clean()
            except sqlite3.Error as error:
                self.fail(f"the store could not be closed: {error}")

    def _commit_during_copy(self, wait_s: float) -> None:
        """Commit one batch in the middle of a copy, if a task comes within `wait_s` seconds. Raises
        Refused if the writer is closing or has failed."""
        if not self._closing and not self.failure:
            batch: list[WriteTask] = []
            with contextlib.suppress(queue.Empty):
                first = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
                batch = self._collect(first)
            self._execute(self._with_background_task(batch))
            if batch and not self.failure and self._checkpointer.is_due(is_free=False):
                self._checkpointer.advance()
        if self._closing or self.failure:
            why = self.failure or "the broker is going down"
            raise Refused("storage_unavailable", f"the copy was stopped: {why}")

    def _next_batch(self) -> list[WriteTask]:
        """Wait for the next tasks, and return them. While none come, background tasks have their
        turn, and then the rest of the WAL is copied into the file. Empty: a slice of garbage is
        due, or the writer ends."""
        batch: list[WriteTask] = []
        while not (batch or self._closing or self.failure):
            wait_s: float | None = None
            if self._background and self._queue.empty() and self._state.is_sweep_due():
                return []  # they go with a slice of garbage
            if self._background:
                wait_s = max(0.0, self._last_commit + BACKGROUND_S - time.perf_counter())
            elif self._checkpointer.has_rest:
                wait_s = IDLE_S
            self._handoff.is_idle = True
            try:
                first = self._queue.get(timeout=wait_s)
            except queue.Empty:
                self._handoff.is_idle = False
                if self._background:
                    break
                self._checkpointer.finish()
            else:
                self._handoff.is_idle = False
                batch = self._collect(first)
        if self.failure and not (batch or self._background or self._closing):
            return self._collect(self._queue.get())
        return self._with_background_task(batch) if self._background else batch

    def _with_background_task(self, batch: list[WriteTask]) -> list[WriteTask]:
        """Return the batch with a background task, if one waits, in front, because a background
        task flushes the state, which must have nothing of the other tasks yet."""
        return [self._background.popleft(), *batch] if self._background else batch

    def _collect(self, task: WriteTask | None) -> list[WriteTask]:
        """Return this task and those that are queued behind it, within the bounds of a commit.
        Background tasks are put into `_background`. At the end of the queue (None), sets
        `_closing`, and returns the background tasks as well."""
        batch: list[WriteTask] = []
        size = 0
        while task is not None:
            if task.is_background:
                self._background.append(task)
            else:
                batch.append(task)
                size += task.size
            is_full = size >= BYTES_PER_COMMIT_MAX or len(batch) >= TASKS_PER_COMMIT_MAX
            if is_full or self._queue.empty():
                return batch
            task = self._queue.get()
        self._closing = True
        batch += self._background
        self._background.clear()
        return batch

    def _execute(self, batch: list[WriteTask], *, sweep: bool = False) -> None:
        """Execute the tasks in one transaction, and delete a slice of garbage: if `sweep`, and
        under load in every _BATCHES_PER_SWEEP-th batch. After a failure refuse them."""
        self._batches += 1
        if self.failure:
            self._refuse([*batch, *self._background])
            self._background.clear()
        elif batch or sweep:
            is_due = self._batches % _BATCHES_PER_SWEEP == 0 and self._state.has_garbage
            self._commit(batch, sweep=sweep or is_due)
            if batch and not batch[-1].is_background:  # others follow it
                self._last_commit = time.perf_counter()

    # enforces: P1, R31
    def _commit(self, batch: list[WriteTask], *, sweep: bool) -> None:
        state = self._state
        answers: list[Answer] = []
        size = 0
        try:
            for task in batch:
                size += task.size
                try:
                    answers.append((task.future, task.run(), None))
                except TocsinError as error:
                    answers.append((task.future, None, error))
            if sweep:
                state.flush()
                self._trimmer.sweep()
            state.flush()
            self._handoff.release()
            is_written = self._connection.in_transaction
            if is_written:
                began = time.perf_counter()
                self._connection.execute("COMMIT")
                self._commit_s.add(time.perf_counter() - began)
                self.commits += 1
                if self.commits % _COMMITS_PER_WAL_CHECK == 0:
                    self._truncate_wal()
        except Exception as error:
            self._handoff.release()
            # The state is ahead of the file now, and after a failed fsync the contents of the file
            # are unknown, so the process has to start again from it. [Pages are marked clean after
            # a failed fsync: a second COMMIT succeeds, and lies.]
            reason = f"a commit failed ({type(error).__name__}: {error}): stopped"
            self.fail(reason)
            unknown = [(task.future, None, Unknown(reason)) for task in batch]
            self._call(self._deliver, unknown, {}, {})
            return
        certified, state.certified = state.certified, {}
        noticed, state.noticed = state.noticed, {}
        if answers:
            self._call(self._deliver, answers, certified, noticed)
        state.shrink()
        if is_written:
            self._checkpointer.on_commit(size)

    # enforces: R31
    def _truncate_wal(self) -> None:
        """Copy the WAL into the file and empty it, if it is longer than WAL_BYTES_MAX, while
        readers wait (R31). Otherwise readers that never pause would keep the WAL from starting
        anew."""
        if self._wal.exists() and self._wal.stat().st_size > WAL_BYTES_MAX:
            with self._readers:
                self._checkpointer.release_mark()
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _refuse(self, batch: list[WriteTask]) -> None:
        refused = Refused("storage_unavailable", self.failure)
        self._call(self._deliver, [(task.future, None, refused) for task in batch], {}, {})

    # --- On the loop ---------------------------------------------------------------------------

    def _deliver(
        self,
        answers: list[Answer],
        certified: dict[Partition, int],
        noticed: dict[Partition, int],
    ) -> None:
        try:
            if self.wake_up is not None:
                for partition, end in certified.items():
                    self.wake_up(partition, end)
            if self.due_noticed is not None:
                for partition, due_unix_ms in noticed.items():
                    self.due_noticed(partition, due_unix_ms)
        finally:
            for future, result, failure in answers:
                if future.done():  # its caller was cancelled
                    continue
                if failure is not None:
                    future.set_exception(failure)
                else:
                    future.set_result(result)

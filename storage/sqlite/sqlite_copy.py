"""An online copy of the embedded store, made by the writer between its commits.

The source of the copy is the connection that writes. So what it commits while the copy is under
way goes into the pages that are copied already, too, the copy never starts over, and between two
steps no reading transaction is open that would keep the WAL from starting anew (R31). The copy is
the store as of the copy's end: of a commit it holds all or nothing.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from push.errors import Refused

STEP_PAGES: Final = 256
"""1 MiB, a millisecond or two: how long a commit waits for the copy."""
FLUSH_STEPS: Final = 8
"""Steps between two fsyncs of the copy. A commit's fsync may wait for what else the file system
has to write: without these it would wait for all of the copy, once, for seconds."""
FLUSH_LOOK_S: Final = 0.005
Turn = Callable[[float], None]
"""Commit what waits; the seconds say how long to wait for something to commit. Raises Refused when
the writer stops."""
CopyProgress = Callable[[int, int], None]
"""(bytes copied, bytes there are); in another thread. The second one may grow."""


class Copying:
    """One copy: made on the loop, where `wait` waits for it; `run` is called by the writer.

    `path` is where the copy goes: nothing is there yet. `reserve_bytes`: so much space is left
    free where the store itself is on the same file system, or the copy would stop the broker.
    """

    def __init__(self, path: Path, *, reserve_bytes: int, progress: CopyProgress) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._done.add_done_callback(asyncio.Future.exception)  # looked at, whoever waits
        self._cancelled = threading.Event()
        self._turn: Turn = lambda _wait_s: None
        self._steps = 0
        self._page_bytes = 0
        self._remaining_max = 0
        self._flushing: Future[None] | None = None

    async def wait(self) -> None:
        """Until the copy is there and fsynced. Cancelled: the copy ends first, incomplete.

        Raises:
            Refused: storage_full, or storage_unavailable with why; the copy is incomplete.
        """
        try:
            await asyncio.shield(self._done)
        except asyncio.CancelledError:
            self._cancelled.set()
            while not self._done.done():  # also when it is cancelled again
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((self._done,))
            raise

    def end_if(self, failure: BaseException | None) -> None:
        """It cannot begin, where there is a failure."""
        if failure is not None:
            self.end(failure)

    def end(self, failure: BaseException | None) -> None:
        """Nothing more happens. From any thread."""

        def resolve() -> None:
            if self._done.done():
                return
            if failure is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(failure)

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            return  # the loop is closed: nobody waits

    # --- In the writer's thread ------------------------------------------------------------------

    def run(self, source: sqlite3.Connection, turn: Turn) -> None:
        """Copy, with a turn for the writer between two steps; says how it went to `wait`."""
        try:
            self._run(source, turn)
        except Refused as refused:
            self.end(refused)
        except (sqlite3.Error, OSError) as error:
            self.end(Refused("storage_unavailable", f"the copy failed: {error}"))
        else:
            self.end(None)

    def _run(self, source: sqlite3.Connection, turn: Turn) -> None:
        self._turn = turn
        (self._page_bytes,) = source.execute("PRAGMA page_size").fetchone()
        (pages,) = source.execute("PRAGMA page_count").fetchone()
        self._check_space(pages * self._page_bytes)
        self._remaining_max = pages
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        target = sqlite3.connect(self._path, isolation_level=None)
        with ThreadPoolExecutor(1, thread_name_prefix="tocsin-store-copy") as flusher:
            try:
                target.execute(
                    "PRAGMA journal_mode = OFF"
                ).fetchall()  # nobody goes back to half a copy
                target.execute("PRAGMA synchronous = OFF")  # the fsyncs are ours

                def between(_status: int, remaining: int, total: int) -> None:
                    self._between(remaining, total, lambda: flusher.submit(os.fsync, handle))

                source.backup(target, pages=STEP_PAGES, progress=between)
                target.close()
                self._give_turns(flusher.submit(os.fsync, handle))
            finally:
                target.close()
                os.close(handle)

    def _between(self, remaining: int, total: int, flush: Callable[[], "Future[None]"]) -> None:
        """After a step. The writer has a turn only while the copy comes nearer to its end by half
        of what each step copies: it slows down a writer that is faster, and always ends."""
        if self._cancelled.is_set():
            raise Refused("storage_unavailable", "the copy was cancelled")
        self._progress((total - remaining) * self._page_bytes, total * self._page_bytes)
        if not remaining:
            return  # the last step: what is committed now would not be in the copy
        self._steps += 1
        self._remaining_max -= STEP_PAGES // 2
        may_turn = remaining <= self._remaining_max
        if self._steps % FLUSH_STEPS == 0:
            self._check_space(remaining * self._page_bytes)
            if self._flushing is not None and may_turn:
                self._give_turns(self._flushing)
            elif self._flushing is not None:
                self._flushing.result()
            self._flushing = flush()
        if may_turn:
            self._turn(0)

    def _give_turns(self, flushing: "Future[None]") -> None:
        while not flushing.done():
            self._turn(FLUSH_LOOK_S)
        flushing.result()

    def _check_space(self, needed_bytes: int) -> None:
        folder = self._path.parent
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        if needed_bytes > free - self._reserve_bytes:
            raise Refused(
                "storage_full",
                f"{folder} has {free} bytes free; the copy needs {needed_bytes} more, and leaves "
                f"{self._reserve_bytes} alone: name a folder with more room",
            )

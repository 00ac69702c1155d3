"""Effects in SQLite: one connection, one transaction at a time."""

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, TypeVar

from tocsin.effects.applied import SQLITE, Applied
from tocsin.proto.message import Content

TIMEOUT_S: Final = 30.0
TransactionT_co = TypeVar("TransactionT_co", covariant=True)


class EffectStore(Protocol[TransactionT_co]):
    """A store that applies effects once.

    The port for stores of other databases, so that a handler does not depend on one.
    """

    def once(self, message: Content, /) -> AbstractAsyncContextManager[TransactionT_co | None]:
        """Return the transaction of the message's effect, as a context manager.

        It gives the transaction, or None if the effect has been applied. When the block ends, the
        effect is committed together with the message's place. When it raises, both are rolled back.
        """


class SqliteEffects:
    """A SQLite database that holds effects, and the places of their messages.

    `Applied` states what is guaranteed. `path` is the database; its two tables are created if they
    do not exist. `group` is the group that the messages come from. `timeout_s` is the time for
    which a transaction waits for those of other connections, in seconds. Several processes may use
    one database at a time; their transactions take turns.

    Raises:
        sqlite3.Error: SQLite's errors.
    """

    def __init__(self, path: str | Path, *, group: str, timeout_s: float = TIMEOUT_S) -> None:
        self.applied = Applied(group, SQLITE)
        self._connection = sqlite3.connect(
            path, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        self._turn = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None
        # A thread of its own. If the loop's threads all waited to begin, none could commit.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tocsin-effects")
        self._lock = threading.Lock()
        try:
            # An effect must be on disk before its message is acked.
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN IMMEDIATE")
            self.applied.create(self._connection.cursor())
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self.close()
            raise

    def once(self, message: Content) -> "Once":
        """Return the transaction of a message's effect.

        Use it with `async with` in a handler, or with `with` in a program without an event loop. It
        gives the connection, or None if the effect has been applied. Everything that the block has
        written is durable when the block has ended, and undone when it has raised.

        Other transactions of this object wait meanwhile, so await only quick calls in the block.
        Beginning and committing happen in another thread, the statements of the block in the
        caller's.

        Raises:
            sqlite3.OperationalError: the database was locked for `timeout_s`, the disk is full, ...
            RuntimeError: the block has committed or rolled back itself; or it is inside the block
                of an `async with` of the same task, and would wait for itself.
        """
        return Once(self, message)

    def forget(self, queue_id: str, *, partition: int | None = None, from_offset: int = 0) -> None:
        """Let the effects of a queue's messages be applied again, from an offset on. `partition`
        restricts this to one partition; None means all. Durable when this returns."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                cursor = self._connection.cursor()
                self.applied.forget(cursor, queue_id, partition=partition, from_offset=from_offset)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the database. Waits until no transaction of this object is open."""
        with self._lock:
            self._connection.close()
        self._thread.shutdown(wait=False)

    # --- for Once ---------------------------------------------------------------------------------

    def _begin(self, message: Content) -> bool:
        """Begin a transaction; False if the effect has been applied, and no transaction is open."""
        self._lock.acquire()
        claimed = False
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            claimed = self.applied.claim(self._connection.cursor(), message)
        finally:
            if not claimed:
                self._undo()
                self._lock.release()
        return claimed

    async def _take_turn(self) -> None:
        task = asyncio.current_task()
        if task is not None and self._holder is task:
            raise RuntimeError("a transaction is open in this task; leave its block first")
        await self._turn.acquire()
        self._holder = task

    def _pass_turn(self) -> None:
        self._holder = None
        self._turn.release()

    def _undo(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _end(self, failed: bool) -> None:
        """Commit, or roll back if the block has failed."""
        try:
            if not failed:
                if not self._connection.in_transaction:
                    raise RuntimeError(
                        "the block must not commit or roll back; `once` does that when it ends"
                    )
                for log in self.applied.due():
                    self.applied.compact(self._connection.cursor(), log)
                self._connection.execute("COMMIT")
        finally:
            self._undo()
            self._lock.release()


class Once:
    """The transaction of one effect, as `SqliteEffects.once` returns it."""

    def __init__(self, store: SqliteEffects, message: Content) -> None:
        self._store = store
        self._message = message
        self._claimed = False

    def __enter__(self) -> sqlite3.Connection | None:
        self._claimed = self._store._begin(self._message)
        return self._store._connection if self._claimed else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._claimed:
            self._store._end(failed=kind is not None)

    async def __aenter__(self) -> sqlite3.Connection | None:
        store = self._store
        await store._take_turn()
        try:
            entering = asyncio.get_running_loop().run_in_executor(store._thread, self.__enter__)
        except RuntimeError:  # the store has been closed
            store._pass_turn()
            raise
        try:
            connection = await asyncio.shield(entering)
        except asyncio.CancelledError:
            store._holder = None  # the task may take its next message, and wait for its turn
            entering.add_done_callback(self._give_up)  # the thread cannot be stopped
            raise
        except BaseException:
            store._pass_turn()
            raise
        if connection is None:
            store._pass_turn()
        return connection

    def _give_up(self, entering: "asyncio.Future[sqlite3.Connection | None]") -> None:
        try:
            if entering.exception() is None and self._claimed:
                self._store._end(failed=True)
        finally:
            self._store._pass_turn()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._claimed:
            return
        ending = asyncio.get_running_loop().run_in_executor(
            self._store._thread, self._store._end, kind is not None
        )
        self._store._holder = None  # as above, in case this is cancelled
        ending.add_done_callback(self._ended)
        await asyncio.shield(ending)

    def _ended(self, ending: "asyncio.Future[None]") -> None:
        self._store._pass_turn()
        ending.exception()  # it may have no waiter

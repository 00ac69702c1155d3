"""The reader of all messages of a queue, or of some keys, without a group.

A message is done when the next one is requested, or when the reader is closed in order. The saved
position is the one after the last message that is done. A reader that dies while it handles a
message receives that message again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from inspect import isawaitable
from types import TracebackType
from typing import Literal

from tocsin.answers import Verdict
from tocsin.api.positions import LockingPositionStore, PositionStore, default_name
from tocsin.api.session_subscription import SessionSubscription, Start, start_at
from tocsin.errors import Gap, TocsinError
from tocsin.io.session import Session
from tocsin.proto import wire
from tocsin.proto.message import ReadMessage
from tocsin.proto.read_ledger import ReadLedger
from tocsin.proto.reader_opening import OnUnknown, ReaderOpening
from tocsin.proto.wire import Position

logger = logging.getLogger("tocsin")
OnGap = Literal["raise"] | Callable[[Gap], None]


class Reader(SessionSubscription):
    """A reader of a queue. Made by `Client.read`; an async context manager and iterator.

    After a lost connection it continues after the last message that it has received.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        queue: str,
        *,
        keys: Sequence[str] | None,
        start: Start | wire.Position,
        credit: int,
        on_gap: OnGap,
        on_unknown: OnUnknown = "raise",
        position_store: PositionStore | None = None,
        name: str | None = None,
        save_every: int = 1000,
        save_every_s: float = 5.0,
    ) -> None:
        super().__init__(session, number, queue)
        self._keys = None if keys is None else list(keys)
        self._start = start
        self._on_gap = on_gap
        self._on_unknown = on_unknown
        self._ledger = ReadLedger(credit=credit)
        self._opening: ReaderOpening | None = None
        self._keeper: PositionKeeper | None = None
        self.verdicts: dict[int, Verdict] = {}
        """The verdict on the position in each partition, from the last time the reader was opened,
        or opened again after a lost connection. Without a position it is "resumed" at the start."""
        if position_store is not None:
            self._keeper = PositionKeeper(
                position_store,
                name or default_name(queue, keys),
                every=save_every,
                every_s=save_every_s,
                position=self._ledger.handled_position,
            )

    @property
    def position(self) -> wire.Position | None:
        """The position after the last message that was handed out; None before the reader is
        opened.

        Give it to `Client.read` as `start`, now or later, to continue from there.
        """
        return self._ledger.position()

    # --- opening and closing --------------------------------------------------------------------

    async def __aenter__(self) -> "Reader":
        """Open the reader, at its saved position if there is one.

        Raises:
            PositionUnknown: that position, or the one given as `start`, belongs to another queue of
                this name or to another history (if `on_unknown` is "raise").
            PositionInUse, PositionDamaged: from the position store, with what to do.
            QueueNotFound, Unauthorized, ...: the broker's answer.
        """
        keeper = self._keeper
        if keeper is None:
            return await super().__aenter__()
        kept = await keeper.load()
        try:
            if kept is not None:
                self._start = kept
            await super().__aenter__()
            await keeper.save()  # or a crash would make it begin at a later end
        except BaseException:
            keeper.release()
            await super().close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the reader. The last message that was handed out counts as done, unless an
        exception left the block; then it comes again."""
        if kind is None:
            await self.close()
            return
        await super().close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            try:
                await keeper.close()
            except Exception as failure:  # the block's own exception says more
                logger.warning("the position was not saved: %s", failure)

    async def close(self) -> None:
        """Leave, and save the position: every message that was handed out counts as done. Closing
        again does nothing. Raises the errors of the position store."""
        self._ledger.mark_handled()
        await super().close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.close()

    # --- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[ReadMessage]:
        return self

    async def __anext__(self) -> ReadMessage:
        """Return the next message; waits for it without a limit.

        Requesting it marks the message before as done. With a position store, let only one task
        request messages.

        Raises:
            Gap: the next messages are no longer retained (if `on_gap` is "raise"). Iterating again
                continues after them.
            PositionUnknown: after a reconnect the position has lost its meaning (if `on_unknown` is
                "raise").
            SessionEnded, ...: the reader has ended for another reason.
            Exception: of the position store. Iterating again continues.
        """
        if self._keeper is not None:
            self._ledger.mark_handled()
            self._report_move()
            await self._keeper.save_if_due()
        while (message := self.next_nowait()) is None:
            await self._wait()
        return message

    def next_nowait(self) -> ReadMessage | None:
        """Return the next message if it has arrived, otherwise None. Marks the message before as
        done.

        Raises Gap, as iterating does. With this method a position store saves only by time and at
        the end.
        """
        while isinstance(item := self._ledger.next(), Gap):
            self._report_move()
            if self._on_gap == "raise":
                raise item
            self._on_gap(item)
        self._report_move()
        if item is not None:
            self._session.mark_dirty(self)
        return item

    def _report_move(self) -> None:
        if self._keeper is not None:
            self._keeper.on_move(self._ledger.handled_count, self._ledger.moves)

    # --- session.Subscriber ---------------------------------------------------------------------

    def _subscribe(self, ref: int) -> wire.Subscribe:
        ledger = self._ledger
        ledger.credit = min(ledger.credit, self._session.welcome.credit_max)
        granted, position = ledger.reopen()
        if self._opening is None:
            if position is None and isinstance(self._start, wire.Position):
                position = self._start
            start = None if isinstance(self._start, wire.Position) else start_at(self._start)
            where = (start, None) if position is None else (None, position)
            self._opening = ReaderOpening(where, self._on_unknown)
        start, position = self._opening.where
        return wire.Subscribe(
            ref=ref,
            subscription=self._number,
            queue=self.queue,
            start=start,
            position=position,
            credit=granted if self._opening.takes_messages else 0,
            keys=self._keys,
        )

    def _on_answer(self, answer: wire.Ok | wire.Error | None) -> None:
        opening = self._opening
        if answer is None or self._failure is not None or opening is None:
            super()._on_answer(answer)  # the opening goes on over the next connection
            return
        try:
            is_last = opening.on_answer(answer)
        except TocsinError as error:
            self._end(error)
            return
        if is_last:
            super()._on_answer(answer)
            return
        if opening.leaves_first:
            ref = next(self._session.refs)
            self._session.request(wire.Unsubscribe(ref=ref, subscription=self._number))
        self._join()

    def _on_accept(self, answer: wire.Ok) -> None:
        opening, self._opening = self._opening, None
        assert opening is not None
        self.verdicts = opening.verdicts(answer)
        self._ledger.on_open(self._number, answer, opening.unknown(answer))
        self._report_move()
        self._session.mark_dirty(self)
        self._waiters.wake(self._ledger.ready)

    def pushed(self, push: wire.Push, *, now: float) -> None:
        """Queue the messages of a push."""
        if self._ledger.is_open:  # otherwise it belongs to the opening that is being replaced
            self._ledger.receive(push)
            self._waiters.wake(self._ledger.ready)

    def collect(self, *, now: float) -> list[bytes]:
        """Return the credit to send now."""
        return [wire.encode(frame) for frame in self._ledger.take()]

    def revoked(self, revoked: wire.Revoked) -> None:
        """Do nothing, because the broker takes nothing back from a reader."""

    def next_deadline(self) -> float | None:
        """Return None, because nothing is timed."""
        return None

    def expire(self, *, now: float) -> None:
        """Do nothing, because nothing is timed."""


class PositionKeeper:
    """Save the result of `position` under `name`, and never an earlier position over a later one.

    Saves after `every` messages that were done, or `every_s` seconds after the first of them, and
    when it is closed.
    """

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
            raise ValueError("save_every must be 1 or more messages, and save_every_s above 0")
        self._store = store
        self._name = name
        self._every = every
        self._every_s = every_s
        self._position = position
        self._saved: Position | None = None
        self._handled = self._handled_saved = 0
        self._moves = 0
        self._save_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._save_task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def load(self) -> Position | None:
        """Return the saved position; None if none was saved. Raises the store's errors."""
        found = self._store.load(self._name)
        self._saved = await found if isawaitable(found) else found
        return self._saved

    def on_move(self, done: int, moves: int) -> None:
        """Note that `done` messages are done in total. A changed `moves` means that the position
        has moved."""
        self._handled = done
        if moves == self._moves:
            return
        self._moves = moves
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._every_s, self._on_timer)

    async def save_if_due(self) -> None:
        """Save if enough messages are done.

        Raises the store's error, of this save or of the last timed one. A position that was not
        saved then is saved the next time.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._handled - self._handled_saved >= self._every:
            await self.save()

    async def save(self) -> None:
        """Save, unless the position is the saved one. Raises the store's errors."""
        async with self._save_lock:
            done, position = self._handled, self._position()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if position is not None and position != self._saved:
                saved = self._store.save(self._name, position)
                if isawaitable(saved):
                    await saved
                self._saved = position
            self._handled_saved = done

    def _on_timer(self) -> None:
        self._timer = None
        self._save_task = asyncio.get_running_loop().create_task(
            self._save_timed(), name="tocsin-position"
        )

    async def _save_timed(self) -> None:
        try:
            await self.save()
        except Exception as error:
            logger.warning("the position of reader %s was not saved: %s", self._name, error)
            self._failure = error

    async def close(self) -> None:
        """Save for the last time and release the name. Raises the store's errors."""
        try:
            if self._save_task is not None:
                await asyncio.wait((self._save_task,))
            await self.save()
        finally:
            self.release()

    def release(self) -> None:
        """Stop the timer and release the name."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(self._store, LockingPositionStore):
            self._store.release(self._name)

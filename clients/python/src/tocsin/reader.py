"""The shell around a reader's ledger: all messages of a queue, or of some keys, without a group."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

from tocsin import wire
from tocsin.errors import Gap, PositionUnknown
from tocsin.message import ReadMessage
from tocsin.reading import ReadLedger
from tocsin.session import Session
from tocsin.subscribing import Start, Subscribing, start_at

OnGap = Literal["raise"] | Callable[[Gap], None]


class Reader(Subscribing):
    """Made by `Client.read`; an async context manager and iterator. After a lost connection it goes
    on behind what it has received."""

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
    ) -> None:
        super().__init__(session, number, queue)
        self._keys = None if keys is None else list(keys)
        self._start = start
        self._on_gap = on_gap
        self._ledger = ReadLedger(credit=credit)

    @property
    def position(self) -> wire.Position | None:
        """Behind the last message that was handed out: give it to `Client.read` as `start`, today
        or later, to go on from there. None: not opened yet."""
        return self._ledger.position()

    def __aiter__(self) -> AsyncIterator[ReadMessage]:
        return self

    async def __anext__(self) -> ReadMessage:
        """The next message; waits for one as long as it takes.

        Raises:
            Gap: what comes next is no longer retained (where `on_gap` is "raise"); iterating again
                goes on behind it.
            PositionUnknown: after a reconnect the position means nothing any more.
        """
        while (message := self.next_nowait()) is None:
            await self._wait()
        return message

    def next_nowait(self) -> ReadMessage | None:
        """The next message, if one is here; None: not now. Raises Gap as iterating does."""
        while isinstance(item := self._ledger.next(), Gap):
            if self._on_gap == "raise":
                raise item
            self._on_gap(item)
        if item is not None:
            self._session.dirty(self)
        return item

    # --- session.Subscriber ---------------------------------------------------------------------

    def _subscribe(self, ref: int) -> wire.Subscribe:
        self._ledger.credit = min(self._ledger.credit, self._session.welcome.credit_max)
        granted, position = self._ledger.opening()
        start = None
        if position is None and isinstance(self._start, wire.Position):
            position = self._start
        elif position is None and not isinstance(self._start, wire.Position):
            start = start_at(self._start)
        return wire.Subscribe(
            ref=ref, subscription=self._number, queue=self.queue, credit=granted,
            start=start, position=position, keys=self._keys,
        )  # fmt: skip

    def _accepted(self, answer: wire.Ok) -> None:
        unknown = [v.partition for v in answer.positions if v.verdict == "unknown"]
        if unknown:
            why = f"the queue's history is another one, in partitions {unknown}"
            self._leave(PositionUnknown("position_unknown", why))
            return
        self._ledger.opened(self._number, answer)
        self._session.dirty(self)
        self._waiters.wake(self._ledger.ready)

    def pushed(self, push: wire.Push, *, now: float) -> None:
        """Take in a push."""
        self._ledger.receive(push)
        self._waiters.wake(self._ledger.ready)

    def collect(self, *, now: float) -> list[bytes]:
        """Credit of this turn."""
        return [wire.encode(frame) for frame in self._ledger.take()]

    def revoked(self, revoked: wire.Revoked) -> None:
        """From a reader nothing is ever taken back."""

    def next_deadline(self) -> float | None:
        """Nothing is timed."""
        return None

    def expire(self, *, now: float) -> None:
        """Nothing is timed."""

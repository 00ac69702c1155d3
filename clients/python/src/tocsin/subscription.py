"""The shell around a consumer's ledger: a subscription to a group."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

from tocsin import wire
from tocsin.consuming import Ledger, usable_s
from tocsin.errors import OutcomeUnknown, StaleDelivery
from tocsin.message import Message, State
from tocsin.session import Session
from tocsin.subscribing import Start, Subscribing, start_at

logger = logging.getLogger("tocsin")

REASON_CHARS_MAX: Final = 500
LEASE_S_DEFAULT: Final = 30.0
"""Where the broker does not name the group's."""


class Subscription(Subscribing):
    """A place in a group. Made by `Client.subscribe`; an async context manager and iterator.

    Leaving the context sends the acks that are queued and returns what is not settled to the group.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        queue: str,
        group: str,
        *,
        credit: int,
        start: Start | None,
        prepare: Callable[[], Awaitable[object]] | None,
    ) -> None:
        super().__init__(session, number, queue, prepare=prepare)
        self.group = group
        self._credit = credit
        self._start = start
        self._ledger = self._new_ledger(LEASE_S_DEFAULT)

    # --- for the user ---------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message whose key is free. Waits for one as long as it takes; several tasks may
        wait at once."""
        while (message := self.next_nowait()) is None:
            await self._wait()
        return message

    def next_nowait(self) -> Message | None:
        """The next message whose key is free, if one is here; None: not now."""
        message = self._ledger.next(now=self._loop.time())
        if message is not None:
            self._session.dirty(self)
            held = message.held
            if held.doubtful or held.push.attempt > 1:
                self._session.flush()  # R19: a killer message is counted before it kills
        return message

    async def run(
        self, handler: Callable[[Message], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call `handler` with each message until the subscription is closed: up to `concurrency`
        at a time across keys, one after another within a key. A message is acked when its handler
        returns and has not settled it, and nacked when it raises."""
        async with asyncio.TaskGroup() as workers:
            for number in range(concurrency):
                workers.create_task(self._work(handler), name=f"tocsin-worker-{number}")

    async def _work(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        async for message in self:
            try:
                await handler(message)
            except Exception as error:
                logger.exception("the handler failed on %r", message)
                reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
                self._settle_quietly(message, partial(self.nack, message, None, reason))
            else:
                self._settle_quietly(message, partial(self.ack, message))

    def _settle_quietly(self, message: Message, settle: Callable[[], None]) -> None:
        if message.state in (State.ACKED, State.NACKED):
            return  # the handler has done it
        try:
            settle()
        except StaleDelivery as error:
            logger.warning("handled too late: %s", error)

    # --- message.Settler ------------------------------------------------------------------------

    def ack(self, message: Message) -> None:
        """Queue an ack. Raises StaleDelivery."""
        self._ledger.ack(message, now=self._loop.time())
        self._session.dirty(self)

    async def ack_confirmed(self, message: Message) -> None:
        """Ack, and wait until it is durable. Raises StaleDelivery, OutcomeUnknown."""
        confirmed: asyncio.Future[None] = self._loop.create_future()
        self._ledger.ack(message, now=self._loop.time(), ticket=confirmed)
        self._session.dirty(self)
        await confirmed

    def nack(self, message: Message, delay_s: float | None, reason: str | None) -> None:
        """Queue a nack. Raises StaleDelivery."""
        self._ledger.nack(message, now=self._loop.time(), delay_s=delay_s, reason=reason)
        self._session.dirty(self)

    async def extend(self, message: Message, lease_s: float | None) -> None:
        """Prolong the lease, and wait for the answer. Raises StaleDelivery, OutcomeUnknown."""
        now, ledger = self._loop.time(), self._ledger
        ledger.check_held(message, now=now)
        answer: asyncio.Future[wire.Ok | wire.Error | None] = self._loop.create_future()
        ref = next(self._session.refs)
        self._session.expect(ref, lambda got: None if answer.done() else answer.set_result(got))
        place = [[*message.held.place, message.offset, message.offset]]
        self._session.request(
            wire.Extend(
                subscription=self._number, deliveries=place, started=place, lease_s=lease_s, ref=ref
            )
        )
        got = await answer
        if got is None:
            raise OutcomeUnknown("unknown", "the connection was lost before the answer")
        if isinstance(got, wire.Error) and not got.deliveries:
            raise got.exception()
        if isinstance(got, wire.Error) or got.stale:
            raise StaleDelivery(f"message {message.id}: its lease was not prolonged")
        ledger.check_held(message, now=self._loop.time())
        ledger.extended(message, until=now + usable_s(lease_s or ledger.lease_s))
        self._session.wake_at(ledger.next_deadline())

    # --- session.Subscriber ---------------------------------------------------------------------

    def _new_ledger(self, lease_s: float) -> Ledger:
        return Ledger(self, subscription=self._number, credit=self._credit, lease_s=lease_s)

    def _subscribe(self, ref: int) -> wire.Subscribe:
        self._credit = min(self._credit, self._session.welcome.credit_max)
        return wire.Subscribe(
            ref=ref, subscription=self._number, queue=self.queue, group=self.group,
            credit=self._credit, start=start_at(self._start),
        )  # fmt: skip

    def _accepted(self, answer: wire.Ok) -> None:
        """Every connection has a ledger of its own: what came on another one cannot be settled."""
        lease_s = LEASE_S_DEFAULT if answer.lease_s is None else answer.lease_s
        self._ledger = self._new_ledger(lease_s)

    def disconnected(self) -> None:
        """Nothing that was delivered on this connection can be settled any more."""
        super().disconnected()
        lost = OutcomeUnknown("unknown", "the connection was lost before the ack was confirmed")
        for ticket in self._ledger.lost():
            _finish(ticket, lost)

    def pushed(self, push: wire.Push, *, now: float) -> None:
        """Take in a push."""
        self._ledger.receive(push, now=now)
        self._session.wake_at(self._ledger.next_deadline())
        self._waiters.wake(self._ledger.ready)

    def revoked(self, revoked: wire.Revoked) -> None:
        """Discard what was taken back (R17)."""
        self._ledger.revoke(revoked.deliveries)
        self._session.dirty(self)

    def collect(self, *, now: float) -> list[bytes]:
        """Acks, nacks, marks and credit of this turn."""
        frames: list[bytes] = []
        ledger = self._ledger
        for frame in ledger.take(self._session.refs):
            if isinstance(frame, wire.Ack) and frame.ref is not None:
                self._session.expect(frame.ref, partial(self._confirmed, ledger, frame.ref))
            elif isinstance(frame, wire.Nack) and frame.ref is not None:
                self._session.expect(frame.ref, partial(self._nacked, ledger, frame.ref))
            frames.append(wire.encode(frame))
        self._waiters.wake(ledger.ready)
        return frames

    @staticmethod
    def _nacked(ledger: Ledger, ref: int, answer: wire.Ok | wire.Error | None) -> None:
        if answer is not None:  # else the connection was lost, and the ledger with it
            ledger.nack_answered(ref)

    def _confirmed(self, ledger: Ledger, ref: int, answer: wire.Ok | wire.Error | None) -> None:
        if answer is None:
            return  # `disconnected` follows
        refused = list(answer.stale)
        failure: Exception | None = None
        if isinstance(answer, wire.Error):
            refused += answer.deliveries
            failure = None if answer.deliveries else answer.exception()
        settled, stale = ledger.confirmed(ref, refused)
        for ticket in settled:
            _finish(ticket, failure)
        for ticket in stale:
            _finish(ticket, StaleDelivery("the broker had taken the delivery back already"))

    def next_deadline(self) -> float | None:
        """The earliest end of a lease."""
        return self._ledger.next_deadline()

    def expire(self, *, now: float) -> None:
        """Discard what has been held for as long as its lease."""
        self._ledger.expire(now=now)
        self._session.dirty(self)


def _finish(ticket: Any, error: Exception | None) -> None:
    """End the wait for a confirmation."""
    future: asyncio.Future[None] = ticket
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)

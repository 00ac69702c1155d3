"""A subscription to a group: a consumer's messages, and the handlers that work on them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from tocsin.api.session_subscription import MESSAGES_MAX, SessionSubscription, Start, start_at
from tocsin.errors import OutcomeUnknown, StaleDelivery
from tocsin.io.session import Session
from tocsin.proto import wire
from tocsin.proto.ack_ledger import Confirmations
from tocsin.proto.delivery_ledger import DeliveryLedger
from tocsin.proto.leases import usable_s
from tocsin.proto.message import Message, State
from tocsin.proto.wire import split_deliveries

logger = logging.getLogger("tocsin")

REASON_CHARS_MAX: Final = 500
LEASE_S_DEFAULT: Final = 30.0
"""The lease if the broker does not name the group's, in seconds."""


class Subscription(SessionSubscription):
    """A place in a group. Made by `Client.subscribe`; an async context manager and iterator.

    Leaving the context sends the queued acks, and returns unsettled messages to the group.
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
        deletes_max: int | None,
        prepare: Callable[[], Awaitable[object]] | None,
        auto_extend: bool,
    ) -> None:
        super().__init__(session, number, queue, prepare=prepare)
        self.group = group
        self._credit = credit
        self._start = start
        self._deletes_max = MESSAGES_MAX if deletes_max is None else deletes_max
        self._ledger = DeliveryLedger(
            self,
            subscription=number,
            credit=credit,
            lease_s=LEASE_S_DEFAULT,
            auto_extend=auto_extend,
        )
        self._is_held = False
        """Whether the broker may still know the deliveries that are held here."""
        self._handlers: dict[Message, asyncio.Task[object]] = {}
        """The messages whose handlers run, each with the task to cancel when its delivery ends."""
        self._cancelled_workers: set[asyncio.Task[object]] = set()

    # --- for the user ---------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Return the next message whose key is free.

        Waits for it without a limit. Several tasks may wait at once.
        """
        while True:
            message = self._ledger.next(now=self._loop.time())
            if message is None:
                await self._wait()
                continue
            self._session.mark_dirty(self)
            if not _may_be_a_killer(message):
                return message
            try:
                await asyncio.sleep(0)  # the marks of this turn leave together, before handlers run
            except asyncio.CancelledError:
                self._ledger.put_back(message)
                self._waiters.wake(1)
                raise
            if message.state is State.HANDED:
                return message

    def next_nowait(self) -> Message | None:
        """Return the next message whose key is free, if one has arrived; otherwise None."""
        message = self._ledger.next(now=self._loop.time())
        if message is not None:
            self._session.mark_dirty(self)
            if _may_be_a_killer(message):
                self._session.flush()
        return message

    async def fetch(self, count: int = 10, wait_s: float | None = 0.0) -> list[Message]:
        """Return up to `count` messages whose keys are free, in the order of the iteration.

        Waits up to `wait_s` seconds for the first one; None waits without a limit. Returns an empty
        list if none came. Ack or nack each message by itself. Only then its key gives the next
        message.

        Raises:
            ValueError: `count` is below 1.
            ClientClosed: the subscription, or the client, has been closed.
            TocsinError: the subscription has ended for another reason.
        """
        if count < 1:
            raise ValueError(f"count must be 1 or more, not {count!r}")
        fetched = self._take(count)
        if not fetched:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while not (fetched := self._take(count)):
                        await self._waiters.wait()
        return fetched

    def _take(self, count: int) -> list[Message]:
        if self._failure is not None:
            raise self._failure
        taken: list[Message] = []
        while len(taken) < count and (message := self.next_nowait()) is not None:
            taken.append(message)
        return taken

    async def run(
        self, handler: Callable[[Message], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call `handler` with each message until the subscription is closed.

        Up to `concurrency` handlers run at a time across keys; those of one key run one after
        another. When a handler returns, its message is acked, unless the handler has settled it.
        When it raises, the message is nacked. If the message is no longer this consumer's (it was
        revoked, or its lease could not be extended), its handler is cancelled. Then the message
        comes again, and its key waits until the handler has ended.

        Cancelling `run` cancels the handlers, even those that swallow the cancellation, and returns
        their messages at once.
        """
        async with asyncio.TaskGroup() as workers:
            for number in range(concurrency):
                workers.create_task(self._work(handler), name=f"tocsin-worker-{number}")

    async def _work(self, handler: Callable[[Message], Awaitable[object]]) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        async for message in self:
            self._handlers[message] = worker
            try:
                await handler(message)
            except Exception as error:
                if not self._take_cancellation(worker):
                    logger.exception("the handler failed on %r", message)
                    reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
                    self._settle_quietly(message, partial(self.nack, message, None, reason))
            except asyncio.CancelledError:
                if not self._take_cancellation(worker):
                    # If it stayed held, its lease would be extended up to `lease_total_s`.
                    self._settle_quietly(message, partial(self.nack, message, 0.0, "cancelled"))
                    raise
                logger.warning("the handler was cancelled: %r is no longer held here", message)
            else:
                if not self._take_cancellation(worker):
                    self._settle_quietly(message, partial(self.ack, message))
            finally:
                del self._handlers[message]
                self._ledger.on_handler_end(message)
                self._waiters.wake(self._ledger.ready)
            if worker.cancelling():
                raise asyncio.CancelledError  # the handler has swallowed it

    def _take_cancellation(self, worker: "asyncio.Task[object]") -> bool:
        """Whether the handler was cancelled only because its delivery has ended.

        Takes that cancellation back, as asyncio.timeout does.
        """
        if worker not in self._cancelled_workers:
            return False
        self._cancelled_workers.discard(worker)
        return not worker.uncancel()

    def _settle_quietly(self, message: Message, settle: Callable[[], None]) -> None:
        if message.state in (State.ACKED, State.NACKED):
            return  # the handler has settled it
        try:
            settle()
        except StaleDelivery as error:
            logger.warning("handled too late: %s", error)

    # --- message.Settler ------------------------------------------------------------------------

    def ack(self, message: Message) -> None:
        """Queue an ack of the message. Raises StaleDelivery."""
        self._ledger.ack(message, now=self._loop.time())
        self._session.mark_dirty(self)

    async def ack_confirmed(self, message: Message) -> None:
        """Ack the message, and wait until the ack is durable. Raises StaleDelivery,
        OutcomeUnknown."""
        confirmed: asyncio.Future[None] = self._loop.create_future()
        self._ledger.ack(message, now=self._loop.time(), ticket=confirmed)
        self._session.mark_dirty(self)
        await confirmed

    def nack(
        self, message: Message, delay_s: float | None, reason: str | None, *, reject: bool = False
    ) -> None:
        """Queue a nack of the message, or with `reject` its rejection. Raises StaleDelivery."""
        self._ledger.nack(
            message, now=self._loop.time(), delay_s=delay_s, reason=reason, reject=reject
        )
        self._session.mark_dirty(self)

    async def nack_confirmed(
        self, message: Message, delay_s: float | None, reason: str | None, *, reject: bool = False
    ) -> None:
        """Nack the message, or with `reject` reject it, and wait until that is durable. Raises
        StaleDelivery, OutcomeUnknown."""
        confirmed: asyncio.Future[None] = self._loop.create_future()
        self._ledger.nack(
            message,
            now=self._loop.time(),
            delay_s=delay_s,
            reason=reason,
            reject=reject,
            ticket=confirmed,
        )
        self._session.mark_dirty(self)
        await confirmed

    async def extend(self, message: Message, lease_s: float | None) -> None:
        """Extend the message's lease, and wait for the broker's answer. Raises StaleDelivery, or
        another error of the broker."""
        ledger, place = self._ledger, [[*message.held.place, message.offset, message.offset]]
        got: wire.Ok | wire.Error | None = None
        while got is None:  # None means that the answer was lost
            while not self._session.is_open or ledger.is_paused:
                ledger.check_held(message, now=self._loop.time())
                await self._waiters.wait()
            now = self._loop.time()
            ledger.check_held(message, now=now)
            answer: asyncio.Future[wire.Ok | wire.Error | None] = self._loop.create_future()
            ref = next(self._session.refs)
            self._session.expect(ref, partial(_answer, answer))
            self._session.request(
                wire.Extend(
                    subscription=self._number,
                    deliveries=place,
                    started=place,
                    lease_s=lease_s,
                    ref=ref,
                )
            )
            got = await answer
        if isinstance(got, wire.Error) and not got.deliveries:
            raise got.exception()
        if isinstance(got, wire.Error) or got.stale:
            raise StaleDelivery(f"message {message.id}: its lease was not prolonged")
        ledger.check_held(message, now=self._loop.time())
        ledger.on_extension(message, until=now + usable_s(lease_s or ledger.lease_s))
        self._session.wake_at(ledger.next_deadline())

    def gone(self, message: Message) -> bool:
        """Cancel the handler that runs on a lost message. The handler of a nacked message goes on.
        Returns whether a handler runs."""
        worker = self._handlers.get(message)
        if worker is None:
            return False
        cancels = message.state is State.GONE and worker is not asyncio.current_task()
        if cancels and worker not in self._cancelled_workers:
            self._cancelled_workers.add(worker)
            worker.cancel()
        return True

    # --- session.Subscriber ---------------------------------------------------------------------

    def _subscribe(self, ref: int) -> wire.Subscribe:
        session = self._session
        self._credit = min(self._credit, session.welcome.credit_max)
        # Known but not resumed: the broker has restarted, and may let us keep what we hold.
        comes_back = self._is_held and session.is_known
        if comes_back:
            self._ledger.restart_count()
        else:
            self._give_up()
        return wire.Subscribe(
            ref=ref,
            subscription=self._number,
            queue=self.queue,
            group=self.group,
            credit=self._ledger.granted if comes_back else self._credit,
            start=start_at(self._start),
            held=comes_back or None,
            deletes_max=self._deletes_max or None,
        )

    def _on_accept(self, answer: wire.Ok) -> None:
        lease_s = LEASE_S_DEFAULT if answer.lease_s is None else answer.lease_s
        if self._is_held:
            self._send_held()
            return
        self._ledger.begin(credit=self._credit, lease_s=lease_s)
        self._is_held = True

    def _resume(self) -> bool:
        if not self._is_held or self._number not in self._session.resumed:
            return False
        self._send_held()
        return True

    def _send_held(self) -> None:
        """Send the deliveries held here (R22). The answer to the last frame names those that have
        ended."""
        ledger, session = self._ledger, self._session
        lists = list(split_deliveries(ledger.report_held())) or [[]]
        for place, part in enumerate(lists, 1):
            ref, is_last = next(session.refs), place == len(lists)
            session.expect(ref, self._on_resume if is_last else _ignored)
            session.request(
                wire.Held(
                    ref=ref,
                    subscription=self._number,
                    received=ledger.received_at_broker,
                    deliveries=part,
                    more=not is_last,
                )
            )

    def _on_resume(self, answer: wire.Ok | wire.Error | None) -> None:
        if answer is None or self._failure is not None:
            return  # lost again; the next welcome leads here again
        if isinstance(answer, wire.Error):
            logger.error("the broker does not take what is held here: %s", answer.exception())
            self._session.restart()
            return
        self._ledger.on_resume(answer.revoked)
        self._session.mark_dirty(self)
        self._session.wake_at(self._ledger.next_deadline())
        self._waiters.wake_all()

    def disconnected(self) -> None:
        """Hand out nothing until the session continues. If the subscription has ended, give up all
        deliveries."""
        super().disconnected()
        self._ledger.pause()
        if self._failure is not None:
            self._give_up()

    def _give_up(self) -> None:
        """Give up every delivery, because none can be settled any more. Waits for confirmations end
        with OutcomeUnknown."""
        self._is_held = False
        lost = OutcomeUnknown("unknown", "the session was lost before it was confirmed")
        for ticket in self._ledger.on_session_loss():
            _finish(ticket, lost)
        self._waiters.wake_all()

    def pushed(self, push: wire.Push, *, now: float) -> None:
        """Queue the messages of a push."""
        released = self._ledger.released
        self._ledger.receive(push, now=now)
        if self._ledger.released != released:
            self._session.mark_dirty(self)  # R25: discarded messages make room at once
        self._session.wake_at(self._ledger.next_deadline())
        self._waiters.wake(self._ledger.ready)

    def revoked(self, revoked: wire.Revoked) -> None:
        """Discard the deliveries that the broker took back (R17)."""
        self._ledger.revoke(revoked.deliveries)
        self._session.mark_dirty(self)

    def collect(self, *, now: float) -> list[bytes]:
        """Return the acks, nacks, marks, extensions and credit to send now."""
        frames: list[bytes] = []
        for frame in self._ledger.take(self._session.refs, now=now):
            self._expect_answer(frame)
            frames.append(wire.encode(frame))
        self._waiters.wake(self._ledger.ready)
        return frames

    def _expect_answer(self, frame: wire.SentFrame) -> None:
        match frame:
            case wire.Ack(ref=int(ref)):
                self._session.expect(ref, partial(self._on_ack_answer, ref))
            case wire.Nack(ref=int(ref)):
                self._session.expect(ref, partial(self._on_nack_answer, ref))
            case wire.Extend(ref=int(ref)):
                self._session.expect(ref, partial(self._on_extend_answer, ref))
            case _:
                pass  # credit, and frames without a ref, are not answered

    def _on_nack_answer(self, ref: int, answer: wire.Ok | wire.Error | None) -> None:
        if answer is not None:  # otherwise it is sent again
            self._finish_tickets(answer, partial(self._ledger.on_nack_answer, ref))

    def _on_extend_answer(self, ref: int, answer: wire.Ok | wire.Error | None) -> None:
        if answer is None:
            return  # it is sent again
        leases = self._ledger.leases
        if isinstance(answer, wire.Ok):
            leases.on_answer(ref, answer.stale)
        elif answer.deliveries:
            leases.on_answer(ref, answer.stale + answer.deliveries)
        else:
            leases.on_failure(ref)
        self._session.wake_at(self._ledger.next_deadline())

    def _on_ack_answer(self, ref: int, answer: wire.Ok | wire.Error | None) -> None:
        if answer is None:
            return  # it is sent again
        self._ledger.acks.on_durability_answer(ref, is_durable=isinstance(answer, wire.Ok))
        self._finish_tickets(answer, partial(self._ledger.acks.on_ack_answer, ref))

    def _finish_tickets(
        self,
        answer: wire.Ok | wire.Error,
        outcome: Callable[[wire.DeliveryList], Confirmations],
    ) -> None:
        """End the waits for the answer to confirmed acks or nacks."""
        refused = list(answer.stale)
        failure: Exception | None = None
        if isinstance(answer, wire.Error):
            refused += answer.deliveries
            failure = None if answer.deliveries else answer.exception()
        settled, stale, perhaps = outcome(refused)
        for ticket in settled:
            _finish(ticket, failure)
        for ticket in stale:
            _finish(ticket, StaleDelivery("the broker had taken the delivery back already"))
        lost = "the connection was lost before it was confirmed, and its delivery has ended"
        for ticket in perhaps:
            _finish(ticket, OutcomeUnknown("unknown", lost))

    def next_deadline(self) -> float | None:
        """Return when to call `expire`, because a lease ends or has to be extended; None if nothing
        is held."""
        return self._ledger.next_deadline()

    def expire(self, *, now: float) -> None:
        """Discard deliveries whose leases have ended, and let `collect` request more time for
        others."""
        self._ledger.expire(now=now)
        self._session.mark_dirty(self)
        if self._ledger.is_paused:
            self._waiters.wake_all()  # wakes `extend`, whose lease may have ended


def _finish(ticket: Any, error: Exception | None) -> None:
    """End the wait for a confirmation, with this error, or in success if there is none."""
    future: asyncio.Future[None] = ticket
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


# enforces: R19
def _may_be_a_killer(message: Message) -> bool:
    """Whether the message may have killed a consumer already (R19).

    Such a message is marked as started before its handler runs, so that it counts before it kills.
    """
    return message.held.doubtful or message.held.push.attempt > 1


def _answer(
    future: "asyncio.Future[wire.Ok | wire.Error | None]", answer: wire.Ok | wire.Error | None
) -> None:
    if not future.done():
        future.set_result(answer)


def _ignored(_: wire.Ok | wire.Error | None) -> None:
    """Ignore the answer to a `held` frame that is not the last of its list. The answer to the last
    one counts for all of them."""

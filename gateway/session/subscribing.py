"""A session's subscriptions, as its frames ask for them: opened, given credit, left; answered."""

from functools import partial
from typing import Protocol

from gateway.session.link import Outlet
from gateway.session.returning import Returning
from gateway.session.subscriptions import Subscriptions
from gateway.wire import frames
from gateway.wire.session import Session
from push.errors import TocsinError
from runtime.loop.turns import Turns


class Host(Protocol):
    """The conversation that subscribes."""

    @property
    def carrier(self) -> Outlet | None:
        """What carries its frames; None: it is over."""

    def send(self, frame: bytes) -> None: ...

    def refuse(self, error: TocsinError, ref: int | None, queue: str | None = None) -> None:
        """Answer with an error."""

    def report_bug(self, ref: int | None) -> None:
        """From within an exception that nobody expected: log it, and answer `internal`."""

    def asked(self, count: int) -> None:
        """So many more answers are owed to the client."""

    def answered(self, frame: bytes) -> None:
        """One that is owed."""

    def settled(self) -> None:
        """Something was settled or returned: who drains may be done."""


class Subscribing:
    """See the module. `session` knows what is open, `returning` what is not found out yet;
    `turns`: one opens at a time."""

    __slots__ = ("_host", "_returning", "_session", "_subscriptions", "_turns")

    def __init__(
        self,
        host: Host,
        session: Session,
        subscriptions: Subscriptions,
        returning: Returning,
        turns: Turns,
    ) -> None:
        self._host = host
        self._session = session
        self._subscriptions = subscriptions
        self._returning = returning
        self._turns = turns

    async def open(self, frame: frames.Subscribe) -> None:
        """Answered when it is open, or with an error."""
        number, carrier = frame.subscription, self._host.carrier
        await self._turns.turn()
        if self._is_gone(carrier):
            self._session.dropped(number)
            return
        try:
            answer = await self._subscriptions.open(frame)
        except Exception as error:
            if self._is_gone(carrier):
                self._session.dropped(number)
            elif isinstance(error, TocsinError):
                self._session.refused(number)
                self._host.refuse(error, frame.ref, frame.queue)
            else:
                self._session.refused(number)
                self._host.report_bug(frame.ref)
            return
        self._session.opened(number, frame.credit)
        self._host.send(answer)
        self._subscriptions.grant(number, frame.credit)

    def _is_gone(self, carrier: Outlet | None) -> bool:
        """Whether the answer would reach nobody: a client that comes back subscribes again."""
        return self._host.carrier is None or self._host.carrier is not carrier

    def leave(self, frame: frames.Unsubscribe) -> None:
        """Its deliveries return to the group. Answered when all that was said of them is durable,
        and what had started has been counted."""
        self._host.asked(1)
        done = partial(self._host.answered, frames.ok(frame.ref))
        self._subscriptions.leave(frame.subscription, done=done)
        self._returning.left(frame.subscription)
        self._host.settled()

    def grant(self, frame: frames.Credit) -> None:
        """More messages may come."""
        self._subscriptions.grant(frame.subscription, frame.granted)
        self._session.granted(frame.subscription, frame.granted)

"""A client that came back says what it holds, one subscription after the other (R22).

Where it held that under an epoch before, it takes a moment to find out what of it is still its own:
the partitions are being owned, and the log is read for keys. What the client says of this
subscription meanwhile waits, in order: acks of what it holds come to those who know it.
"""

from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Protocol

from gateway.accounting.account import Account
from gateway.delivery.delivery_ports import DeliveryList
from gateway.session.subscriptions import Subscriptions
from gateway.wire import frames
from gateway.wire.delivery_lists import check_deliveries
from gateway.wire.together import Said
from push import limits
from push.errors import Refused, TocsinError
from push.signs import begins_anew


class Host(Protocol):
    """The conversation that goes on."""

    @property
    def account(self) -> Account: ...

    def send(self, frame: bytes) -> None: ...

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task of the session."""

    def hold_reading(self, hold: bool) -> None:
        """Read nothing more, or go on."""

    def apply(self, effects: Sequence[Said]) -> None:
        """What the client said, in order."""

    def report_bug(self, ref: int | None) -> None:
        """Inside an `except`."""


class Returning:
    """See the module."""

    __slots__ = ("_counted", "_host", "_named", "_parts", "_subscriptions", "_waiting")

    def __init__(self, host: Host, subscriptions: Subscriptions) -> None:
        self._host = host
        self._subscriptions = subscriptions
        self._parts: dict[int, DeliveryList] = {}
        """Per subscription, what was listed in frames that others follow."""
        self._named: dict[int, int] = {}
        """And how many ranges that is."""
        self._counted: dict[int, int] = {}
        """And how many of these frames named deliveries."""
        self._waiting: dict[int, list[Said]] = {}
        """Per subscription of which it is being found out, what was said meanwhile."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing more is to be read."""
        return any(self._waiting.values())

    def forget(self) -> list[int]:
        """The transport is gone, and with it what was said and not yet heard. But for what the
        session has judged already: who unsubscribed has left. Returns the subscriptions that were
        to be opened anew then; they are not."""
        waited = [effect for waiting in self._waiting.values() for effect in waiting]
        self._parts.clear()
        self._named.clear()
        self._counted.clear()
        self._waiting.clear()
        for effect in waited:
            if isinstance(effect, frames.Unsubscribe):
                self._subscriptions.leave(effect.subscription)
        return [effect.subscription for effect in waited if isinstance(effect, frames.Subscribe)]

    def left(self, subscription: int) -> None:
        """It has ended: what was listed for it means nothing to the next one of its number."""
        self._parts.pop(subscription, None)
        self._named.pop(subscription, None)
        self._counted.pop(subscription, None)

    def defers(self, effect: Said) -> bool:
        """Whether this waits, because it is about such a subscription. Nothing more is read
        meanwhile, which bounds what waits to what had already been read (P9)."""
        waiting = self._waiting and self._waiting.get(getattr(effect, "subscription", -1))
        if not isinstance(waiting, list):
            return False
        waiting.append(effect)
        self._host.hold_reading(True)
        return True

    def hold(self, frame: frames.Held) -> None:
        """What the client holds of a subscription; then that goes on. Raises Refused; nothing has
        changed then. All lists that are not complete yet share one bound (P9)."""
        check_deliveries(frame.deliveries)
        number = frame.subscription
        more = sum((len(one) - 3) // 2 for one in frame.deliveries)
        if sum(self._named.values()) + more > limits.NAMED_AS_HELD_MAX:
            raise Refused("invalid_request", "more deliveries than a client ever has to name")
        if frame.more:
            self._parts.setdefault(number, []).extend(frame.deliveries)
            self._named[number] = self._named.get(number, 0) + more
            parts = self._counted.get(number, 0)
            if begins_anew(more, parts):
                self._subscriptions.await_held(number)
                self._counted[number] = parts + 1
            self._host.send(frames.ok(frame.ref))
            return
        revoked = self._subscriptions.held(frame, [*self._parts.get(number, ()), *frame.deliveries])
        self.left(number)
        if isinstance(revoked, list):
            self._host.send(frames.ok(frame.ref, revoked=revoked))
        else:
            waiting = self._waiting[number] = []
            self._host.start(self._find_out(frame, revoked, waiting))

    async def _find_out(
        self, frame: frames.Held, revoked: Awaitable[DeliveryList], waiting: list[Said]
    ) -> None:
        host, answer = self._host, b""
        try:
            answer = frames.ok(frame.ref, revoked=await revoked)
        except TocsinError as error:
            host.account.refused(error.code.name)
            answer = frames.error(error, frame.ref)
        except Exception:
            host.report_bug(frame.ref)
        if self._waiting.get(frame.subscription) is not waiting:
            return  # the transport was lost meanwhile
        del self._waiting[frame.subscription]
        if answer:
            host.send(answer)
        host.hold_reading(False)
        host.apply(waiting)

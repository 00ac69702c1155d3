"""One reader: a subscription without a group (R26), as its queue's readers serve it."""

import asyncio
from typing import TYPE_CHECKING

from gateway.delivery.delivery_ports import Link
from gateway.facts_values import CreditDescription, SubscriptionDescription
from gateway.wire import frames
from push.credit import Credit
from push.errors import Refused

if TYPE_CHECKING:
    from gateway.delivery.queue_readers import QueueReaders

Framed = tuple[bytes, int]
"""A push, and the bytes of its messages."""


class Reader:
    """One subscription. Made by `Readers.open`."""

    def __init__(
        self, owner: "QueueReaders", link: Link, subscription: int, hashes: frozenset[int] | None
    ) -> None:
        self._owner = owner
        self.link = link
        self.is_socket = link.transport == "websocket"
        """It ends with its transport."""
        self.subscription = subscription
        self.hashes = hashes
        """Key hashes it wants; None: everything."""
        self.credit = Credit()
        self.verdicts: list[dict[str, object]] = []
        self.behind: dict[int, int] = {}
        """Partition → next offset, where it is not at the tail."""
        self.floors: dict[int, int] = {}
        """Partition → offset from which on it takes part in fan-outs again."""
        self.catching_up: asyncio.Task[None] | None = None
        self.closed = False

    def give(self, framed: Framed, count: int) -> None:
        """Push messages that it `takes`."""
        frame, size = framed
        self.credit.spend(count)
        self._owner.encoded.hits += 1
        self.link.account.of(self._owner.queue.name).given(count, size)
        self.link.send(frame)

    def takes(self, count: int) -> bool:
        """Whether it may be given so many messages now."""
        return self.credit.available >= count and self.link.writable()

    @property
    def given_total(self) -> int:
        """As Consumer.given_total of gateway.session.link."""
        return self.credit.sent

    def grant(self, granted_total: int) -> None:
        """Credit, counted absolutely (R25). Raises Refused(too_many)."""
        self.credit.grant(granted_total)
        self.pump()

    def pump(self) -> None:
        """Go on catching up, where it is behind."""
        if self.behind and self.catching_up is None and not self.closed and self.takes(1):
            self._owner.catch_up(self)

    def subscription_facts(self) -> SubscriptionDescription:
        """As Reader.subscription_facts of gateway.session.link."""
        credit = self.credit
        return SubscriptionDescription(
            subscription=self.subscription, queue=self._owner.queue.name, group=None,
            credit=CreditDescription(
                granted=credit.granted, used=credit.sent, open=credit.available
            ),
            keys=len(self.hashes) if self.hashes is not None else None, behind=sorted(self.behind),
        )  # fmt: skip

    def end(self, why: Refused) -> None:
        """It reads no more, and its session hears why."""
        if not self.closed:
            self.link.send(frames.error(why, subscription=self.subscription))
            self.close()

    def close(self) -> None:
        """It reads no more."""
        if not self.closed:
            self.closed = True
            self._owner.remove(self)

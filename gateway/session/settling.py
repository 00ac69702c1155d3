"""A session's acks, nacks and extends: carried out by its consumers, answered."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from gateway.accounting.account import Account
from gateway.session.link import Settled
from gateway.session.subscriptions import Settling, Subscriptions, settling_answer
from gateway.wire import frames
from push.errors import Refused


class Host(Protocol):
    """The conversation that settles."""

    @property
    def account(self) -> Account: ...

    def send(self, frame: bytes) -> None: ...

    def asked(self, count: int) -> None:
        """So many more answers (or, negative, fewer) are owed to the client."""

    def answered(self, frame: bytes) -> None:
        """One that is owed."""

    def settled(self) -> None:
        """Something was settled or returned: who drains may be done."""


class SettlingFrames:
    """See the module. Each raises TocsinError: nothing was settled."""

    __slots__ = ("_host", "_subscriptions")

    def __init__(self, host: Host, subscriptions: Subscriptions) -> None:
        self._host = host
        self._subscriptions = subscriptions

    def ack(self, frame: frames.Ack) -> None:
        """With a `ref` it is answered when it is durable."""
        self._settle(frame, partial(self._subscriptions.ack, frame))

    def nack(self, frame: frames.Nack) -> None:
        """Return to the group; with a `ref` it is answered when that is durable."""
        if frame.reject and frame.delay_s is not None:
            raise Refused("invalid_request", "delay_s: what is rejected is not tried again")
        self._settle(frame, partial(self._subscriptions.nack, frame))

    def _settle(
        self, frame: frames.Ack | frames.Nack,
        act: Callable[[Callable[[Settled], None] | None], Settled],
    ) -> None:  # fmt: skip
        if frame.ref is None:
            self._answer(frame, act(None))
            return
        self._host.asked(1)
        try:
            act(partial(self._confirmed, frame))
        except BaseException:
            self._host.asked(-1)
            raise

    def _confirmed(self, frame: frames.Ack | frames.Nack, settled: Settled) -> None:
        answer = settling_answer(frame, settled)
        assert answer is not None  # it has a ref
        self._count(settled)
        self._host.answered(answer)

    def extend(self, frame: frames.Extend) -> None:
        """Prolong leases, mark what has started."""
        self._answer(frame, self._subscriptions.extend(frame))

    def _answer(self, frame: Settling, settled: Settled) -> None:
        answer = settling_answer(frame, settled)
        if answer is not None:
            self._count(settled)
            self._host.send(answer)
        self._host.settled()

    def _count(self, settled: Settled) -> None:
        if not settled.durable:
            self._host.account.refused("unknown")
        elif settled.not_delivered:
            self._host.account.refused("not_delivered")

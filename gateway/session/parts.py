"""What a conversation is made of beside its machine: one part for each kind of frame."""

from typing import Protocol

from gateway.session import publishing, returning, settling, subscribing, subscriptions
from gateway.session.link import Broker
from gateway.wire.session import Session
from runtime.loop.turns import Turns


class Host(
    publishing.Host,
    returning.Host,
    settling.Host,
    subscribing.Host,
    subscriptions.Admitted,
    Protocol,
):
    """The conversation, as its parts see it."""


class Parts:
    """Each knows its host. A host that has ended lets go of them: nothing is left then for the
    garbage collector, which would come to a thousand ended sessions all at once."""

    __slots__ = ("publishing", "returning", "settling", "subscribing", "subscriptions")

    def __init__(self, host: Host, broker: Broker, session: Session, turns: Turns) -> None:
        self.publishing = publishing.Publishing(host)
        self.subscriptions = subscriptions.Subscriptions(broker, host)
        self.returning = returning.Returning(host, self.subscriptions)
        self.settling = settling.SettlingFrames(host, self.subscriptions)
        self.subscribing = subscribing.Subscribing(
            host, session, self.subscriptions, self.returning, turns
        )

    @property
    def is_waiting(self) -> bool:
        """Whether one of them has frames that wait for others: nothing more is to be read."""
        return self.publishing.is_waiting or self.returning.is_waiting

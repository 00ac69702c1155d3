"""What all conversations of a gateway share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.accounting.books import Books
from gateway.auth.auth import Auth
from gateway.limits.limiter import Limiter
from gateway.session.link import Broker
from gateway.session.sessions import Sessions
from gateway.wire.session import Timing
from metadata.catalog import Principal
from metadata.client import has_queue
from runtime.loop.turns import Turns


@dataclass(frozen=True, slots=True)
class Surroundings:
    """See the module."""

    broker: Broker
    auth: Auth
    broker_name: str = "tocsin"
    timing: Timing = field(default_factory=Timing)
    wall: Callable[[], float] = time.time
    """Unix seconds."""
    sessions: Sessions = field(default_factory=Sessions)
    books: Books = field(default_factory=Books)
    limiter: Limiter = field(default_factory=Limiter)
    turns: Turns = field(default_factory=Turns)

    def has_queue(self, principal: Principal, name: str) -> bool:
        """Whether there is a queue of this name, to this principal."""
        return has_queue(self.broker.metadata, principal, name)

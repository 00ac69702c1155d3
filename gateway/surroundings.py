"""What all conversations of a gateway share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.auth import Auth
from gateway.link import Broker
from gateway.session import Timing
from gateway.sessions import Sessions


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

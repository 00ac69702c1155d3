"""Which user each role is."""

from collections.abc import Callable
from typing import Final, Protocol

from loadtests.mix.consumers import Consumer, Reader
from loadtests.mix.desk import Desk
from loadtests.mix.habits import Day, Storm
from loadtests.mix.publishers import RestPublisher, SocketPublisher
from loadtests.mix.transports import Poll


class Doing(Protocol):
    """What a user does."""

    def turn(self) -> None:
        """Some of it; it may block for a second or two."""

    def close(self) -> None:
        """Enough of it."""


def _worker(desk: Desk) -> Doing:
    return Consumer(desk, "worker")


def _poller(desk: Desk) -> Doing:
    return Consumer(desk, "poller", Poll)


def _slow(desk: Desk) -> Doing:
    return Consumer(desk, "slow", work_s=desk.plan.slow_s)


MAKE: Final[dict[str, Callable[[Desk], Doing]]] = {
    "websocket": SocketPublisher,
    "rest": RestPublisher,
    "worker": _worker,
    "reader": Reader,
    "poller": _poller,
    "slow": _slow,
    "storm": Storm,
    "day": Day,
}
"""By the role's name in a plan; a user of each is made with the desk of its process."""


def turn(desk: Desk, role: str, doing: Doing) -> None:
    """One turn. What goes wrong and is no lost connection is noted, and breaks a gate; it goes on
    to whoever runs the user."""
    try:
        doing.turn()
    except Exception as error:
        desk.ledger.counts["user errors"] += 1
        desk.error = desk.error or f"{role}: {type(error).__name__}: {error}"
        raise

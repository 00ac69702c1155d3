"""The users of the mix by their roles.

Most are a publisher, a consumer or a reader as it is. Two have habits: one loses its socket with
all others of its kind, one has a day.
"""

from collections.abc import Callable
from typing import Final, Protocol

from loadtests.mix.consumers import Consumer, Reader
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.publishers import RestPublisher, SocketPublisher
from loadtests.mix.transports import MakeTransport, Poll, Socket

_STORM_JITTER_S: Final = 0.2
"""Within which all of them have lost theirs: no network takes it from all in one instant."""


class Storm:
    """A consumer whose socket is cut, without a word, at instants that all processes share; it is
    back as soon as it can. How long that took is measured as `comeback storm`."""

    def __init__(self, context: ProcessContext, transport: MakeTransport = Socket) -> None:
        self._context = context
        self._consumer = Consumer(context, "storm", transport)
        self._storms = 0

    def turn(self) -> None:
        """As Session has it, and a cut where one is due."""
        context, plan = self._context, self._context.plan
        if context.phase.name == "measure":
            since_ns = context.now_ns() - context.phase.since_ns
            storms = int(since_ns // int(plan.storm_every_s * NS))
            if storms > self._storms:
                self._storms = storms
                context.sleep(context.random.uniform(0, _STORM_JITTER_S))
                self._consumer.lost(asked=True)
        self._consumer.turn(0.25)

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


class _Doing(Protocol):
    """What somebody does for some hours."""

    def turn(self) -> None:
        """Some of it."""

    def close(self) -> None:
        """Enough of it."""


class _Asleep:
    """Nobody is there."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context

    def turn(self) -> None:
        self._context.sleep(0.5)

    def close(self) -> None:
        pass


DAY: Final = ("sleep", "sleep", "publish", "work", "publish", "work", "read", "sleep")
"""Eight parts of three hours, from midnight on."""


class Day:
    """Goes through a compressed day: a session for each part of it. When publishing is over it
    works, until everything is settled; its group would else have nobody at night."""

    def __init__(self, context: ProcessContext, transport: MakeTransport = Socket) -> None:
        self._context = context
        self._make = transport
        self._part = ""
        self._doing: _Doing = _Asleep(context)
        self._shift_ns = int(context.random.uniform(0, 0.25) * context.plan.day_s * NS)
        """Not everybody gets up at the same time."""

    def turn(self) -> None:
        """Some of what is to be done at this hour."""
        part = self.part()
        if part != self._part:
            self._doing.close()
            self._part, self._doing = part, self._begin(part)
        self._doing.turn()

    def part(self) -> str:
        """What is to be done now."""
        context = self._context
        if not context.is_publishing:
            return "work"
        at_ns = context.now_ns() - context.plan.began_ns + self._shift_ns
        return DAY[int(at_ns * len(DAY) // int(context.plan.day_s * NS)) % len(DAY)]

    def _begin(self, part: str) -> _Doing:
        if part == "publish":
            return SocketPublisher(self._context, self._make)
        if part == "work":
            return Consumer(self._context, "day", self._make)
        if part == "read":
            return Reader(self._context, "day", self._make, is_whole=False)
        return _Asleep(self._context)

    def close(self) -> None:
        """Leave."""
        self._doing.close()


class Doing(Protocol):
    """What a user does."""

    def turn(self) -> None:
        """Some of it; it may block for a second or two."""

    def close(self) -> None:
        """Enough of it."""


def _worker(context: ProcessContext) -> Doing:
    return Consumer(context, "worker")


def _poller(context: ProcessContext) -> Doing:
    return Consumer(context, "poller", Poll)


def _slow(context: ProcessContext) -> Doing:
    return Consumer(context, "slow", work_s=context.plan.slow_s)


MAKE: Final[dict[str, Callable[[ProcessContext], Doing]]] = {
    "websocket": SocketPublisher,
    "rest": RestPublisher,
    "worker": _worker,
    "reader": Reader,
    "poller": _poller,
    "slow": _slow,
    "storm": Storm,
    "day": Day,
}
"""By the role's name in a plan; a user of each is made with the context of its process."""


def turn(context: ProcessContext, role: str, doing: Doing) -> None:
    """One turn. What goes wrong and is no lost connection is noted, and breaks a gate; it goes on
    to whoever runs the user."""
    try:
        doing.turn()
    except Exception as error:
        context.ledger.counts["user errors"] += 1
        context.error = context.error or f"{role}: {type(error).__name__}: {error}"
        raise

"""The users of the mix by their roles.

Most are simply a publisher, a consumer or a reader. Two behave specially: one loses its socket
together with all others of its kind, one has a day.
"""

from collections.abc import Callable
from typing import Final, Protocol

from loadtests.mix.consumers import Consumer, Reader
from loadtests.mix.process_context import NS, ProcessContext
from loadtests.mix.publishers import RestPublisher, SocketPublisher
from loadtests.mix.transports import MakeTransport, Poll, Socket

_STORM_JITTER_S: Final = 0.2
"""The most seconds that a storm user waits, once it has noticed a storm, before it loses its
socket; no network failure hits all in one instant."""


class Storm:
    """A consumer whose socket is cut, without a word, at instants that all processes share. It
    connects again as soon as it can. The time that this takes is measured as `comeback storm`."""

    def __init__(self, context: ProcessContext, transport: MakeTransport = Socket) -> None:
        self._context = context
        self._consumer = Consumer(context, "storm", transport)
        self._storms = 0

    def turn(self) -> None:
        """Take one turn, and cut the socket if a storm is due."""
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
    """The activity of a `Day` in one part of the day."""

    def turn(self) -> None:
        """Take one turn."""

    def close(self) -> None:
        """End the activity."""


class _Asleep:
    """An idle user."""

    def __init__(self, context: ProcessContext) -> None:
        self._context = context

    def turn(self) -> None:
        self._context.sleep(0.5)

    def close(self) -> None:
        pass


DAY: Final = ("sleep", "sleep", "publish", "work", "publish", "work", "read", "sleep")
"""The activity in each eighth of a day, from midnight on."""


class Day:
    """A user that goes through a compressed day, with a session for each part. When publishing is
    over it works until everything is settled, because its group would otherwise have no consumer at
    night."""

    def __init__(self, context: ProcessContext, transport: MakeTransport = Socket) -> None:
        self._context = context
        self._make = transport
        self._part = ""
        self._doing: _Doing = _Asleep(context)
        self._shift_ns = int(context.random.uniform(0, 0.25) * context.plan.day_s * NS)
        """A random time, at most a quarter of a day, by which this user's day is shifted, so that
        not all users begin their day at the same time."""

    def turn(self) -> None:
        """Take one turn of the current part."""
        part = self.part()
        if part != self._part:
            self._doing.close()
            self._part, self._doing = part, self._begin(part)
        self._doing.turn()

    def part(self) -> str:
        """Return the current part of the day; `work` once nothing new is published."""
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
    """The activity of a user."""

    def turn(self) -> None:
        """Take one turn; it may block for a second or two."""

    def close(self) -> None:
        """End the activity."""


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
"""For each role of a plan, a function that makes a user from the context of its process."""


def turn(context: ProcessContext, role: str, doing: Doing) -> None:
    """Take one turn. An error other than a lost connection is noted, breaks a gate, and is raised
    again."""
    try:
        doing.turn()
    except Exception as error:
        context.ledger.counts["user errors"] += 1
        context.error = context.error or f"{role}: {type(error).__name__}: {error}"
        raise

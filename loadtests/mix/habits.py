"""Users with habits: one that loses its socket with all others of its kind, one that has a day."""

from typing import Final, Protocol

from loadtests.mix.consumers import Consumer, Reader
from loadtests.mix.desk import NS, Desk
from loadtests.mix.publishers import SocketPublisher
from loadtests.mix.transports import MakeTransport, Socket

_STORM_JITTER_S: Final = 0.2
"""Within which all of them have lost theirs: no network takes it from all in one instant."""


class Storm:
    """A consumer whose socket is cut, without a word, at instants that all processes share; it is
    back as soon as it can. How long that took is measured as `comeback storm`."""

    def __init__(self, desk: Desk, transport: MakeTransport = Socket) -> None:
        self._desk = desk
        self._consumer = Consumer(desk, "storm", transport)
        self._storms = 0

    def turn(self) -> None:
        """As Session has it, and a cut where one is due."""
        desk, plan = self._desk, self._desk.plan
        if desk.phase.name == "measure":
            since_ns = desk.now_ns() - desk.phase.since_ns
            storms = int(since_ns // int(plan.storm_every_s * NS))
            if storms > self._storms:
                self._storms = storms
                desk.sleep(desk.random.uniform(0, _STORM_JITTER_S))
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

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def turn(self) -> None:
        self._desk.sleep(0.5)

    def close(self) -> None:
        pass


DAY: Final = ("sleep", "sleep", "publish", "work", "publish", "work", "read", "sleep")
"""Eight parts of three hours, from midnight on."""


class Day:
    """Goes through a compressed day: a session for each part of it. When publishing is over it
    works, until everything is settled; its group would else have nobody at night."""

    def __init__(self, desk: Desk, transport: MakeTransport = Socket) -> None:
        self._desk = desk
        self._make = transport
        self._part = ""
        self._doing: _Doing = _Asleep(desk)
        self._shift_ns = int(desk.random.uniform(0, 0.25) * desk.plan.day_s * NS)
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
        desk = self._desk
        if not desk.is_publishing:
            return "work"
        at_ns = desk.now_ns() - desk.plan.began_ns + self._shift_ns
        return DAY[int(at_ns * len(DAY) // int(desk.plan.day_s * NS)) % len(DAY)]

    def _begin(self, part: str) -> _Doing:
        if part == "publish":
            return SocketPublisher(self._desk, self._make)
        if part == "work":
            return Consumer(self._desk, "day", self._make)
        if part == "read":
            return Reader(self._desk, "day", self._make, is_whole=False)
        return _Asleep(self._desk)

    def close(self) -> None:
        """Leave."""
        self._doing.close()

"""The causes of repeated deliveries, from a closed list, and acks that settled what they must not.
Pure.

At-least-once allows a message to come again, each time for a known cause. A repeated delivery that
no cause explains is a violation: some gateway has forgotten, or never knew, the partition's owner.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from loadtests.checker.history import (
    Acked,
    Confirmed,
    Delivered,
    Ended,
    Event,
    Extended,
    FaultBegins,
    FaultEnds,
    Lost,
    Revoked,
    Serves,
    World,
)

NS: Final = 1_000_000_000
EARLY: Final = 0.9
"""The share of a lease after which the checker takes it as expired, because the lease began before
the client saw the message."""
PULL: Final = "pull"
"""The prefix of `Delivered.stream` if a message was pulled."""
AFTERMATH_S: Final = 10.0
"""Seconds after a fault's end in which its consequences may continue: gateways return, partitions
get owners."""

CAUSES: Final = {
    "returned": "its consumer nacked it, or the broker revoked it",
    "stale": "an ack of it came too late, and its consumer was told so",
    "lease expired": "nobody settled it within its lease",
    "consumer gone": "the connection that it went over has ended",
    "gateway died": "the gateway that gave it was killed",
    "owner cut off": "a fault kept its owner from the store, and another one took over",
    "drain ended": "the pulls of its gateway have left the group, or were moved",
    "late": "an owner of before gave it, and did not know of its successor yet",
}
"""All causes of a repeated delivery."""

Flag = Callable[[str, str], None]
Place = tuple[str, int, int]
"""(group, partition, offset)."""


class Faults:
    """The times of faults, and the gateways that they affected."""

    def __init__(self) -> None:
        self._faults: dict[int, tuple[int, int | None, tuple[str, ...]]] = {}
        self._recent: deque[int] = deque(maxlen=20)

    def see(self, event: World) -> None:
        """Take the next event."""
        if isinstance(event, FaultBegins):
            self._faults[event.number] = (event.at, None, event.gateways)
            self._recent.append(event.number)
        elif isinstance(event, FaultEnds):
            began, _, gateways = self._faults[event.number]
            self._faults[event.number] = (began, event.at, gateways)

    def touched(self, gateway: str, since: int, until: int) -> bool:
        """Whether one of the latest 20 faults, or its aftermath of AFTERMATH_S, affected this
        gateway between `since` and `until` (monotonic nanoseconds)."""
        for number in self._recent:
            began, ended, gateways = self._faults[number]
            over = ended is not None and ended + AFTERMATH_S * NS < since
            if began <= until and not over and (not gateways or gateway in gateways):
                return True
        return False


@dataclass(slots=True)
class _Latest:
    """The latest delivery of an offset to a group."""

    event: Delivered
    at: int
    """The time, in the client's log, at which its lease began, or was prolonged."""
    ended: str = ""
    is_acked: bool = False


@dataclass(slots=True)
class _Owner:
    """The latest known owner of a (group, partition)."""

    epoch: int = 0
    session: str = ""
    server: int = 0


@dataclass(frozen=True, slots=True)
class _Named:
    """A delivery that an ack names, and its state when the ack was sent."""

    place: Place
    newer: str
    """The name of the message's latest delivery when the ack was sent, if that was another one;
    else empty."""
    successor: int
    """The epoch of the owner, another session, that had replaced the delivery's owner when the ack
    was sent; 0 if none had."""


@dataclass
class Causes:
    """A classifier of repeated deliveries, from the events of a run in order of time. `flag`
    receives violations."""

    lease_s: float
    flag: Flag
    causes: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    """Number of messages whose ack was answered stale."""
    fenced: int = 0
    """Number of messages among `stale` whose ack was sent under the epoch of a former owner."""

    def __post_init__(self) -> None:
        self.faults = Faults()
        self._latest: dict[Place, _Latest] = {}
        self._places: dict[str, Place] = {}
        self._epochs: dict[str, tuple[int, str]] = {}
        """A delivery → its owner's epoch and session."""
        self._owners: dict[tuple[str, int], _Owner] = {}
        self._lost: set[str] = set()
        self._ended: set[int] = set()
        self._gateways: dict[int, str] = {}
        self._pulled: dict[tuple[str, str | None], list[str]] = {}
        """(the stream of one pull, key) → the names of that pull's deliveries of the key."""
        self._acks: dict[str, dict[str, _Named | None]] = {}

    def is_late(self, event: Delivered) -> bool:
        """Whether a delivery is from a former owner whose successor has already delivered
        something."""
        owner = self._owners.get((event.group, event.partition))
        return owner is not None and 0 < event.epoch < owner.epoch

    def see(self, event: Event | World) -> None:
        """Take the next event."""
        match event:
            case Delivered():
                self._delivered(event)
            case Acked():
                self._acked(event)
            case Confirmed():
                self._confirmed(event)
            case Revoked():
                for name in event.by:
                    self._end(name, "returned")
            case Extended():
                for name in event.by:
                    if (latest := self._of(name)) is not None:
                        latest.at = event.at
            case Lost():
                self._lost.add(event.stream)
            case Ended():
                self._ended.add(event.server)
            case Serves():
                self._gateways[event.server] = event.gateway
            case FaultBegins() | FaultEnds():
                self.faults.see(event)
            case _:
                pass

    def _delivered(self, event: Delivered) -> None:
        place = (event.group, event.partition, event.offset)
        self._places[event.by] = place
        self._epochs[event.by] = (event.epoch, event.session)
        if event.stream.startswith(PULL):
            self._pulled.setdefault((event.stream, event.key), []).append(event.by)
        if self.is_late(event):
            if place in self._latest:
                self.causes["late"] += 1
            return
        owner = self._owners.setdefault((event.group, event.partition), _Owner())
        if event.epoch > owner.epoch:
            owner.epoch, owner.session, owner.server = event.epoch, event.session, event.server
        before = self._latest.get(place)
        if before is not None:
            cause = self._cause(before, event)
            if cause:
                self.causes[cause] += 1
            else:
                self.flag("unexplained", f"{place}: {event.by} after {before.event.by}")
        self._latest[place] = _Latest(event, event.at)

    def _cause(self, before: _Latest, event: Delivered) -> str:
        """Return why a message may be given again; empty if no cause explains it."""
        given = before.event
        if before.ended:
            return before.ended
        if given.stream in self._lost:
            return "consumer gone"
        if given.server in self._ended:
            return "gateway died"
        if before.at + self.lease_s * EARLY * NS <= event.at:
            return "lease expired"
        if event.epoch > given.epoch:
            if self.faults.touched(self._gateways.get(given.server, ""), before.at, event.at):
                return "owner cut off"
            if given.stream.startswith(PULL):
                return "drain ended"
        return ""

    def _of(self, name: str) -> _Latest | None:
        """Return the delivery of this name if it is its message's latest; else None."""
        place = self._places.get(name)
        latest = self._latest.get(place) if place is not None else None
        return latest if latest is not None and latest.event.by == name else None

    def _end(self, name: str, why: str) -> None:
        latest = self._of(name)
        if latest is None or latest.ended:
            return
        latest.ended = why
        # R17: later messages of its key return with it, and pulling clients get no notice of that.
        for other in self._pulled.get((latest.event.stream, latest.event.key), ()):
            behind = self._of(other)
            if behind is not None and behind.event.offset > latest.event.offset:
                behind.ended = behind.ended or why

    def _acked(self, event: Acked) -> None:
        # An earlier ack that was refused, or never answered, does not belong to the next answer.
        named = self._acks[event.ref] = {}
        if event.returned:
            for name in event.by:
                self._end(name, "returned")
            return
        for name in event.by:
            named[name] = self._named(name)
            if (latest := self._of(name)) is not None:
                latest.is_acked = True

    def _named(self, name: str) -> _Named | None:
        place = self._places.get(name)
        if place is None:
            return None
        epoch, session = self._epochs[name]
        owner = self._owners.get(place[:2], _Owner())
        succeeded = owner.epoch > epoch and (not session or owner.session != session)
        latest = self._latest.get(place)
        newer = latest.event.by if latest is not None and latest.event.by != name else ""
        return _Named(place, newer, owner.epoch if succeeded else 0)

    def _confirmed(self, event: Confirmed) -> None:
        """Check a confirmed ack. R15: a former owner settles nothing. R21: an ack of a delivery
        that has a newer one counts only if the newest one was acked, too."""
        stale = set(event.stale)
        for name, named in self._acks.pop(event.ref, {}).items():
            if name in stale:
                self.stale += 1
                self.fenced += named is not None and named.successor > 0
                self._end(name, "stale")
                continue
            if named is None:
                continue
            if named.successor:
                self.flag("zombie_settled", f"{name}, when epoch {named.successor} had begun")
            elif named.newer and not self._is_settled(named):
                self.flag("stale_settled", f"{name}, when {named.newer} had been given")

    def _is_settled(self, named: _Named) -> bool:
        latest = self._latest[named.place]
        return latest.is_acked

"""Why messages were given more than once, from a closed list; and whose acks counted. Pure.

At-least-once allows a message to come again, each time for a reason that can be named. What none
of the reasons explains is a violation: some gateway has forgotten, or never knew, whose it was.
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
"""A lease may be over from this share of it on: it began before its message was seen."""
PULL: Final = "pull"
"""How the streams of pulls begin."""
AFTERMATH_S: Final = 10.0
"""So long after a fault's end its consequences go on: gateways are taken back, places are owned."""

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
"""All that may be why a message comes again."""

Flag = Callable[[str, str], None]
Place = tuple[str, int, int]
"""(group, partition, offset)."""


class Faults:
    """When faults were, and which gateways they touched."""

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
        """Whether some fault, or its aftermath, touched this gateway in this time."""
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
    """When its lease began, or was prolonged."""
    ended: str = ""
    is_acked: bool = False


@dataclass(slots=True)
class _Owner:
    """Who a (group, partition) was seen to belong to last."""

    epoch: int = 0
    session: str = ""
    server: int = 0


@dataclass(frozen=True, slots=True)
class _Named:
    """A delivery that an ack names, and how it stood when the ack was sent."""

    place: Place
    newer: str
    """The delivery that had taken its place, if any."""
    successor: int
    """The epoch of the owner that had taken its owner's place, else 0."""


@dataclass
class Causes:
    """Takes the events of a run in the order of their time. `flag`: where violations go."""

    lease_s: float
    flag: Flag
    causes: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    """Acks that were answered stale, in messages."""
    fenced: int = 0
    """Of these, those that were sent under the epoch of an owner of before."""

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
        """What one pull gave of one key."""
        self._acks: dict[str, dict[str, _Named | None]] = {}

    def is_late(self, event: Delivered) -> bool:
        """Whether it is of an owner whose successor has been seen to give something."""
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
        """Why it may be given again; empty: nothing explains it."""
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
        """The delivery of this name, if it is its message's latest."""
        place = self._places.get(name)
        latest = self._latest.get(place) if place is not None else None
        return latest if latest is not None and latest.event.by == name else None

    def _end(self, name: str, why: str) -> None:
        latest = self._of(name)
        if latest is None or latest.ended:
            return
        latest.ended = why
        # R17: later ones of its key return with it, and nobody tells who has pulled them
        for other in self._pulled.get((latest.event.stream, latest.event.key), ()):
            behind = self._of(other)
            if behind is not None and behind.event.offset > latest.event.offset:
                behind.ended = behind.ended or why

    def _acked(self, event: Acked) -> None:
        # One that was refused, or never answered, is not what the next one's answer is about.
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
        """R15: nothing that an owner of before settles counts; R21: nor does an ack of a delivery
        that has a newer one, unless that was settled too."""
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

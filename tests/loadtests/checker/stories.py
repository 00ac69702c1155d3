"""Histories as a right broker of several gateways would leave them, made from a seed.

It knows everything: its store never forgets, its owners follow each other by epochs, and clients,
gateways and faults come and go. What the checker makes of its events must be: nothing wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from loadtests.checker.causes import NS
from loadtests.checker.history import (
    Acked,
    Answered,
    Attempt,
    Confirmed,
    Delivered,
    Drained,
    Ended,
    Event,
    FaultBegins,
    FaultEnds,
    Lost,
    Publishing,
    Read,
    ReaderTold,
    ReplicaGone,
    ReplicaIn,
    Revoked,
    Serves,
    World,
)

QUEUE: Final = "q"
GROUP: Final = "q/g"
PARTITIONS: Final = 2
KEYS: Final = 6
PRODUCERS: Final = 2
LEASE_S: Final = 3.0
NODE_TIMEOUT_S: Final = 0.5
AWAY_S: Final = 15.0
"""In which publishing goes on when a replica has gone."""
STEP_NS: Final = NS // 1000


@dataclass
class Place:
    """An offset of a partition, and where it is."""

    key: str
    body: bytes
    given: Delivered | None = None
    """The delivery in flight, if any."""
    settled: bool = False


@dataclass
class Log:
    """A partition, and its owner."""

    number: int
    places: list[Place] = field(default_factory=list)
    epoch: int = 0
    push: int = 0
    stream: str = ""
    server: int = 1


class Story:
    """Events, one after another. `act` does something at random; `end` lets all come to rest."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.events: list[Event | World] = []
        self.at = NS
        self.logs = [Log(number) for number in range(PARTITIONS)]
        self.sequences = [0] * PRODUCERS
        self.refused: list[tuple[str, int, str, bytes]] = []
        self.confirmed: list[Delivered] = []
        self._numbers = iter(range(1, 1_000_000))
        self._servers = 2
        self._reads = [0] * PARTITIONS
        self.names = {server: f"gateway-{server}" for server in (1, 2)}
        """Of each start, whose it was."""
        for server, name in self.names.items():
            self.tell(Serves(self.now(), server, name))
        for log in self.logs:
            self.own(log)

    def now(self) -> int:
        """A moment later."""
        self.at += STEP_NS
        return self.at

    def tell(self, event: Event | World) -> None:
        """It happens."""
        self.events.append(event)

    def number(self) -> int:
        """One that nobody else has."""
        return next(self._numbers)

    # --- publishing

    def key_of(self, log: Log) -> str:
        """One of those that go to this partition."""
        return f"k{self.random.randrange(KEYS // PARTITIONS) * PARTITIONS + log.number}"

    def publish(self, log: Log | None = None, key: str = "", producer: int | None = None) -> Place:
        """A message that is stored, and its receipt; perhaps only after a second try."""
        log = log or self.random.choice(self.logs)
        number = self.random.randrange(PRODUCERS) if producer is None else producer
        name, sequence = f"p{number}", self.sequences[number]
        self.sequences[number] += 1
        key = key or self.key_of(log)
        body = b'"%d-%d"' % (number, sequence)
        self.tell(Attempt(self.now(), name, sequence, QUEUE, key, body))
        if self.random.random() < 0.1:
            outcome = self.random.choice(["unknown", "refused"])
            self.tell(Answered(self.now(), name, sequence, outcome))  # type: ignore[arg-type]
            self.tell(Attempt(self.now(), name, sequence, QUEUE, key, body))
        place = Place(key, body)
        log.places.append(place)
        offset = len(log.places) - 1
        self.tell(Answered(self.now(), name, sequence, "ok", log.number, offset))
        return place

    def refuse(self) -> None:
        """A message that is refused for good. Its producer does nothing else, so nothing of it is
        behind."""
        log = self.random.choice(self.logs)
        name, key, body = f"r{self.number()}", self.key_of(log), b'"r%d"' % self.number()
        self.tell(Attempt(self.now(), name, 0, QUEUE, key, body))
        self.tell(Answered(self.now(), name, 0, "refused"))
        self.refused.append((name, 0, key, body))

    # --- consuming

    def own(self, log: Log) -> None:
        """Somebody else owns it from now on; what was in flight comes again."""
        log.epoch += self.random.randint(1, 3)
        log.push = 0
        log.stream = f"s{self.number()}"
        log.server = self._servers
        for place in log.places:
            place.given = None

    def may_give(self, log: Log, offset: int) -> bool:
        """Whether all before it of its key are settled, or in flight where it would go (R17)."""
        place = log.places[offset]
        return not place.settled and place.given is None and all(
            before.settled or before.given is not None
            for before in log.places[:offset]
            if before.key == place.key
        )  # fmt: skip

    def give(self, log: Log, offset: int) -> Delivered:
        """A delivery."""
        place = log.places[offset]
        log.push += 1
        by = f"{log.stream}:1:{log.number}:{log.epoch}:{log.push}:{offset}"
        place.given = Delivered(
            self.now(), log.server, log.stream, GROUP, log.number, offset, place.key, place.body,
            by, log.epoch, log.push, log.stream,
        )  # fmt: skip
        self.tell(place.given)
        return place.given

    def give_any(self) -> None:
        log = self.random.choice(self.logs)
        may = [offset for offset in range(len(log.places)) if self.may_give(log, offset)]
        if may:
            self.give(log, may[0] if self.random.random() < 0.7 else self.random.choice(may))

    def ack(self, log: Log, offset: int, *, is_answered: bool = True) -> None:
        """Settled; the consumer may not hear of it."""
        place = log.places[offset]
        assert place.given is not None
        ref = f"{log.stream}:{self.number()}"
        self.tell(Acked(self.now(), ref, (place.given.by,)))
        if is_answered:
            self.tell(Confirmed(self.now(), ref))
            self.confirmed.append(place.given)
        place.settled, place.given = True, None

    def in_flight(self) -> list[tuple[Log, int]]:
        """Return what is given, each the first of its key."""
        found = []
        for log in self.logs:
            keys: set[str] = set()
            for offset, place in enumerate(log.places):
                if place.given is not None and place.key not in keys:
                    keys.add(place.key)
                    found.append((log, offset))
        return found

    def ack_any(self) -> None:
        if flying := self.in_flight():
            log, offset = self.random.choice(flying)
            self.ack(log, offset, is_answered=self.random.random() < 0.9)

    def nack_any(self) -> None:
        if not (flying := self.in_flight()):
            return
        log, offset = self.random.choice(flying)
        first, ref = log.places[offset], f"{log.stream}:{self.number()}"
        behind = [one for one in log.places[offset + 1 :] if one.key == first.key and one.given]
        assert first.given is not None
        self.tell(Acked(self.now(), ref, (first.given.by,), True))
        names = tuple(one.given.by for one in behind if one.given is not None)
        self.tell(Revoked(self.now(), names))
        self.tell(Confirmed(self.now(), ref))
        for one in (first, *behind):
            one.given = None

    def leave(self) -> None:
        """A consumer's connection ends."""
        log = self.random.choice(self.logs)
        self.tell(Lost(self.now(), log.stream))
        self.own(log)

    def lease_ends(self) -> None:
        self.at += int(LEASE_S * NS)
        for log in self.logs:
            for place in log.places:
                place.given = None

    def fault(self) -> None:
        """A gateway is killed, or cut off: others own what it had, and it may not know that yet."""
        number, log = self.number(), self.random.choice(self.logs)
        self.tell(FaultBegins(self.now(), number, "kill", (self.names[log.server],)))
        before = replace(log)
        old = [place.given for place in log.places if place.given is not None]
        is_dead = self.random.random() < 0.5
        if is_dead:
            self.tell(Ended(self.now(), before.server))
            self._servers += 1
            self.names[self._servers] = self.names[before.server]
            self.tell(Serves(self.now(), self._servers, self.names[before.server]))
        self.at += int(self.random.uniform(0, 8) * NS)
        for one in self.logs:
            if one is log or (is_dead and one.server == before.server):
                self.own(one)
        may = [offset for offset in range(len(log.places)) if self.may_give(log, offset)]
        if may:
            self.give(log, may[0])
            if not is_dead and old:
                self.late(log, old, before)
        self.tell(FaultEnds(self.now(), number))
        self.at += NS
        for producer in range(PRODUCERS):
            self.publish(producer=producer)

    def away(self) -> None:
        """A replica goes and is let in again; publishing waits until it is taken out."""
        self.tell(ReplicaGone(self.now()))
        for seconds in (self.random.uniform(0, AWAY_S - 1), AWAY_S - 1):
            self.at += int(seconds * NS)
            for producer in range(PRODUCERS):
                self.publish(producer=producer)
        self.tell(ReplicaIn(self.now(), AWAY_S))

    def late(self, log: Log, old: list[Delivered], before: Log) -> None:
        """The owner of before gives something once more, and what is acked to it is stale."""
        one = old[0]
        if not log.places[one.offset].settled:
            names = f"{before.stream}:1:{log.number}:{before.epoch}:{before.push + 1}:{one.offset}"
            self.tell(replace(one, at=self.now(), by=names, push=before.push + 1))
        ref = f"{before.stream}:{self.number()}"
        self.tell(Acked(self.now(), ref, tuple(each.by for each in old)))
        self.tell(Confirmed(self.now(), ref, tuple(each.by for each in old)))

    def read(self) -> None:
        """The reader reads on, or comes back."""
        number = self.random.randrange(PARTITIONS)
        if self.random.random() < 0.1:
            self.tell(ReaderTold(self.now(), QUEUE, "reader", number, "resumed"))
        self.read_one(number)

    def read_one(self, number: int) -> bool:
        offset, places = self._reads[number], self.logs[number].places
        if offset == len(places):
            return False
        place = places[offset]
        self.tell(Read(self.now(), QUEUE, "reader", number, offset, place.key, place.body))
        self._reads[number] += 1
        return True

    # --- all of it

    def act(self) -> None:
        """Something happens."""
        acts: list[tuple[Callable[[], object], int]] = [
            (self.publish, 30), (self.give_any, 40), (self.ack_any, 30), (self.nack_any, 4),
            (self.read, 15), (self.leave, 1), (self.lease_ends, 1), (self.fault, 2),
            (self.refuse, 1), (self.away, 1),
        ]  # fmt: skip
        self.random.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    def end(self) -> None:
        """Nobody publishes; all is given, settled and read."""
        self.tell(Drained(self.now(), 1000, 1.0, healthy=True))
        self.tell(Publishing(self.now(), goes_on=False))
        for log in self.logs:
            for offset, place in enumerate(log.places):
                if not place.settled:
                    if place.given is None:
                        self.give(log, offset)
                    self.ack(log, offset)
            while self.read_one(log.number):
                pass


def story(seed: int, steps: int) -> Story:
    """One that is at its end."""
    told = Story(seed)
    for _ in range(steps):
        told.act()
    told.fault()
    told.away()
    told.refuse()
    told.end()
    return told

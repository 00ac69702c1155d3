"""The store's side of shared rates, as storage/redis/lua/limits.lua has it: what the rules are
tried against with literal times, and what the functions must agree with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from push.rates.bucket import Rate
from push.rates.shared import (
    LEASE_S,
    LOOK_S,
    PARTS,
    RECALLED_MAX,
    SEATS,
    SLICES,
    STEP_S,
    RateGrant,
    RateReply,
    RateRequest,
)

SAFE = 2.0**-50


@dataclass
class Entry:
    """What a gateway has of a bucket."""

    life: int
    granted: int
    counted: int
    back: int = 0
    want: int = 0
    need: int = 0
    place: int = 0
    served: int = 0

    @property
    def held(self) -> int:
        """And has neither used nor given back, as far as it said."""
        return self.granted - self.counted - self.back


@dataclass
class Whole:
    """A bucket."""

    rate: Rate
    at: int
    level: int = 0
    line: int = 0
    implied: set[str] = field(default_factory=set)
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def share(self) -> int:
        return max(1, self.rate.burst // PARTS)

    @property
    def per_us(self) -> float:
        shares = PARTS - len(self.implied)
        return self.rate.units * shares / (PARTS * self.rate.per_s * 1000000)

    def leak(self, now: int) -> None:
        whole = math.floor((now - self.at) * self.per_us * (1 - SAFE))
        if whole >= self.level:
            self.level, self.at = 0, now
        elif whole > 0:
            self.level -= whole
            self.at = min(now, self.at + math.ceil(whole / self.per_us * (1 + SAFE)))

    def bury(self, alive: dict[str, "Gateway"], now: int) -> None:
        for gateway in self.entries.keys() - alive.keys():
            self.level += self.entries.pop(gateway).held
        for gateway in self.implied - alive.keys():
            self.level, self.at = self.level + self.share, now
            self.implied.discard(gateway)

    def outstanding(self) -> int:
        held = sum(entry.held for entry in self.entries.values())
        return held + self.share * len(self.implied)

    def target(self, entry: Entry) -> int:
        slice_ = max(1, self.rate.burst // (SLICES * len(self.entries)))
        return max(min(entry.need, self.rate.burst), min(entry.want, slice_))

    def waiting(self) -> list[tuple[str, Entry]]:
        for _, entry in sorted(self.entries.items()):
            if self.target(entry) <= entry.held:
                entry.place = entry.served = 0
            elif not entry.place:
                self.line += 1
                entry.place = self.line
        line = [(name, entry) for name, entry in self.entries.items() if entry.place]
        return sorted(line, key=lambda one: one[1].place)

    def hand_out(self) -> None:
        free = self.rate.burst - self.level - self.outstanding()
        line = self.waiting()
        while free > 0 and line:
            entry = line[0][1]
            target = self.target(entry)
            given = max(0, min(free, target - entry.held, target - entry.served))
            entry.granted, free = entry.granted + given, free - given
            entry.served += given
            if entry.served >= target:
                entry.place = entry.served = 0
            line = self.waiting()

    def check(self, *, forgot: int = 0) -> None:
        """Nothing is negative, and never more is out than the burst and what it once forgot."""
        assert self.level >= 0
        assert all(entry.held >= 0 for entry in self.entries.values())
        assert self.level + self.outstanding() <= self.rate.burst + forgot


@dataclass
class Gateway:
    """One that is there."""

    seen: int
    seated: bool
    call: int = 0


class ModelPool:
    """As Pool, but its calls are given the store's time, in microseconds."""

    def __init__(self, buckets_max: int = 100_000) -> None:
        self.now = 0
        self._time: int | None = None
        self.gateways: dict[str, Gateway] = {}
        self.buckets: dict[str, Whole] = {}
        self.due: dict[str, int] = {}
        self.recalls: dict[str, set[tuple[str, Rate]]] = {}
        self._buckets_max = buckets_max

    def check_all(self) -> None:
        """That there was something to agree about."""
        assert self.buckets

    def tick(self, time_us: int) -> int:
        if self._time is not None and time_us:
            self.now += max(0, min(int(STEP_S * 1e6), time_us - self._time))
        self._time = time_us
        return self.now  # time_us 0: it was set

    def _living(self) -> dict[str, Gateway]:
        for name, one in list(self.gateways.items()):
            if self.now - one.seen > int(LEASE_S * 1e6):
                del self.gateways[name]
                self.recalls.pop(name, None)
        return self.gateways

    def join(self, gateway: str, time_us: int) -> tuple[bool, list[str]]:
        now = self.tick(time_us)
        seated = sum(one.seated for one in self._living().values()) < SEATS
        self.gateways[gateway] = Gateway(now, seated)
        return seated, sorted(self.due)

    def leave(self, gateway: str, time_us: int) -> None:
        self.tick(time_us)
        self.gateways.pop(gateway, None)
        self.recalls.pop(gateway, None)

    def ask(
        self, gateway: str, call: int, asks: Sequence[RateRequest], time_us: int
    ) -> RateReply | None:
        now = self.tick(time_us)
        own = self._living().get(gateway)
        if own is None or call <= own.call:
            return None
        own.seen, own.call = now, call
        grants = [self._answer(gateway, own.seated, ask) for ask in asks]
        self._sweep(8 + 2 * len(asks))
        recalls = self.recalls.setdefault(gateway, set())
        recalled = sorted(recalls)[:RECALLED_MAX]
        recalls.difference_update(recalled)
        return RateReply(recalled, grants)

    def _answer(self, gateway: str, seated: bool, ask: RateRequest) -> RateGrant:
        now, whole = self.now, self.buckets.get(ask.name)
        if whole is None:
            others = {name for name, one in self.gateways.items() if one.seated}
            whole = Whole(ask.rate, now, implied=others - {gateway})
        whole.leak(now)
        if (whole.rate.units, whole.rate.per_s) != (ask.rate.units, ask.rate.per_s):
            whole.at = now
        whole.rate = ask.rate
        whole.bury(self.gateways, now)
        entry = self._entry(whole, gateway, ask)
        released = False
        if ask.leaving and entry.held == 0:
            room = whole.rate.burst - whole.level - whole.outstanding()
            if not seated or room >= whole.share:
                del whole.entries[gateway]
                if seated:
                    whole.implied.add(gateway)
                released = True
        whole.hand_out()
        line, ahead, unmet = whole.waiting(), 0, 0
        for name, one in line:
            short = whole.target(one) - one.held
            if name == gateway:
                unmet = short
                break
            ahead += short
        if line:
            self._recall(ask.name, whole, *line[0])
        self._save(ask.name, whole)
        return RateGrant(ask.life, entry.granted, entry.counted, ahead, unmet, released)

    def _entry(self, whole: Whole, gateway: str, ask: RateRequest) -> Entry:
        entry = whole.entries.get(gateway)
        if entry is not None and entry.life < ask.life:
            whole.level += entry.held
            entry = None
        if entry is None:
            entry = whole.entries[gateway] = Entry(ask.life, 0, ask.confirmed)
            if gateway in whole.implied:
                whole.implied.discard(gateway)
                whole.at = self.now
        whole.level += max(0, ask.used - entry.counted)
        entry.counted = max(entry.counted, ask.used)
        entry.back = max(entry.back, ask.back)
        entry.granted = max(entry.granted, ask.known, entry.counted + entry.back)
        entry.want, entry.need = ask.want, ask.need
        return entry

    def _recall(self, name: str, whole: Whole, first: str, entry: Entry) -> None:
        names = set(whole.implied)
        others = whole.outstanding() - entry.held
        if min(entry.need, whole.rate.burst) > whole.rate.burst - others:
            names |= {one for one, e in whole.entries.items() if one != first and e.held > 0}
        for gateway in names:
            self.recalls.setdefault(gateway, set()).add((name, whole.rate))

    def _save(self, name: str, whole: Whole) -> None:
        if whole.level == 0 and not whole.entries:
            self.buckets.pop(name, None)
            self.due.pop(name, None)
            return
        self.buckets[name] = whole
        self.due[name] = self.now + int(LOOK_S * 1e6)
        if not whole.entries:
            self.due[name] = self.now + math.ceil(whole.level / whole.per_us) + 1

    def _sweep(self, looks: int) -> None:
        ripe = sorted((due, name) for name, due in self.due.items() if due <= self.now)
        for _, name in ripe[:looks]:
            whole = self.buckets[name]
            whole.leak(self.now)
            whole.bury(self.gateways, self.now)
            whole.hand_out()
            self._save(name, whole)
        while len(self.due) > self._buckets_max:
            least = min(self.due, key=lambda name: (self.due[name], name))
            del self.due[least], self.buckets[least]

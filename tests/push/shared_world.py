"""Gateways around one store in literal time: who takes what, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from push.rates.bucket import Bucket, Rate
from push.rates.shared import BEAT_S, PARTS, RateReply, RateRequest, SharedRates
from tests.push.shared_pool import ModelPool

TICK_S = 1 / 64
"""Whole nanoseconds and microseconds, and exact as a float."""
TICK_US = 15_625
NAME = "messages:x"


@dataclass
class One:
    """A gateway. Its clock began when it liked; one call is out at a time."""

    world: "World"
    offset_s: float
    shares: SharedRates = field(default_factory=SharedRates)
    name: str = ""
    calls: int = 0
    out: tuple[list[RateRequest], RateReply | None, float] | None = None
    """A call that was made, its answer, and when it was sent."""
    called_s: float = -1.0
    alive: bool = True
    _bucket: Bucket | None = None
    """Whoever is charged is not forgotten."""

    @property
    def now(self) -> float:
        return self.world.now + self.offset_s

    def bucket(self) -> Bucket:
        self._bucket = self.shares.bucket(NAME, self.world.rate, now=self.now)
        return self._bucket

    def join(self) -> None:
        self.name, self.calls, self.out = self.world.fresh_name(), 0, None
        seated, names = self.world.pool.join(self.name, self.world.time_us)
        self.shares.on_join(seated, names, now=self.now, sent=self.now)

    def take(self, cost: int) -> bool:
        """Whether it is admitted; the world looks at what this comes to."""
        if self.bucket().take(cost, now=self.now):
            return False
        self.world.admitted(self, cost)
        return True

    def call(self, *, arrives: bool = True) -> None:
        """What it has to say reaches the store, or is lost on the way."""
        if self.out is not None:
            return
        asks = self.shares.requests(now=self.now)
        self.calls += 1
        self.called_s = self.now
        reply = None
        if arrives:
            reply = self.world.pool.ask(self.name, self.calls, asks, self.world.time_us)
            if reply is None:
                self._give_up()
                return
            self.world.check()
        self.out = (asks, reply, self.now)

    def hear(self, *, answered: bool = True) -> None:
        """The answer to the call that is out comes, or is known to be lost."""
        if self.out is None:
            return
        (asks, reply, sent), self.out = self.out, None
        if self.shares.expire(now=self.now):
            self._give_up()
        elif answered and reply is not None:
            self.shares.on_reply(asks, reply, now=self.now, sent=sent)
        else:
            self.shares.on_failure(asks)

    def _give_up(self) -> None:
        self.world.cuts += 1
        self.shares.on_lapse(now=self.now)
        self.name, self.out = "", None

    def look(self) -> None:
        """What the shell does all the time: nothing is used that may have lapsed."""
        if self.name and self.shares.expire(now=self.now):
            self._give_up()


class World:
    """See the module."""

    def __init__(self, rate: Rate, count: int) -> None:
        self.rate = rate
        self.ticks = 0
        self.jump_us = 0
        """How far the store's clock is off."""
        self.pool = ModelPool()
        self.names = 0
        self.cuts = 0
        """Standing shares that may be used besides: of gateways that were cut off or ended."""
        self.allowed = 0
        self.spare = max(0, count - rate.burst)
        """Units that may pass also, for other reasons: each gateway has one at least."""
        self._level = 0.0
        self._level_s = 0.0
        self.log: list[tuple[float, int]] = []
        self.gateways = [One(self, number * 1000.0) for number in range(count)]
        for one in self.gateways:
            one.join()

    @property
    def now(self) -> float:
        return 1000 + self.ticks * TICK_S

    @property
    def time_us(self) -> int:
        return 10**15 + self.ticks * TICK_US + self.jump_us

    def fresh_name(self) -> str:
        self.names += 1
        return f"g{self.names}"

    def check(self) -> None:
        """What the store holds is never more than the bucket, unless it has forgotten something."""
        for whole in self.pool.buckets.values():
            whole.check(forgot=self.spare)

    def admitted(self, one: One, cost: int) -> None:
        """No window admits more than burst + rate * t, but for what is said to be besides."""
        self.log.append((self.now, cost))
        leak = (self.now - self._level_s) * self.rate.units / self.rate.per_s
        if self.cuts:
            leak *= 1 + self.cuts / PARTS
        self._level = max(0.0, self._level - leak) + cost
        self._level_s = self.now
        most = self.rate.burst + self.cuts * max(1, self.rate.burst // PARTS) + self.spare
        assert self._level <= most + 1e-6, "no window admits more than burst + rate * t"

    def run(self, seconds: float, act: Callable[[One], None] = lambda one: None) -> int:
        """So long everybody calls and is answered a tick later, and each acts in each tick. How
        much was admitted."""
        before = len(self.log)
        for _ in range(round(seconds / TICK_S)):
            self.ticks += 1
            for one in self.gateways:
                if not one.alive:
                    continue
                one.look()
                if not one.name:
                    one.join()
                one.hear()
                act(one)
                if not one.shares.pause_s(now=one.now) or one.now - one.called_s >= BEAT_S:
                    one.call()
        return sum(cost for _, cost in self.log[before:])

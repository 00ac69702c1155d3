"""Leaky buckets that several gateways share, and take from without asking. Pure.

The whole bucket is in the store (`push.rates.shared`). A gateway takes from what it holds of it:

* its **standing share**, a sixteenth of rate and burst, as a bucket of its own. Nobody needs to be
  asked or told: whoever stays far below his limit costs nothing;
* when half of that is gone, a **slice** that it was handed out. From then on the store knows how
  much it holds, and it says what it used and how much it would like.

What gateways hold counts as if it were in the bucket, and begins to leak when they have said that
they used it. So no window of t seconds admits more than burst + rate * t over all gateways, however
late an answer comes and whichever are lost: all numbers are totals of a **life** of the bucket
here, so that one that is said twice counts once, and one that is lost is in the next. What is not
used is given back, at once if others need it.

A gateway that hears nothing of the store for LAPSE_S goes on with its standing share alone; the
store counts what it held as used, after longer. This, and a gateway's end, is where more may be
admitted: the standing share of each gateway that is cut off or has ended, (burst + rate * t) / 16.
A standing share holds one unit at least: of a burst that is smaller than the number of gateways,
each of them may admit one.

`now` is in seconds, of this gateway's clock, which never goes back. `expire` says what time alone
makes due, `next_deadline` when to come back.

What gateways and their store say to each other of the rates that they share. Pure.

`push.rates.shared` says what is decided from it on a gateway;
`storage/redis/lua/limits.lua`, in the store.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from push.rates.bucket import Bucket, Rate, nanoseconds, pour_all, seconds

PARTS: Final = 16
"""A standing share is one part of so many."""
SEATS: Final = 8
"""So many gateways have one: together half of the bucket. Others ask for everything."""
SLICES: Final = 4
"""A gateway that uses a bucket alone holds one part of so many; two of them half as much each."""
GAP_S: Final = 0.02
"""Between two calls of a gateway at least, unless many buckets wait."""
BEAT_S: Final = 0.25
"""Between two calls at most: how long the others take to hear that they are to give back."""
IDLE_S: Final = 10.0
"""What was not used for so long is given back, and the standing share is enough again."""
LAPSE_S: Final = 5.0
"""So long after the last call that was answered was sent, nothing that was handed out is used."""
LEASE_S: Final = 10.0
"""So long after a gateway's last call the store gives it up: LAPSE_S, and a jump of its clock."""
STEP_S: Final = 1.0
"""The store's clock goes on by so much at most between two calls: what a jump may forgive."""
LOOK_S: Final = 60.0
"""The store looks so often at a bucket that is held, whether it is to be forgotten."""
RECALLED_MAX: Final = 500
"""Buckets that a gateway is told of in one answer."""


class RateRequest(NamedTuple):
    """What a gateway says of one bucket. Totals of this life of it, in units."""

    name: str
    rate: Rate
    life: int
    """Grows with each one that a gateway begins. What a life of before held counts as used."""
    confirmed: int
    """Of `used`, what the store is known to have counted."""
    known: int
    """Handed out, as far as it has heard."""
    used: int
    back: int
    want: int
    """It would like to hold so much."""
    need: int
    """One request that was refused needs so much at once. 0: none."""
    leaving: bool
    """It holds nothing, and would take up its standing share again."""


class RateGrant(NamedTuple):
    """What the store says of it."""

    life: int
    granted: int
    counted: int
    ahead: int
    """So much goes to others first."""
    unmet: int
    """So much is still to come."""
    released: bool
    """This life is over, the standing share holds again."""


class RateReply(NamedTuple):
    """To one call. `recalled`: buckets of which it is to give back what it can."""

    recalled: Sequence[tuple[str, Rate]]
    grants: Sequence[RateGrant]


class RatePool(Protocol):
    """The store's side. Every method raises Refused (it did not happen) or Unknown."""

    async def join(self, gateway: str) -> tuple[bool, Sequence[str]]:
        """A gateway is there, under a name that was never used. Whether it has standing shares,
        and the buckets of which it has none."""

    async def ask(self, gateway: str, call: int, asks: Sequence[RateRequest]) -> RateReply | None:
        """One act for all of these. `call`: a number that grows; an act that comes about behind one
        with a larger number does nothing. None: it was given up, and is to join under another
        name."""

    async def leave(self, gateway: str) -> None:
        """It ends, and has given everything back."""


ASKS_MAX: Final = 500
"""Buckets in one call: some 10 ms of the store's time."""
ASK_S: Final = 0.05
"""Advised where it is not known yet: a call and its answer."""
BUSY_S: Final = 1.0
"""Advised while the store does not answer, to what the standing share never holds."""
NEED_S: Final = 2.0
"""What was refused is collected for so long after it was advised to come back."""


class SharedBucket(Bucket):
    """One bucket, here. Made by `SharedRates.bucket`.

    With a standing share it is a bucket that leaks (`life` 0). With what was handed out it is one
    that does not: as large as all that was handed out in this life, and holding all that is gone.
    """

    __slots__ = (
        "__weakref__",
        "_at_ns",
        "_back",
        "_confirmed",
        "_grant",
        "_low",
        "_moved_ns",
        "_need",
        "_need_until_ns",
        "_part",
        "_said",
        "_shares",
        "life",
        "name",
    )

    def __init__(self, name: str, rate: Rate, shares: "SharedRates", part: int) -> None:
        super().__init__(rate)
        self.name = name
        self._shares = shares
        self.life = 0
        self._back = self._confirmed = self._said = 0
        self._grant: RateGrant | None = None
        self._at_ns = self._moved_ns = 0
        """When it was answered; when something was used last, as far as it was looked at."""
        self._need = self._need_until_ns = 0
        self._stand(part, 0, 0)

    # --- Taking --------------------------------------------------------------------------------

    def take(self, cost: int, *, now: float) -> float:
        """As Bucket.take."""
        if self._shares.pour(((self, cost),), nanoseconds(now)):
            return 0.0
        return self.after_s(cost, now=now)

    def is_low(self, at_ns: int) -> bool:
        """Whether it is time to ask for more."""
        return self._empty_at - at_ns * self._units > self._low

    def wait_ns(self, cost: int, at_ns: int) -> int:
        """As Bucket.wait_ns, as far as one can know; from then on so much is collected."""
        if cost > self.rate.burst:
            raise ValueError(f"{cost} at once never fit into {self.rate}")
        room = self._full - cost * self._unit
        level = self._empty_at - at_ns * self._units
        if room >= 0 and level <= room:
            return 0
        if self._shares.is_cut_off:
            return -(-(level - room) // self._units) if room >= 0 else int(BUSY_S * 1e9)
        wait_ns = int(ASK_S * 1e9) + self._leaks_ns(cost, at_ns)
        self._need = max(self._need, cost)
        self._need_until_ns = at_ns + wait_ns + int(NEED_S * 1e9)
        self._shares.want(self)
        return wait_ns

    def _leaks_ns(self, cost: int, at_ns: int) -> int:
        """How long until as much has leaked in the store as goes to others and this needs."""
        grant = self._grant
        if grant is None or not self.life or not grant.unmet:
            return 0
        more = grant.ahead + cost - (self._full - self._empty_at)
        leaks_ns = -(-more * self.rate.per_s * 1_000_000_000 // self.rate.units)
        return max(0, leaks_ns - (at_ns - self._at_ns))

    def change(self, rate: Rate, *, now: float) -> None:
        """As Bucket.change."""
        if self.life:
            self.rate = rate
            return
        at_ns, has_part = nanoseconds(now), self._part > 0
        used = self._used_of_share(at_ns)
        self.rate = rate
        self._stand(self._shares.part_of(rate) if has_part else 0, used, at_ns)

    def next_deadline(self) -> float:
        """As Bucket.next_deadline; while it is handed out: when to look again."""
        if self.life:
            return seconds(self._moved_ns) + 2 * IDLE_S
        return super().next_deadline()

    # --- Standing share ------------------------------------------------------------------------

    def _stand(self, part: int, used: int, at_ns: int) -> None:
        """From now on a standing share of `part` units, so many of which are used."""
        self.life = 0
        self._part = part
        self._units = self.rate.units
        self._unit = self.rate.per_s * 1_000_000_000 * PARTS
        self._full = part * self._unit
        self._low = self._full // 2
        self._empty_at = at_ns * self._units + used * self._unit

    def _used_of_share(self, at_ns: int) -> int:
        return max(0, -(-(self._empty_at - at_ns * self._units) // self._unit))

    def cut_off(self, at_ns: int) -> None:
        """Nothing that was handed out is used from now on; the standing share begins full."""
        part = max(1, self.rate.burst // PARTS)
        if self.life or not self._part:
            self._stand(part, part, at_ns)
        else:
            self._stand(part, self._used_of_share(at_ns), at_ns)
        self._need = 0

    def joined(self, part: int, at_ns: int) -> None:
        """The store is there again, and this is the standing share."""
        self._stand(part, self._used_of_share(at_ns), at_ns)

    # --- What was handed out -------------------------------------------------------------------

    def is_due(self, at_ns: int) -> bool:
        """Whether something is to be said of it though nobody asks for it."""
        if self._empty_at - self._back != self._said:
            return True
        return bool(self._need) or at_ns - self._moved_ns >= int(IDLE_S * 1e9)

    def ask(self, at_ns: int, *, is_recalled: bool = False, is_over: bool = False) -> RateRequest:
        """What is to be said of it now. `is_over`: everything is given back."""
        if not self.life:
            self._begin(at_ns)
        used = self._empty_at - self._back
        recent, self._said = used - self._said, used
        if recent:
            self._moved_ns = at_ns
        if at_ns > self._need_until_ns or self._full - self._empty_at >= self._need:
            self._need = 0
        left = self._full - self._empty_at
        is_idle = is_over or (not self._need and at_ns - self._moved_ns >= int(IDLE_S * 1e9))
        if is_idle or is_recalled:
            kept = 0 if is_idle or self._need else min(left, 2 * recent)
            self._back += left - kept
            self._empty_at += left - kept
        if is_idle:
            self._moved_ns = at_ns  # where there is no room for its share yet: again after as long
        is_used = not is_idle and (recent or self._need)
        want = max(1, self.rate.burst // SLICES) if is_used else 0
        self._low = self._full
        return RateRequest(
            self.name,
            self.rate,
            self.life,
            self._confirmed,
            self._full,
            used,
            self._back,
            want,
            0 if is_over else self._need,
            is_idle and not is_over,
        )

    def _begin(self, at_ns: int) -> None:
        """A life of which the store is told: what of its share is used is, the rest is held."""
        used = self._used_of_share(at_ns)
        self.life = self._shares.next_life()
        self._units, self._unit = 0, 1
        self._full = max(used, self._part)
        self._empty_at, self._low = used, self._full
        self._back = self._confirmed = self._said = 0
        self._grant, self._at_ns, self._moved_ns = None, at_ns, at_ns

    def answered(self, grant: RateGrant, part: int, at_ns: int) -> bool:
        """Whether it has its standing share again, of `part` units."""
        if grant.life != self.life:
            return False
        if grant.released:
            self._stand(part, 0, at_ns)
            return True
        self._full = max(self._full, grant.granted)
        self._confirmed = max(self._confirmed, grant.counted)
        self._grant, self._at_ns = grant, at_ns
        left = self._full - self._empty_at
        self._low = self._empty_at + left // 2
        if self._need > left:
            self._shares.ask_at(at_ns + self._leaks_ns(self._need, at_ns))
        return False


class SharedRates:
    """What one gateway holds of all buckets. `on_want` is called when the store is to be asked
    before `next_deadline`."""

    def __init__(self, on_want: Callable[[], None] = lambda: None) -> None:
        self._on_want = on_want
        self._known: WeakValueDictionary[str, SharedBucket] = WeakValueDictionary()
        self._held: dict[str, SharedBucket] = {}
        """Those of which the store is told."""
        self._wanted: dict[str, SharedBucket] = {}
        self._recalled: set[str] = set()
        self._without: set[str] = set()
        """Names of buckets of which this gateway has no standing share."""
        self._is_seated = False
        self.is_cut_off = True
        self._life = 0
        self._sent_s = -math.inf
        self._look_ns = 0
        """When all that is held is looked at again."""

    def __len__(self) -> int:
        return len(self._held)

    def bucket(self, name: str, rate: Rate, *, now: float) -> SharedBucket:
        """The bucket of this name; one that was made before, if anybody still has it."""
        bucket = self._known.get(name)
        if bucket is None:
            part = 0 if name in self._without else self.part_of(rate)
            bucket = self._known[name] = SharedBucket(name, rate, self, part)
        elif bucket.rate != rate:
            bucket.change(rate, now=now)
        return bucket

    def part_of(self, rate: Rate) -> int:
        """The burst of a standing share here."""
        return max(1, rate.burst // PARTS) if self._is_seated or self.is_cut_off else 0

    def next_life(self) -> int:
        """A number that was never used here."""
        self._life += 1
        return self._life

    def pour(self, charges: Sequence[tuple[Bucket, int]], at_ns: int) -> bool:
        """As push.rates.bucket.pour_all; whoever has little left asks for more."""
        if not pour_all(charges, at_ns):
            return False
        if not self.is_cut_off:
            for bucket, _ in charges:
                if isinstance(bucket, SharedBucket) and bucket.is_low(at_ns):
                    self.want(bucket)
        return True

    def want(self, bucket: SharedBucket) -> None:
        """The store is to be asked for more of it."""
        if bucket.name not in self._wanted:
            self._wanted[bucket.name] = bucket
            self._on_want()

    def ask_at(self, at_ns: int) -> None:
        """What somebody needs is there then, as far as one can know."""
        self._look_ns = min(self._look_ns, at_ns)

    # --- Talking to the store ------------------------------------------------------------------

    def joined(self, is_seated: bool, names: Sequence[str], *, now: float, sent: float) -> None:
        """See Pool.join. `sent`: when it was asked."""
        self.is_cut_off, self._is_seated, self._sent_s = False, is_seated, sent
        self._without = set(names)
        at_ns = nanoseconds(now)
        for name, bucket in list(self._known.items()):
            bucket.joined(0 if name in self._without else self.part_of(bucket.rate), at_ns)

    def asks(self, *, now: float) -> list[RateRequest]:
        """What to say in the call that is made now. Empty: that the gateway is there."""
        at_ns = nanoseconds(now)
        if at_ns >= self._look_ns:
            self._look_ns = at_ns + int(BEAT_S * 1e9)
            for name, bucket in self._held.items():
                if bucket.is_due(at_ns):
                    self._wanted.setdefault(name, bucket)
        asked = []
        for name in [*self._wanted][:ASKS_MAX]:
            bucket = self._held[name] = self._wanted.pop(name)
            asked.append(bucket.ask(at_ns, is_recalled=name in self._recalled))
            self._recalled.discard(name)
        return asked

    def answered(
        self, asks: Sequence[RateRequest], reply: RateReply, *, now: float, sent: float
    ) -> None:
        """To the call that was sent at `sent`."""
        at_ns, self._sent_s = nanoseconds(now), max(self._sent_s, sent)
        for ask, grant in zip(asks, reply.grants, strict=True):
            bucket = self._held.get(ask.name)
            if bucket is not None and bucket.answered(grant, self.part_of(ask.rate), at_ns):
                del self._held[ask.name]
                self._without.discard(ask.name)
        for name, rate in reply.recalled:
            # where nobody uses it here, its standing share is given back untouched
            self._recalled.add(name)
            self.want(self._known.get(name) or self.bucket(name, rate, now=now))

    def failed(self, asks: Sequence[RateRequest]) -> None:
        """The call was not answered: the same is said again, in the next one."""
        for ask in asks:
            if ask.name in self._held:
                self._wanted.setdefault(ask.name, self._held[ask.name])

    def given_up(self, *, now: float) -> None:
        """The store counts what was held here as used: the gateway is to join anew."""
        self.is_cut_off = True
        self._held.clear()
        self._wanted.clear()
        self._recalled.clear()
        at_ns = nanoseconds(now)
        for bucket in list(self._known.values()):
            bucket.cut_off(at_ns)

    def expire(self, *, now: float) -> bool:
        """Whether the store has been silent for too long: it is as `given_up`."""
        if self.is_cut_off or now < self.next_deadline():
            return False
        self.given_up(now=now)
        return True

    def next_deadline(self) -> float:
        """When that would be."""
        return self._sent_s + LAPSE_S

    def pause_s(self, *, now: float) -> float:
        """How long nothing is to be said, unless somebody wants something."""
        if self._wanted:
            return 0.0
        return min(BEAT_S, max(0.0, seconds(self._look_ns) - now))

    def close(self, *, now: float) -> list[RateRequest]:
        """The last call: everything is given back."""
        at_ns = nanoseconds(now)
        return [bucket.ask(at_ns, is_over=True) for bucket in self._held.values()]

"""Leaky buckets that several gateways share, and charge without a call to the store. Pure.

The whole bucket is in the store (`storage/redis/lua/limits.lua`). A gateway holds some of it:

* a **standing share**, a sixteenth of rate and burst, as a bucket of its own. The store takes
  no part in it: a client that stays far below its limit costs it nothing.
* when half of that is gone, a **slice** that the store handed out. From then on the store knows how
  much the gateway holds, and the gateway says what it used and how much it would like.

For example, of `1600/s+1600` each gateway has 100 at once and 100 a second without a call. The one
where more is used requests more, and is handed 400. When the others need these, it gives back what
is left.

What gateways hold counts as if it were in the bucket, and begins to leak when they have said that
they used it. So no window of t seconds admits more than burst + rate * t over all gateways, however
late an answer comes and whichever are lost. All numbers are totals of a **life** of the bucket on a
gateway: one that is said twice counts once, and one that is lost is in the next. What is not used
is given back, at once if others need it.

A gateway that has no answer of the store for LAPSE_S goes on with its standing share alone; the
store counts what it held as used, after longer. This, and a gateway's end, is where more may be
admitted: the standing share of each gateway that is cut off or has ended, (burst + rate * t) / 16.
A standing share holds one unit at least: of a burst that is smaller than the number of gateways,
each of them may admit one.

`now` is in seconds, of this gateway's clock, which never goes back. `expire` does what time alone
makes due, `next_deadline` says when.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary

from push.rates.bucket import Bucket, Rate, nanoseconds, pour_all, seconds

PARTS: Final = 16
"""Number of parts of a bucket, one of which is a standing share."""
SEATS: Final = 8
"""Number of gateways that have a standing share: together half of the bucket. Others ask for
everything."""
SLICES: Final = 4
"""Number of slices of a bucket, one of which a gateway that uses it alone holds; two gateways hold
half of one each."""
GAP_S: Final = 0.02
"""Shortest pause between two calls of a gateway, unless many buckets wait."""
BEAT_S: Final = 0.25
"""Longest pause between two calls: the others learn within it that they are to give back."""
IDLE_S: Final = 10.0
"""Time without use after which a slice is given back, and the standing share is enough again."""
LAPSE_S: Final = 5.0
"""Time after the sending of the last answered call from which no slice is used."""
LEASE_S: Final = 10.0
"""Time after a gateway's last call at which the store gives it up: LAPSE_S, and a jump of its
clock."""
STEP_S: Final = 1.0
"""Most that the store's clock goes on by between two calls: what a jump may forgive."""
LOOK_S: Final = 60.0
"""How often the store checks whether a bucket that is held is to be forgotten."""
RECALLED_MAX: Final = 500
"""Number of buckets that one answer recalls."""


class RateRequest(NamedTuple):
    """A gateway's request about one bucket. Numbers are totals of this life of it, in units."""

    name: str
    rate: Rate
    life: int
    """Number of the life; it grows. What an earlier life held counts as used."""
    confirmed: int
    """Part of `used` that the store is known to have counted."""
    known: int
    """Units handed out, as far as the gateway knows."""
    used: int
    back: int
    want: int
    """Units that it would like to hold."""
    need: int
    """Units that a refused charge needs at once; 0: none was refused."""
    leaving: bool
    """Whether the gateway gives back all that it holds, and would take up its standing share
    again."""


class RateGrant(NamedTuple):
    """The store's grant for one bucket."""

    life: int
    granted: int
    counted: int
    ahead: int
    """Units that the store hands to other gateways first."""
    unmet: int
    """Units of the request that are still to come, because the store had too few."""
    released: bool
    """Whether the life is over, and the standing share holds again."""


class RateReply(NamedTuple):
    """The store's reply to one call. `recalled`: buckets of which the gateway is to give back what
    it can."""

    recalled: Sequence[tuple[str, Rate]]
    grants: Sequence[RateGrant]


class RatePool(Protocol):
    """The store's side of shared rates. Every method raises Refused (it did not happen) or
    Unknown."""

    async def join(self, gateway: str) -> tuple[bool, Sequence[str]]:
        """Announce a gateway, under a name that was never used. Returns whether it has standing
        shares, and the buckets of which it has none."""

    async def ask(self, gateway: str, call: int, asks: Sequence[RateRequest]) -> RateReply | None:
        """Act on all of these requests at once. `call`: a number that grows; an act that comes
        about after one with a larger number does nothing. Returns None if the store gave the
        gateway up; it is to join under another name."""

    async def leave(self, gateway: str) -> None:
        """End a gateway that has given everything back."""


ASKS_MAX: Final = 500
"""Number of buckets in one call: some 10 ms of the store's time."""
ASK_S: Final = 0.05
"""Advised wait if the store has to be called: the time of a call and its answer."""
BUSY_S: Final = 1.0
"""Advised wait while the store does not answer, for what the standing share never holds."""
NEED_S: Final = 2.0
"""Time after the advised wait for which a refused charge is collected."""


class SharedBucket(Bucket):
    """The part of one bucket that this gateway holds. `SharedRates.bucket` makes it.

    With a standing share it is a bucket that leaks (`life` 0). With a slice it is one that does not
    leak: as large as all that was handed out in this life, and filled with all that is used.
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
        """The time of the last grant, and that of the last use as far as it was noticed."""
        self._need = self._need_until_ns = 0
        self._begin_share(part, 0, 0)

    # --- Taking --------------------------------------------------------------------------------

    def take(self, cost: int, *, now: float) -> float:
        """Charge `cost` units and return 0, or return after how many seconds to come again. Raises
        ValueError: more than the burst never fits."""
        if self._shares.pour(((self, cost),), nanoseconds(now)):
            return 0.0
        return self.after_s(cost, now=now)

    def is_low(self, at_ns: int) -> bool:
        """Whether so little is left that more should be requested."""
        return self._empty_at - at_ns * self._units > self._low

    def wait_ns(self, cost: int, at_ns: int) -> int:
        """Return for how many nanoseconds `cost` units have to wait, as far as is known; 0: they
        fit. If they do not, as many are requested from the store, unless the gateway is cut off.
        Raises ValueError: more than the burst never fits."""
        if cost > self.rate.burst:
            raise ValueError(f"{cost} at once never fit into {self.rate}")
        room = self._full - cost * self._unit
        level = self._empty_at - at_ns * self._units
        if room >= 0 and level <= room:
            return 0
        if self._shares.is_cut_off:
            return -(-(level - room) // self._units) if room >= 0 else int(BUSY_S * 1e9)
        wait_ns = int(ASK_S * 1e9) + self._leak_ns(cost, at_ns)
        self._need = max(self._need, cost)
        self._need_until_ns = at_ns + wait_ns + int(NEED_S * 1e9)
        self._shares.request_more(self)
        return wait_ns

    def _leak_ns(self, cost: int, at_ns: int) -> int:
        """Return how many nanoseconds the bucket in the store needs to leak the units that go to
        others first and those that `cost` lacks here; 0: nothing is known to be missing there."""
        grant = self._grant
        if grant is None or not self.life or not grant.unmet:
            return 0
        more = grant.ahead + cost - (self._full - self._empty_at)
        leak_ns = -(-more * self.rate.per_s * 1_000_000_000 // self.rate.units)
        return max(0, leak_ns - (at_ns - self._at_ns))

    def change(self, rate: Rate, *, now: float) -> None:
        """Put another rate in force; what was used stays used."""
        if self.life:
            self.rate = rate
            return
        at_ns, has_part = nanoseconds(now), self._part > 0
        used = self._share_used(at_ns)
        self.rate = rate
        self._begin_share(self._shares.part_of(rate) if has_part else 0, used, at_ns)

    def next_deadline(self) -> float:
        """Return when the bucket is empty; with a slice, when to look again."""
        if self.life:
            return seconds(self._moved_ns) + 2 * IDLE_S
        return super().next_deadline()

    # --- Standing share ------------------------------------------------------------------------

    def _begin_share(self, part: int, used: int, at_ns: int) -> None:
        """Begin a standing share of `part` units, `used` of which are used."""
        self.life = 0
        self._part = part
        self._units = self.rate.units
        self._unit = self.rate.per_s * 1_000_000_000 * PARTS
        self._full = part * self._unit
        self._low = self._full // 2
        self._empty_at = at_ns * self._units + used * self._unit

    def _share_used(self, at_ns: int) -> int:
        return max(0, -(-(self._empty_at - at_ns * self._units) // self._unit))

    def on_lapse(self, at_ns: int) -> None:
        """Stop using a slice, because the store is silent. The standing share begins with nothing
        left; one that was in use already goes on."""
        part = max(1, self.rate.burst // PARTS)
        if self.life or not self._part:
            self._begin_share(part, part, at_ns)
        else:
            self._begin_share(part, self._share_used(at_ns), at_ns)
        self._need = 0

    def on_join(self, part: int, at_ns: int) -> None:
        """Begin the standing share, of `part` units, of a gateway that has joined. What was used of
        an earlier one stays used."""
        self._begin_share(part, self._share_used(at_ns), at_ns)

    # --- What was handed out -------------------------------------------------------------------

    def is_due(self, at_ns: int) -> bool:
        """Whether the store should be called though no more is requested."""
        if self._empty_at - self._back != self._said:
            return True
        return bool(self._need) or at_ns - self._moved_ns >= int(IDLE_S * 1e9)

    def request(
        self, at_ns: int, *, is_recalled: bool = False, is_over: bool = False
    ) -> RateRequest:
        """Return the request for the store now. `is_over`: everything is given back."""
        if not self.life:
            self._begin_life(at_ns)
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

    def _begin_life(self, at_ns: int) -> None:
        """Begin a life that the store knows of. Units used of the standing share count as used, the
        rest as held."""
        used = self._share_used(at_ns)
        self.life = self._shares.next_life()
        self._units, self._unit = 0, 1
        self._full = max(used, self._part)
        self._empty_at, self._low = used, self._full
        self._back = self._confirmed = self._said = 0
        self._grant, self._at_ns, self._moved_ns = None, at_ns, at_ns

    def on_grant(self, grant: RateGrant, part: int, at_ns: int) -> bool:
        """Take a grant. Returns whether the standing share, of `part` units, holds again."""
        if grant.life != self.life:
            return False
        if grant.released:
            self._begin_share(part, 0, at_ns)
            return True
        self._full = max(self._full, grant.granted)
        self._confirmed = max(self._confirmed, grant.counted)
        self._grant, self._at_ns = grant, at_ns
        left = self._full - self._empty_at
        self._low = self._empty_at + left // 2
        if self._need > left:
            self._shares.look_at(at_ns + self._leak_ns(self._need, at_ns))
        return False


class SharedRates:
    """The parts of all buckets that one gateway holds. `on_want` is called when the store should be
    called before `next_deadline`."""

    def __init__(self, on_want: Callable[[], None] = lambda: None) -> None:
        self._on_want = on_want
        self._known: WeakValueDictionary[str, SharedBucket] = WeakValueDictionary()
        self._held: dict[str, SharedBucket] = {}
        """Buckets that the store knows of."""
        self._wanted: dict[str, SharedBucket] = {}
        self._recalled: set[str] = set()
        self._without: set[str] = set()
        """Names of buckets of which this gateway has no standing share."""
        self._is_seated = False
        self.is_cut_off = True
        self._life = 0
        self._sent_s = -math.inf
        self._look_ns = 0
        """When all that is held is checked again."""

    def __len__(self) -> int:
        return len(self._held)

    def bucket(self, name: str, rate: Rate, *, now: float) -> SharedBucket:
        """Return the bucket of this name, at this rate from now on. While it is in use, it is the
        same one."""
        bucket = self._known.get(name)
        if bucket is None:
            part = 0 if name in self._without else self.part_of(rate)
            bucket = self._known[name] = SharedBucket(name, rate, self, part)
        elif bucket.rate != rate:
            bucket.change(rate, now=now)
        return bucket

    def part_of(self, rate: Rate) -> int:
        """Return the burst of this gateway's standing share of a bucket of this rate; 0: it has
        none."""
        return max(1, rate.burst // PARTS) if self._is_seated or self.is_cut_off else 0

    def next_life(self) -> int:
        """Return a number that was never used here."""
        self._life += 1
        return self._life

    def pour(self, charges: Sequence[tuple[Bucket, int]], at_ns: int) -> bool:
        """Charge all buckets or none, as push.rates.bucket.pour_all; request more of those that
        have little left."""
        if not pour_all(charges, at_ns):
            return False
        if not self.is_cut_off:
            for bucket, _ in charges:
                if isinstance(bucket, SharedBucket) and bucket.is_low(at_ns):
                    self.request_more(bucket)
        return True

    def request_more(self, bucket: SharedBucket) -> None:
        """Ask the store for more of a bucket, with the next call."""
        if bucket.name not in self._wanted:
            self._wanted[bucket.name] = bucket
            self._on_want()

    def look_at(self, at_ns: int) -> None:
        """Check all held buckets at `at_ns`, when the store is expected to have what a charge
        needs."""
        self._look_ns = min(self._look_ns, at_ns)

    # --- Talking to the store ------------------------------------------------------------------

    def on_join(self, is_seated: bool, names: Sequence[str], *, now: float, sent: float) -> None:
        """Note the answer of `RatePool.join`. `sent`: the time at which it was requested."""
        self.is_cut_off, self._is_seated, self._sent_s = False, is_seated, sent
        self._without = set(names)
        at_ns = nanoseconds(now)
        for name, bucket in list(self._known.items()):
            bucket.on_join(0 if name in self._without else self.part_of(bucket.rate), at_ns)

    def requests(self, *, now: float) -> list[RateRequest]:
        """Return the requests of a call that is made now, ASKS_MAX at most. Empty: the call only
        says that the gateway exists."""
        at_ns = nanoseconds(now)
        if at_ns >= self._look_ns:
            self._look_ns = at_ns + int(BEAT_S * 1e9)
            for name, bucket in self._held.items():
                if bucket.is_due(at_ns):
                    self._wanted.setdefault(name, bucket)
        requests = []
        for name in [*self._wanted][:ASKS_MAX]:
            bucket = self._held[name] = self._wanted.pop(name)
            requests.append(bucket.request(at_ns, is_recalled=name in self._recalled))
            self._recalled.discard(name)
        return requests

    def on_reply(
        self, requests: Sequence[RateRequest], reply: RateReply, *, now: float, sent: float
    ) -> None:
        """Take the reply to the call with these requests, which was sent at `sent`."""
        at_ns, self._sent_s = nanoseconds(now), max(self._sent_s, sent)
        for request, grant in zip(requests, reply.grants, strict=True):
            bucket = self._held.get(request.name)
            if bucket is not None and bucket.on_grant(grant, self.part_of(request.rate), at_ns):
                del self._held[request.name]
                self._without.discard(request.name)
        for name, rate in reply.recalled:
            # If it is not used here, its standing share is given back untouched.
            self._recalled.add(name)
            self.request_more(self._known.get(name) or self.bucket(name, rate, now=now))

    def on_failure(self, requests: Sequence[RateRequest]) -> None:
        """Note that a call was not answered: the next one says the same again."""
        for request in requests:
            if request.name in self._held:
                self._wanted.setdefault(request.name, self._held[request.name])

    def on_lapse(self, *, now: float) -> None:
        """Give up all slices: the store counts them as used, and the gateway is to join anew."""
        self.is_cut_off = True
        self._held.clear()
        self._wanted.clear()
        self._recalled.clear()
        at_ns = nanoseconds(now)
        for bucket in list(self._known.values()):
            bucket.on_lapse(at_ns)

    def expire(self, *, now: float) -> bool:
        """Give up all slices if the store has been silent for too long; returns whether it has."""
        if self.is_cut_off or now < self.next_deadline():
            return False
        self.on_lapse(now=now)
        return True

    def next_deadline(self) -> float:
        """Return when slices are given up unless the store answers."""
        return self._sent_s + LAPSE_S

    def pause_s(self, *, now: float) -> float:
        """Return for how long the store should not be called, unless more is requested."""
        if self._wanted:
            return 0.0
        return min(BEAT_S, max(0.0, seconds(self._look_ns) - now))

    def close(self, *, now: float) -> list[RateRequest]:
        """Return the requests of the last call: everything is given back."""
        at_ns = nanoseconds(now)
        return [bucket.request(at_ns, is_over=True) for bucket in self._held.values()]

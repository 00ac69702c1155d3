"""Leaky buckets: how much may pass, in any stretch of time. Pure.

Each unit that passes is poured into its bucket, which leaks `units` of them every `per_s` seconds;
what would make it hold more than `burst` is refused. So no window of t seconds admits more than
burst + rate * t, wherever it begins. What is refused pours nothing in.

This is the Generic Cell Rate Algorithm (ITU-T I.371, annex A; here in its leaky-bucket form): the
state is one number, the moment at which the bucket will be empty. It is a whole number, in units of
1 ns / `units`: sums of floats would drift by a thousandth in a few months, all to one side.

`now` is in seconds, of a clock that never goes back. If it should, nothing leaks until it has
caught up: less is admitted, never more. Time alone makes nothing due; `next_deadline` says when the
bucket is empty, and may be forgotten.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

_NS: Final = 1_000_000_000


class Rate(msgspec.Struct, frozen=True):
    """A rate of `units` every `per_s` seconds, and `burst` of them at once."""

    units: int
    per_s: int
    burst: int

    def __str__(self) -> str:
        """Return the form in settings."""
        period = _PERIODS.get(self.per_s, f"{self.per_s}s")
        return f"{self.units}/{period}+{self.burst}"


_PERIODS: Final = {1: "s", 60: "min", 3600: "h"}


class Bucket:
    """A bucket of a rate, empty at first."""

    __slots__ = ("_empty_at", "_full", "_unit", "_units", "rate")

    def __init__(self, rate: Rate) -> None:
        if min(rate.units, rate.per_s, rate.burst) < 1:
            raise ValueError(f"a rate is of positive numbers, not {rate}")
        self._set(rate)
        self._empty_at = 0

    def _set(self, rate: Rate) -> None:
        self.rate = rate
        self._units = rate.units
        self._unit = rate.per_s * _NS
        """Nanoseconds by which one unit delays the moment of emptiness, times the rate's
        `units`."""
        self._full = rate.burst * self._unit
        """Delay of emptiness beyond which nothing more fits, in the same unit."""

    def __repr__(self) -> str:
        return f"<Bucket {self.rate}, empty at {self.next_deadline():.9f} s>"

    def take(self, cost: int, *, now: float) -> float:
        """Pour `cost` units in, and return 0. If the bucket would hold too much, nothing changes,
        and the result is the number of seconds after which the same is admitted, if nothing else is
        charged before.

        Raises:
            ValueError: more than the burst never fits.
        """
        return take_all(((self, cost),), now=now)

    def after_s(self, cost: int, *, now: float) -> float:
        """Return the number of seconds until `cost` units are admitted (0: at once), and
        charge nothing. Raises ValueError: more than the burst never fits."""
        at_ns = nanoseconds(now)
        wait_ns = self.wait_ns(cost, at_ns)
        return _until(at_ns + wait_ns, now) if wait_ns else 0.0

    def wait_ns(self, cost: int, at_ns: int) -> int:
        """Return how many nanoseconds `cost` units would have to wait; 0: they fit. Raises
        ValueError, as `take`."""
        room = self._full - cost * self._unit
        if room < 0:
            raise ValueError(f"{cost} at once never fit into {self.rate}")
        over = self._empty_at - at_ns * self._units - room
        return -(-over // self._units) if over > 0 else 0

    def change(self, rate: Rate, *, now: float) -> None:
        """Put another rate in force. The content stays, up to the new burst."""
        at_ns = nanoseconds(now)
        held, before = max(0, self._empty_at - at_ns * self._units), self._unit
        self._set(rate)
        level = min(-(-held * self._unit // before), self._full)
        self._empty_at = at_ns * self._units + level

    def next_deadline(self) -> float:
        """Return when the bucket is empty. From then on it is the same as a new one."""
        return seconds(-(-self._empty_at // self._units))

    def check(self, *, now: float) -> None:
        """Assert that the bucket never holds more than its burst."""
        level = self._empty_at - nanoseconds(now) * self._units
        assert level <= self._full, "no window admits more than burst + rate * t"


def take_all(charges: Sequence[tuple[Bucket, int]], *, now: float) -> float:
    """Charge several buckets, and return 0. If any would hold too much, none is charged. The result
    is then the number of seconds after which all are charged, if nothing else is charged before.
    Raises ValueError: more than a burst never fits."""
    at_ns = int(now * _NS)
    if pour_all(charges, at_ns):
        return 0.0
    wait_ns = max(bucket.wait_ns(cost, at_ns) for bucket, cost in charges)
    return _until(at_ns + wait_ns, now)


def pour_all(charges: Sequence[tuple[Bucket, int]], at_ns: int) -> bool:
    """Pour all of these in, if all of them fit, and return whether they do; more than a burst does
    not. Judges like `Bucket.wait_ns`, in few steps, because every publish comes here."""
    for bucket, cost in charges:
        room = bucket._full - cost * bucket._unit
        if room < 0 or bucket._empty_at - at_ns * bucket._units > room:
            return False
    for bucket, cost in charges:
        at, empty_at = at_ns * bucket._units, bucket._empty_at
        bucket._empty_at = (empty_at if empty_at > at else at) + cost * bucket._unit
    return True


def nanoseconds(now: float) -> int:
    """Return whole nanoseconds, rounded down."""
    return int(now * _NS)


def seconds(at_ns: int) -> float:
    """Return the first moment, as a float of seconds, that is not before this one in
    nanoseconds."""
    at = at_ns / _NS
    while nanoseconds(at) < at_ns:
        at = math.nextafter(at, math.inf)
    return at


def _until(at_ns: int, now: float) -> float:
    """Return how many seconds to wait, so that `now` plus the result is not before `at_ns`. Near a
    year of uptime floats are 4 ns apart, and a client that came 1 ns too soon would be refused
    again."""
    wait_s = max(0.0, at_ns / _NS - now)
    while nanoseconds(now + wait_s) < at_ns:
        wait_s += math.ulp(now + wait_s)
    return wait_s

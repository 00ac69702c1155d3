"""What each name has used of its limits, and for how long that is remembered. Pure.

Debtors that nobody holds and that are empty again are forgotten. Beyond a bound the one goes that
would be empty soonest: whoever invents names, so that another's debt is forgotten, must run up more
debt under each of them (P9).

    [An attacker connects from 100,000 addresses: each debtor owes a hundredth of a second. That of
    the address that owes ten seconds stays.]
"""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

from gateway.limits.spec import KINDS, Kind, Limits
from push.message import Message
from push.rates.bucket import Bucket, Rate

Scope = Literal["principal", "address", "queue", "credential"]
Name = tuple[Scope, str]
Claim = tuple[Name, Limits]
"""Who is to be charged, and what is allowed there."""


Make = Callable[[Name, Kind, Rate], Bucket]
"""Where a debtor's buckets come from."""


def own(name: Name, kind: Kind, rate: Rate) -> Bucket:
    """As Make: of this gateway alone."""
    return Bucket(rate)


class Account:
    """What one name has used, by kind, and its bounds."""

    __slots__ = (
        "_make",
        "buckets",
        "holders",
        "in_flight",
        "is_listed",
        "limits",
        "name",
        "sessions",
    )

    def __init__(self, name: Name, limits: Limits, make: Make = own) -> None:
        self.name = name
        self.limits = limits
        self._make = make
        rates = {kind: getattr(limits, kind) for kind in KINDS}
        self.buckets: dict[Kind, Bucket] = {
            kind: make(name, kind, rate) for kind, rate in rates.items() if rate is not None
        }
        self.holders = 0
        """Sessions that are charged to it: until they end it is not forgotten."""
        self.sessions = 0
        self.in_flight = 0
        self.is_listed = False
        """Whether it stands in the list of those that may be forgotten."""

    def empty_at(self) -> float:
        """When nothing of it needs to be remembered, its bounds aside."""
        return max((bucket.next_deadline() for bucket in self.buckets.values()), default=0.0)

    def change(self, limits: Limits, *, now: float) -> None:
        """Other limits are in force; what was used stays used."""
        for kind in KINDS:
            rate: Rate | None = getattr(limits, kind)
            bucket = self.buckets.get(kind)
            if rate is None:
                self.buckets.pop(kind, None)
            elif bucket is None:
                self.buckets[kind] = self._make(self.name, kind, rate)
            elif bucket.rate != rate:
                bucket.change(rate, now=now)
        self.limits = limits


class LimitAccounts:
    """See the module. `now`: seconds, monotonic."""

    def __init__(self, debtors_max: int, make: Make = own) -> None:
        self._max = debtors_max
        self._make = make
        self._known: dict[Name, Account] = {}
        self._idle: list[tuple[float, int, Account]] = []
        """Those that nobody holds, by when each was to be empty when it was looked at last."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, claims: Sequence[Claim], *, now: float) -> tuple[Account, ...]:
        """The debtors of these, made where there are none. Who keeps them for longer than this
        turn of the loop holds them."""
        known = self._known
        if any(name not in known for name, _ in claims):
            self._make_room(now, len(claims))  # for all, before one of them is looked up
        return tuple(self._one(name, limits, now) for name, limits in claims)

    def _one(self, name: Name, limits: Limits, now: float) -> Account:
        debtor = self._known.get(name)
        if debtor is None:
            debtor = self._known[name] = Account(name, limits, self._make)
            self._list(debtor, now)
        elif debtor.limits is not limits and debtor.limits != limits:
            debtor.change(limits, now=now)
        return debtor

    def hold(self, debtors: Sequence[Account]) -> None:
        """These are not forgotten until they are released as often."""
        for debtor in debtors:
            debtor.holders += 1

    def release(self, debtors: Sequence[Account]) -> None:
        """See `hold`."""
        for debtor in debtors:
            debtor.holders -= 1
            if not debtor.holders and not debtor.is_listed:
                self._list(debtor, debtor.empty_at())
                self._make_room(-math.inf, 0)

    def _list(self, debtor: Account, empty_at: float) -> None:
        debtor.is_listed = True
        self._count += 1
        heapq.heappush(self._idle, (empty_at, self._count, debtor))

    def _make_room(self, now: float, count: int) -> None:
        """For so many more. Each look at a debtor that had been charged since is paid for by that
        charge; some are looked at always, so that what is empty does not pile up."""
        looks = 2 * count
        while self._idle:
            is_full = len(self._idle) + count > self._max
            if not is_full and (not looks or self._idle[0][0] > now):
                return
            looks = max(0, looks - 1)
            listed_at, _, debtor = heapq.heappop(self._idle)
            debtor.is_listed = False
            if debtor.holders:
                continue  # listed again when it is released
            empty_at = debtor.empty_at()
            if empty_at > listed_at and empty_at > now:
                self._list(debtor, empty_at)
            else:
                del self._known[debtor.name]

    def check(self) -> None:
        """Assert what always holds (P9)."""
        listed = {id(debtor) for _, _, debtor in self._idle}
        assert len(listed) == len(self._idle) <= self._max, "P9"
        for debtor in self._known.values():
            assert debtor.is_listed == (id(debtor) in listed), "P9"
            assert debtor.holders or debtor.is_listed, "P9: nobody would ever forget it"


def published_bytes(messages: Sequence[Message]) -> int:
    """Of bodies, keys and headers, as they came."""
    size = 0
    for message in messages:
        text = message.body_base64
        size += len(message.body) if text is None else len(text)
        if message.key is not None:
            size += len(message.key)
        if message.headers is not None:
            size += sum(map(len, message.headers)) + sum(map(len, message.headers.values()))
    return size

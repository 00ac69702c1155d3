"""Accounts, each of which remembers what one name has used of its limits. Pure.

Accounts that have no holder and are empty again are forgotten. Beyond a bound, the account that
would be empty soonest is forgotten. A client that invents names, so that another's debt is
forgotten, must run up more debt under each of them (P9).

    [An attacker connects from 100,000 addresses: each account owes a hundredth of a second. That of
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
"""(name of the account to be charged, its limits)."""


Make = Callable[[Name, Kind, Rate], Bucket]
"""Callback that makes the bucket of an account for one kind of rate."""


def local_bucket(name: Name, kind: Kind, rate: Rate) -> Bucket:
    """Make a bucket that this gateway does not share with others."""
    return Bucket(rate)


class Account:
    """Account of one name, with what it has used, by kind, and its bounds."""

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

    def __init__(self, name: Name, limits: Limits, make: Make = local_bucket) -> None:
        self.name = name
        self.limits = limits
        self._make = make
        rates = {kind: getattr(limits, kind) for kind in KINDS}
        self.buckets: dict[Kind, Bucket] = {
            kind: make(name, kind, rate) for kind, rate in rates.items() if rate is not None
        }
        self.holders = 0
        """Number of open sessions, and of publishes in flight, that hold the account. While it is
        above 0, the account is not forgotten."""
        self.sessions = 0
        self.in_flight = 0
        self.is_listed = False
        """Whether it is in the list of accounts that may be forgotten."""

    def empty_at(self) -> float:
        """Return the time, in monotonic seconds, at which all buckets of the account are empty, so
        that it need not be remembered any more."""
        return max((bucket.next_deadline() for bucket in self.buckets.values()), default=0.0)

    def change(self, limits: Limits, *, now: float) -> None:
        """Put other limits in force. Used amounts stay used."""
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
    """Find, hold and forget accounts. `now`: seconds, monotonic."""

    def __init__(self, accounts_max: int, make: Make = local_bucket) -> None:
        self._max = accounts_max
        self._make = make
        self._known: dict[Name, Account] = {}
        self._idle: list[tuple[float, int, Account]] = []
        """Accounts that are listed, by the time at which each was to be empty when it was listed.
        Those that were held since stay until they are looked at."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, claims: Sequence[Claim], *, now: float) -> tuple[Account, ...]:
        """Find the accounts of these claims, and make those that do not exist. A caller that keeps
        them for longer than this turn of the loop must hold them."""
        known = self._known
        if any(name not in known for name, _ in claims):
            self._make_room(now, len(claims))  # for all, before one of them is looked up
        return tuple(self._one(name, limits, now) for name, limits in claims)

    def _one(self, name: Name, limits: Limits, now: float) -> Account:
        account = self._known.get(name)
        if account is None:
            account = self._known[name] = Account(name, limits, self._make)
            self._list(account, now)
        elif account.limits is not limits and account.limits != limits:
            account.change(limits, now=now)
        return account

    def hold(self, accounts: Sequence[Account]) -> None:
        """Keep these accounts until they are released as often as they were held."""
        for account in accounts:
            account.holders += 1

    def release(self, accounts: Sequence[Account]) -> None:
        """Release these accounts, which may then be forgotten."""
        for account in accounts:
            account.holders -= 1
            if not account.holders and not account.is_listed:
                self._list(account, account.empty_at())
                self._make_room(-math.inf, 0)

    def _list(self, account: Account, empty_at: float) -> None:
        account.is_listed = True
        self._count += 1
        heapq.heappush(self._idle, (empty_at, self._count, account))

    def _make_room(self, now: float, count: int) -> None:
        """Make room for this number of accounts. Each look at an account that was charged since it
        was listed is paid for by that charge. Some are looked at in any case, so that empty
        accounts do not pile up."""
        looks = 2 * count
        while self._idle:
            is_full = len(self._idle) + count > self._max
            if not is_full and (not looks or self._idle[0][0] > now):
                return
            looks = max(0, looks - 1)
            listed_at, _, account = heapq.heappop(self._idle)
            account.is_listed = False
            if account.holders:
                continue  # listed again when it is released
            empty_at = account.empty_at()
            if empty_at > listed_at and empty_at > now:
                self._list(account, empty_at)
            else:
                del self._known[account.name]

    def check(self) -> None:
        """Assert what always holds (P9)."""
        listed = {id(account) for _, _, account in self._idle}
        assert len(listed) == len(self._idle) <= self._max, "P9"
        for account in self._known.values():
            assert account.is_listed == (id(account) in listed), "P9"
            assert account.holders or account.is_listed, "P9: it would never be forgotten"


def published_bytes(messages: Sequence[Message]) -> int:
    """Return the size of messages as rates of bytes count it: the bytes of bodies (in base64, the
    length of that text), and the characters of keys and headers."""
    size = 0
    for message in messages:
        text = message.body_base64
        size += len(message.body) if text is None else len(text)
        if message.key is not None:
            size += _size(message.key)
        if message.headers is not None:
            size += sum(map(_size, message.headers)) + sum(map(_size, message.headers.values()))
    return size


def _size(text: str) -> int:
    """Return the number of bytes of a text in UTF-8. Lone surrogates are refused only later."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))

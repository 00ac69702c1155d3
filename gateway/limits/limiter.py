"""How much a principal, an address, a queue and a credential may: one debtor for each.

A session or request has an **allowance**: the debtors that it is charged to, all or none. What is
over is refused with `rate_limited` and the time after which the same is admitted.

Everything is kept in memory, of this gateway: `gateway.limits.accounts` says for how long. Where
several gateways share a store, what is kept of a rate is what this one holds of it ahead of time
(`push.rates.shared`, `gateway.limits.shared`): a take never waits for anybody.
Bounds, and what a session says, are counted by each gateway for itself.

What publishes of one session to one queue are charged to.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from gateway.limits.accounts import Account, Claim, LimitAccounts, Name, own, published_bytes
from gateway.limits.shared import SOON_S, SharedLimits
from gateway.limits.spec import NONE, Kind, Limits, per_second
from metadata.catalog import Principal, Queue
from push import limits
from push.errors import Refused
from push.message import Message
from push.rates.bucket import Bucket, Rate, nanoseconds, pour_all

Pour = Callable[[Sequence[tuple[Bucket, int]], int], bool]
"""As push.rates.bucket.pour_all."""


class PublishQuota:
    """Found once for many of them."""

    __slots__ = (
        "_limits",
        "_pour",
        "at_once",
        "bytes",
        "counted",
        "debtors",
        "messages",
        "settings",
    )

    def __init__(
        self,
        debtors: Sequence[Account],
        of_queue: Account | None,
        settings: object,
        pour: Pour,
    ) -> None:
        self._pour = pour
        self.settings = settings
        """The queue's, of which it was made."""
        self.debtors = debtors if of_queue is None else (*debtors, of_queue)
        self._limits = [debtor.limits for debtor in self.debtors]
        self.counted = [debtor for debtor in debtors if debtor.limits.in_flight is not None]
        """Those whose messages in flight have a bound."""
        buckets = [debtor.buckets for debtor in self.debtors]
        self.messages = [own["messages"] for own in buckets if "messages" in own]
        self.at_once = min((bucket.rate.burst for bucket in self.messages), default=None)
        """So many messages of one publish are admitted at most; None: all."""
        self.bytes = [own["bytes"] for own in buckets if "bytes" in own]

    @property
    def is_stale(self) -> bool:
        """Whether a debtor has other limits by now."""
        for debtor, limits_then in zip(self.debtors, self._limits, strict=True):
            if debtor.limits is not limits_then:
                return True
        return False

    def pour(self, messages: Sequence[Message], now: float, *, publishes: int = 1) -> bool:
        """Whether all of it fits; then it is charged. A publish that is larger than a burst is
        charged that burst; of several that are poured together, nobody is."""
        count, charges = len(messages), []
        for bucket in self.messages:
            charges.append((bucket, count))
        if self.bytes:
            size = published_bytes(messages)
            for bucket in self.bytes:
                burst = bucket.rate.burst
                charges.append((bucket, burst if publishes == 1 and size > burst else size))
        return self._pour(charges, nanoseconds(now))


BUSY_S: Final = 1.0
"""Advised where a bound is reached: nobody knows when a session ends."""
IN_FLIGHT_BUSY_S: Final = 0.05
_TILLS_MAX: Final = 64


class Allowance(Protocol):
    """What one session or request may. `now`: seconds, monotonic."""

    def take(self, kind: Kind, cost: int = 1, *, now: float) -> None:
        """Raises Refused(rate_limited) with `retry_after_s`; nothing is charged then."""

    def at_once(self, queue: Queue, *, now: float) -> int | None:
        """How many messages of one publish are admitted at most; None: all. The others are answered
        with what `beyond` says."""

    def beyond(self, queue: Queue, messages: Sequence[Message], *, now: float) -> Refused:
        """Why these, which came behind those that were admitted at once, are not; counted."""

    def publish(
        self, queue: Queue, messages: Sequence[Message], *, now: float
    ) -> Callable[[], None]:
        """These are to be published, together, and no more than `at_once`. What is returned is to
        be called once when they have their answer.

        Raises:
            Refused: rate_limited, too_many_in_flight; nothing is charged then.
        """

    def publish_all(
        self, queue: Queue, messages: Sequence[Message], publishes: int, *, now: float
    ) -> Callable[[], None] | None:
        """As `publish`, of so many publishes that are to be one. None: not all of them may be, and
        each is to be asked for: nothing is charged, and nobody was refused."""

    async def heard(self, refused: Refused) -> bool:
        """Whether to try once more what was refused: that may only say that the store, which the
        limit is shared through, had not been asked yet. Not shared: False, at once."""

    def open(self, *, now: float, goes_on: bool = False) -> None:
        """A session begins. `goes_on`: it had begun before, and nobody is asked.

        Raises:
            Refused: rate_limited (connections), too_many (sessions).
        """

    def close(self) -> None:
        """It has ended; again: nothing happens."""


class Limiter:
    """See the module."""

    def __init__(
        self,
        principal: Limits = NONE,
        address: Limits = NONE,
        queue: Limits = NONE,
        session: Limits = NONE,
        *,
        debtors_max: int = limits.DEBTORS_MAX,
        shared: SharedLimits | None = None,
    ) -> None:
        """`shared`: rates are of all gateways together. None: of this one."""
        self.shared = shared
        self._make = own if shared is None else shared.bucket
        self.pour = pour_all if shared is None else shared.shares.pour
        """As push.rates.bucket.pour_all."""
        self._principal = principal
        self._address = address
        self._queue = queue
        self.session = session
        """What each session may (runtime.loop.fairness)."""
        self.debtors = LimitAccounts(debtors_max, self._make)
        self._queues: dict[str, tuple[object, Account | None]] = {}
        """Of a queue: the settings of which its debtor was made, and that."""
        self.on_refused: Callable[[Queue, int], None] = lambda queue, count: None
        """Is told of a queue's messages that were refused."""
        self.refused: Counter[str] = Counter()
        """What was refused, by scope and kind."""

    async def start(self) -> None:
        """Begin to share; where nothing is shared, nothing happens."""
        if self.shared is not None:
            await self.shared.start()

    async def close(self) -> None:
        """Give back what is held. Not started: nothing happens."""
        if self.shared is not None:
            await self.shared.close()

    # --- Who is charged ------------------------------------------------------------------------

    def allowance(
        self,
        principal: Principal,
        address: str | None,
        *,
        own: Limits | None = None,
        credential: str = "",
    ) -> Allowance:
        """Of who asks, from where; `address`: a name of runtime.addresses, None: not counted.
        `own`: what is allowed to this credential alone."""
        claims: list[Claim] = []
        if self._principal != NONE:
            name = f"{principal.tenant}/{principal.name}"
            claims.append((("principal", name), self._principal))
        if address is not None and self._address != NONE:
            claims.append((("address", address), self._address))
        if own is not None and own != NONE:
            claims.append((("credential", credential), own))
        return _Charged(self, claims)

    def connect(self, address: str | None, *, now: float) -> None:
        """A transport is opened from there, by whomever. Raises Refused(rate_limited)."""
        self._take_of(address, "connections", now)

    @contextmanager
    def guessing(self, address: str | None, *, now: float) -> Iterator[None]:
        """Inside, a credential from there is looked at: it counts if it is wrong.

        Raises:
            Refused: rate_limited: too many were wrong, no other one is looked at now.
        """
        debtor = self._of_address(address, now)
        bucket = debtor.buckets.get("failures") if debtor is not None else None
        if debtor is None or bucket is None:
            yield
            return
        after_s = bucket.after_s(1, now=now)
        if after_s:
            raise self.refusal(debtor, "failures", bucket.rate, after_s)
        try:
            yield
        except Refused as error:
            if error.code.name == "unauthorized":
                bucket.take(1, now=now)
            raise

    def _of_address(self, address: str | None, now: float) -> Account | None:
        if address is None or self._address == NONE:
            return None
        return self.debtors.find(((("address", address), self._address),), now=now)[0]

    def _take_of(self, address: str | None, kind: Kind, now: float) -> None:
        debtor = self._of_address(address, now)
        if debtor is not None:
            self.charge((debtor,), kind, 1, now)

    def of_queue(self, queue: Queue, now: float) -> Account | None:
        """The debtor of a queue; None: nothing limits it."""
        known = self._queues.get(queue.queue_id)
        if known is not None and known[0] is queue.settings:
            return known[1]
        settings = queue.settings
        wanted = Limits(
            messages=per_second("messages", settings.publish_messages_per_s)
            or self._queue.messages,
            bytes=per_second("bytes", settings.publish_bytes_per_s) or self._queue.bytes,
        )
        debtor = known[1] if known is not None else None
        if wanted == NONE:
            debtor = None
        elif debtor is None:
            debtor = Account(("queue", queue.name), wanted, partial(self._of_id, queue.queue_id))
        else:
            debtor.change(wanted, now=now)
        self._queues[queue.queue_id] = (settings, debtor)
        return debtor

    def _of_id(self, queue_id: str, name: Name, kind: Kind, rate: Rate) -> Bucket:
        return self._make((name[0], queue_id), kind, rate)  # a name may be another queue's later

    def forget_queue(self, queue_id: str) -> None:
        """It is deleted. Not there: nothing happens."""
        self._queues.pop(queue_id, None)

    # --- Charging ------------------------------------------------------------------------------

    def charge(self, debtors: Sequence[Account], kind: Kind, cost: int, now: float) -> None:
        """All of these, or none. Raises Refused(rate_limited)."""
        charges = [(a.buckets[kind], cost) for a in debtors if kind in a.buckets]
        if charges and not self.pour(charges, nanoseconds(now)):
            raise self._refused(debtors, {kind: cost}, now)

    def over(self, debtors: Sequence[Account], messages: Sequence[Message], now: float) -> Refused:
        """These cannot be published now: why, and when."""
        costs: dict[Kind, int] = {"messages": len(messages), "bytes": published_bytes(messages)}
        return self._refused(debtors, costs, now)

    def too_many_in_flight(self, debtor: Account) -> Refused:
        """Counted, and in words."""
        scope, most = debtor.name[0], debtor.limits.in_flight
        self.refused[f"{scope}.in_flight"] += 1
        detail = f"of this {scope} at most {most} messages await their answer"
        return Refused("too_many_in_flight", detail, retry_after_s=IN_FLIGHT_BUSY_S)

    def _refused(self, debtors: Sequence[Account], costs: dict[Kind, int], now: float) -> Refused:
        """Names the limit that is waited for longest."""
        waits = [
            (bucket.after_s(min(cost, bucket.rate.burst), now=now), debtor, kind, bucket.rate)
            for debtor in debtors
            for kind, cost in costs.items()
            if (bucket := debtor.buckets.get(kind)) is not None
        ]
        after_s, debtor, kind, rate = max(waits, key=lambda wait: wait[0])
        return self.refusal(debtor, kind, rate, after_s)

    def refusal(self, debtor: Account, kind: Kind, rate: Rate, after_s: float) -> Refused:
        """Counted, and in words."""
        scope, name = debtor.name
        self.refused[f"{scope}.{kind}"] += 1
        if kind == "failures":
            detail = f"too many wrong credentials came from this address ({kind}={rate}): wait"
            return Refused("rate_limited", detail, retry_after_s=after_s)
        whose = f"the queue {name!r} takes" if scope == "queue" else f"this {scope} may have"
        return Refused("rate_limited", f"{whose} {kind}={rate}: wait", retry_after_s=after_s)

    def described(self) -> dict[str, object]:
        """For `tocsin admin status`."""
        shared = {} if self.shared is None else {"shared": self.shared.described()}
        refused = dict(sorted(self.refused.items()))
        return {"debtors": len(self.debtors), "refused": refused, **shared}


class _Charged:
    """As Allowance. The debtors of a session are looked up once, and held; those of a request are
    looked up each time: it may wait long, and what nobody holds may be forgotten meanwhile.

    [Kept by requests that trickle in, each would begin with a whole burst of its own.]
    """

    __slots__ = ("_claims", "_held", "_limiter", "_tills")

    def __init__(self, limiter: Limiter, claims: Sequence[Claim]) -> None:
        self._limiter = limiter
        self._claims = claims
        self._held: Sequence[Account] = ()
        """Of a session that is open."""
        self._tills: dict[str, PublishQuota] = {}
        """By queue id, while it is."""

    def _found(self, now: float) -> Sequence[Account]:
        if self._held or not self._claims:
            return self._held
        return self._limiter.debtors.find(self._claims, now=now)

    def take(self, kind: Kind, cost: int = 1, *, now: float) -> None:
        """As Allowance.take."""
        if self._claims:
            self._limiter.charge(self._found(now), kind, cost, now)

    def at_once(self, queue: Queue, *, now: float) -> int | None:
        """As Allowance.at_once."""
        return self._fresh_till(queue, now).at_once

    def beyond(self, queue: Queue, messages: Sequence[Message], *, now: float) -> Refused:
        """As Allowance.beyond."""
        self._limiter.on_refused(queue, len(messages))
        return self._limiter.over(self._fresh_till(queue, now).debtors, messages, now)

    def publish(
        self, queue: Queue, messages: Sequence[Message], *, now: float
    ) -> Callable[[], None]:
        """As Allowance.publish."""
        till = self._fresh_till(queue, now)
        if not till.debtors:
            return _nothing
        count = len(messages)
        debtor = _over_in_flight(till, count)
        if debtor is not None:
            self._limiter.on_refused(queue, count)
            raise self._limiter.too_many_in_flight(debtor)
        if not till.pour(messages, now):
            self._limiter.on_refused(queue, count)
            raise self._limiter.over(till.debtors, messages, now)
        return self._owed(till, count)

    def publish_all(
        self, queue: Queue, messages: Sequence[Message], publishes: int, *, now: float
    ) -> Callable[[], None] | None:
        """As Allowance.publish_all."""
        till, count = self._fresh_till(queue, now), len(messages)
        if till.at_once is not None and count > till.at_once:
            return None
        if _over_in_flight(till, count) or not till.pour(messages, now, publishes=publishes):
            return None
        return self._owed(till, count)

    def _owed(self, till: PublishQuota, count: int) -> Callable[[], None]:
        if not till.counted:
            return _nothing
        for debtor in till.counted:
            debtor.in_flight += count
        self._limiter.debtors.hold(till.counted)
        return partial(self._answered, till.counted, count)

    def _fresh_till(self, queue: Queue, now: float) -> PublishQuota:
        till = self._tills.get(queue.queue_id)
        if till is None or till.settings is not queue.settings or till.is_stale:
            till = self._till(queue, now)
        return till

    def _till(self, queue: Queue, now: float) -> PublishQuota:
        debtors, limiter = self._found(now), self._limiter
        till = PublishQuota(debtors, limiter.of_queue(queue, now), queue.settings, limiter.pour)
        if self._held or not self._claims:  # else they may be forgotten meanwhile
            if len(self._tills) >= _TILLS_MAX:
                self._tills.clear()
            self._tills[queue.queue_id] = till
        return till

    async def heard(self, refused: Refused) -> bool:
        """As Allowance.heard."""
        after_s = refused.retry_after_s or math.inf
        if self._limiter.shared is None or after_s > SOON_S:
            return False
        await asyncio.sleep(after_s)
        return True

    def _answered(self, debtors: Sequence[Account], count: int) -> None:
        for debtor in debtors:
            debtor.in_flight -= count
        self._limiter.debtors.release(debtors)

    def open(self, *, now: float, goes_on: bool = False) -> None:
        """As Allowance.open. Where it comes from has been charged when it connected."""
        debtors = self._found(now)
        if not goes_on:
            self._ask(debtors, now)
        self._held = debtors
        self._tills.clear()
        self._limiter.debtors.hold(debtors)
        for debtor in debtors:
            debtor.sessions += 1

    def _ask(self, debtors: Sequence[Account], now: float) -> None:
        for debtor in debtors:
            most = debtor.limits.sessions
            if most is not None and debtor.sessions >= most:
                self._limiter.refused[f"{debtor.name[0]}.sessions"] += 1
                detail = f"this {debtor.name[0]} has {most} sessions open, as many as it may"
                raise Refused("too_many", detail, retry_after_s=BUSY_S)
        others = [debtor for debtor in debtors if debtor.name[0] != "address"]
        self._limiter.charge(others, "connections", 1, now)

    def close(self) -> None:
        """As Allowance.close."""
        held, self._held = self._held, ()
        self._tills.clear()
        for debtor in held:
            debtor.sessions -= 1
        self._limiter.debtors.release(held)


UNLIMITED: Final = Limiter()
"""Everybody may as much as they like."""


def _over_in_flight(till: PublishQuota, count: int) -> Account | None:
    """Who would have too much in flight with so many more."""
    for debtor in till.counted:
        if debtor.in_flight + count > (debtor.limits.in_flight or 0):
            return debtor
    return None


def _nothing() -> None:
    """Nobody counts what awaits its answer."""

"""How much a principal, an address, a queue and a credential may: one account for each.

A session or request has an **allowance**: the accounts that it is charged to, all or none. What is
over is refused with `rate_limited` and the time after which the same is admitted.

Everything is kept in memory, of this gateway: `gateway.accounts` says for how long. A limiter that
several gateways share fits behind the same calls if each is granted its part of a rate ahead of
time: a take never waits for anybody.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from gateway.accounts import Account, Accounts, Claim, published_bytes
from gateway.config import Config
from gateway.limit_values import (
    NONE,
    OF_ADDRESS,
    OF_PRINCIPAL,
    OF_QUEUE,
    Kind,
    Limits,
    parse_limits,
    per_second,
)
from metadata.catalog import Principal, Queue
from push import limits
from push.bucket import Bucket, Rate, take_all
from push.errors import Refused
from push.message import Message

BUSY_S: Final = 1.0
"""Advised where a bound is reached: nobody knows when a session ends."""
IN_FLIGHT_BUSY_S: Final = 0.05


class Allowance(Protocol):
    """What one session or request may. `now`: seconds, monotonic."""

    def take(self, kind: Kind, cost: int = 1, *, now: float) -> None:
        """Raises Refused(rate_limited) with `retry_after_s`; nothing is charged then."""

    def publish(
        self, queue: Queue, messages: Sequence[Message], *, now: float
    ) -> Callable[[], None]:
        """These are to be published, together. What is returned is to be called once when they
        have their answer.

        Raises:
            Refused: rate_limited, too_many_in_flight; nothing is charged then.
        """

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
        *,
        accounts_max: int = limits.ACCOUNTS_MAX,
    ) -> None:
        self._principal = principal
        self._address = address
        self._queue = queue
        self.accounts = Accounts(accounts_max)
        self._queues: dict[str, tuple[object, Account | None]] = {}
        """Of a queue: the settings of which its account was made, and that."""
        self.on_refused: Callable[[Queue, int], None] = lambda queue, count: None
        """Is told of a queue's messages that were refused."""
        self.refused: Counter[str] = Counter()
        """What was refused, by scope and kind."""

    # --- Who is charged ------------------------------------------------------------------------

    def allowance(
        self, principal: Principal, address: str | None, *,
        own: Limits | None = None, credential: str = "",
    ) -> Allowance:  # fmt: skip
        """Of who asks, from where; `address`: a name of gateway.client_names, None: not counted.
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
        account = self._of_address(address, now)
        bucket = account.buckets.get("failures") if account is not None else None
        if account is None or bucket is None:
            yield
            return
        after_s = bucket.after_s(1, now=now)
        if after_s:
            raise self.refusal(account, "failures", bucket.rate, after_s)
        try:
            yield
        except Refused as error:
            if error.code.name == "unauthorized":
                bucket.take(1, now=now)
            raise

    def _of_address(self, address: str | None, now: float) -> Account | None:
        if address is None or self._address == NONE:
            return None
        return self.accounts.find(((("address", address), self._address),), now=now)[0]

    def _take_of(self, address: str | None, kind: Kind, now: float) -> None:
        account = self._of_address(address, now)
        if account is not None:
            self.charge((account,), kind, 1, now)

    def of_queue(self, queue: Queue, now: float) -> Account | None:
        """The account of a queue; None: nothing limits it."""
        known = self._queues.get(queue.queue_id)
        if known is not None and known[0] is queue.settings:
            return known[1]
        settings = queue.settings
        wanted = Limits(
            messages=per_second("messages", settings.publish_messages_per_s)
            or self._queue.messages,
            bytes=per_second("bytes", settings.publish_bytes_per_s) or self._queue.bytes,
        )
        account = known[1] if known is not None else None
        if wanted == NONE:
            account = None
        elif account is None:
            account = Account(("queue", queue.name), wanted)
        else:
            account.change(wanted, now=now)
        self._queues[queue.queue_id] = (settings, account)
        return account

    def forget_queue(self, queue_id: str) -> None:
        """It is deleted. Not there: nothing happens."""
        self._queues.pop(queue_id, None)

    # --- Charging ------------------------------------------------------------------------------

    def charge(self, accounts: Sequence[Account], kind: Kind, cost: int, now: float) -> None:
        """All of these, or none. Raises Refused(rate_limited)."""
        charges = [(a.buckets[kind], cost) for a in accounts if kind in a.buckets]
        if charges and (after_s := take_all(charges, now=now)):
            raise self._refused(accounts, {kind: cost}, after_s, now)

    def charge_publish(
        self, accounts: Sequence[Account], messages: Sequence[Message], now: float
    ) -> None:
        """As `charge`, of messages and of their bytes."""
        charges: list[tuple[Bucket, int]] = []
        size = -1
        for account in accounts:
            buckets = account.buckets
            if (bucket := buckets.get("messages")) is not None:
                charges.append((bucket, len(messages)))
            if (bucket := buckets.get("bytes")) is not None:
                size = size if size >= 0 else published_bytes(messages)
                charges.append((bucket, min(size, bucket.rate.burst)))
        if charges and (after_s := take_all(charges, now=now)):
            costs: dict[Kind, int] = {"messages": len(messages), "bytes": max(size, 0)}
            raise self._refused(accounts, costs, after_s, now)

    def _refused(
        self, accounts: Sequence[Account], costs: dict[Kind, int], after_s: float, now: float
    ) -> Refused:
        """Names the limit that is waited for longest."""
        waits = [
            (bucket.after_s(min(cost, bucket.rate.burst), now=now), account, kind, bucket.rate)
            for account in accounts
            for kind, cost in costs.items()
            if (bucket := account.buckets.get(kind)) is not None
        ]
        _, account, kind, rate = max(waits, key=lambda wait: wait[0])
        return self.refusal(account, kind, rate, after_s)

    def refusal(self, account: Account, kind: Kind, rate: Rate, after_s: float) -> Refused:
        """Counted, and in words."""
        scope, name = account.name
        self.refused[f"{scope}.{kind}"] += 1
        whose = f"the queue {name!r} takes" if scope == "queue" else f"this {scope} may have"
        return Refused("rate_limited", f"{whose} {kind}={rate}: wait", retry_after_s=after_s)

    def described(self) -> dict[str, object]:
        """For `tocsin admin status`."""
        return {"accounts": len(self.accounts), "refused": dict(sorted(self.refused.items()))}


class _Charged:
    """As Allowance. The accounts of a session are looked up once, and held; those of a request are
    looked up each time: it may wait long, and what nobody holds may be forgotten meanwhile.

    [Kept by requests that trickle in, each would begin with a whole burst of its own.]
    """

    __slots__ = ("_claims", "_held", "_limiter")

    def __init__(self, limiter: Limiter, claims: Sequence[Claim]) -> None:
        self._limiter = limiter
        self._claims = claims
        self._held: Sequence[Account] = ()
        """Of a session that is open."""

    def _found(self, now: float) -> Sequence[Account]:
        if self._held or not self._claims:
            return self._held
        return self._limiter.accounts.find(self._claims, now=now)

    def take(self, kind: Kind, cost: int = 1, *, now: float) -> None:
        """As Allowance.take."""
        if self._claims:
            self._limiter.charge(self._found(now), kind, cost, now)

    def publish(
        self, queue: Queue, messages: Sequence[Message], *, now: float
    ) -> Callable[[], None]:
        """As Allowance.publish."""
        try:
            accounts = self._found(now)
            self._charge_publish(accounts, queue, messages, now)
        except Refused:
            self._limiter.on_refused(queue, len(messages))
            raise
        if not accounts:
            return _nothing
        count = len(messages)
        for account in accounts:
            account.in_flight += count
        self._limiter.accounts.hold(accounts)
        return partial(self._answered, accounts, count)

    def _answered(self, accounts: Sequence[Account], count: int) -> None:
        for account in accounts:
            account.in_flight -= count
        self._limiter.accounts.release(accounts)

    def _charge_publish(
        self, accounts: Sequence[Account], queue: Queue, messages: Sequence[Message], now: float
    ) -> None:
        for account in accounts:
            most = account.limits.in_flight
            if most is not None and account.in_flight + len(messages) > most:
                self._limiter.refused[f"{account.name[0]}.in_flight"] += 1
                detail = f"of this {account.name[0]} at most {most} messages await their answer"
                raise Refused("too_many_in_flight", detail, retry_after_s=IN_FLIGHT_BUSY_S)
        of_queue = self._limiter.of_queue(queue, now)
        charged = accounts if of_queue is None else (*accounts, of_queue)
        if charged:
            self._limiter.charge_publish(charged, messages, now)

    def open(self, *, now: float, goes_on: bool = False) -> None:
        """As Allowance.open. Where it comes from has been charged when it connected."""
        accounts = self._found(now)
        if not goes_on:
            self._ask(accounts, now)
        self._held = accounts
        self._limiter.accounts.hold(accounts)
        for account in accounts:
            account.sessions += 1

    def _ask(self, accounts: Sequence[Account], now: float) -> None:
        for account in accounts:
            most = account.limits.sessions
            if most is not None and account.sessions >= most:
                self._limiter.refused[f"{account.name[0]}.sessions"] += 1
                detail = f"this {account.name[0]} has {most} sessions open, as many as it may"
                raise Refused("too_many", detail, retry_after_s=BUSY_S)
        others = [account for account in accounts if account.name[0] != "address"]
        self._limiter.charge(others, "connections", 1, now)

    def close(self) -> None:
        """As Allowance.close."""
        held, self._held = self._held, ()
        for account in held:
            account.sessions -= 1
        self._limiter.accounts.release(held)


UNLIMITED: Final = Limiter()
"""Everybody may as much as they like."""


def _nothing() -> None:
    """Nobody counts what awaits its answer."""


def limiter_of(config: Config) -> Limiter:
    """As the settings say."""
    return Limiter(
        parse_limits(config.limit_principal, OF_PRINCIPAL),
        parse_limits(config.limit_address, OF_ADDRESS),
        parse_limits(config.limit_queue, OF_QUEUE),
    )

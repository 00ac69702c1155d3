"""Limits of principals, addresses, queues and credentials: an account for each.

A session or request has an **allowance**: the accounts that it is charged to, all or none. For
example, a publish may draw from the message rate of its principal, from that of its address and
from that of its queue. A request over a rate is refused with `rate_limited` and the time after
which the same is admitted.

Everything is kept in the memory of this gateway; `gateway.limits.accounts` says for how long. If
several gateways share a store, this gateway holds a share of each rate ahead of time
(`push.rates.shared`, `gateway.limits.shared`), so that a charge never waits for the store. Each
gateway counts for itself what has a bound, and the frames of a session.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from gateway.counters import Counters
from gateway.limits.accounts import (
    Account,
    Claim,
    LimitAccounts,
    Name,
    local_bucket,
    published_bytes,
)
from gateway.limits.shared import SOON_S, SharedLimits
from gateway.limits.spec import NONE, Kind, Limits, per_second
from metadata.catalog import Principal, Queue
from push import limits
from push.errors import Refused
from push.message import Message
from push.rates.bucket import Bucket, Rate, nanoseconds, pour_all

Pour = Callable[[Sequence[tuple[Bucket, int]], int], bool]
"""Function that charges all buckets or none, and returns whether it has: (bucket, cost) of each,
and the time in nanoseconds. It is `push.rates.bucket.pour_all`, or the same of shared rates."""


class PublishQuota:
    """The rate limiters that one session's publishes to one queue draw from; found once for many
    publishes."""

    __slots__ = (
        "_limits",
        "_pour",
        "accounts",
        "bounded",
        "bytes",
        "messages",
        "messages_max",
        "settings",
    )

    def __init__(
        self,
        accounts: Sequence[Account],
        of_queue: Account | None,
        settings: object,
        pour: Pour,
    ) -> None:
        self._pour = pour
        self.settings = settings
        """The settings of the queue at the time when the quota was made."""
        self.accounts = accounts if of_queue is None else (*accounts, of_queue)
        self._limits = [account.limits for account in self.accounts]
        self.bounded = [account for account in accounts if account.limits.in_flight is not None]
        """The accounts whose messages in flight have a bound."""
        buckets = [account.buckets for account in self.accounts]
        self.messages = [kinds["messages"] for kinds in buckets if "messages" in kinds]
        self.messages_max = min((bucket.rate.burst for bucket in self.messages), default=None)
        """Largest number of messages of one publish that are admitted; None: all."""
        self.bytes = [kinds["bytes"] for kinds in buckets if "bytes" in kinds]

    @property
    def is_stale(self) -> bool:
        """Whether an account has other limits by now."""
        for account, limits_then in zip(self.accounts, self._limits, strict=True):
            if account.limits is not limits_then:
                return True
        return False

    def pour(self, messages: Sequence[Message], now: float, *, publishes: int = 1) -> bool:
        """Charge these messages if all fit, and return whether they do. A single publish with more
        bytes than a burst is charged only that burst; several publishes together are charged all
        their bytes."""
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
"""Seconds to wait that a client is advised if too many sessions are open, because it is not known
when one of them ends."""
IN_FLIGHT_BUSY_S: Final = 0.05
_QUOTAS_MAX: Final = 64


class Limiter:
    """The limits of a gateway, and the accounts of all clients and queues that they concern."""

    def __init__(
        self,
        principal: Limits = NONE,
        address: Limits = NONE,
        queue: Limits = NONE,
        session: Limits = NONE,
        *,
        accounts_max: int = limits.DEBTORS_MAX,
        shared: SharedLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        """Begin with empty accounts. `shared`: rates are of all gateways together; None: of this
        one. `counters`: count the refused messages of a queue."""
        self.shared = shared
        self._make = local_bucket if shared is None else shared.bucket
        self.pour = pour_all if shared is None else shared.shares.pour
        self._principal = principal
        self._address = address
        self._queue = queue
        self.session = session
        """Limits of each session, whose rate of frames runtime.loop.fairness.FrameRate applies."""
        self.accounts = LimitAccounts(accounts_max, self._make)
        self._queues: dict[str, tuple[object, Account | None]] = {}
        """Queue id → the settings from which its account was made, and that account."""
        self._counters = counters
        self.refused: Counter[str] = Counter()
        """Number of refusals, by scope and kind."""

    async def start(self) -> None:
        """Begin to share, if anything is shared."""
        if self.shared is not None:
            await self.shared.start()

    async def close(self) -> None:
        """Give the held shares back. If it was not started, do nothing."""
        if self.shared is not None:
            await self.shared.close()

    # --- Accounts ------------------------------------------------------------------------------

    def allowance(
        self,
        principal: Principal,
        address: str | None,
        *,
        own: Limits | None = None,
        credential: str = "",
    ) -> "Allowance":
        """Make the allowance of a client. `address`: the client's address, as runtime.addresses
        names it; None: no limits of addresses apply. `own`: the limits of this credential alone."""
        claims: list[Claim] = []
        if self._principal != NONE:
            name = f"{principal.tenant}/{principal.name}"
            claims.append((("principal", name), self._principal))
        if address is not None and self._address != NONE:
            claims.append((("address", address), self._address))
        if own is not None and own != NONE:
            claims.append((("credential", credential), own))
        return Allowance(self, claims)

    def connect(self, address: str | None, *, now: float) -> None:
        """Charge a transport that is opened from this address. Raises Refused(rate_limited)."""
        account = self._address_account(address, now)
        if account is not None:
            self.charge((account,), "connections", 1, now)

    @contextmanager
    def checking_credential(self, address: str | None, *, now: float) -> Iterator[None]:
        """Run a block that checks a credential from this address. If the block raises
        Refused(unauthorized), a wrong credential is counted for the address.

        Raises:
            Refused: rate_limited, if too many were wrong; the block is not run then.
        """
        account = self._address_account(address, now)
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

    def _address_account(self, address: str | None, now: float) -> Account | None:
        if address is None or self._address == NONE:
            return None
        return self.accounts.find(((("address", address), self._address),), now=now)[0]

    def queue_account(self, queue: Queue, now: float) -> Account | None:
        """Find the account to which publishes to a queue are charged; None: nothing limits them."""
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
            account = Account(
                ("queue", queue.name), wanted, partial(self._queue_bucket, queue.queue_id)
            )
        else:
            account.change(wanted, now=now)
        self._queues[queue.queue_id] = (settings, account)
        return account

    def _queue_bucket(self, queue_id: str, name: Name, kind: Kind, rate: Rate) -> Bucket:
        return self._make((name[0], queue_id), kind, rate)  # a name may be another queue's later

    def forget_queue(self, queue_id: str) -> None:
        """Forget a queue that is deleted. If it is not known, do nothing."""
        self._queues.pop(queue_id, None)

    def count_refused(self, queue: Queue, count: int) -> None:
        """Count messages of a queue that were refused."""
        if self._counters is not None:
            self._counters.queue(queue.queue_id).refused += count

    # --- Charging ------------------------------------------------------------------------------

    def charge(self, accounts: Sequence[Account], kind: Kind, cost: int, now: float) -> None:
        """Charge all of these accounts, or none. Raises Refused(rate_limited)."""
        charges = [(a.buckets[kind], cost) for a in accounts if kind in a.buckets]
        if charges and not self.pour(charges, nanoseconds(now)):
            raise self._longest_refusal(accounts, {kind: cost}, now)

    def publish_refusal(
        self, accounts: Sequence[Account], messages: Sequence[Message], now: float
    ) -> Refused:
        """Count and return the refusal of these messages, with the time after which they can be
        published."""
        costs: dict[Kind, int] = {"messages": len(messages), "bytes": published_bytes(messages)}
        return self._longest_refusal(accounts, costs, now)

    def in_flight_refusal(self, account: Account) -> Refused:
        """Count a refusal, and return it."""
        scope, most = account.name[0], account.limits.in_flight
        self.refused[f"{scope}.in_flight"] += 1
        detail = (
            f"this {scope} may have at most {most} messages that await their answer: wait for "
            "answers"
        )
        return Refused("too_many_in_flight", detail, retry_after_s=IN_FLIGHT_BUSY_S)

    def _longest_refusal(
        self, accounts: Sequence[Account], costs: dict[Kind, int], now: float
    ) -> Refused:
        """Count and return the refusal by the limit that has the longest wait."""
        waits = [
            (bucket.after_s(min(cost, bucket.rate.burst), now=now), account, kind, bucket.rate)
            for account in accounts
            for kind, cost in costs.items()
            if (bucket := account.buckets.get(kind)) is not None
        ]
        after_s, account, kind, rate = max(waits, key=lambda wait: wait[0])
        return self.refusal(account, kind, rate, after_s)

    def refusal(self, account: Account, kind: Kind, rate: Rate, after_s: float) -> Refused:
        """Count a refusal, and return it."""
        scope, name = account.name
        self.refused[f"{scope}.{kind}"] += 1
        if kind == "failures":
            detail = (
                f"too many wrong credentials came from this address ({kind}={rate}): wait, and "
                "check the credential"
            )
            return Refused("rate_limited", detail, retry_after_s=after_s)
        whose = f"the queue {name!r} takes" if scope == "queue" else f"this {scope} may have"
        return Refused("rate_limited", f"{whose} {kind}={rate}: wait", retry_after_s=after_s)

    def status(self) -> dict[str, object]:
        """Return counts for `tocsin admin status`."""
        shared = {} if self.shared is None else {"shared": self.shared.status()}
        refused = dict(sorted(self.refused.items()))
        return {"debtors": len(self.accounts), "refused": refused, **shared}


class Allowance:
    """The accounts to which one session or request is charged. `now`: seconds, monotonic. A session
    finds its accounts once, and holds them. A request finds them each time, because it may wait
    long, and accounts without a holder may be forgotten meanwhile.

    [If requests that trickle in kept their accounts, each would begin with a whole burst of its
    own.]
    """

    __slots__ = ("_claims", "_held", "_limiter", "_quotas")

    def __init__(self, limiter: Limiter, claims: Sequence[Claim]) -> None:
        self._limiter = limiter
        self._claims = claims
        self._held: Sequence[Account] = ()
        """Accounts of a session that is open; else empty."""
        self._quotas: dict[str, PublishQuota] = {}
        """Quotas by queue id. They are kept while accounts are held, or if there are no
        accounts."""

    def _accounts(self, now: float) -> Sequence[Account]:
        if self._held or not self._claims:
            return self._held
        return self._limiter.accounts.find(self._claims, now=now)

    def take(self, kind: Kind, cost: int = 1, *, now: float) -> None:
        """Charge `cost`. Raises Refused(rate_limited) with `retry_after_s`; nothing is charged
        then."""
        if self._claims:
            self._limiter.charge(self._accounts(now), kind, cost, now)

    def messages_max(self, queue: Queue, *, now: float) -> int | None:
        """Return the largest number of messages of one publish that are admitted; None: all. The
        others are refused by `refuse_beyond`."""
        return self.quota(queue, now=now).messages_max

    def refuse_beyond(self, queue: Queue, messages: Sequence[Message], *, now: float) -> Refused:
        """Count and return the refusal of these messages, which come after the first `messages_max`
        of their publish."""
        self._limiter.count_refused(queue, len(messages))
        return self._limiter.publish_refusal(self.quota(queue, now=now).accounts, messages, now)

    def publish(
        self, queue: Queue, messages: Sequence[Message], *, now: float
    ) -> Callable[[], None]:
        """Charge a publish of these messages, `messages_max` at most. Returns a function to be
        called once, when they have their answer.

        Raises:
            Refused: rate_limited, too_many_in_flight; nothing is charged then.
        """
        quota = self.quota(queue, now=now)
        if not quota.accounts:
            return release_nothing
        count = len(messages)
        account = _over_in_flight(quota, count)
        if account is not None:
            self._limiter.count_refused(queue, count)
            raise self._limiter.in_flight_refusal(account)
        if not quota.pour(messages, now):
            self._limiter.count_refused(queue, count)
            raise self._limiter.publish_refusal(quota.accounts, messages, now)
        return self._hold_in_flight(quota, count)

    def publish_all(
        self, queue: Queue, messages: Sequence[Message], publishes: int, *, now: float
    ) -> Callable[[], None] | None:
        """Charge several publishes that are to be one, like `publish`. None: they do not fit as a
        whole. Then nothing is charged or counted as refused, and the caller charges each alone."""
        quota, count = self.quota(queue, now=now), len(messages)
        if quota.messages_max is not None and count > quota.messages_max:
            return None
        if _over_in_flight(quota, count) or not quota.pour(messages, now, publishes=publishes):
            return None
        return self._hold_in_flight(quota, count)

    def _hold_in_flight(self, quota: PublishQuota, count: int) -> Callable[[], None]:
        if not quota.bounded:
            return release_nothing
        for account in quota.bounded:
            account.in_flight += count
        self._limiter.accounts.hold(quota.bounded)
        return partial(self._release_in_flight, quota.bounded, count)

    def quota(self, queue: Queue, *, now: float) -> PublishQuota:
        """Return what a publish to the queue draws from now."""
        quota = self._quotas.get(queue.queue_id)
        if (
            quota is None
            or quota.settings is not queue.settings
            or (quota.accounts and quota.is_stale)
        ):
            quota = self._make_quota(queue, now)
        return quota

    def _make_quota(self, queue: Queue, now: float) -> PublishQuota:
        accounts, limiter = self._accounts(now), self._limiter
        quota = PublishQuota(
            accounts, limiter.queue_account(queue, now), queue.settings, limiter.pour
        )
        if self._held or not self._claims:  # else they may be forgotten meanwhile
            if len(self._quotas) >= _QUOTAS_MAX:
                self._quotas.clear()
            self._quotas[queue.queue_id] = quota
        return quota

    async def wait_for_share(self, refused: Refused) -> bool:
        """Wait if a refusal may only mean that the store of a shared limit has not been asked yet.
        Returns whether to try once more. Returns False at once if limits are not shared, or if the
        advised wait is longer than SOON_S."""
        after_s = refused.retry_after_s or math.inf
        if self._limiter.shared is None or after_s > SOON_S:
            return False
        await asyncio.sleep(after_s)
        return True

    def _release_in_flight(self, accounts: Sequence[Account], count: int) -> None:
        for account in accounts:
            account.in_flight -= count
        self._limiter.accounts.release(accounts)

    def open(self, *, now: float, goes_on: bool = False) -> None:
        """Begin a session. Its address was charged when it connected. `goes_on`: the session had
        begun before, and is not charged again.

        Raises:
            Refused: rate_limited (connections), too_many (sessions).
        """
        accounts = self._accounts(now)
        if not goes_on:
            self._charge_opening(accounts, now)
        self._held = accounts
        self._quotas.clear()
        self._limiter.accounts.hold(accounts)
        for account in accounts:
            account.sessions += 1

    def _charge_opening(self, accounts: Sequence[Account], now: float) -> None:
        for account in accounts:
            most = account.limits.sessions
            if most is not None and account.sessions >= most:
                self._limiter.refused[f"{account.name[0]}.sessions"] += 1
                detail = (
                    f"this {account.name[0]} may have at most {most} open sessions: close one first"
                )
                raise Refused("too_many", detail, retry_after_s=BUSY_S)
        others = [account for account in accounts if account.name[0] != "address"]
        self._limiter.charge(others, "connections", 1, now)

    def close(self) -> None:
        """End the session. If it has ended already, do nothing."""
        held, self._held = self._held, ()
        self._quotas.clear()
        for account in held:
            account.sessions -= 1
        self._limiter.accounts.release(held)


UNLIMITED: Final = Limiter()
"""A limiter without limits."""


def _over_in_flight(quota: PublishQuota, count: int) -> Account | None:
    """Return an account that would have too many messages in flight with `count` more."""
    for account in quota.bounded:
        if account.in_flight + count > (account.limits.in_flight or 0):
            return account
    return None


def release_nothing() -> None:
    """Do nothing, in place of the release of messages in flight, if no account counts them."""

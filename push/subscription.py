"""Rules of one subscription: its credit (R25), and whether its handlers respond (R14). Pure.

Credit is two absolute counters, so that nothing can be counted twice.

A consumer is unresponsive when it is given messages and says nothing of any until their leases end.
Its partitions then go to consumers that work.

    sign          an ack, nack, extend or rejection of any delivery, also of one that is another's
                  by now; or word that a handler has started
    unresponsive  a lease has ended by time, and no sign came since that message was given; or the
                  consumer has come back and does not say what it holds
    activity      its next sign; more credit; what it holds

A socket that stays open and answers pings is no sign, because a browser answers for a page that is
frozen. Nor is credit while the consumer is responsive, because a client grants anew for revoked
deliveries whether or not its handlers hang.
"""

from math import inf

from push import limits
from push.errors import Refused


# enforces: R25
class CreditWindow:
    """The number of messages that a subscription still accepts.

    `granted` and `sent` count messages since the subscription began; a resumed session hands both
    in. An expired or revoked delivery changes neither, because the client grants anew for it.

    Raises:
        Refused: invalid_request: more sent than granted; limit_reached: more than CREDIT_MAX would
            be available.
    """

    __slots__ = ("available", "granted", "window")

    def __init__(self, granted: int = 0, sent: int = 0) -> None:
        if not 0 <= sent <= granted:
            raise Refused("invalid_request", f"{sent} sent of {granted} granted")
        self.granted = sent
        self.available = 0
        """Number of messages that may be given now, 0 to CREDIT_MAX."""
        self.window = 0
        """The most that was ever available at once."""
        self.grant(granted)

    @property
    def sent(self) -> int:
        """Number of messages that were sent in total."""
        return self.granted - self.available

    def grant(self, total: int) -> None:
        """Raise what is granted in total. A lower or equal total is out of date, and nothing
        happens.

        Raises:
            Refused: limit_reached: more than CREDIT_MAX would be available.
        """
        if total <= self.granted:
            return
        if total > self.sent + limits.CREDIT_MAX:
            raise Refused(
                "limit_reached",
                f"granted {total} in total with {self.sent} sent: at most {limits.CREDIT_MAX}"
                " may be open",
            )
        self.available += total - self.granted
        self.granted = total
        self.window = max(self.window, self.available)

    def spend(self, count: int) -> None:
        """Count messages that were sent. ValueError: more than are available, the caller's bug."""
        if not 0 <= count <= self.available:
            raise ValueError(f"spends {count} of {self.available}")
        self.available -= count

    def received(self, total: int) -> None:
        """Go on with a client that came back, which only `total` messages have ever reached. The
        rest counts as never sent (R25).

        Raises:
            Refused: invalid_request: more than were sent.
        """
        if total > self.sent:
            raise Refused("invalid_request", f"{total} received of {self.sent} sent")
        self.granted = min(self.granted, total + limits.CREDIT_MAX)
        self.available = self.granted - total
        self.window = max(self.window, self.available)

    def check(self) -> None:
        """Assert the invariants: sent never exceeds granted, and what is open has a bound (P9)."""
        assert 0 <= self.available <= min(self.granted, limits.CREDIT_MAX), (
            self.available,
            self.granted,
        )


# enforces: R14
class Responsiveness:
    """Whether one consumer's handlers respond. Times are seconds, monotonic."""

    __slots__ = ("is_unresponsive", "last_sign")

    def __init__(self) -> None:
        self.last_sign = -inf
        self.is_unresponsive = False

    def on_sign(self, *, now: float) -> bool:
        """Note that a handler responds. True: the consumer was unresponsive, and is so no
        longer."""
        self.last_sign = now
        return self.is_unresponsive and self.on_activity(now=now)

    def on_activity(self, *, now: float) -> bool:
        """Note that the consumer's code runs. If the consumer was unresponsive it begins anew, and
        ends of leases of earlier deliveries count no more. True: it was unresponsive."""
        if self.is_unresponsive:
            self.is_unresponsive, self.last_sign = False, now
            return True
        return False

    def on_lease_end(self, given_at: float) -> bool:
        """Note that the lease of a message, which was given at `given_at`, has ended by time. True:
        the consumer is unresponsive from now on, and was not before."""
        return self.last_sign <= given_at and self.give_up()

    def give_up(self) -> bool:
        """Take the consumer for unresponsive. True: it was not so before."""
        was, self.is_unresponsive = self.is_unresponsive, True
        return not was


def restarts_timeout(named: int, parts: int) -> bool:
    """Whether a part of a list restarts the timeout of a consumer that came back and has to say
    what it holds. The part names `named` ranges, and `parts` parts before it restarted the timeout.
    An empty part says nothing."""
    return named > 0 and parts < limits.HELD_PARTS_MAX

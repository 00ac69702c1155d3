"""Credit of one subscription: two absolute counters, so that nothing can be counted twice (R25)."""

from push.errors import Refused
from push.limits import CREDIT_MAX


class CreditWindow:
    """How many more messages a session is willing to be given.

    `granted` and `sent` count messages since the subscription began; a resumed session hands both
    in. An expired or revoked delivery changes neither: the client grants anew for it.

    Raises:
        Refused: invalid_request: more sent than granted; limit_reached: see `grant`.
    """

    __slots__ = ("granted", "sent", "window")

    def __init__(self, granted: int = 0, sent: int = 0) -> None:
        if not 0 <= sent <= granted:
            raise Refused("invalid_request", f"{sent} sent of {granted} granted")
        self.granted = self.sent = sent
        self.window = 0
        """The most that was ever available at once."""
        self.grant(granted)

    @property
    def available(self) -> int:
        """Messages that may be given now, 0 to CREDIT_MAX."""
        return self.granted - self.sent

    def grant(self, total: int) -> None:
        """Raise what is granted in total. A lower or equal total is old news: nothing happens.

        Raises:
            Refused: limit_reached: more than CREDIT_MAX would be available.
        """
        if total <= self.granted:
            return
        if total > self.sent + CREDIT_MAX:
            raise Refused(
                "limit_reached",
                f"granted {total} in total with {self.sent} sent: at most {CREDIT_MAX} may be open",
            )
        self.granted = total
        self.window = max(self.window, self.available)

    def spend(self, count: int) -> None:
        """`count` messages were sent. More than are available is the caller's bug: ValueError."""
        if not 0 <= count <= self.available:
            raise ValueError(f"spends {count} of {self.available}")
        self.sent += count

    def received(self, total: int) -> None:
        """The client came back, and so many is what ever reached it: the rest was never sent (R25).

        Raises:
            Refused: invalid_request: more than were sent.
        """
        if total > self.sent:
            raise Refused("invalid_request", f"{total} received of {self.sent} sent")
        self.sent = total
        self.granted = min(self.granted, total + CREDIT_MAX)
        self.window = max(self.window, self.available)

    def check(self) -> None:
        """Assert the invariants: sent never exceeds granted, and what is open has a bound (P9)."""
        assert 0 <= self.sent <= self.granted <= self.sent + CREDIT_MAX, (self.sent, self.granted)

"""What publishes of one session to one queue are charged to."""

from collections.abc import Callable, Sequence

from gateway.limits.debtors import Debtor, published_bytes
from push.message import Message
from push.rates.bucket import Bucket, nanoseconds

Pour = Callable[[Sequence[tuple[Bucket, int]], int], bool]
"""As push.rates.bucket.pour_all."""


class Till:
    """Found once for many of them."""

    __slots__ = (
        "_limits", "_pour", "at_once", "bytes", "counted", "debtors", "messages", "settings",
    )  # fmt: skip

    def __init__(
        self, debtors: Sequence[Debtor], of_queue: Debtor | None, settings: object,
        pour: Pour,
    ) -> None:  # fmt: skip
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

"""Whether a consumer's handlers are heard of: whoever is given messages and says nothing of any,
until its leases end, is unresponsive, and its partitions go to those who work (R14). Pure.

    sign          an ack, nack, extend or rejection of whatever was given, or word that a handler
                  has started: also of what is the consumer's no more
    unresponsive  a lease has ended by time, and since that message was given there was no sign; or
                  the consumer has come back and does not say what it holds
    back          its next sign; more credit; what it holds

A socket that stays open and answers pings is no sign, nor is credit while it is responsive: a
browser answers for a page that is frozen, and a client grants anew for what was revoked whether or
not its handlers hang.
"""

from math import inf

from push import limits


def begins_anew(named: int, parts: int) -> bool:
    """Whether a part of a list, which names so many ranges and stands behind so many parts that
    did, begins anew the time in which a consumer that came back has to say what it holds. An
    empty part says nothing."""
    return named > 0 and parts < limits.HELD_PARTS_MAX


class Signs:
    """Of one consumer. Times are seconds, monotonic."""

    __slots__ = ("is_unresponsive", "last")

    def __init__(self) -> None:
        self.last = -inf
        """When the last sign came."""
        self.is_unresponsive = False

    def sign(self, *, now: float) -> bool:
        """A handler is heard of. True: the consumer was unresponsive, and is back."""
        self.last = now
        return self.back(now=now)

    def back(self, *, now: float) -> bool:
        """The consumer says something that shows its code to run. Whoever was unresponsive begins
        anew: what it was given before counts no more. True: it was unresponsive."""
        if self.is_unresponsive:
            self.is_unresponsive, self.last = False, now
            return True
        return False

    def lapsed(self, given_at: float) -> bool:
        """The lease of something that was given then has ended by time. True: the consumer is
        unresponsive from now on."""
        return self.last <= given_at and self.give_up()

    def give_up(self) -> bool:
        """The consumer does not say what it has to say. True: it is unresponsive from now on."""
        was, self.is_unresponsive = self.is_unresponsive, True
        return not was

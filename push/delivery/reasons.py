"""What holds up a partition of a group, seen from its owner's rules: for looking at."""

from typing import Literal

from push import limits
from push.delivery.delivery import Delivery
from push.delivery.lines import Line

Reason = Literal["draining", "commit", "backoff", "parked", "gate"]


def is_open(delivery: Delivery, now: float) -> bool:
    """Whether there is something that the rules would give out now, had somebody room for it."""
    if delivery.draining:
        return False
    return delivery.wants_log or bool(delivery.giveable) or delivery.waiting.lines.stirs(now)


def holds_up(delivery: Delivery, now: float) -> Reason | None:
    """Why nothing is given out although something is not settled; None: there is nothing, or it
    is not the rules. Looks through lines until one tells: they are as many as keys wait."""
    waiting, unread = delivery.waiting, delivery.frontier < delivery.end
    lines = waiting.lines.by_key.values()
    if delivery.draining:
        return "draining" if unread or lines or delivery.leases.open_count else None
    if is_open(delivery, now):
        return None
    if unread:  # a bound was reached of what may wait
        return "gate" if len(lines) >= limits.LINES_PER_PARTITION_MAX else "commit"
    found: Reason | None = None
    for line in lines:
        reason = of_line(line, now)
        if reason in ("commit", "backoff"):  # it goes on by itself
            return reason
        found = reason if found in (None, "parked") else found
    return found


def of_line(line: Line, now: float) -> Reason | None:
    """What holds up a key's line; None: it may give, or nothing of it waits."""
    if line.parked:
        return "parked" if line.decision is None else "commit"
    if line.leaving or line.dying or line.opens_after or line.inherited or line.loading is not None:
        return "commit"
    if line.waiting and line.due > now:
        return "backoff"
    if line.waiting or line.aside or line.aside_unwritten:
        return "gate" if line.in_flight else "commit"
    return None

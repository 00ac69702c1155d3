"""What a key waits for, seen from its partition's owner: for looking at, decides nothing.

Everything below an owner's frontier that is not settled is in flight or in the key's line: so what
is said of it here is exact. What lies above is still in the log, and is found by reading it.

Where a message stands for a group, seen from its owner: for looking at, decides nothing.

What holds up a partition of a group, seen from its owner's rules: for looking at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from push import limits
from push.delivery.delivery import Delivery
from push.delivery.key_lines import Line, loose
from push.delivery.leases import Push, offsets_of
from push.retry import clamp_due
from push.storage_port import MessageStatus

KeyReason = Literal["parked", "dead_letter", "backoff", "commit", "behind"]
"""Why the first message of a key that waits is not given, as far as that is its own affair.
`behind`: what went out before it of its key is to be settled first."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A delivery. Times are seconds of the loop's clock."""

    offset: int
    push: int
    attempt: int
    given_at: float
    until: float


@dataclass(frozen=True, slots=True)
class Waits:
    """What of a key waits below the frontier, and is not in flight."""

    messages: int
    first: int | None
    """None: its side line has it, behind `loaded`."""
    loaded: int
    """What the storage still names of the side line up to here has left it."""
    aside: int
    """How many of them stand in the side line, durably."""
    reason: KeyReason | None
    """None: it may be given as soon as somebody takes it."""
    until: float | None = None
    """When a backoff ends, in seconds of the loop's clock."""
    behind: int | None = None
    """What it waits behind."""


def in_flight_of(delivery: Delivery, key: int) -> list[InFlight]:
    """Deliveries of the key of this hash, by offset. Looks through what is in flight."""
    return sorted(
        (
            lease(delivery, push, offset)
            for push in delivery.leases.pushes.values()
            for offset in push.of_key(key, -1)
        ),
        key=lambda one: one.offset,
    )


def left_of(delivery: Delivery, key: int) -> list[int]:
    """Offsets of the key, ascending, that were in flight when their holder went: the next owner,
    who is not there yet, gives them again."""
    return sorted(offset for push in delivery.leases.left for offset in push.of_key(key, -1))


def lease(delivery: Delivery, push: Push, offset: int) -> InFlight:
    """An open offset of a push."""
    attempt = delivery.waiting.attempts.get(offset, 0) + 1
    return InFlight(offset, push.number, attempt, push.given_at, push.until(offset))


def inherited_until(delivery: Delivery, offset: int, now: float, wall_unix_ms: int) -> float | None:
    """When the backoff ends that an owner before has noted of an offset; None: it has, or there
    is none. It begins to count here when there is somebody to give to, and is known before."""
    waiting = delivery.waiting
    until = waiting.not_before.get(offset, 0.0)
    if not waiting.begun:
        noted_unix_ms = waiting.due_unix_ms.get(offset, 0)
        due_unix_ms = clamp_due(noted_unix_ms, wall_unix_ms, limits.DELAY_S_MAX)
        until = now + (due_unix_ms - wall_unix_ms) / 1000
    return until if until > now else None


def waits_of(
    delivery: Delivery, key: int, now: float, wall_unix_ms: int, side_first: int | None = None
) -> Waits:
    """What waits in the line of this key. `side_first`: the first offset of its side line behind
    `loaded`, where the caller has read it."""
    waiting = delivery.waiting
    line = waiting.lines.by_key.get(key)
    if line is None:
        return Waits(0, None, -1, 0, None)
    first = _first_in_memory(delivery, line)
    if line.aside and side_first is not None and side_first > line.loaded:
        first = side_first if first is None else min(first, side_first)
    elif line.aside and not line.waiting:
        first = None
    reason, until = _reason(delivery, line, first, now, wall_unix_ms)
    return Waits(
        messages=waiting_in(line),
        first=first,
        loaded=line.loaded,
        aside=line.aside,
        reason=reason,
        until=until,
        behind=min(line.in_flight, default=None) if reason == "behind" else None,
    )


def waiting_in(line: Line) -> int:
    """How many messages wait in a line, neither in flight nor on the way to the dead letters."""
    held = len(line.waiting) + len(line.leaving)
    return held + line.aside + line.aside_unwritten


def waiting_of(delivery: Delivery, key: int, in_log: Sequence[int]) -> int:
    """How many messages of a key wait in all: in its line, left behind by who had them in flight,
    and, of these offsets of it in the log, those not come across yet."""
    line = delivery.waiting.lines.by_key.get(key)
    log = sum(not delivery.scan.has_passed(offset) for offset in in_log)
    return (waiting_in(line) if line is not None else 0) + len(left_of(delivery, key)) + log


def _first_in_memory(delivery: Delivery, line: Line) -> int | None:
    unwritten = delivery.waiting.pending.first_aside(line.key)
    heads = [*list(line.waiting)[:1], *line.leaving, *line.dying]
    if unwritten is not None:
        heads.append(unwritten)
    return min(heads, default=None)


def _reason(
    delivery: Delivery, line: Line, first: int | None, now: float, wall_unix_ms: int
) -> tuple[KeyReason | None, float | None]:
    if line.parked:
        return ("parked" if line.decision is None else "commit"), None
    if line.dying:
        return "dead_letter", None
    if first is not None:
        due = max(
            line.dues.get(first, 0.0), inherited_until(delivery, first, now, wall_unix_ms) or 0.0
        )
        if due > now:
            return "backoff", due
    if first is not None and line.leaving.get(first):
        return None, None
    if (
        line.leaving
        or line.inherited
        or line.opens_after
        or line.aside_unwritten == waiting_in(line)
    ):
        return ("commit" if waiting_in(line) else None), None
    if line.in_flight and not line.room():
        return "behind", None
    return None, None


State = Literal["ready", "in_flight", "waiting", "parked", "dying", "settled"]
"""`waiting`: for its retry, or behind an earlier message of its key. `dying`: on its way to the
dead letters. `ready`: nothing of its own holds it up."""


class Standings:
    """What an owner's memory adds to what is durable, as it was when this was made: before what is
    durable was read. A message that was set aside meanwhile is known from both, not from neither.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._waiting = delivery.waiting
        self._frontier = delivery.frontier
        self._in_flight = {
            offset
            for push in delivery.leases.pushes.values()
            for offset in offsets_of(push.open, push.first)
        }
        self._left = {
            offset for push in delivery.leases.left for offset in offsets_of(push.open, push.first)
        }
        self._in_line = set(self._waiting.pending.going_aside())
        for line in self._waiting.lines.by_key.values():
            self._in_line.update(line.waiting, line.leaving)

    def of(self, offset: int, key_hash: int, stored: MessageStatus) -> tuple[State, int]:
        """(state, counted attempts) of a message. `key_hash` 0: it has no key; `stored`: where it
        stood afterwards, durably."""
        adopted = offset in self._in_flight or offset in self._waiting.returned
        if stored.state == "settled" or (offset >= self._frontier and not adopted):
            return stored.state, stored.attempts
        attempts = self._waiting.attempts.get(offset, stored.attempts)
        if offset in self._in_flight:
            return "in_flight", attempts
        if self._waiting.is_dead(offset):
            return "dying", attempts
        line = self._waiting.lines.by_key.get(key_hash or loose(offset))
        if offset in self._in_line or (line is not None and stored.state != "ready"):
            return ("parked" if line is not None and line.parked else "waiting"), attempts
        if offset in self._left:
            return "ready", attempts
        return "settled", 0  # and on its way to the storage


Reason = Literal["draining", "commit", "backoff", "parked", "gate"]


def is_open(delivery: Delivery, now: float) -> bool:
    """Whether there is something that the rules would give out now, had somebody room for it."""
    if delivery.draining:
        return False
    return delivery.wants_log or delivery.is_line_ready(now)


def log_bound(delivery: Delivery) -> Literal["dead_letter", "gate", "commit"]:
    """Which bound of what may wait keeps the log from being read, where one does."""
    if len(delivery.waiting.dead) >= limits.DEAD_RANGES_MAX:
        return "dead_letter"
    return "gate" if len(delivery.lines) >= limits.LINES_PER_PARTITION_MAX else "commit"


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

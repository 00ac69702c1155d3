"""Views of one delivery for operators: the states of messages, the reasons why keys wait, and the
reason why the partition does. Decides nothing.

Everything below an owner's frontier that is not settled is in flight or in its key's line. So the
views are exact there; what lies above is still in the log, and is found by reading it.
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
"""Reason why the first message of a key that waits is not given, if the key itself is the reason.
`behind`: an earlier message of its key is in flight and has to be settled first."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A delivery that is in flight. Times are seconds of the loop's clock."""

    offset: int
    push: int
    attempt: int
    given_at: float
    until: float


@dataclass(frozen=True, slots=True)
class Waits:
    """The messages of a key that wait below the frontier, and are not in flight."""

    messages: int
    first: int | None
    """The first offset that waits; None: the side line has it, after `loaded`, or nothing waits."""
    loaded: int
    """Offsets up to here have left the side line, though the storage may still name them."""
    aside: int
    """Number of messages that are in the side line, durably."""
    reason: KeyReason | None
    """The reason why the first message is not given; None: it may be given as soon as a consumer
    takes it, or nothing waits."""
    until: float | None = None
    """The end of a backoff, in seconds of the loop's clock; None: no backoff is the reason."""
    behind: int | None = None
    """The offset that has to be settled first; None: `reason` is another one."""


def in_flight_of(delivery: Delivery, key: int) -> list[InFlight]:
    """Return the deliveries of the key of this hash, by offset. Walks everything in flight."""
    return sorted(
        (
            lease(delivery, push, offset)
            for push in delivery.pushes.values()
            for offset in push.of_key(key, -1)
        ),
        key=lambda one: one.offset,
    )


def left_of(delivery: Delivery, key: int) -> list[int]:
    """Return the key's offsets, ascending, that were in flight when their holder left. The next
    owner, once it exists, gives them again."""
    return sorted(offset for push in delivery.leases.left for offset in push.of_key(key, -1))


def lease(delivery: Delivery, push: Push, offset: int) -> InFlight:
    """Describe the delivery of an offset that is in flight in this push."""
    attempt = delivery.attempts_of(offset) + 1
    return InFlight(offset, push.number, attempt, push.given_at, push.until(offset))


def inherited_until(delivery: Delivery, offset: int, now: float, wall_unix_ms: int) -> float | None:
    """Return when a backoff of this offset ends that its line does not know: an earlier owner noted
    it, or the key was parked during it. None: it has none, or the end has passed. An earlier
    owner's backoff begins to count here when there is a consumer to give to. Its end is known
    before."""
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
    """Describe what waits in the line of this key. `side_first`: the first offset of its side line
    after `loaded`, if the caller has read it."""
    line = delivery.line(key)
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
    """Return the number of messages that wait in a line, neither in flight nor going to the dead
    letters."""
    held = len(line.waiting) + len(line.leaving)
    return held + line.aside + line.aside_unwritten


def waiting_of(delivery: Delivery, key: int, in_log: Sequence[int]) -> int:
    """Return the number of messages of a key that wait in all. They are in its line, or were left
    by a holder that has gone, or are among its offsets `in_log` and not passed by the frontier."""
    line = delivery.line(key)
    log = sum(not delivery.scan.has_passed(offset) for offset in in_log)
    return (waiting_in(line) if line is not None else 0) + len(left_of(delivery, key)) + log


def _first_in_memory(delivery: Delivery, line: Line) -> int | None:
    pending = delivery.waiting.pending
    unwritten = pending.first_aside(line.key)
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
"""State of a message. `waiting`: for its retry, or for an earlier message of its key. `dying`: on
its way to the dead letters. `ready`: nothing of its own holds it up."""


class Standings:
    """Snapshot of the facts that an owner's memory adds to the durable state. It is made before the
    durable state is read, so that a message set aside meanwhile is known from both, not from
    neither."""

    def __init__(self, delivery: Delivery) -> None:
        self._waiting = delivery.waiting
        self._frontier = delivery.frontier
        self._in_flight = {
            offset
            for push in delivery.pushes.values()
            for offset in offsets_of(push.open, push.first)
        }
        self._left = {
            offset for push in delivery.leases.left for offset in offsets_of(push.open, push.first)
        }
        self._in_line = set(self._waiting.pending.going_aside())
        self._lines = delivery.lines
        for line in self._lines.values():
            self._in_line.update(line.waiting, line.leaving)

    def of(self, offset: int, key_hash: int, stored: MessageStatus) -> tuple[State, int]:
        """Return (state, counted attempts) of a message. `key_hash` 0: it has no key. `stored`: its
        durable state, read after this snapshot was made."""
        adopted = offset in self._in_flight or offset in self._waiting.returned
        if stored.state == "settled" or (offset >= self._frontier and not adopted):
            return stored.state, stored.attempts
        attempts = self._waiting.attempts.get(offset, stored.attempts)
        if offset in self._in_flight:
            return "in_flight", attempts
        if self._waiting.is_dead(offset):
            return "dying", attempts
        line = self._lines.get(key_hash or loose(offset))
        if offset in self._in_line or (line is not None and stored.state != "ready"):
            return ("parked" if line is not None and line.parked else "waiting"), attempts
        if offset in self._left:
            return "ready", attempts
        return "settled", 0  # settled, and on its way to the storage


Reason = Literal["draining", "commit", "backoff", "parked", "gate"]


def is_open(delivery: Delivery, now: float) -> bool:
    """Whether the rules would give something out now, or read a side line to do so, if the consumer
    had room for it."""
    if delivery.draining:
        return False
    return delivery.wants_log or delivery.is_line_ready(now)


def log_bound(delivery: Delivery) -> Literal["dead_letter", "gate", "commit"]:
    """Name the bound on waiting messages that keeps the log from being read, if one does."""
    if len(delivery.waiting.dead) >= limits.DEAD_RANGES_MAX:
        return "dead_letter"
    return "gate" if len(delivery.lines) >= limits.LINES_PER_PARTITION_MAX else "commit"


def holds_up(delivery: Delivery, now: float) -> Reason | None:
    """Return why nothing is given out although something is not settled. None: nothing is
    unsettled, or the rules are not the reason. Walks the lines until one gives the reason."""
    lines, unread = delivery.lines.values(), delivery.frontier < delivery.end
    if delivery.draining:
        return "draining" if unread or lines or delivery.leases.open_count else None
    if is_open(delivery, now):
        return None
    if unread:  # a bound on waiting messages was reached
        return "gate" if len(lines) >= limits.LINES_PER_PARTITION_MAX else "commit"
    found: Reason | None = None
    for line in lines:
        reason = _line_reason(line, now)
        if reason in ("commit", "backoff"):  # it goes on by itself
            return reason
        found = reason if found in (None, "parked") else found
    return found


def waits_for(line: Line, now: float) -> Reason | Literal["ready"] | None:
    """Return what a key's line waits for. "ready": it waits for nothing, and may give now. None:
    nothing of it waits, because all of it is in flight."""
    if line.waiting and line.due <= now and line.room():
        return "ready"
    return _line_reason(line, now)


def _line_reason(line: Line, now: float) -> Reason | None:
    """Return the reason that holds up a line that may give nothing now; None: nothing of it
    waits."""
    if line.parked:
        return "parked" if line.decision is None else "commit"
    if line.leaving or line.dying or line.opens_after or line.inherited or line.loading is not None:
        return "commit"
    if line.waiting and line.due > now:
        return "backoff"
    if line.waiting or line.aside or line.aside_unwritten:
        return "gate" if line.in_flight else "commit"
    return None

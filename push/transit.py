"""What was handed to a client's transport and is not known to have reached the client. Pure.

    hand over ── mark behind it ──▶ in transit ── the client answers the mark ──▶ arrived

A transport takes far more than a slow line carries at once: the kernel, proxies and the line itself
hold megabytes. Two things follow from what is still in transit:

* The lease of a message does not run while the message is in transit and moves: it counts from the
  arrival. [A lease of 30 s, and a message that takes 50: it is given again before it is there, and
  again, for ever.]
* A slow line is not given more while much is in transit: it gets one large message after the other
  and not several at once. [The answers to acks, and whatever is urgent, wait behind megabytes.]

A mark is something that the client answers when it has received all that is in front of it: a
WebSocket ping, or the batch of a long poll. It proves more than TCP does, which ends at the first
proxy. As long as TCP's other end has not taken everything, its progress tells what moves; behind
it, a message moves for as long as the slowest line (`SLOWEST_BYTES_PER_S`) would need for it.

Times: `now` and `given_at` are seconds of one monotonic clock.
"""

from math import inf, nextafter
from typing import Final, NamedTuple

from push import limits

_OLD_S: Final = limits.MARK_BYTES / limits.SLOWEST_BYTES_PER_S
"""What was handed over without a mark is less than MARK_BYTES, and has arrived after so long."""
_SAME_TURN_S: Final = 0.1
INSTANT_S: Final = 0.002
"""The clock of a loop moves on by then."""


class _Mark(NamedTuple):
    number: int
    size: int
    """Bytes between the mark before and this one."""
    at: float
    until: float
    """What was given until then is in front of it."""


class _Arrival(NamedTuple):
    after: float
    until: float
    at: float
    """What was given in after..until has arrived by then."""


class Transit:
    """Of one client's transport."""

    __slots__ = (
        "_answered_at",
        "_awaited",
        "_covered_until",
        "_has_answered",
        "_is_taken",
        "_last",
        "_moved_at",
        "_number",
        "_slow",
        "_taken",
        "_unconfirmed",
        "_window",
        "is_deaf",
        "is_fast",
        "is_slow",
    )

    def __init__(self, *, opened_at: float) -> None:
        """`opened_at`: since when the transport carries the session."""
        self._awaited: list[_Mark] = []
        self._number = 0
        self._unconfirmed = 0
        self._window = limits.TRANSIT_BYTES_MIN
        self._covered_until = nextafter(opened_at, -inf)
        """What was given until then has arrived."""
        self._slow: list[_Arrival] = []
        """The latest arrivals that took long."""
        self._answered_at = -inf
        """When a mark was answered last. Whatever was behind it may have waited for all that time:
        where the line is slow, or something is left, the next mark is set at once."""
        self._last = -inf
        """When the newest mark was set."""
        self._moved_at = opened_at
        self._taken = 0
        self._is_taken = False
        self._has_answered = False
        self.is_slow = False
        """The mark that was answered last took long."""
        self.is_fast = False
        """The line is known to carry much."""
        self.is_deaf = False
        """The client answers no marks: nothing is known of it, and nothing assumed."""

    def __repr__(self) -> str:
        return (
            f"<Transit {self._unconfirmed} bytes behind {len(self._awaited)} marks, "
            f"window {self._window}>"
        )

    @property
    def is_awaited(self) -> bool:
        """Whether something is in transit, as far as marks tell."""
        return bool(self._awaited)

    @property
    def goes_by_names(self) -> bool:
        """Whether something is in transit to a client that has answered no mark so far."""
        return bool(self._awaited) and not self._has_answered

    @property
    def _marked_bytes(self) -> int:
        """Behind how much a mark stands: rarely where a line carries much."""
        return max(limits.MARK_BYTES, min(limits.MARK_BYTES_MAX, self._window // 4))

    # --- Marks ----------------------------------------------------------------------------------

    def wants_mark(self, unmarked: int) -> bool:
        """Whether a mark is to be set behind `unmarked` bytes, which have no mark yet. On a line
        that carries much, marks are rarer."""
        return not self.is_deaf and unmarked >= self._marked_bytes

    def mark(
        self, size: int, *, now: float, taken_bytes: int | None = None, covers: bool = True
    ) -> int:
        """Set a mark behind `size` bytes more; returns its number. `covers` False: something that
        was given by now does not stand in front of it. `taken_bytes`: see `look`."""
        if not self._awaited:
            self._moved_at = now
            if now - self._answered_at > _SAME_TURN_S:
                self._covered_until = max(self._covered_until, now - _OLD_S)
        if taken_bytes is not None:
            self.look(taken_bytes, now=now)
        self._number += 1
        self._unconfirmed += size
        until = now if covers else self._awaited[-1].until if self._awaited else self._covered_until
        self._awaited.append(_Mark(self._number, size, now, until))
        self._last = now
        return self._number

    def answered(self, number: int, *, now: float) -> bool:
        """The client has received everything in front of this mark. False: it is not awaited."""
        if not self._awaited or not self._awaited[0].number <= number <= self._number:
            return False
        self._has_answered = True
        self._arrive(number, now)
        return True

    def named(self, given_at: float, *, now: float) -> None:
        """The client names something that was given then: so it has arrived, and with it what was
        given before, and, as far as one can tell, in the same turn. [A small message is acked while
        a large one, which was given seconds later, is on its way.]"""
        if given_at <= self._covered_until:
            return
        number = 0
        for mark in self._awaited:
            if mark.at > given_at + _SAME_TURN_S:
                break
            number = mark.number
            if mark.at >= given_at:
                break
        if number:
            self._arrive(number, now)

    def _arrive(self, number: int, now: float) -> None:
        after, size = self._covered_until, 0
        while self._awaited and self._awaited[0].number <= number:
            mark = self._awaited.pop(0)
            size += mark.size
        self._unconfirmed -= size
        self._covered_until = max(after, mark.until)
        self._moved_at = self._answered_at = now
        self.is_slow = now - mark.at >= limits.TRANSIT_SLOW_S
        if self.is_slow:
            self.is_fast = False
            self._window = max(self._window // 2, limits.TRANSIT_BYTES_MIN)
            self._remember(after, now)
        elif size >= limits.MARK_BYTES:  # less says nothing of what the line carries
            self.is_fast = True
            self._window = min(self._window * 2, limits.TRANSIT_BYTES_MAX)

    def _remember(self, after: float, now: float) -> None:
        """Arrivals within a second are one: a lease counts from the last of them."""
        slow = self._slow
        if slow and slow[-1].until == after and now - slow[-1].at < limits.TRANSIT_SLOW_S:
            after = slow.pop().after
        slow.append(_Arrival(after, self._covered_until, now))
        if len(slow) > limits.TRANSITS_KEPT_MAX:
            del slow[0]

    # --- What moves -----------------------------------------------------------------------------

    def look(self, taken_bytes: int | None, *, now: float) -> None:
        """How much the other end of TCP has taken so far, which only grows; None: all of it, or
        nobody can know."""
        self._is_taken = taken_bytes is None
        if taken_bytes is not None and taken_bytes > self._taken:
            self._taken = taken_bytes
            self._moved_at = now

    def moves(self, *, now: float) -> bool:
        """Whether what is in transit moves, as far as can be seen."""
        if not self._awaited:
            return False
        allowed_s = limits.TRANSIT_STILL_S
        if self._is_taken:
            allowed_s += self._awaited[0].size / limits.SLOWEST_BYTES_PER_S
        return now < self._moved_at + allowed_s

    def give_up(self, *, now: float) -> bool:
        """Do not wait any longer for marks that are not answered though TCP's other end has taken
        everything. True: there were such, and they count as answered."""
        if not self._awaited or not self._is_taken or self.moves(now=now):
            return False
        self._awaited.clear()
        self._unconfirmed = 0
        self.is_deaf = not self._has_answered
        return True

    # --- What follows ---------------------------------------------------------------------------

    # enforces: P6, R20
    def arrived(self, given_at: float, *, now: float) -> float | None:
        """From when the lease counts of what was given then: from its arrival, where that took
        long. None: it is in transit, and moves."""
        if given_at > self._covered_until and self.moves(now=now):
            return None
        for after, until, at in self._slow:
            if after < given_at <= until:
                return at
        return given_at

    def has_room(self, unmarked: int, *, now: float) -> bool:
        """Whether more may be handed over beside what is in transit, and `unmarked` bytes behind
        the last mark. Not at the instant of a mark, by a clock that may stand still for a
        millisecond: when it was given tells what stands in front of the mark. On a fast line that
        is worth no pause."""
        if not self.is_fast and now < self._last + INSTANT_S:
            return False
        if not self._awaited:
            return True
        is_late = now - self._awaited[0].at >= limits.TRANSIT_SLOW_S
        window = limits.TRANSIT_BYTES_MIN if is_late else self._window
        return self._unconfirmed + unmarked <= window

    def check(self) -> None:
        """Assert the invariants."""
        numbers = [one.number for one in self._awaited]
        assert numbers == sorted(set(numbers))
        assert self._unconfirmed == sum(one.size for one in self._awaited)
        assert limits.TRANSIT_BYTES_MIN <= self._window <= limits.TRANSIT_BYTES_MAX
        assert len(self._slow) <= limits.TRANSITS_KEPT_MAX, "P9"
        assert all(one.after <= one.until <= one.at for one in self._slow)

"""Data that was handed to a client's transport and is not known to have reached the client. Pure.

    hand over ── mark behind it ──▶ in transit ── the client answers the mark ──▶ arrived

A transport takes far more than a slow line carries at once: the kernel, proxies and the line itself
hold megabytes. Two rules follow:

* The lease of a message does not run while the message is in transit and moves: it counts from the
  arrival. [A lease of 30 s, and a message that takes 50: it is given again before it has arrived,
  and again, for ever.]
* A slow line is not given more while much is in transit: it gets one large message after the other
  and not several at once. [The answers to acks, and everything urgent, wait behind megabytes.]

A mark is something that the client answers when it has received all that is in front of it: a
WebSocket ping, or the batch of a long poll. It proves more than TCP does, which ends at the first
proxy. As long as TCP's other end has not taken everything, its progress shows whether data moves.
Beyond it, a message counts as moving for as long as the slowest line (`SLOWEST_BYTES_PER_S`) would
need for it.

Times: `now` and `given_at` are seconds of one monotonic clock.
"""

from math import inf, nextafter
from typing import Final, NamedTuple

from push import limits

_OLD_S: Final = limits.MARK_BYTES / limits.SLOWEST_BYTES_PER_S
"""Seconds after which data handed over without a mark counts as arrived. Such data is less than
MARK_BYTES, which the slowest line carries in this time."""
_SAME_TURN_S: Final = 0.1
INSTANT_S: Final = 0.002
"""Seconds after which the loop's clock has moved on for certain: its resolution."""


class _Mark(NamedTuple):
    number: int
    size: int
    """Bytes between the mark before and this one."""
    at: float
    until: float
    """Time until which everything that was given is in front of the mark."""


class _Arrival(NamedTuple):
    after: float
    until: float
    at: float
    """Time by which everything given in after..until has arrived."""


class Transit:
    """Data in transit to one client over its transport."""

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
        "is_clear",
        "is_deaf",
        "is_fast",
        "is_slow",
        "mark_bytes",
    )

    def __init__(self, *, opened_at: float) -> None:
        """`opened_at`: the time since which the transport carries the session."""
        self._awaited: list[_Mark] = []
        self._number = 0
        self._unconfirmed = 0
        self._window = limits.TRANSIT_BYTES_MIN
        self._covered_until = nextafter(opened_at, -inf)
        """A time: everything that was given to the transport up to it has arrived."""
        self._slow: list[_Arrival] = []
        """Latest arrivals that took long."""
        self._answered_at = -inf
        """Time of the last answer to a mark. Data after that mark may have waited for all that
        time. So the next mark is set at once if the line is slow, or something is left."""
        self._last = -inf
        """Time at which the newest mark was set."""
        self._moved_at = opened_at
        self._taken = 0
        self._is_taken = False
        self._has_answered = False
        self.mark_bytes = limits.MARK_BYTES
        """Number of bytes after which a mark is set. Marks are rare on a line that carries much."""
        self.is_slow = False
        """Whether the data that arrived last, as far as marks tell, took long."""
        self.is_fast = False
        """Whether the line is known to carry much."""
        self.is_clear = False
        """Whether nothing is in transit, on a line that is known to carry much: there is room."""
        self.is_deaf = False
        """Whether the client answers no marks, such as the pings behind pushes. Nothing is known of
        its arrivals then, and nothing assumed."""

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

    # --- Marks ----------------------------------------------------------------------------------

    def wants_mark(self, unmarked: int) -> bool:
        """Whether a mark should be set after `unmarked` bytes, which have no mark yet. On a line
        that carries much, marks are rarer."""
        return not self.is_deaf and unmarked >= self.mark_bytes

    def mark(
        self, size: int, *, now: float, taken_bytes: int | None = None, covers: bool = True
    ) -> int:
        """Set a mark after `size` more bytes; returns its number. `covers` False: something that
        was given by now is not in front of it. `taken_bytes`: bytes that TCP's other end has
        acknowledged so far; None: all of them, or it cannot be known."""
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
        self.is_clear = False
        return self._number

    def answered(self, number: int, *, now: float) -> bool:
        """Note that the client has received everything in front of this mark. Returns False if the
        mark is not awaited."""
        if not self._awaited or not self._awaited[0].number <= number <= self._number:
            return False
        self._has_answered = True
        self._arrive(number, now)
        return True

    def named(self, given_at: float, *, now: float) -> None:
        """Note that the client names something that was given then, which has arrived. Everything
        given before has arrived with it, and probably all of the same turn. [A small message is
        acked while a large one, which was given seconds later, is on its way.]"""
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
        self.mark_bytes = max(limits.MARK_BYTES, min(limits.MARK_BYTES_MAX, self._window // 4))
        self.is_clear = self.is_fast and not self._awaited

    def _remember(self, after: float, now: float) -> None:
        """Remember a slow arrival. Arrivals within a second are one, and a lease counts from the
        last of them."""
        slow = self._slow
        if slow and slow[-1].until == after and now - slow[-1].at < limits.TRANSIT_SLOW_S:
            after = slow.pop().after
        slow.append(_Arrival(after, self._covered_until, now))
        if len(slow) > limits.TRANSITS_KEPT_MAX:
            del slow[0]

    # --- What moves -----------------------------------------------------------------------------

    def look(self, taken_bytes: int | None, *, now: float) -> None:
        """Note how many bytes the other end of TCP has acknowledged so far, a number that only
        grows. None: all of them, or it cannot be known."""
        self._is_taken = taken_bytes is None
        if taken_bytes is not None and taken_bytes > self._taken:
            self._taken = taken_bytes
            self._moved_at = now

    def moves(self, *, now: float) -> bool:
        """Whether something is in transit and moves, as far as can be seen."""
        if not self._awaited:
            return False
        allowed_s = limits.TRANSIT_STILL_S
        if self._is_taken:
            allowed_s += self._awaited[0].size / limits.SLOWEST_BYTES_PER_S
        return now < self._moved_at + allowed_s

    def give_up(self, *, now: float) -> bool:
        """Stop waiting for marks that are not answered though TCP's other end has taken everything.
        Returns whether there were any; nothing is in transit then."""
        if not self._awaited or not self._is_taken or self.moves(now=now):
            return False
        self._awaited.clear()
        self._unconfirmed = 0
        self.is_clear = self.is_fast
        self.is_deaf = not self._has_answered
        return True

    # --- What follows ---------------------------------------------------------------------------

    # enforces: P6, R20
    def arrived(self, given_at: float, *, now: float) -> float | None:
        """Return the time from which the lease of something counts that was given at `given_at`:
        its arrival, if that took long, otherwise `given_at`. None: it is in transit and moves, so
        the lease does not run."""
        if given_at > self._covered_until and self.moves(now=now):
            return None
        for after, until, at in self._slow:
            if after < given_at <= until:
                return at
        return given_at

    def has_room(self, unmarked: int, *, now: float) -> bool:
        """Whether more may be handed over beside the data in transit, and `unmarked` bytes after
        the last mark. Not at the instant of a mark, because the clock may not move on for a
        millisecond, and the time of giving decides what is in front of the mark. A fast line is not
        paused for that."""
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
        assert self.is_clear == (self.is_fast and not self._awaited)
        assert limits.TRANSIT_BYTES_MIN <= self._window <= limits.TRANSIT_BYTES_MAX
        assert len(self._slow) <= limits.TRANSITS_KEPT_MAX, "P9"
        assert all(one.after <= one.until <= one.at for one in self._slow)

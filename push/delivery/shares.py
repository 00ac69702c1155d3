"""What one key may take of a consumer's credit: a hung or slow one starves nobody (P8). Pure.

    credit  |---- ample: whatever comes next ----|---- kept: a key may have 1/32 of the rest ----|

A consumer that keeps pace never comes to the part that is kept, and nothing is counted for it. In
that part the messages in flight are counted by key. A key that has its share already is one of two:

* It has not had the time to be slow. The log waits for it, a second at most: what keeps pace is
  given in long runs, and thousands of its messages are not put aside for nothing.
* It is slow. It gets a line (see `push.delivery.key_lines`): what stands behind is passed over, and
  goes out a
  handful at a time as its own settles, until nothing of it is in flight and nothing waits.

Messages without a key have no order to keep, and no share.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from push import limits
from push.delivery.key_lines import Lines
from push.delivery.leases import Leases, offsets_of

_PART: Final = 32
"""A key gets so small a part of what is left: twenty hung ones leave half of it, a hundred some."""
_AT_ONCE: Final = 8
_SMALL: Final = 32
"""Of a window below it a quarter is kept, of a larger one half. Of one to three: nothing."""
_FEW: Final = 128
"""With so few in flight counting costs less than what it tells."""
_PAUSE_S: Final = 0.05
_NO_KEY: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Share:
    """What a consumer takes now, and what a key may have of it."""

    ample: int
    """So many messages may be given whatever their keys."""
    rest: int
    """And so many more, of which each key has its share."""
    much: int
    """A key with so many in flight is slow when it is old; with fewer, when others pass it."""

    @property
    def limit(self) -> int:
        """So many messages of a key may be in flight, where nothing is ample."""
        return max(1, self.rest // _PART)

    @property
    def at_once(self) -> int:
        """So many messages may be given before what a key may have is reckoned again."""
        return max(1, self.rest // _AT_ONCE)

    def after(self, count: int) -> "Share":
        """What is left when so many have been given."""
        more = max(0, count - self.ample)
        return Share(max(0, self.ample - count), self.rest - more, self.much)


def kept(window: int) -> int:
    """How much of a window is kept for keys of which little is in flight."""
    return window // (2 if window >= _SMALL else 4)


def share(available: int, ample: int, in_flight: int) -> Share:
    """`available`: how many messages a consumer takes now, `ample` of them without looking at
    their keys; `in_flight`: what it has not settled."""
    ample = max(0, ample)
    return Share(ample, available - ample, in_flight // _PART)


class KeyShares:
    """Counts of what is in flight by key in one (group, partition), while somebody has to know."""

    __slots__ = ("_counted", "_counts", "_counts_at", "_leases", "_lines", "_since")

    def __init__(self, leases: Leases, lines: Lines) -> None:
        self._leases = leases
        self._lines = lines
        self._counts: Counter[int] | None = None
        """By key, of what no line counts: at least as many as are in flight."""
        self._counted = self._since = 0
        self._counts_at = float("-inf")

    def forget(self) -> None:
        """Something was given that is not counted."""
        self._counts = None

    def rests_until(self, now: float) -> float | None:
        """When to count again, where nothing can be slow yet and counting costs something: a
        consumer that keeps pace uses the ample part, and now and then the rest. None: now."""
        leases = self._leases
        if leases.open_count < _FEW or now == self._counts_at:
            return None
        for push in leases.pushes.values():
            if push.open & ~push.watched and not push.of_line:
                at = min(push.given_at + leases.patience_s, self._counts_at + _PAUSE_S)
                if at > now:
                    return at
                break
        self._counts_at = now
        return None

    def fitting(self, hashes: "array[int]", gated: Iterable[int], share: Share) -> int:
        """How many of the messages with these keys may go, until the first one that is too many of
        its key. `gated`: places of those that wait in a line, and do not go. The others count as
        in flight from now on."""
        if self._counts is None or self._since > self._counted:
            self._count()
        counts = self._counts
        assert counts is not None
        counts.update(hashes)
        self._since += len(hashes)
        for place in gated:
            counts[hashes[place]] -= 1
        if max(map(counts.__getitem__, hashes)) <= share.limit:
            return len(hashes)
        return self._fitting(hashes, share)

    def _fitting(self, hashes: "array[int]", share: Share) -> int:
        """Look closely: counts grow with what is given and do not shrink with what is settled."""
        counts, by_key = self._count(), self._lines.by_key
        for place, key in enumerate(hashes):
            if key and key not in by_key:
                if counts[key] >= share.limit:
                    return place
                counts[key] += 1
        return len(hashes)

    def _count(self) -> "Counter[int]":
        counts = self._counts = Counter[int]()
        for push in self._leases.pushes.values():
            left = push.open & ~push.watched
            if push.of_line or not left:
                continue
            if left.bit_count() == len(push.hashes):
                counts.update(push.hashes)
            else:
                first = push.first
                counts.update([push.hashes[at - first] for at in offsets_of(left, first)])
        self._counted, self._since = counts.total(), 0
        counts[0] = _NO_KEY
        return counts

    def hold(self, key: int, share: Share, now: float) -> float | None:
        """A key without a line has its share. None: it is slow, and has a line from now on; else
        when to look at it again."""
        leases = self._leases
        held = leases.of_key(key, -1)
        oldest, patience_s = min(push.given_at for push, _ in held), leases.patience_s
        if now < oldest + patience_s:
            return oldest + patience_s
        again_at = leases.settled_at + patience_s
        if len(held) < share.much and leases.front <= oldest + patience_s and now < again_at:
            return again_at
        line = self._lines.line(key)
        line.window = min(limits.KEY_AHEAD_MAX, limits.LINE_WINDOW_MAX)
        for push, offset in held:
            push.watched |= 1 << (offset - push.first)
            line.in_flight.add(offset)
        if self._counts is not None:
            del self._counts[key]
        self._lines.settle_down(line, now)
        return None

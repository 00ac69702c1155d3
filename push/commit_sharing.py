"""Who shares the commits, and what goes with the next one. Pure.

alone     one queue publishes: its commits are as large as its load makes them
company   several do: what goes with one commit is bounded, so that the next one is never far
crowd     few of them bring far more than all others do: a commit takes hardly longer than a small
          one, and what the others bring waits for none of those that flood

How queues share what is scarce: the next commit, and the room for what waits for one. Pure.

Nobody has a quota. Where there is room for all, everybody has what he wants; where there is not,
who wants little has it, and those who want much share the rest.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final, Generic, TypeVar

from push import limits

OwnerT = TypeVar("OwnerT")
SHARE: Final = 4
"""What one may hold, in parts of what is left to the others: alone four fifths of all, two of them
four ninths each, and there is always something left (Choudhury and Hahne, 1998)."""


def has_room(held: int, more: int, all_held: int, bound: int) -> bool:
    """Whether somebody who holds `held` of the `all_held` that are taken may have `more`, where
    there are `bound` in all. The rest that stays free grows smaller with each who floods, and is
    never used up by them."""
    return held + more <= SHARE * (bound - all_held - more)


class FairQueue(Generic[OwnerT]):
    """Who goes with what is next. Keeps, from one to the next, who got nothing."""

    def __init__(self) -> None:
        self._passed: dict[OwnerT, None] = {}

    def take(self, waiting: Sequence[tuple[OwnerT, int]], room: int) -> list[int]:
        """Which of these (owner, size), that wait in this order, go now: their places, ascending.

        Again and again the owner who has been given least so far gives the first that he has left,
        until `room` is used up; the last one taken may go beyond it. Among those who have been
        given nothing yet, who got nothing the last time comes first, then who wants least. So
        whoever wants less than an equal share goes whole, nobody's things change places, and
        nobody waits for ever.
        """
        if sum(size for _, size in waiting) <= room:
            self._passed.clear()
            return list(range(len(waiting)))
        places: dict[OwnerT, list[int]] = {}
        wanted: dict[OwnerT, int] = {}
        for place, (owner, size) in enumerate(waiting):
            places.setdefault(owner, []).append(place)
            wanted[owner] = wanted.get(owner, 0) + size
        for owner in [owner for owner in self._passed if owner not in places]:
            del self._passed[owner]
        order = [
            *self._passed,
            *sorted(places.keys() - self._passed.keys(), key=wanted.__getitem__),
        ]
        heap = [(0, rank, 0, places[owner]) for rank, owner in enumerate(order)]
        taken: list[int] = []
        while heap and room > 0:
            given, rank, number, mine = heappop(heap)
            taken.append(mine[number])
            size = waiting[mine[number]][1]
            room -= size
            self._passed.pop(order[rank], None)
            if number + 1 < len(mine):
                heappush(heap, (given + size, rank, number + 1, mine))
        for _, rank, number, _ in sorted(heap, key=itemgetter(1)):
            if not number:
                self._passed.setdefault(order[rank])
        return sorted(taken)


COMPANY_S: Final = 1.0
"""So long after several queues have published the next one is expected to be another one."""
CROWD_BYTES_MIN: Final = 64 * 1024
CROWD_SHARE: Final = 8
"""A queue floods when it has so much waiting, no other one has brought eight times as much, and all
that do not flood have together brought an eighth of what those have that do. What was brought is of
the last second: what waits at one moment differs as much between queues that bring the same."""
AHEAD_BYTES: Final = 1024 * 1024
"""Weight of each flooding queue that waits for the commits after the next one. A commit beside a
flood takes one of its records, the oldest; a record costs its commit about as much as two hundred
messages do, so the records of 16 partitions have to grow before their turn comes. More of the flood
is not read meanwhile."""
AHEAD_BYTES_MAX: Final = 8 * AHEAD_BYTES
"""Weight of a flooding queue that may wait; more of it is refused. Several times what a producer
has in flight, so that whoever does not hear of `has_enough` is refused and our SDKs are not."""
HELD_S: Final = 0.01
"""So long those that flood get nothing, because what others have brought is under way; longer only
if they have nothing more to bring meanwhile, for nobody looks at the clock. What they had begun
meanwhile would be in front of its answer and of its push, in the storage's thread and in the loop;
so others wait for what was there when they came, and for nothing that came later."""
REST_S: Final = 0.006
"""Where others come often, nothing begins in a lane for so long after anything began there, unless
it is theirs: what of the flood goes with theirs costs them a little, what is under way when they
come costs them a commit, and later a slice of what is carried into the file.
measured: docs/benchmarks/noisy.md"""
OTHERS_S: Final = 0.05
"""Others come for so long after they brought something."""
OFTEN_S: Final = 0.012
"""Others come often where they bring something after no more than this. A flood that rested for
those who come more rarely would lose much, and they find one commit of one record before theirs,
of what would be several milliseconds."""
_TICK_S: Final = 0.000_5
"""Less is no rest: uvloop counts whole milliseconds, so that half of one or less would be asked for
again in every turn of the loop."""
_SMALL_BYTES: Final = 4096
_DOWN: Final = 0.1
_UP: Final = 0.01


class _Brought(Generic[OwnerT]):
    """What each has brought lately that has gone: since half a span, or since a whole one."""

    def __init__(self) -> None:
        self._before: dict[OwnerT, int] = {}
        self._lately: dict[OwnerT, int] = {}
        self._totals = [0, 0]
        self._turns_at = float("-inf")

    def add(self, gone: Mapping[OwnerT, int], *, now: float) -> None:
        """These went, owner by owner."""
        self.forget(now=now)
        for owner, size in gone.items():
            self._lately[owner] = self._lately.get(owner, 0) + size
            self._totals[1] += size

    def forget(self, *, now: float) -> None:
        """What is older."""
        if now < self._turns_at:
            return
        is_long_ago = now >= self._turns_at + COMPANY_S / 2
        self._before, self._lately = ({} if is_long_ago else self._lately), {}
        self._totals = [0 if is_long_ago else self._totals[1], 0]
        self._turns_at = now + COMPANY_S / 2

    def of(self, owner: OwnerT) -> int:
        """What he has brought."""
        return self._before.get(owner, 0) + self._lately.get(owner, 0)

    def total(self) -> int:
        """What all have."""
        return sum(self._totals)


class FairShare(Generic[OwnerT]):
    """See the module. What waits is a list of (owner, size) in the order of its arrival."""

    def __init__(self) -> None:
        self._turns: defaultdict[int, FairQueue[OwnerT]] = defaultdict(FairQueue)
        """By lane: who got nothing there."""
        self._went_at: defaultdict[int, float] = defaultdict(lambda: float("-inf"))
        """By lane: when those that flood got something there."""
        self._began_at: defaultdict[int, float] = defaultdict(lambda: float("-inf"))
        """By lane: when anybody did."""
        self._others_at: defaultdict[int, float] = defaultdict(lambda: float("-inf"))
        """By lane: when one did that does not flood."""
        self._others_gap_s: defaultdict[int, float] = defaultdict(lambda: float("inf"))
        """By lane: between the last two such."""
        self._last: set[OwnerT] = set()
        self._shared_until = float("-inf")
        self._crowded_until = float("-inf")
        self._floods: set[OwnerT] = set()
        self._brought: _Brought[OwnerT] = _Brought()
        self._quickest_s = 0.0
        """What the quickest of the last commits took; forgotten slowly."""
        self._small_s = 0.0
        """What most of the small ones take longer than. It does not grow while somebody floods: a
        flood's own commits would make it grow, and it them."""

    def is_shared(self, *, now: float) -> bool:
        """Whether several publish, as far as the last second tells."""
        return now < self._shared_until

    def is_skewed(self, *, now: float) -> bool:
        """Whether some flood and have others beside them, as far as the last second tells."""
        return now < self._crowded_until

    def measure(self, seconds: float, size: int, *, now: float) -> None:
        """A commit of this size took so long."""
        self._quickest_s = min(seconds, self._quickest_s * 1.02 + 0.000_05)
        if seconds < self._small_s:
            self._small_s += (seconds - self._small_s) * _DOWN
        elif size <= _SMALL_BYTES and now >= self._crowded_until:
            self._small_s += (seconds - self._small_s) * _UP

    def room(self, *, now: float) -> int:
        """What the next commit takes where it is shared, in bytes: in company what costs about as
        much time as any commit costs, in a crowd a part of that."""
        if now < self._crowded_until:
            return self._room(limits.COMMIT_BYTES_CROWDED, self._small_s)
        return self._room(limits.COMMIT_BYTES_SHARED, self._quickest_s)

    def _room(self, share: int, seconds: float) -> int:
        return min(int(share * max(1.0, seconds * 1000)), limits.COMMIT_BYTES_SHARED_MAX)

    def has_light(self, owners: Iterable[OwnerT]) -> bool:
        """Whether one of them is none of those that flood, as far as they are known."""
        return any(owner not in self._floods for owner in owners)

    def holds(self, *, has_light: bool, now: float, lane: int = 0) -> bool:
        """Whether those that flood get nothing in a lane now, where things of others are under
        way there (`has_light`)."""
        return has_light and now < self._crowded_until and now < self._went_at[lane] + HELD_S

    def rest_s(self, owners: Iterable[OwnerT], *, now: float, lane: int = 0) -> float:
        """Return for how many seconds nothing begins in a lane where only `owners` have something
        waiting. 0: it may begin now; so it is where others come rarely, or not."""
        until = min(self._crowded_until, self._others_at[lane] + OTHERS_S)
        if now >= until or self._others_gap_s[lane] > OFTEN_S or self.has_light(owners):
            return 0.0
        rest_s = self._began_at[lane] + REST_S - now
        return rest_s if rest_s >= _TICK_S else 0.0

    def has_enough(self, size: int, *, now: float) -> bool:
        """Whether nothing more of those that flood is needed yet, where `size` waits."""
        if now >= self._crowded_until:
            return False
        return size >= AHEAD_BYTES * len(self._floods)

    def has_too_much(self, owner: OwnerT, size: int, *, now: float) -> bool:
        """Whether he floods, and `size` of his that waits is all that may."""
        if now >= self._crowded_until or owner not in self._floods:
            return False
        return size >= AHEAD_BYTES_MAX

    def choose(
        self, waiting: Sequence[tuple[OwnerT, int]], *, now: float, lane: int = 0
    ) -> list[int]:
        """The places of what goes with the next commit of a lane, ascending."""
        wanted = self._look(waiting, now)
        if now >= self._shared_until:
            self._brought.add(wanted, now=now)
            return list(range(len(waiting)))
        self._went_at[lane] = now
        places = self._turns[lane].take(waiting, self.room(now=now))
        return self._go(places, waiting, now=now, lane=lane)

    def choose_beside(
        self, waiting: Sequence[tuple[OwnerT, int]], *, now: float, lane: int = 0
    ) -> list[int]:
        """The places of what goes at once, as a commit of its own beside one that is shared and
        under way: in a crowd what those have that do not flood, if it is little."""
        self._look(waiting, now)
        if now >= self._crowded_until:
            return []
        places = [place for place, (owner, _) in enumerate(waiting) if owner not in self._floods]
        size = sum(waiting[place][1] for place in places)
        if size > self.room(now=now):
            return []
        return self._go(places, waiting, now=now, lane=lane)

    def _go(
        self,
        places: list[int],
        waiting: Sequence[tuple[OwnerT, int]],
        *,
        now: float,
        lane: int,
    ) -> list[int]:
        gone = _sums(waiting[place] for place in places)
        self._brought.add(gone, now=now)
        if gone:
            self._began_at[lane] = now
        if self.has_light(gone):
            self._others_gap_s[lane] = now - self._others_at[lane]
            self._others_at[lane] = now
        return places

    def _look(self, waiting: Sequence[tuple[OwnerT, int]], now: float) -> dict[OwnerT, int]:
        """Judge anew; returns what each has waiting."""
        wanted = _sums(waiting)
        if len(wanted) > 1 or wanted.keys() != self._last:
            self._shared_until = now + COMPANY_S
        self._last = set(wanted)
        is_crowded = now < self._crowded_until
        # Where they are held back, what they have waiting is less than it would be.
        least = self.room(now=now) if is_crowded else CROWD_BYTES_MIN
        many = {owner for owner, size in wanted.items() if size >= least}
        if not many and not is_crowded:
            return wanted
        self._brought.forget(now=now)
        sizes = {
            owner: self._brought.of(owner) + wanted.get(owner, 0)
            for owner in (many | self._floods if is_crowded else many)
        }
        most = max(sizes.values())
        floods = {owner for owner, size in sizes.items() if size * CROWD_SHARE > most}
        size = sum(sizes[owner] for owner in floods)
        little = self._brought.total() + sum(wanted.values()) - size
        if not 0 < little * CROWD_SHARE <= size:
            self._crowded_until = float("-inf")
        elif not many.isdisjoint(floods):
            self._floods = floods
            self._crowded_until = now + COMPANY_S
        return wanted


def _sums(waiting: Iterable[tuple[OwnerT, int]]) -> dict[OwnerT, int]:
    sums: dict[OwnerT, int] = {}
    for owner, size in waiting:
        sums[owner] = sums.get(owner, 0) + size
    return sums

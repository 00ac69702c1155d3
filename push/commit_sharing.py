"""Fair shares and pace of the group commit: what goes with the next one, and when. Pure.

No queue has a quota. If there is room for all, each has what it wants. If not, those that want
little have it, and those that want much share the rest. A queue is an **owner** here, and what it
has waiting has a size. The load of the last second has three forms:

alone    one owner publishes: a commit is as large as its load makes it.
shared   several owners do: a commit takes a bounded amount, shared equally (`FairQueue`), so that
         the next one is never far.
skewed   a few **heavy** owners bring far more than all the others, the **light** ones: a commit
         takes hardly longer than a small one. What light owners bring waits for no heavy one: it
         goes in a commit of its own beside the shared one, and heavy owners then pause.

For example, ten owners have 300 bytes waiting each and one has 400 kB. The load is skewed: the next
commit takes the ten whole and a few records of the heavy one. What light owners publish while it is
under way goes at once (`FairShare.choose_beside`); what the heavy one publishes waits.

The room for what waits is shared likewise (`has_room`): it never is used up by the heavy owners.

`CommitPace` decides when the next commit of a lane may begin. A commit costs about as much with one
message as with twenty. So one for which messages waited begins no sooner than PACE_S after the one
before began, unless much waits. A message that comes when nothing waits and no commit is under way
is not delayed. Changes of cursors go with the next commit, if one is expected soon. If it does not
come, none is expected for a second, because a client may publish only when its ack is confirmed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Final, Generic, TypeVar

from push import limits

OwnerT = TypeVar("OwnerT")
SHARE: Final = 4
"""Most that one owner may hold, in multiples of what is left free. A single one may hold four
fifths of all, two of them four ninths each, so something is always left (Choudhury and Hahne,
1998)."""
SHARE_ALONE: Final = SHARE / (1 + SHARE)
"""Part of all that one owner may hold if no other one holds anything."""
WINDOW_S: Final = 1.0
"""Seconds for which a load counts as shared, or as skewed, after it was last found to be. What
owners bring is summed over half as long at least, and as long at most."""
HEAVY_BYTES_MIN: Final = 64 * 1024
HEAVY_FACTOR: Final = 8
"""Factor between heavy owners and light ones. An owner is heavy if it has HEAVY_BYTES_MIN waiting,
no other one has brought eight times as much, and the light ones have together brought an eighth of
what the heavy ones have, or less. All that was brought in the last second counts, because what
waits at one moment differs as much between owners that bring the same."""
AHEAD_BYTES: Final = 1024 * 1024
"""Bytes of waiting messages, for each heavy owner, from which on nothing more of heavy owners is
read. They wait for the commits after the next one. A commit of a skewed load takes one record of an
owner, the oldest. A record costs its commit about as much as two hundred messages do, so the
records of 16 partitions have to grow before their turn comes."""
AHEAD_BYTES_MAX: Final = 8 * AHEAD_BYTES
"""Bytes that one heavy owner may have waiting; more of it is refused. That is several times the
load that a producer has in flight, so a client that does not stop at `has_enough` is refused, and
our SDKs are not."""
HOLD_S: Final = 0.01
"""Seconds after the begin of a shared commit for which heavy owners get nothing more, if records of
light ones are under way. A heavy commit that began meanwhile would be in front of the light ones'
answer and push, in the storage's thread and in the loop. So light owners wait for what was there
when they came, and for nothing that came later. No timer ends this: heavy owners go on with the
next publish or the next end of a commit, whichever comes first."""
REST_S: Final = 0.006
"""Seconds after the begin of any commit in a lane for which none with heavy owners alone begins
there, if light owners come often. Heavy records that go with theirs cost them a little. Heavy
records under way when they come cost them a commit, and later a slice of what is carried into the
file. measured: docs/benchmarks/tuning.md#floods"""
LIGHT_S: Final = 0.05
"""Seconds after light owners brought something in which they are expected to bring more."""
LIGHT_GAP_S: Final = 0.012
"""Most seconds between two commits of light owners, if these come often. For rarer ones heavy
owners do not rest, because they would lose much. Rare ones then wait for one heavy commit of one
record."""
PACE_S: Final = 0.002
"""Shortest time from the begin of a commit to that of the next one, if messages waited for it.
measured: docs/benchmarks/tuning.md#pace-of-commits"""
ENOUGH_MESSAGES: Final = 32
"""Number of waiting messages from which the next commit begins at once."""
ENOUGH_BYTES: Final = 64 * 1024
"""Bytes from which it does so: `FairShare` finds a flood only where a commit is chosen."""
EXPECTED_S: Final = 0.01
"""Longest time between two commits after which a third is expected within the same time."""
DISTRUST_S: Final = 1.0
"""Seconds for which no commit is expected, after one was that did not come."""
_TICK_S: Final = 0.000_5
"""Shortest rest. uvloop counts whole milliseconds, so that half of one or less would be requested
again in every turn of the loop."""
_SMALL_BYTES: Final = 4096
_DOWN: Final = 0.1
_UP: Final = 0.01
_NEVER: Final = float("-inf")


def has_room(held: int, more: int, all_held: int, bound: int) -> bool:
    """Whether an owner that holds `held` of the `all_held` that are taken may have `more`, of
    `bound` in all. The rest that stays free shrinks with each heavy owner, and never to nothing."""
    return held + more <= SHARE * (bound - all_held - more)


class FairQueue(Generic[OwnerT]):
    """The owners' turns, which decide whose things go next. Remembers, from one call of `take` to
    the next, which owners got nothing."""

    def __init__(self) -> None:
        self._passed: dict[OwnerT, None] = {}
        """Owners that got nothing in the last `take`, in their order."""

    def take(self, waiting: Sequence[tuple[OwnerT, int]], room: int) -> list[int]:
        """Return the places, ascending, of those that go now, of these (owner, size) that wait in
        this order.

        Again and again the owner that has been given least so far gives the first that it has left,
        until `room` is used up; the last one taken may go beyond it. Among owners that have been
        given nothing yet, those that got nothing the last time come first, then the one that wants
        least. So an owner that wants less than an equal share goes whole, the things of one owner
        keep their order, and none waits for ever.
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


class _RecentSizes(Generic[OwnerT]):
    """The sizes by owner of recent commits, summed over two halves of WINDOW_S. The older half is
    dropped as a new one begins."""

    def __init__(self) -> None:
        self._before: dict[OwnerT, int] = {}
        self._current: dict[OwnerT, int] = {}
        self._totals = [0, 0]
        """Sums of `_before` and of `_current`."""
        self._until = _NEVER
        """The end of the current half."""

    def add(self, sizes: Mapping[OwnerT, int], *, now: float) -> None:
        """Add the sizes of a commit."""
        if now >= self._until:
            self.expire(now=now)
        for owner, size in sizes.items():
            self._current[owner] = self._current.get(owner, 0) + size
            self._totals[1] += size

    def expire(self, *, now: float) -> None:
        """Forget what is too old."""
        if now < self._until:
            return
        is_long_ago = now >= self._until + WINDOW_S / 2
        self._before, self._current = ({} if is_long_ago else self._current), {}
        self._totals = [0 if is_long_ago else self._totals[1], 0]
        self._until = now + WINDOW_S / 2

    def of(self, owner: OwnerT) -> int:
        """Return what one owner has brought."""
        return self._before.get(owner, 0) + self._current.get(owner, 0)

    def total(self) -> int:
        """Return what all owners have brought."""
        return sum(self._totals)


class _LaneTimes(Generic[OwnerT]):
    """When commits of one lane began, and whose turn is next there."""

    __slots__ = ("began_at", "heavy_at", "light_at", "light_gap_s", "turns")

    def __init__(self) -> None:
        self.turns: FairQueue[OwnerT] = FairQueue()
        self.began_at = _NEVER
        self.heavy_at = _NEVER
        """The begin of the last shared commit, in which heavy owners may have a share."""
        self.light_at = _NEVER
        """The begin of the last commit with something of light owners."""
        self.light_gap_s = float("inf")
        """Seconds between the begins of the last two commits with something of light owners."""


class FairShare(Generic[OwnerT]):
    """The judge of the load, and the shares of each commit. What waits is a list of (owner, size)
    in the order of its arrival."""

    def __init__(self) -> None:
        self._lanes: defaultdict[int, _LaneTimes[OwnerT]] = defaultdict(_LaneTimes)
        self._last: set[OwnerT] = set()
        """The owners that had something waiting at the last judgement."""
        self._shared_until = _NEVER
        self._skewed_until = _NEVER
        self._heavy: set[OwnerT] = set()
        self._recent: _RecentSizes[OwnerT] = _RecentSizes()
        self._quickest_s = 0.0
        """Duration of the quickest of the last commits, in seconds; forgotten slowly."""
        self._small_s = 0.0
        """Seconds that most small commits take at least. They do not grow while the load is skewed,
        because they and the commits of heavy owners would make each other grow."""

    # --- The load ------------------------------------------------------------------------------

    def is_shared(self, *, now: float) -> bool:
        """Whether several owners publish, judging by the last second."""
        return now < self._shared_until

    def is_skewed(self, *, now: float) -> bool:
        """Whether there are light owners beside heavy ones, judging by the last second."""
        return now < self._skewed_until

    def has_light(self, owners: Iterable[OwnerT]) -> bool:
        """Whether one of these owners is light, as far as the heavy ones are known."""
        return not self._heavy.issuperset(owners)

    def has_enough(self, size: int, *, now: float) -> bool:
        """Whether nothing more of heavy owners is needed yet, if `size` waits."""
        if now >= self._skewed_until:
            return False
        return size >= AHEAD_BYTES * len(self._heavy)

    def has_too_much(self, owner: OwnerT, size: int, *, now: float) -> bool:
        """Whether an owner is heavy and may not have more waiting than `size`."""
        if now >= self._skewed_until or owner not in self._heavy:
            return False
        return size >= AHEAD_BYTES_MAX

    # --- The next commit -----------------------------------------------------------------------

    def holds(self, *, has_light: bool, now: float, lane: int = 0) -> bool:
        """Whether heavy owners get nothing in a lane now. `has_light`: something of light owners is
        under way there."""
        return has_light and now < self._skewed_until and now < self._lanes[lane].heavy_at + HOLD_S

    def rest_s(self, owners: Iterable[OwnerT], *, now: float, lane: int = 0) -> float:
        """Return for how many seconds nothing begins in a lane if only `owners` have something
        waiting. 0: it may begin now; also if light owners come rarely, or not at all."""
        times = self._lanes[lane]
        until = min(self._skewed_until, times.light_at + LIGHT_S)
        if now >= until or times.light_gap_s > LIGHT_GAP_S or self.has_light(owners):
            return 0.0
        rest_s = times.began_at + REST_S - now
        return rest_s if rest_s >= _TICK_S else 0.0

    def choose(
        self, waiting: Sequence[tuple[OwnerT, int]], *, now: float, lane: int = 0
    ) -> list[int]:
        """Return the places, ascending, of what goes with the next commit of a lane."""
        wanted = self._judge(waiting, now)
        if now >= self._shared_until:
            self._recent.add(wanted, now=now)
            return list(range(len(waiting)))
        times = self._lanes[lane]
        times.heavy_at = now
        places = times.turns.take(waiting, self.room(now=now))
        return self._begin(times, places, waiting, now=now)

    def choose_beside(
        self, waiting: Sequence[tuple[OwnerT, int]], *, now: float, lane: int = 0
    ) -> list[int]:
        """Return the places of the things that go at once, in a commit beside one that is shared
        and under way. If the load is skewed, these are the things that light owners have waiting,
        if they are few."""
        self._judge(waiting, now)
        if now >= self._skewed_until:
            return []
        places = [place for place, (owner, _) in enumerate(waiting) if owner not in self._heavy]
        size = sum(waiting[place][1] for place in places)
        if size > self.room(now=now):
            return []
        return self._begin(self._lanes[lane], places, waiting, now=now)

    def _begin(
        self,
        times: _LaneTimes[OwnerT],
        places: list[int],
        waiting: Sequence[tuple[OwnerT, int]],
        *,
        now: float,
    ) -> list[int]:
        """Note that these go now, and return them."""
        sizes = _sums(waiting[place] for place in places)
        self._recent.add(sizes, now=now)
        if sizes:
            times.began_at = now
        if self.has_light(sizes):
            times.light_gap_s = now - times.light_at
            times.light_at = now
        return places

    def _judge(self, waiting: Sequence[tuple[OwnerT, int]], now: float) -> dict[OwnerT, int]:
        """Judge the load anew; returns what each owner has waiting."""
        wanted = _sums(waiting)
        if len(wanted) > 1 or wanted.keys() != self._last:
            self._shared_until = now + WINDOW_S
        self._last = set(wanted)
        is_skewed = now < self._skewed_until
        if not is_skewed and max(wanted.values(), default=0) < HEAVY_BYTES_MIN:
            return wanted
        # Heavy owners that are held back have less waiting than they would have.
        least = self.room(now=now) if is_skewed else HEAVY_BYTES_MIN
        many = {owner for owner, size in wanted.items() if size >= least}
        self._recent.expire(now=now)
        sizes = {
            owner: self._recent.of(owner) + wanted.get(owner, 0)
            for owner in (many | self._heavy if is_skewed else many)
        }
        most = max(sizes.values())
        heavy = {owner for owner, size in sizes.items() if size * HEAVY_FACTOR > most}
        size = sum(sizes[owner] for owner in heavy)
        little = self._recent.total() + sum(wanted.values()) - size
        if not 0 < little * HEAVY_FACTOR <= size:
            self._skewed_until = _NEVER
        elif not many.isdisjoint(heavy):
            self._heavy = heavy
            self._skewed_until = now + WINDOW_S
        return wanted

    # --- The size of a commit ------------------------------------------------------------------

    def room(self, *, now: float) -> int:
        """Return how many bytes the next commit takes if it is shared. They cost about the time
        that any commit costs. If the load is skewed, it is a part of that."""
        if now < self._skewed_until:
            return self._room(limits.COMMIT_BYTES_SKEWED, self._small_s)
        return self._room(limits.COMMIT_BYTES_SHARED, self._quickest_s)

    def _room(self, share: int, seconds: float) -> int:
        return min(int(share * max(1.0, seconds * 1000)), limits.COMMIT_BYTES_SHARED_MAX)

    def measure(self, seconds: float, size: int, *, now: float) -> None:
        """Learn from a commit of `size` bytes that took `seconds`."""
        self._quickest_s = min(seconds, self._quickest_s * 1.02 + 0.000_05)
        if seconds < self._small_s:
            self._small_s += (seconds - self._small_s) * _DOWN
        elif size <= _SMALL_BYTES and now >= self._skewed_until:
            self._small_s += (seconds - self._small_s) * _UP


class CommitPace:
    """The begins of one lane's commits. `now`: seconds, monotonic."""

    __slots__ = ("_began_at", "_distrusted_until", "_gap_s", "_is_behind")

    def __init__(self) -> None:
        self._began_at = _NEVER
        self._gap_s = float("inf")
        """Time between the begins of the last two commits."""
        self._is_behind = False
        """Whether messages waited when the last commit ended."""
        self._distrusted_until = _NEVER

    def begin(self, *, now: float) -> None:
        """Note that a commit begins."""
        self._gap_s, self._began_at = now - self._began_at, now

    def end(self, waiting: int) -> None:
        """Note that a commit has ended, while this number of messages waits for the next one."""
        self._is_behind = waiting > 0

    def wait_s(self, waiting: int, size: int, *, now: float) -> float:
        """Return for how many seconds the next commit may not begin, if this number of messages, of
        `size` bytes in all, waits for it; 0: it may begin now."""
        if not self._is_behind or waiting >= ENOUGH_MESSAGES or size >= ENOUGH_BYTES:
            return 0.0
        wait_s = self._began_at + PACE_S - now
        return wait_s if wait_s >= _TICK_S else 0.0

    def expected_for_s(self, *, now: float) -> float:
        """Return for how many seconds another commit is still expected, judging by the time between
        the last two; 0: none is."""
        if self._gap_s > EXPECTED_S or now < self._distrusted_until:
            return 0.0
        return max(0.0, self._began_at + EXPECTED_S - now)

    def missed(self, *, now: float) -> None:
        """Note that an expected commit did not come in time."""
        self._distrusted_until = now + DISTRUST_S


def _sums(waiting: Iterable[tuple[OwnerT, int]]) -> dict[OwnerT, int]:
    sums: dict[OwnerT, int] = {}
    for owner, size in waiting:
        sums[owner] = sums.get(owner, 0) + size
    return sums


def commit_weight(messages: int, size: int) -> int:
    """Return the weight of messages of `size` bytes in all in a shared commit: this size, but at
    least COMMIT_MESSAGE_BYTES for each message."""
    return max(size, limits.COMMIT_MESSAGE_BYTES * messages)

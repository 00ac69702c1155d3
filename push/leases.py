"""The ledger of what is in flight in one (group, partition): pushes, their bits, their deadlines.

A push is a run of consecutive offsets given together. What of it is unsettled is one integer used
as a bit mask, so that an ack of a range costs a few machine words whatever its length, and a
message costs nothing of its own until something exceptional happens to it.
"""

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush

from push import limits
from push.ranges import Range


def bits_between(low: int, high: int) -> int:
    """The mask with bits low..high set."""
    return ((1 << (high - low + 1)) - 1) << low


def offsets_of(mask: int, first: int) -> Iterator[int]:
    """The offsets that a mask relative to `first` names, in order."""
    while mask:
        low = mask & -mask
        yield first + low.bit_length() - 1
        mask ^= low


class Push:
    """One push in flight: offsets first..last, `open` the mask of those that are unsettled."""

    __slots__ = (
        "attempt", "first", "given_at", "hashes", "last", "number", "of_line", "open", "parts",
        "started",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        first: int,
        last: int,
        hashes: "array[int]",
        *,
        given_at: float,
        deadline: float,
        attempt: int,
        started: bool,
    ) -> None:
        self.number = number
        self.first = first
        self.last = last
        self.hashes = hashes
        self.given_at = given_at
        self.attempt = attempt
        self.of_line = False
        """It is one message that a line sent: the line waits to hear of it."""
        self.open = (1 << (last - first + 1)) - 1
        self.started = self.open if started else 0
        self.parts: list[tuple[float, int]] = [(deadline, self.open)]

    def __repr__(self) -> str:
        return f"<Push {self.number} {self.first}..{self.last} open={self.open:b}>"

    def within(self, first: int, last: int) -> int:
        """The mask of the part of first..last that this push covers."""
        low, high = max(first, self.first), min(last, self.last)
        return bits_between(low - self.first, high - self.first) if low <= high else 0

    def of_key(self, key_hash: int, after: int) -> Iterator[int]:
        """Open offsets above `after` whose key has this hash, in order."""
        if key_hash in self.hashes:
            for offset in offsets_of(self.open, self.first):
                if offset > after and self.hashes[offset - self.first] == key_hash:
                    yield offset


class Leases:
    """All pushes in flight, by number, with their deadlines and the extent of the last finished."""

    __slots__ = ("_deadlines", "_finished", "number", "open_count", "pushes")

    def __init__(self) -> None:
        self.pushes: dict[int, Push] = {}
        self.number = 0
        """The number of the last push given; numbers start at 1 under every epoch (R16)."""
        self.open_count = 0
        self._deadlines: list[tuple[float, int]] = []
        self._finished: dict[int, Range] = {}

    def give(
        self,
        first: int,
        last: int,
        hashes: "array[int]",
        *,
        now: float,
        lease_s: float,
        attempt: int,
        started: bool,
    ) -> Push:
        """A new push of first..last, due at now + lease_s."""
        self.number += 1
        push = Push(
            self.number, first, last, hashes,
            given_at=now, deadline=now + lease_s, attempt=attempt, started=started,
        )  # fmt: skip
        self.pushes[push.number] = push
        self.open_count += last - first + 1
        heappush(self._deadlines, (now + lease_s, push.number))
        return push

    def close(self, push: Push, mask: int) -> None:
        """These open bits are no longer in flight: settled or returned."""
        push.open &= ~mask
        self.open_count -= mask.bit_count()
        if not push.open:
            del self.pushes[push.number]
            self._finished[push.number] = (push.first, push.last)
            if len(self._finished) > limits.FINISHED_PUSHES_MAX:
                del self._finished[next(iter(self._finished))]

    def extent(self, number: int) -> Range | None:
        """What a push covered; None when it was never given, or is too old to be remembered."""
        push = self.pushes.get(number)
        return (push.first, push.last) if push else self._finished.get(number)

    def find(self, offset: int) -> Push | None:
        """The push in which this offset is open. Walks; for exceptional cases only."""
        for push in self.pushes.values():
            if push.first <= offset <= push.last and push.open >> (offset - push.first) & 1:
                return push
        return None

    def of_key(self, key_hash: int, after: int) -> list[tuple[Push, int]]:
        """Every open offset above `after` of this key, with its push."""
        return [
            (push, offset)
            for push in self.pushes.values()
            if push.last > after
            for offset in push.of_key(key_hash, after)
        ]

    def extend(self, push: Push, mask: int, deadline: float) -> None:
        """Let these open bits end at `deadline`."""
        mask &= push.open
        if not mask:
            return
        push.parts = [(at, rest) for at, bits in push.parts if (rest := bits & ~mask)]
        push.parts.append((deadline, mask))
        heappush(self._deadlines, (deadline, push.number))

    def due(self, now: float) -> list[tuple[Push, int]]:
        """(push, open bits whose lease has ended), oldest push first. They stay open."""
        due: dict[int, int] = {}
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heappop(self._deadlines)
            push = self.pushes.get(number)
            if push is None:
                continue
            ended = 0
            for at, bits in push.parts:
                ended |= bits if at <= now else 0
            push.parts = [(at, bits) for at, bits in push.parts if at > now]
            if ended & push.open:
                due[number] = due.get(number, 0) | (ended & push.open)
        return [(self.pushes[number], due[number]) for number in sorted(due)]

    def next_deadline(self) -> float | None:
        """The earliest lease end; may be that of a push that is settled since."""
        while self._deadlines and self._deadlines[0][1] not in self.pushes:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

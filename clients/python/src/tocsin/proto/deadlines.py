"""When something of a held push is due: its lease to be prolonged, or over. Pure.

Pushes come in the order of their deadlines, so those that are settled in time, nearly all, cost a
deque; only what is held for long is sorted. An entry counts while its push is due when it says: one
whose times have changed was put again.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final

from tocsin.proto.message import HeldPush

NEVER: Final = float("inf")


class Deadlines:
    """The held pushes by what is due next. A push that is settled drops out by itself."""

    def __init__(self) -> None:
        self._fresh: deque[tuple[float, HeldPush]] = deque()  # in order
        self._others: list[tuple[float, int, HeldPush]] = []
        self._numbers = itertools.count()

    def received(self, held: HeldPush) -> None:
        """A push with the latest deadline so far."""
        self._fresh.append((held.due, held))

    def put(self, held: HeldPush) -> None:
        """A push whose times have changed."""
        heapq.heappush(self._others, (held.due, next(self._numbers), held))

    def reset(self, pushes: Iterable[HeldPush]) -> None:
        """These are all there are."""
        self._fresh.clear()
        self._others = [(held.due, next(self._numbers), held) for held in pushes]
        heapq.heapify(self._others)

    def take(self, *, now: float) -> list[HeldPush]:
        """The pushes of which something is due; whoever is done with one puts it again."""
        fresh, others = self._fresh, self._others
        due: list[HeldPush] = []
        while fresh and (not fresh[0][1].left or fresh[0][0] <= now):
            when, held = fresh.popleft()
            if held.left and when == held.due:  # else it was put again since
                due.append(held)
        while others and (not others[0][2].left or others[0][0] <= now):
            when, _, held = heapq.heappop(others)
            if held.left and when == held.due:
                due.append(held)
        return due

    def next(self) -> float | None:
        """When something will be due; None: nothing is held."""
        fresh, others = self._fresh, self._others
        while fresh and not (fresh[0][1].left and fresh[0][0] == fresh[0][1].due):
            fresh.popleft()
        while others and not (others[0][2].left and others[0][0] == others[0][2].due):
            heapq.heappop(others)
        if fresh and others:
            return min(fresh[0][0], others[0][0])
        if fresh:
            return fresh[0][0]
        return others[0][0] if others else None

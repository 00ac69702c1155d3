"""Reading: a reader's buffer, its credit and its position. Pure.

A reader settles nothing: what has been handed out is past. The position that the user sees is
behind the last message handed out; the one from which a new connection goes on is behind the last
one received, because the buffer outlives the connection.
"""

from collections import deque
from typing import Final

from tocsin import wire
from tocsin.errors import Gap
from tocsin.message import ReadMessage

CREDIT_SHARE: Final = 4
"""Credit is granted anew when a quarter of the window has been handed out."""


class ReadLedger:
    """What one reader has received and not yet handed out. `credit` bounds it, in messages."""

    def __init__(self, *, credit: int) -> None:
        self.credit = credit
        self.subscription = 0
        self._items: deque[ReadMessage | Gap | wire.Push] = deque()  # a push: it ends here
        self._is_open = False
        self._buffered = 0
        self._received = 0  # on this connection
        self._granted = 0
        self._queue_id = ""
        self._handed: dict[str, tuple[int, int]] = {}
        self._wanted: dict[str, tuple[int, int]] = {}

    def opened(self, subscription: int, answer: wire.Ok) -> None:
        """The broker has opened the reader, on this connection, at these positions."""
        self.subscription = subscription
        self._is_open = True
        self._queue_id = answer.queue_id
        for verdict in answer.positions:
            place, gap = verdict.place, verdict.gap
            if place is not None:
                self._wanted[str(verdict.partition)] = place
                self._handed.setdefault(str(verdict.partition), place)
            if gap is not None:
                self._items.append(Gap(verdict.partition, *gap))

    def opening(self) -> tuple[int, wire.Position | None]:
        """What the next `subscribe` says: (granted so far, position or None at the first time).
        Until it is answered no credit is granted."""
        self._is_open = False
        self._received = 0
        self._granted = max(self.credit - self._buffered, 0)
        return self._granted, self._position(self._wanted)

    def receive(self, push: wire.Push) -> None:
        """Take in a push."""
        if push.gap is not None:
            self._items.append(Gap(push.partition, *push.gap))
        for offset, message in zip(push.places(), push.messages, strict=False):
            self._items.append(ReadMessage(push, offset, message))
        self._items.append(push)
        self._buffered += len(push.messages)
        self._received += len(push.messages)
        self._advance(self._wanted, push)

    @property
    def ready(self) -> int:
        """How many items could be taken now, at least as many as messages."""
        return len(self._items)

    def next(self) -> ReadMessage | Gap | None:
        """The next message, or the gap that comes before it; None: nothing is there now."""
        while self._items:
            item = self._items.popleft()
            if isinstance(item, wire.Push):
                self._advance(self._handed, item)
                continue
            if isinstance(item, ReadMessage):
                self._buffered -= 1
                self._move(self._handed, item.partition, item.offset + 1)
            else:
                self._move(self._handed, item.partition, item.last + 1)
            return item
        return None

    def position(self) -> wire.Position | None:
        """Behind the last message that was handed out; None: the broker has not said where."""
        items = self._items
        while items and isinstance(items[0], wire.Push):
            self._advance(self._handed, items[0])
            items.popleft()
        return self._position(self._handed)

    def take(self) -> list[wire.SentFrame]:
        """The credit that is to be granted now (R25)."""
        granted = self._received + max(self.credit - self._buffered, 0)
        if not self._is_open or (granted - self._granted) * CREDIT_SHARE < max(self.credit, 1):
            return []
        self._granted = granted
        return [wire.Credit(subscription=self.subscription, granted=granted)]

    def check(self) -> None:
        """Assert the invariants, under their ids."""
        messages = sum(isinstance(item, ReadMessage) for item in self._items)
        assert self._buffered == messages, "P9: what is buffered is counted"
        assert self._granted - self._received + self._buffered <= self.credit, "R25"

    def _advance(self, places: dict[str, tuple[int, int]], push: wire.Push) -> None:
        for name, (_, wanted) in push.positions.items():
            self._move(places, int(name), wanted)
        following = push.next
        if following is None and push.messages:
            last = push.places()[-1]
            following = last + 1
        if following is not None:
            self._move(places, push.partition, following)

    @staticmethod
    def _move(places: dict[str, tuple[int, int]], partition: int, following: int) -> None:
        name = str(partition)
        generation, wanted = places.get(name, (0, 0))
        if following > wanted:
            places[name] = (generation, following)

    def _position(self, places: dict[str, tuple[int, int]]) -> wire.Position | None:
        if not self._queue_id:
            return None
        return wire.Position(queue_id=self._queue_id, partitions=dict(places))

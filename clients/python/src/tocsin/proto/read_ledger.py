"""A reader's buffer, its credit and its positions. Pure.

A reader settles nothing: a message that has been handed out is past. It has three positions at a
time:

* wanted: after the last message received. A new connection continues from there, because the buffer
  outlives the connection.
* handed: after the last message handed out. The user sees this position.
* handled: the same without the message handed out last, until the next one is requested. This
  position is saved for a restart.
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final

from tocsin.errors import Gap
from tocsin.proto import wire
from tocsin.proto.message import ReadMessage

CREDIT_SHARE: Final = 4
"""The divisor of the window: credit is granted again when a quarter of the window can be
granted."""

Places = dict[str, tuple[int, int]]
"""A position in each partition: the log's generation and the next offset, by the partition's number
as text."""


class _HistoryChange:
    """The place in the buffer after which some partitions, or a whole queue, have another
    history."""

    __slots__ = ("places", "queue_id")

    def __init__(self, queue_id: str, places: Mapping[str, tuple[int, int]]) -> None:
        self.queue_id = queue_id
        self.places = places


class ReadLedger:
    """The messages that one reader has received and not handed out, bounded by `credit`, and the
    reader's positions."""

    def __init__(self, *, credit: int) -> None:
        self.credit = credit
        self.subscription = 0
        self.is_open = False
        """Whether the broker has opened the reader in answer to the last `subscribe`."""
        self.handled_count = 0
        """The number of messages and gaps that were handled since this object was made."""
        self.moves = 0
        """The number of times that the handled position has, or may have, changed."""
        self._items: deque[ReadMessage | Gap | wire.Push | _HistoryChange] = (
            deque()
        )  # a push marks its own end
        self._buffered = 0
        self._received = 0  # on this connection
        self._granted = 0
        self._queue_id = ""
        self._queue_id_handed = ""
        """The id of the queue in which `_handed` and `_handled` count, which may have been deleted
        since; empty before the reader was opened."""
        self._wanted: Places = {}
        self._handed: Places = {}
        self._handled: Places = {}
        self._last: ReadMessage | Gap | None = None

    # enforces: P10
    def on_open(
        self, subscription: int, answer: wire.Ok, unknown: Collection[int] = frozenset()
    ) -> None:
        """Begin at the positions at which the broker has opened the reader, on this connection.

        In the partitions of `unknown` no earlier position has a meaning any more.
        """
        self.subscription = subscription
        self.is_open = True
        first, self._queue_id = not self._queue_id, answer.queue_id
        turned: Places = {}
        for verdict in answer.positions:
            place, gap, name = verdict.place, verdict.gap, str(verdict.partition)
            if place is not None:
                self._wanted[name] = place
                if verdict.partition in unknown:
                    turned[name] = place
                else:
                    begin = place if gap is None else (place[0], gap[0])  # until the gap is given
                    self._handed.setdefault(name, begin)
                    self._handled.setdefault(name, begin)
            if gap is not None:
                self._items.append(Gap(verdict.partition, *gap))
        if first:
            self._queue_id_handed = answer.queue_id
            self._handed |= turned
            self._handled |= turned
        elif turned:
            if answer.queue_id != self._queue_id_handed:
                self._wanted = dict(turned)  # the other queue may have fewer partitions
            self._items.append(_HistoryChange(answer.queue_id, turned))

    def reopen(self) -> tuple[int, wire.Position | None]:
        """Prepare the next `subscribe`; returns (credit granted, position after the last message
        received). The position is None before the first opening.

        Until the broker has answered, the reader is not open and grants no further credit.
        """
        self.is_open = False
        self._received = 0
        self._granted = max(self.credit - self._buffered, 0)
        return self._granted, self._position(self._wanted, self._queue_id)

    def receive(self, push: wire.Push) -> None:
        """Buffer the gap and the messages of a push."""
        if push.gap is not None:
            self._items.append(Gap(push.partition, *push.gap))
        for offset, message in zip(push.places(), push.messages, strict=False):
            self._items.append(ReadMessage(push, offset, message))
        self._items.append(push)
        self._buffered += len(push.messages)
        self._received += len(push.messages)
        _advance(self._wanted, push)

    @property
    def ready(self) -> int:
        """The number of buffered items: messages, gaps, and the marks of the ends of pushes and
        histories, which are not handed out."""
        return len(self._items)

    def next(self) -> ReadMessage | Gap | None:
        """Hand out the next message, or the gap before it; None if the buffer is empty.

        The message that was handed out before counts as handled.
        """
        self.mark_handled()
        while self._items:
            item = self._items.popleft()
            if isinstance(item, wire.Push):
                _advance(self._handed, item)
                _advance(self._handled, item)
                self.moves += 1
                continue
            if isinstance(item, _HistoryChange):
                self._change_history(item)
                continue
            if isinstance(item, ReadMessage):
                self._buffered -= 1
            self._last = item
            _move(self._handed, item.partition, _behind(item))
            return item
        return None

    def mark_handled(self) -> None:
        """Count the message or gap that was handed out last as handled."""
        last, self._last = self._last, None
        if last is not None:
            self.handled_count += 1
            self.moves += 1
            _move(self._handled, last.partition, _behind(last))

    def _change_history(self, turn: _HistoryChange) -> None:
        self.moves += 1
        if turn.queue_id != self._queue_id_handed:
            self._handed.clear()
            self._handled.clear()
            self._queue_id_handed = turn.queue_id
        self._handed |= turn.places
        self._handled |= turn.places

    def position(self) -> wire.Position | None:
        """Return the position after the last message handed out; None before the first opening."""
        places = dict(self._handed)
        for item in self._items:
            if not isinstance(item, wire.Push):
                break
            _advance(places, item)
        return self._position(places, self._queue_id_handed)

    def handled_position(self) -> wire.Position | None:
        """Return the position after the last message handled; None before the first opening."""
        return self._position(self._handled, self._queue_id_handed)

    def take(self) -> list[wire.SentFrame]:
        """Return the grant of credit to send now, if one is due (R25)."""
        granted = self._received + max(self.credit - self._buffered, 0)
        if not self.is_open or (granted - self._granted) * CREDIT_SHARE < max(self.credit, 1):
            return []
        self._granted = granted
        return [wire.Credit(subscription=self.subscription, granted=granted)]

    def check(self) -> None:
        """Assert the invariants, under their ids."""
        messages = sum(isinstance(item, ReadMessage) for item in self._items)
        assert self._buffered == messages, "P9: what is buffered is counted"
        assert self._granted - self._received + self._buffered <= self.credit, "R25"
        for name, (generation, handled) in self._handled.items():
            assert self._handed[name] >= (generation, handled), "R26: handled is behind handed"

    @staticmethod
    def _position(places: Places, queue_id: str) -> wire.Position | None:
        if not queue_id:
            return None
        return wire.Position(queue_id=queue_id, partitions=dict(places))


def _behind(item: ReadMessage | Gap) -> int:
    return (item.last if isinstance(item, Gap) else item.offset) + 1


def _advance(places: Places, push: wire.Push) -> None:
    for name, (_, wanted) in push.positions.items():
        _move(places, int(name), wanted)
    following = push.next
    if following is None and push.messages:
        following = push.places()[-1] + 1
    if following is not None:
        _move(places, push.partition, following)


def _move(places: Places, partition: int, following: int) -> None:
    name = str(partition)
    generation, wanted = places.get(name, (0, 0))
    if following > wanted:
        places[name] = (generation, following)

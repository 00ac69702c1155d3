"""Consuming: the ledger of the deliveries that this consumer holds. Pure.

    receive -> QUEUED -> READY -- next --> HANDED -- ack, nack --> settled
                 |         |                 |
                 └─────────┴───── GONE <─────┘   revoked, lease over, connection lost

* Of one key, a message is handed out only when the one before it has been settled (R17): the first
  one of a key is READY, the others are QUEUED in the key's line.
* When a message is returned or goes, the later ones of its key that are held go with it, and what
  is under way of it is not let in (R17; see `closed`).
* A lease is counted from the moment the push was received, less a margin; what is over is treated
  as revoked (R17), so nothing is handed out that another consumer may have by now.
* Credit is granted in total: what was asked for at first, and one for each that was released (R25).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from tocsin import wire
from tocsin.closed import ClosedKeys
from tocsin.errors import StaleDelivery
from tocsin.message import HeldPush, Message, Settler, State
from tocsin.places import columns, parts, ranges

MARGIN_S_MAX: Final = 2.0
MARGIN_SHARE: Final = 0.1
"""A lease ends here by this share of it earlier than at the broker, at most MARGIN_S_MAX."""
CREDIT_SHARE: Final = 4
"""Credit is granted anew when a quarter of the window has been used up."""
_READY_GONE_MIN: Final = 64
_LAST: Final = 1 << 62
"""Above every offset."""
_offset = attrgetter("offset")

_QUEUED, _READY, _HANDED, _ACKED, _GONE = (
    State.QUEUED, State.READY, State.HANDED, State.ACKED, State.GONE,
)  # fmt: skip
_WHY: Final = {
    State.QUEUED: "has not been handed out",
    State.READY: "has not been handed out",
    State.ACKED: "has been acked",
    State.NACKED: "has been nacked",
    State.GONE: "has expired, or was revoked: it is no longer this consumer's",
}


def usable_s(lease_s: float) -> float:
    """How long a delivery may be worked on here when the broker grants `lease_s`."""
    return lease_s - min(MARGIN_S_MAX, MARGIN_SHARE * lease_s)


class Ledger:
    """What one consumer holds on one connection. `now` is in seconds of a monotonic clock.

    `credit` is how many deliveries may be held at a time; `lease_s` is the group's; `settler`
    carries out what is called on the messages.
    """

    def __init__(self, settler: Settler, *, subscription: int, credit: int, lease_s: float) -> None:
        self.subscription = subscription
        self.credit = credit
        self.lease_s = lease_s
        self._settler = settler
        self._ready: deque[Message] = deque()
        self._ready_gone = 0  # of these, no longer READY
        self._lines: dict[str, deque[Message] | None] = {}  # per held key, those behind its first
        self._pushes: dict[tuple[int, int, int], HeldPush] = {}
        self._newest: dict[int, tuple[int, int]] = {}  # partition -> (epoch, push)
        self._doubtful: dict[int, int] = {}  # partition -> so many more may have been given before
        self._by_deadline: deque[HeldPush] = deque()
        self._extended: list[Message] = []
        self._started: list[Message] = []
        self._acked: list[HeldPush] = []
        self._confirm: list[tuple[Message, object]] = []
        self._confirming: dict[int, list[tuple[Message, object]]] = {}
        self._nacked: dict[tuple[float | None, str | None], list[Message]] = {}
        self._closed = ClosedKeys()
        self.received = 0
        self.released = 0
        self._released_granted = 0

    # --- what comes in --------------------------------------------------------------------------

    def receive(self, push: wire.Push, *, now: float) -> None:
        """Take in a push. One that is not newer than the newest of its partition is discarded
        (R16); what it gives again supersedes what is held of it."""
        self.received += len(push.messages)
        number = (push.epoch, push.push)
        newest = self._newest.get(push.partition)
        if newest is not None:
            if number <= newest:
                self.released += len(push.messages)
                return
            if push.attempt > 1 or push.epoch > newest[0]:
                self._supersede(push)
        self._newest[push.partition] = number
        held = HeldPush(push, self._settler, now + usable_s(self.lease_s))
        if not held.left:
            return
        if newest is None or push.epoch > newest[0]:
            self._doubtful[push.partition] = self.credit
        doubtful = self._doubtful.get(push.partition, 0)
        if doubtful:
            held.doubtful = True
            self._doubtful[push.partition] = max(0, doubtful - held.left)
        self._pushes[held.place] = held
        self._by_deadline.append(held)
        lines, ready, deliveries = self._lines, self._ready, held.deliveries
        closed = self._closed if self._closed else None
        for offset, content in zip(push.places(), push.messages, strict=False):
            message = Message(held, offset, content)
            deliveries.append(message)
            key = content.key
            if key is None:
                ready.append(message)
            elif closed is not None and not closed.admits(key, push.partition, offset):
                self._drop(message, _GONE)
            elif key not in lines:
                lines[key] = None
                ready.append(message)
            else:
                message.state = _QUEUED
                line = lines[key]
                if line is None:
                    lines[key] = deque((message,))
                else:
                    line.append(message)

    def _supersede(self, push: wire.Push) -> None:
        again = ranges(list(push.places())) if push.messages else []
        for held in list(self._pushes.values()):
            if held.place[0] == push.partition:
                for first, last in zip(again[::2], again[1::2], strict=True):
                    self._lose(held, first, last)

    def revoke(self, deliveries: wire.DeliveryList) -> None:
        """The broker has taken these back. What is not held is left alone."""
        for partition, epoch, number, *pairs in deliveries:
            held = self._pushes.get((partition, epoch, number))
            for first, last in zip(pairs[::2], pairs[1::2], strict=False):
                if held is not None:
                    self._lose(held, first, last)
                if self._closed:
                    self._closed.revoked(partition, first, last)

    def expire(self, *, now: float) -> None:
        """Discard what has been held for as long as its lease."""
        late: list[Message] = []
        while self._by_deadline and self._by_deadline[0].deadline <= now:
            late += self._by_deadline.popleft().deliveries
        late += self._extended
        for message in late:
            if message.state <= _HANDED and message.deadline <= now:
                self._close(message, _GONE)
                self._closed.close(message)
        self._extended = [m for m in self._extended if m.state <= _HANDED]

    def next_deadline(self) -> float | None:
        """When `expire` should be called, if nothing else happens before."""
        while self._by_deadline and not self._by_deadline[0].left:
            self._by_deadline.popleft()
        deadlines = [m.deadline for m in self._extended if m.state <= _HANDED]
        if self._by_deadline:
            deadlines.append(self._by_deadline[0].deadline)
        return min(deadlines, default=None)

    def lost(self) -> list[object]:
        """The connection is gone, and every delivery with it. Returns the tickets of the acks
        whose confirmation has not come."""
        for held in list(self._pushes.values()):
            self._lose(held, 0, _LAST)
        pending = [ticket for _, ticket in self._confirm]
        pending += [ticket for pairs in self._confirming.values() for _, ticket in pairs]
        self._ready.clear()
        self._ready_gone = 0
        self._acked.clear()
        self._nacked.clear()
        self._started.clear()
        self._confirm.clear()
        self._confirming.clear()
        self._closed = ClosedKeys()
        self._released_granted = self.released  # there is nobody left to grant it
        return pending

    # --- handing out and settling ---------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many could be handed out now."""
        return len(self._ready) - self._ready_gone

    def next(self, *, now: float) -> Message | None:
        """Hand out a message whose key is free; None: there is none now."""
        ready = self._ready
        while ready:
            message = ready[0]
            if message.state is _READY and message.deadline <= now:
                self.expire(now=now)
                ready = self._ready
                continue
            ready.popleft()
            if message.state is _READY:
                message.state = _HANDED
                self._started.append(message)
                return message
            self._ready_gone -= 1
        return None

    def ack(self, message: Message, *, now: float, ticket: object = None) -> None:
        """Settle a message that was handed out. With a ticket the ack is confirmed: see
        `confirmed`. Without, an ack of what was acked already does nothing.

        Raises:
            StaleDelivery: it is no longer this consumer's.
        """
        if message.state is _ACKED and ticket is None:
            return
        self.check_held(message, now=now)
        message.state = _ACKED
        held = message.held
        if ticket is not None:
            self._confirm.append((message, ticket))
        elif held.acked:
            held.acked.append(message.offset)
        else:
            held.acked.append(message.offset)
            self._acked.append(held)
        self.released += 1
        held.left -= 1
        if not held.left:
            self._pushes.pop(held.place, None)
        key = message.key
        if key is None:
            return
        line = self._lines[key]
        if line is None:
            del self._lines[key]
            return
        following = line.popleft()
        following.state = _READY
        self._ready.append(following)
        if not line:
            self._lines[key] = None

    def nack(
        self, message: Message, *, now: float, delay_s: float | None = None,
        reason: str | None = None,
    ) -> None:  # fmt: skip
        """Return a message that was handed out; the later ones of its key that are held go too.

        Raises:
            StaleDelivery: it is no longer this consumer's.
        """
        self.check_held(message, now=now)
        self._close(message, State.NACKED)
        self._closed.close(message)
        self._nacked.setdefault((delay_s, reason), []).append(message)

    def check_held(self, message: Message, *, now: float) -> None:
        """Raises StaleDelivery unless the message was handed out and is still this consumer's."""
        if message.state is _HANDED and message.deadline <= now:
            self.expire(now=now)
        if message.state is not _HANDED:
            raise StaleDelivery(f"message {message.id} {_WHY[message.state]}")

    def extended(self, message: Message, *, until: float) -> None:
        """The broker has prolonged the lease; it may be worked on until `until`, in seconds."""
        if message.state <= _HANDED:
            if message.deadline == message.held.deadline:
                self._extended.append(message)
            message.deadline = until

    def nack_answered(self, ref: int) -> None:
        """The broker has read a nack: what it sends from now on may be let in."""
        self._closed.answered(ref)

    def confirmed(self, ref: int, refused: wire.DeliveryList) -> tuple[list[object], list[object]]:
        """The answer to a confirmed ack: (tickets of what is settled, tickets of the rest).
        `refused` are the deliveries that the broker did not settle."""
        places = {
            (partition, epoch, number, offset)
            for partition, epoch, number, *pairs in refused
            for first, last in zip(pairs[::2], pairs[1::2], strict=False)
            for offset in range(first, last + 1)
        }
        settled: list[object] = []
        stale: list[object] = []
        for message, ticket in self._confirming.pop(ref, ()):
            gone = (*message.held.place, message.offset) in places
            (stale if gone else settled).append(ticket)
        return settled, stale

    # --- leaving --------------------------------------------------------------------------------

    def _lose(self, held: HeldPush, first: int, last: int) -> None:
        begin = bisect_left(held.deliveries, first, key=_offset)
        for message in held.deliveries[begin : bisect_right(held.deliveries, last, key=_offset)]:
            if message.state <= _HANDED:
                self._close(message, _GONE)

    def _close(self, message: Message, state: State) -> None:
        """Take a held message out, and with it what is held behind it in its key's line (R17)."""
        was = message.state
        self._drop(message, state)
        if message.key is not None:
            line = self._lines[message.key]
            if was is _QUEUED:
                assert line is not None
                while (later := line.pop()) is not message:
                    self._drop(later, _GONE)
                if not line:
                    self._lines[message.key] = None
            else:
                del self._lines[message.key]
                for later in line or ():
                    self._drop(later, _GONE)
        if was is _READY:
            self._ready_gone += 1
            if self._ready_gone > max(_READY_GONE_MIN, len(self._ready) // 2):  # P9
                self._ready = deque(m for m in self._ready if m.state is _READY)
                self._ready_gone = 0

    def _drop(self, message: Message, state: State) -> None:
        message.state = state
        held = message.held
        self.released += 1
        held.left -= 1
        if not held.left:
            self._pushes.pop(held.place, None)

    # --- what goes out --------------------------------------------------------------------------

    def _credit_due(self) -> bool:
        return (self.released - self._released_granted) * CREDIT_SHARE >= max(self.credit, 1)

    def take(self, refs: Iterator[int]) -> list[wire.SentFrame]:
        """The frames that are to be sent now, in this order."""
        subscription = self.subscription
        started = columns(
            (m.held.place, m.offset) for m in self._started if m.state is _HANDED
        )  # what is settled in the same breath needs no mark
        self._started.clear()
        frames: list[wire.SentFrame] = [
            wire.Extend(subscription=subscription, started=part) for part in parts(started)
        ]
        acked = [[*held.place, *ranges(held.acked)] for held in self._acked]
        for held in self._acked:
            held.acked = []
        self._acked.clear()
        acks = [wire.Ack(subscription=subscription, deliveries=part) for part in parts(acked)]
        if len(frames) == 1 and acks:  # the ordinary case: marks travel with the acks
            acks[0].started = started
            frames.clear()
        frames += acks
        for start in range(0, len(self._confirm), wire.RANGES_PER_FRAME_MAX):
            confirm = self._confirm[start : start + wire.RANGES_PER_FRAME_MAX]
            ref = next(refs)
            self._confirming[ref] = confirm
            places = columns((m.held.place, m.offset) for m, _ in confirm)
            frames.append(wire.Ack(subscription=subscription, deliveries=places, ref=ref))
        self._confirm.clear()
        for (delay_s, reason), messages in self._nacked.items():
            for start in range(0, len(messages), wire.RANGES_PER_FRAME_MAX):
                nacked = messages[start : start + wire.RANGES_PER_FRAME_MAX]
                ref = next(refs)
                self._closed.ask(ref, nacked)
                places = columns((m.held.place, m.offset) for m in nacked)
                frames.append(
                    wire.Nack(
                        subscription=subscription, deliveries=places, delay_s=delay_s,
                        reason=reason, ref=ref,
                    )
                )  # fmt: skip
        self._nacked.clear()
        if self.released > self._released_granted and (frames or self._credit_due()):
            self._released_granted = self.released
            frames.append(
                wire.Credit(subscription=subscription, granted=self.credit + self.released)
            )
        return frames

    def check(self) -> None:
        """Assert the invariants, under their ids."""
        held = [m for push in self._pushes.values() for m in push.deliveries if m.state <= _HANDED]
        assert len(held) == self.received - self.released, "R25: held = received - released"
        assert all(push.left for push in self._pushes.values())
        assert self.ready == sum(m.state is _READY for m in held)
        keyed = [m for m in held if m.key is not None]
        for key, line in self._lines.items():
            first = [m for m in keyed if m.key == key and m.state is not _QUEUED]
            assert len(first) == 1, "P3: one message of a key at a time"
            assert [m for m in keyed if m.key == key and m.state is _QUEUED] == list(line or ())
        assert {m.key for m in keyed} == set(self._lines)

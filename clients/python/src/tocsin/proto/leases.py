"""Leases of the deliveries held here, as this client counts them, and their extension. Pure.

A lease is counted from the moment at which the push was received, less a margin. So it ends here
before it ends at the broker. More time is requested while enough is left to try again.

A message that only waits behind one that is in hand for long is not extended with it forever. The
owner of the leases decides this, with the result of `long_in_hand`.

Pushes arrive in the order of their deadlines. Nearly all of them are settled in time and cost a
deque; only those that are held for long are sorted.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final

from tocsin.proto import wire
from tocsin.proto.message import HeldPush, Message, State
from tocsin.proto.wire import offsets_of, ranges_of, split_deliveries

NEVER: Final = float("inf")
MARGIN_S_MAX: Final = 2.0
MARGIN_SHARE: Final = 0.1
"""The share of a lease by which it ends here before it ends at the broker, up to MARGIN_S_MAX
seconds."""
EXTEND_SHARE: Final = 0.5
"""The share of a lease that is left when more time is requested."""


def usable_s(lease_s: float) -> float:
    """Return how long a delivery may be worked on here if the broker grants `lease_s`, in
    seconds."""
    return lease_s - min(MARGIN_S_MAX, MARGIN_SHARE * lease_s)


class Leases:
    """The leases of the held pushes.

    `pushes` are the held pushes, by (partition, epoch, push); the caller adds and removes them.
    `lease_s` is the group's. With `auto_extend`, more time is requested before a lease ends.
    """

    def __init__(
        self, pushes: Mapping[tuple[int, int, int], HeldPush], *, lease_s: float, auto_extend: bool
    ) -> None:
        self._pushes = pushes
        self._auto_extend = auto_extend
        self._deadlines = Deadlines()
        self._late: list[HeldPush] = []  # more time has to be requested
        self._requested: dict[int, tuple[wire.DeliveryList, float]] = {}
        self._in_hand: dict[Message, int] = {}
        """The number of times that more time was requested for a message while it was in hand."""
        self.begin(lease_s)

    def begin(self, lease_s: float) -> None:
        """Assume leases of this duration, in seconds, from now on."""
        self.usable_s = usable_s(lease_s)
        self.lead_s = EXTEND_SHARE * self.usable_s
        """The time before the end of a lease at which more is requested, in seconds."""
        self.restart()

    def restart(self) -> None:
        """Forget the requests for more time that are under way, and schedule such requests for all
        held pushes anew."""
        self._late.clear()
        self._requested.clear()
        for held in self._pushes.values():
            self._set_times(held)
        self._deadlines.reset(self._pushes.values())

    def times(self, *, now: float) -> tuple[float, float]:
        """Return (deadline, extend_at) of a push that is received now. Without `auto_extend`,
        extend_at is infinity."""
        until = now + self.usable_s
        return until, until - self.lead_s if self._auto_extend else NEVER

    def on_push(self, held: HeldPush) -> None:
        """Add a held push that has its `times`."""
        self._deadlines.append(held)

    def on_extension(self, message: Message, *, until: float) -> None:
        """Set the deadline of a message to `until`."""
        message.deadline = until
        self._set_times(message.held)
        self._deadlines.put(message.held)

    def expire(self, *, now: float) -> list[Message]:
        """Return the held messages whose lease is over. Also notes the pushes for which
        `request_extensions` has to request more time."""
        over: list[Message] = []
        for held in self._deadlines.take(now=now):
            if held.deadline <= now:
                over += [m for m in held.held_messages() if m.deadline <= now]
                held.deadline = min(
                    (m.deadline for m in held.held_messages() if m.deadline > now), default=NEVER
                )
            if held.extend_at <= now:
                self._late.append(held)
                held.extend_at = NEVER
            self._deadlines.put(held)
        return over

    def next_deadline(self) -> float | None:
        """Return when to call `expire`, if nothing else happens before; None if nothing is held."""
        return self._deadlines.next()

    def long_in_hand(self) -> list[Message]:
        """Return the messages in hand for which more time became due at least twice while they were
        in hand."""
        self._in_hand = {
            message: times
            for message, times in self._in_hand.items()
            if message.state is State.HANDED
        }
        return [message for message, times in self._in_hand.items() if times > 1]

    def request_extensions(
        self,
        refs: Iterator[int],
        subscription: int,
        far: Callable[[], Set[Message]],
        *,
        now: float,
    ) -> list[wire.Extend]:
        """Return the frames that request more time for all due messages that are not `far` from
        their turn.

        `far` returns the messages that are not extended. `on_answer` and `on_failure` handle the
        answers.
        """
        if not self._late:
            return []
        late, self._late = self._late, []
        soon = now + self.lead_s
        rows = []
        for message in (
            m for held in late for m in held.held_messages() if m.state is State.HANDED
        ):
            if message.deadline <= soon:
                self._in_hand[message] = self._in_hand.get(message, 0) + 1
        without = far()
        for held in late:
            due = [message for message in held.held_messages() if message.deadline <= soon]
            offsets = [message.offset for message in due if message not in without]
            if offsets:
                rows.append([*held.place, *ranges_of(offsets)])
            elif due:
                held.extend_at = now + self.lead_s / 2  # its turn may be nearer by then
                self._deadlines.put(held)
        frames = []
        for part in split_deliveries(rows):
            ref = next(refs)
            self._requested[ref] = part, now
            frames.append(wire.Extend(subscription=subscription, deliveries=part, ref=ref))
        return frames

    def on_answer(self, ref: int, refused: wire.DeliveryList) -> None:
        """Extend the leases for which the request `ref` requested more time, except the refused
        ones.

        A refused delivery ends with its lease, and is not requested again.
        """
        part, asked_at = self._requested.pop(ref, ([], 0.0))
        until = asked_at + self.usable_s
        gone = {(*row[:3], offset) for row in refused for offset in offsets_of(row)}
        for row in part:
            held = self._pushes.get((row[0], row[1], row[2]))
            if held is None:
                continue
            named = {offset for offset in offsets_of(row) if (*held.place, offset) not in gone}
            granted = [m for m in held.held_messages() if m.offset in named]
            for message in granted:
                message.deadline = max(message.deadline, until)
            held.deadline = min((m.deadline for m in held.held_messages()), default=NEVER)
            held.extend_at = NEVER
            if granted:
                again_at = min(m.deadline for m in granted) - self.lead_s
                held.extend_at = max(again_at, asked_at + self.lead_s / 2)
            self._deadlines.put(held)

    def on_failure(self, ref: int) -> None:
        """Leave the leases as they are, and request more time again later, because the broker
        answered the request `ref` with an error."""
        part, asked_at = self._requested.pop(ref, ([], 0.0))
        for row in part:
            held = self._pushes.get((row[0], row[1], row[2]))
            if held is not None:
                held.extend_at = asked_at + self.lead_s / 2
                self._deadlines.put(held)

    def _set_times(self, held: HeldPush) -> None:
        held.deadline = min((m.deadline for m in held.held_messages()), default=NEVER)
        held.extend_at = held.deadline - self.lead_s if self._auto_extend else NEVER


class Deadlines:
    """The held pushes by the time at which something is due: a request for more time, or the end of
    a lease.

    A push whose times change is put in once more. Entries with an earlier time of it, and entries
    of settled pushes, are skipped.
    """

    def __init__(self) -> None:
        self._fresh: deque[tuple[float, HeldPush]] = deque()  # in order
        self._others: list[tuple[float, int, HeldPush]] = []
        self._numbers = itertools.count()

    def append(self, held: HeldPush) -> None:
        """Add a new push, which is due after all those that `append` has added before."""
        self._fresh.append((held.due, held))

    def put(self, held: HeldPush) -> None:
        """Add a push again, because its times have changed."""
        heapq.heappush(self._others, (held.due, next(self._numbers), held))

    def reset(self, pushes: Iterable[HeldPush]) -> None:
        """Replace all entries by these pushes."""
        self._fresh.clear()
        self._others = [(held.due, next(self._numbers), held) for held in pushes]
        heapq.heapify(self._others)

    def take(self, *, now: float) -> list[HeldPush]:
        """Take out the pushes that are due; the caller puts each back when done."""
        fresh, others = self._fresh, self._others
        due: list[HeldPush] = []
        while fresh and (not fresh[0][1].left or fresh[0][0] <= now):
            when, held = fresh.popleft()
            if held.left and when == held.due:  # otherwise it was put again since
                due.append(held)
        while others and (not others[0][2].left or others[0][0] <= now):
            when, _, held = heapq.heappop(others)
            if held.left and when == held.due:
                due.append(held)
        return due

    def next(self) -> float | None:
        """Return when a push will be due; None if nothing is held."""
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

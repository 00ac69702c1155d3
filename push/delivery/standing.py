"""Where a message stands for a group, seen from its owner: for looking at, decides nothing."""

from typing import Literal

from push.delivery.delivery import Delivery
from push.delivery.leases import offsets_of
from push.delivery.lines import loose
from push.ports import Standing

State = Literal["ready", "in_flight", "waiting", "parked", "dying", "settled"]
"""`waiting`: for its retry, or behind an earlier message of its key. `dying`: on its way to the
dead letters. `ready`: nothing of its own holds it up."""


class Standings:
    """What an owner's memory adds to what is durable, as it was when this was made: before what is
    durable was read. A message that was set aside meanwhile is known from both, not from neither.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._waiting = delivery.waiting
        self._frontier = delivery.frontier
        self._in_flight = {
            offset
            for push in delivery.leases.pushes.values()
            for offset in offsets_of(push.open, push.first)
        }
        self._left = {
            offset for push in delivery.leases.left for offset in offsets_of(push.open, push.first)
        }
        self._in_line = set(self._waiting.pending.going_aside())
        for line in self._waiting.lines.by_key.values():
            self._in_line.update(line.waiting, line.leaving)

    def of(self, offset: int, key_hash: int, stored: Standing) -> tuple[State, int]:
        """(state, counted attempts) of a message. `key_hash` 0: it has no key; `stored`: where it
        stood afterwards, durably."""
        adopted = offset in self._in_flight or offset in self._waiting.returned
        if stored.state == "settled" or (offset >= self._frontier and not adopted):
            return stored.state, stored.attempts
        attempts = self._waiting.attempts.get(offset, stored.attempts)
        if offset in self._in_flight:
            return "in_flight", attempts
        if self._waiting.is_dead(offset):
            return "dying", attempts
        line = self._waiting.lines.by_key.get(key_hash or loose(offset))
        if offset in self._in_line or (line is not None and stored.state != "ready"):
            return ("parked" if line is not None and line.parked else "waiting"), attempts
        if offset in self._left:
            return "ready", attempts
        return "settled", 0  # and on its way to the storage

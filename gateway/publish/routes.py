"""Routes: where the messages of a queue go, and how many of them wait."""

from typing import Final

from gateway.counters import HitRate, PublishCounters
from metadata.catalog import Queue
from push.places import Partition
from push.ring import Ring, hasher

ROUTES_MAX: Final = 100_000
"""Largest number of keys of one queue whose hash and partition are remembered."""
ROUTES_IN_ALL_MAX: Final = 1_000_000
"""Largest number of keys of all queues together whose hash and partition are remembered, some 200
MB."""
LEFT_OUT_MAX: Final = 5 * ROUTES_MAX
"""Number of look-ups of keys that were not remembered for want of room, after which a queue forgets
all its keys and begins anew."""
SPREAD_RUN: Final = 256
"""Number of consecutive sequences whose messages, if they have no key and no id, go to one
partition, because few large records are cheaper than many small ones."""


class Backlog:
    """The number of messages whose commit has not ended, and their size as JSON: those of one
    queue, of one lane or of all queues."""

    __slots__ = ("bytes", "messages", "waiting")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting = 0
        """Number of those of a lane that no commit has taken yet."""


class KeyCount:
    """The number of keys that all routes of a gateway remember together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Route:
    """The routing of one queue: its ring, the places of keys that were looked up, and the number of
    its messages that wait."""

    __slots__ = (
        "_key_count",
        "_left_out",
        "_misses",
        "counters",
        "hash",
        "hit_rate",
        "keys",
        "partitions",
        "pending",
        "queue",
        "ring",
        "spread",
        "spread_members",
    )

    def __init__(
        self,
        queue: Queue,
        counters: PublishCounters | None = None,
        hit_rate: HitRate | None = None,
        key_count: KeyCount | None = None,
    ) -> None:
        self.hit_rate = hit_rate or HitRate()
        """Rate of look-ups in which a key's place was remembered; all queues share it."""
        self.queue = queue
        self.counters = counters or PublishCounters()
        self.pending = Backlog()
        """Messages of this queue whose commit has not ended."""
        self.ring = Ring(queue.ring_epoch, queue.members)
        self.hash = hasher(queue.hash_key)
        self.keys: dict[str, tuple[int, int]] = {}
        self._key_count = key_count or KeyCount()
        self._misses = 0
        """Misses that `hit_rate` does not have yet."""
        self._left_out = 0
        """Number of look-ups whose key was not remembered for want of room, since the last
        `forget`."""
        self.partitions = {n: Partition(queue.queue_id, n) for n in queue.members}
        self.spread_members = queue.members
        self.spread = 0

    def place(self, key: str) -> tuple[int, int]:
        """Return (partition, hash) of a key."""
        place = self.keys.get(key)
        if place is None:
            self._misses += 1
            hashed = self.hash(key)
            place = (self.ring.partition(hashed), hashed)
            self._remember(key, place)
        return place

    def _remember(self, key: str, place: tuple[int, int]) -> None:
        """Remember a key if there is room. If there is none, exchanging keys one by one costs more
        than it saves. After LEFT_OUT_MAX such look-ups the route begins anew, because the first
        keys are not wanted for ever."""
        if len(self.keys) < ROUTES_MAX and self._key_count.count < ROUTES_IN_ALL_MAX:
            self.keys[key] = place
            self._key_count.count += 1
        elif self._left_out < LEFT_OUT_MAX:
            self._left_out += 1
        else:
            self.forget()

    def forget(self) -> None:
        """Forget all keys of this queue."""
        self._key_count.count -= len(self.keys)
        self._left_out = 0
        self.keys.clear()

    def count_lookups(self, count: int) -> None:
        """Add `count` look-ups of keys, all since the last call, to `hit_rate`."""
        misses, self._misses = self._misses, 0
        self.hit_rate.hits += count - misses
        self.hit_rate.misses += misses

    def spread_place(self) -> int:
        """Return the partition for all messages of a publish that have no key, id or sequence; the
        next publish gets the next partition. Few large records are cheaper than many small ones."""
        self.spread = (self.spread + 1) % len(self.spread_members)
        return self.spread_members[self.spread]

    # enforces: P4
    def id_place(self, message_id: str) -> int:
        """Return the partition of a message without a key, by its id. Sent again, it goes to the
        partition that remembers it, whatever was sent in between (P4)."""
        return self.ring.partition(self.hash(message_id))

    def sequence_place(self, producer: bytes, sequence: int) -> int:
        """Return the partition of a message without key and id, by its sequence."""
        return self.spread_members[
            (sequence // SPREAD_RUN + producer[0]) % len(self.spread_members)
        ]

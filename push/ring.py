"""The ring: key → partition, by consistent hashing.

A pure function of its sorted member set: a restart, another gateway or a later release computes the
same ring, so a key stays on its partition. A ring is never mutated in place. Another member set is
another `Ring` under a higher epoch. Only keys that go to a new member, or come from one that left,
are elsewhere on it.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple

HASH_KEY_BYTES: Final = 16
_POINTS_PER_DIGEST: Final = 8
_DIGESTS_PER_MEMBER: Final = 32
"""256 points a member: the largest of 16 partitions gets about an eighth more than its share. A
change of this number, or of anything below, moves keys and breaks their order: the golden values
of the tests stand for that."""
_POINTS: Final = struct.Struct("<8Q")
_PLACE: Final = struct.Struct("<II")
_PERSON: Final = b"tocsin.ring.1"
MEMBER_MAX: Final = (1 << 20) - 1
"""Largest member. A point is 44 bits of hash above 20 bits of the member that owns it. So one
sorted array of integers is the whole ring, and two members on one hash have an order."""


def key_hash(key: str, hash_key: bytes) -> int:
    """Return the 64-bit hash that routes and gates a key; never 0, which stands for "no key".

    `hash_key` is the queue's secret of 16 bytes: without it no client can choose keys that all go
    to one partition, or that collide.
    """
    return hasher(hash_key)(key)


def hasher(hash_key: bytes) -> Callable[[str], int]:
    """Return `key_hash` under this hash key, for many keys: the part that depends on the secret
    alone is computed once."""
    begun = blake2b(digest_size=8, key=hash_key)

    def hashed(key: str) -> int:
        state = begun.copy()
        state.update(key.encode())
        return int.from_bytes(state.digest(), "little") or 1

    return hashed


class _Layout(NamedTuple):
    points: Sequence[int]
    """Points of the circle, in order. The last one belongs to the owner of the first and closes the
    circle."""
    starts: Sequence[int]
    """The index of the first point that is not before each of equal parts of the circle; then that
    of the last point. There are about as many parts as points."""
    shift: int
    """Number of low bits of a hash that do not say in which part it is."""


@dataclass(frozen=True, slots=True)
class Ring:
    """Version of the ring. Equal epochs and members are equal rings.

    Args:
        epoch: The version; grows with every change of the member set.
        members: Partition numbers from 0 to MEMBER_MAX, strictly ascending, at least one;
            anything else raises ValueError.
    """

    epoch: int
    members: tuple[int, ...]
    _layout: _Layout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        members = self.members
        if (
            not members
            or members[0] < 0
            or members[-1] > MEMBER_MAX
            or any(a >= b for a, b in pairwise(members))
        ):
            raise ValueError(f"members of a ring are ascending and at least one: {members}")
        object.__setattr__(self, "_layout", _laid_out(members))

    # enforces: P3
    def partition(self, key_hash: int) -> int:
        """Return the partition of a key's hash (`key_hash()`), which is the owner of the next
        point, clockwise."""
        points, starts, shift = self._layout
        part = key_hash >> shift
        place = bisect_left(points, key_hash & ~MEMBER_MAX, starts[part], starts[part + 1])
        return points[place] & MEMBER_MAX


@lru_cache(maxsize=64)
def _laid_out(members: tuple[int, ...]) -> _Layout:
    """Return the points of a ring, and an index into them.

    Shared by the rings of all queues with these members, and arrays, because 1,024 members have
    262,144 points: 3 MiB, and some 200 ms when they are first needed.
    """
    points = [
        point & ~MEMBER_MAX | member
        for member in members
        for number in range(_DIGESTS_PER_MEMBER)
        for point in _POINTS.unpack(
            blake2b(_PLACE.pack(member, number), digest_size=64, person=_PERSON).digest()
        )
    ]
    points.sort()
    points.append((1 << 64) - 1 & ~MEMBER_MAX | points[0] & MEMBER_MAX)
    parts = 1 << (len(points) - 1).bit_length()
    shift = 65 - parts.bit_length()
    starts = [bisect_left(points, part << shift) for part in range(parts)]
    return _Layout(array("Q", points), array("I", [*starts, len(points) - 1]), shift)

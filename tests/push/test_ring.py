"""The ring: the same everywhere and for ever, balanced, and quiet when members change."""

from bisect import bisect_left
from collections import Counter
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from push.ring import MEMBER_MAX, Ring, key_hash
from tests.examples import examples

HASH_KEY = b"0123456789abcdef"
SPREAD = [blake2b(bytes([i % 256, i // 256]), digest_size=8).digest() for i in range(4096)]
HASHES = [int.from_bytes(digest, "little") for digest in SPREAD]
EDGES = [0, 1, MEMBER_MAX, MEMBER_MAX + 1, (1 << 63), (1 << 64) - 1, ((1 << 64) - 1) & ~MEMBER_MAX]

members = st.sets(st.integers(0, 40), min_size=1, max_size=12).map(lambda s: tuple(sorted(s)))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0x2AA869B6EF45DE45),
        ("user-7", 0xF1EF2D528F5BCF69),
        ("Schlüssel", 0x5CA1ABD3CC93D9BB),
        ("k" * 1024, 0x5F8233B1E1C9A63A),
    ],
)
def test_a_key_hashes_the_same_in_every_release(key: str, expected: int) -> None:
    assert key_hash(key, HASH_KEY) == expected


def test_a_key_stays_on_its_partition_in_every_release() -> None:
    """Golden values: where they change, a release moves keys and breaks their order (P3)."""
    hashes = [key_hash(f"user-{number}", HASH_KEY) for number in range(40)]
    assert [Ring(1, tuple(range(16))).partition(value) for value in hashes] == [
        15, 10, 0, 5, 4, 15, 13, 5, 6, 8, 12, 1, 2, 3, 6, 8, 6, 12, 14, 15,
        7, 12, 2, 11, 2, 5, 8, 8, 11, 6, 9, 7, 5, 15, 8, 8, 6, 5, 8, 11,
    ]  # fmt: skip
    assert [Ring(1, (3, 7, 900, 1023)).partition(value) for value in hashes] == [
        3, 900, 3, 3, 3, 7, 7, 7, 1023, 900, 900, 3, 7, 3, 7, 1023, 7, 7, 7, 3,
        7, 7, 1023, 1023, 900, 900, 900, 1023, 900, 7, 3, 7, 3, 7, 900, 1023, 900, 7, 7, 7,
    ]  # fmt: skip
    ring = Ring(1, tuple(range(64)))
    whole = b"".join(ring.partition(i << 48).to_bytes(2, "little") for i in range(65536))
    assert blake2b(whole, digest_size=8).hexdigest() == "efae5b6a28742648"


@given(members, st.one_of(st.integers(0, (1 << 64) - 1), st.sampled_from(EDGES)))
def test_a_hash_goes_to_the_owner_of_the_next_point(some: tuple[int, ...], value: int) -> None:
    """As whoever looks at all points finds it, around the circle."""
    ring = Ring(1, some)
    (*points, closing) = ring._layout.points
    found = next((point for point in points if point >= value & ~MEMBER_MAX), points[0])
    assert ring.partition(value) == found & MEMBER_MAX == ring.partition(value | MEMBER_MAX)
    assert closing & MEMBER_MAX == points[0] & MEMBER_MAX


@pytest.mark.parametrize("count", [1, 3, 16, 1024])
def test_next_to_every_point_the_next_one_is_found(count: int) -> None:
    ring = Ring(1, tuple(range(count)))
    (*points, _) = ring._layout.points
    for before, point in zip([points[-1], *points], points, strict=False):
        here = point & ~MEMBER_MAX
        assert ring.partition(here) == next_owner(points, here)
        if here > MEMBER_MAX and before & ~MEMBER_MAX != here - MEMBER_MAX - 1:
            assert ring.partition(here - 1) == point & MEMBER_MAX


def next_owner(points: list[int], value: int) -> int:
    """Of those on one hash, the first."""
    return points[bisect_left(points, value)] & MEMBER_MAX


def test_the_hash_key_decides_where_a_key_goes() -> None:
    """Who does not know it cannot aim keys at one partition."""
    assert key_hash("user-7", HASH_KEY) != key_hash("user-7", bytes(16))


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 64, 128])
def test_partitions_get_balanced_shares(count: int) -> None:
    ring = Ring(1, tuple(range(count)))
    shares = Counter(ring.partition(place << 48) for place in range(1 << 16))
    mean = (1 << 16) / count
    assert max(shares.values()) < 1.25 * mean
    assert min(shares[member] for member in ring.members) > 0.75 * mean


@pytest.mark.parametrize("value", EDGES)
def test_every_hash_has_a_partition(value: int) -> None:
    for ring in (Ring(1, (0,)), Ring(1, (MEMBER_MAX,)), Ring(1, (0, 5, MEMBER_MAX))):
        assert ring.partition(value) in ring.members


@pytest.mark.parametrize("wrong", [(), (1, 0), (1, 1), (-1, 0), (0, MEMBER_MAX + 1)])
def test_a_member_set_is_ascending_and_not_empty(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        Ring(1, wrong)


@settings(max_examples=examples(1000))
@given(members, st.integers(0, 40), st.sampled_from([*HASHES[:64], *EDGES]))
def test_a_new_member_only_takes_keys(old: tuple[int, ...], new: int, value: int) -> None:
    before = Ring(1, old).partition(value)
    after = Ring(2, tuple(sorted({*old, new}))).partition(value)
    assert after in (before, new)


@settings(max_examples=examples(1000))
@given(members, st.data())
def test_a_leaving_member_only_gives_its_own_keys(
    old: tuple[int, ...], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(old))
    left = tuple(member for member in old if member != gone)
    if not left:
        return
    before, after = Ring(1, old), Ring(2, left)
    for value in HASHES[:256]:
        if before.partition(value) != gone:
            assert after.partition(value) == before.partition(value)


@settings(max_examples=100)
@given(members, st.lists(st.integers(0, 40), max_size=10))
def test_the_way_to_a_member_set_does_not_matter(
    start: tuple[int, ...], toggles: list[int]
) -> None:
    """Any sequence of joins and leaves ends in the ring that a rebuild of its members gives: keys
    tracked change by change are where the rebuilt ring has them."""
    ring = Ring(1, start)
    place = {value: ring.partition(value) for value in HASHES[:128]}
    for member in toggles:
        now = set(ring.members) ^ {member}
        if not now:
            continue
        ring = Ring(ring.epoch + 1, tuple(sorted(now)))
        for value, at in place.items():
            if at == member or ring.partition(value) == member:
                place[value] = ring.partition(value)
    rebuilt = Ring(ring.epoch, tuple(sorted(ring.members)))
    assert rebuilt == ring
    assert place == {value: rebuilt.partition(value) for value in place}


def test_a_ring_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        Ring(1, (0, 1)).members = (0,)  # type: ignore[misc]

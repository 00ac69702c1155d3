"""Where a key goes is remembered, of a bounded number of keys, and is the same when it is not."""

import pytest

from gateway.counters import HitRate
from gateway.publish import batch as routing
from gateway.publish.batch import KeyCount, Route
from metadata.catalog import Queue, QueueSettings
from push.ring import Ring, key_hash

HASH_KEY = bytes(range(16))
KEYS_MAX = 8


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "ROUTES_MAX", KEYS_MAX)
    monkeypatch.setattr(routing, "ROUTES_IN_ALL_MAX", 2 * KEYS_MAX)
    monkeypatch.setattr(routing, "LEFT_OUT_MAX", 3 * KEYS_MAX)


def queue(name: str = "q") -> Queue:
    return Queue(
        queue_id=name, name=name, tenant="default", holder="h", created_unix_ms=0,
        settings=QueueSettings(partitions=4), ring_epoch=1, members=(0, 1, 2, 3), hash_key=HASH_KEY,
    )  # fmt: skip


def asked(route: Route, keys: range) -> None:
    """For the place of each; it is the right one."""
    ring = Ring(1, (0, 1, 2, 3))
    for number in keys:
        hashed = key_hash(f"k{number}", HASH_KEY)
        assert route.place(f"k{number}") == (ring.partition(hashed), hashed)


def test_the_number_of_remembered_keys_is_bounded() -> None:
    remembered = KeyCount()
    route = Route(queue(), key_count=remembered)
    asked(route, range(KEYS_MAX))
    assert set(route.keys) == {f"k{number}" for number in range(KEYS_MAX)}
    asked(route, range(KEYS_MAX, 4 * KEYS_MAX))
    assert set(route.keys) == {f"k{number}" for number in range(KEYS_MAX)}
    assert remembered.count == KEYS_MAX


def test_keys_that_nobody_sends_any_more_make_room_after_a_while() -> None:
    route = Route(queue(), key_count=KeyCount())
    asked(route, range(4 * KEYS_MAX))
    asked(route, range(100, 101))
    assert not route.keys
    asked(route, range(100, 103))
    assert set(route.keys) == {"k100", "k101", "k102"}


def test_all_queues_have_one_room_together_and_give_back_what_they_had() -> None:
    remembered = KeyCount()
    routes = [Route(queue(f"q{number}"), key_count=remembered) for number in range(3)]
    for route in routes:
        asked(route, range(KEYS_MAX))
    assert [len(route.keys) for route in routes] == [KEYS_MAX, KEYS_MAX, 0]
    routes[0].forget()
    assert remembered.count == KEYS_MAX
    asked(routes[2], range(KEYS_MAX))
    assert len(routes[2].keys) == KEYS_MAX


def test_what_is_answered_from_memory_counts_as_that() -> None:
    places = HitRate()
    route = Route(queue(), hit_rate=places)
    for _ in range(3):
        for number in range(KEYS_MAX):
            route.place(f"k{number}")
        route.count_lookups(KEYS_MAX)
    assert (places.hits, places.misses) == (2 * KEYS_MAX, KEYS_MAX)

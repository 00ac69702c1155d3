"""Histories of the lists of keys that wait and of deliveries in flight."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.models import HeldKey, HeldPlace, Lease, Place
from metadata.catalog import Group, Queue
from push import limits
from push.errors import Refused
from push.ring import key_hash
from tests.histories.house import House, delivery, eventually, message


async def held(house: House, queue: Queue, group: Group) -> dict[str | None, HeldKey]:
    """Return every key that waits, by its text."""
    found = await house.broker.waiting_keys.list_keys(queue, group, 1000, None)
    assert (found.next, found.left_out) == (None, 0)
    keys = [(key.partition, key.key_hash) for key in found.keys]
    assert keys == sorted(set(keys))
    for key in found.keys:
        assert key.key is None or key.key_hash == f"{key_hash(key.key, queue.hash_key):016x}"
    return {key.key: key for key in found.keys}


async def leases(house: House, queue: Queue, group: Group) -> list[Lease]:
    """Return everything that is in flight."""
    found = await house.broker.waiting_keys.list_leases(queue, group, 1000, None)
    assert found.next is None
    return found.leases


async def gone(house: House, group: Group) -> None:
    """Wait until no consumer owns a partition of the group here."""
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)


async def test_keys_that_wait_are_listed_with_their_reasons(house: House) -> None:
    """Keys are listed while a consumer owns the partition, and then from the durable state."""
    queue = await house.queue(
        partitions=3, on_exhausted="park", attempts_max=2, backoff_s=60, backoff_max_s=60
    )
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    keys = ["backs off", "parked", "flows"]
    await house.publish(queue, [message(n, keys[n % 3]) for n in range(6)])
    await house.publish(queue, [message("loose", None)])
    await session.take(7)
    assert await held(house, queue, group) == {}

    def place(body: object) -> Any:
        return [where for where, told, _ in session.given if told == body][-1]

    due_unix_ms = time.time() * 1000 + 60_000
    consumer.nack(delivery(place(0)), 60, None)
    consumer.nack(delivery(place("loose")), 60, None)
    consumer.nack(delivery(place(1)), 0, None)
    await session.take(8)  # the second attempt
    assert session.given[-1][1:] == (1, 2)
    consumer.nack(delivery(place(1)), 0, None)
    await house.broker.cursor_writer.drain()
    found = await held(house, queue, group)
    assert set(found) == {"backs off", "parked", None}
    one = found["backs off"]
    assert (one.reason, one.messages, one.attempts, one.in_flight, one.offset) == (
        "backoff", 2, 1, 0, place(0)[3],
    )  # fmt: skip
    assert abs((one.until_unix_ms or 0) - due_unix_ms) < 5_000
    parked = found["parked"]
    assert (parked.reason, parked.messages, parked.attempts, parked.offset) == (
        "parked", 2, 2, place(1)[3],
    )  # fmt: skip
    assert parked.since_unix_ms is not None
    assert (found[None].reason, found[None].messages) == ("backoff", 1)
    consumer.leave()
    await gone(house, group)
    rest = await held(house, queue, group)
    assert set(rest) == {"backs off", "parked", None}
    assert rest["parked"] == parked
    kept = rest["backs off"]
    assert (kept.reason, kept.attempts, kept.offset, kept.key_hash) == (
        "backoff", 1, one.offset, one.key_hash,
    )  # fmt: skip
    assert abs((kept.until_unix_ms or 0) - (one.until_unix_ms or 0)) < 5_000
    assert rest[None].key_hash == found[None].key_hash


async def test_what_stands_behind_a_pull_says_behind_what(house: House) -> None:
    """R24."""
    queue = await house.queue()
    group = await house.group(queue)
    await house.publish(queue, [message(0, "a"), message(1, "a"), message(2, "a")])
    await house.broker.pulls.pull(queue, group, 1, 1)
    await house.broker.pulls.pull(queue, group, 1, 0)  # comes across the others
    one = (await held(house, queue, group))["a"]
    (lease,) = await leases(house, queue, group)
    assert (one.reason, one.messages, one.offset, one.in_flight, one.behind_offset) == (
        "behind", 2, 1, 1, 0,
    )  # fmt: skip
    assert abs((one.until_unix_ms or 0) - lease.lease_until_unix_ms) <= 2
    assert (lease.consumer, lease.offset, lease.key, lease.attempt) == ("pulls", 0, "a", 1)


async def test_lists_of_keys_go_on_where_they_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: The bounds are the count, and the reads of the keys' texts."""
    queue = await house.queue(partitions=3, backoff_s=60, backoff_max_s=60)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    for number in range(12):
        await house.publish(queue, [message(number, f"k{number}")])
    for where, _, _ in await session.take(12):
        consumer.nack(delivery(where), 60, None)
    every = sorted(
        (key.partition, key.key_hash) for key in (await held(house, queue, group)).values()
    )
    assert len(every) == 12

    async def pages(limit: int) -> list[int]:
        after: HeldPlace | None = None
        told: list[tuple[int, str]] = []
        sizes: list[int] = []
        while True:
            page = await house.broker.waiting_keys.list_keys(queue, group, limit, after)
            told += [(key.partition, key.key_hash) for key in page.keys]
            assert all(key.key is not None for key in page.keys)
            sizes.append(len(page.keys))
            if page.next is None:
                assert told == every
                return sizes
            after = HeldPlace.parse(page.next)

    assert await pages(5) == [5, 5, 2]
    assert await pages(12) == [12]
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 1500)
    assert max(await pages(12)) < 12
    monkeypatch.undo()
    consumer.leave()
    await gone(house, group)
    assert await pages(5) == [5, 5, 2]


def assert_alike(found: Sequence[Lease], listed: Sequence[Lease]) -> None:
    """Check that both are the same. A wall time made of the loop's may differ by a few
    milliseconds."""
    for one, other in zip(found, listed, strict=True):
        assert abs(one.given_unix_ms - other.given_unix_ms) <= 2
        assert abs(one.lease_until_unix_ms - other.lease_until_unix_ms) <= 2
        assert one == msgspec.structs.replace(
            other,
            given_unix_ms=one.given_unix_ms,
            lease_until_unix_ms=one.lease_until_unix_ms,
        )


async def test_what_is_in_flight_is_listed_with_its_leases(house: House) -> None:
    queue = await house.queue(partitions=2)
    group = await house.group(queue, lease_s=20)
    assert await leases(house, queue, group) == []
    session, consumer = await house.subscribe(queue, group)
    given_unix_ms = time.time() * 1000
    await house.publish(queue, [message(n, f"k{n}") for n in range(10)])
    await session.take(10)
    listed = await leases(house, queue, group)
    assert [(one.partition, one.epoch, one.push, one.offset) for one in listed] == sorted(
        (where[0], where[1], where[2], where[3]) for where, _, _ in session.given
    )
    bodies = {(where[0], where[3]): body for where, body, _ in session.given}
    for one in listed:
        assert one.key == f"k{bodies[one.partition, one.offset]}"
        assert (one.consumer, one.attempt) == (consumer.name, 1)
        assert abs(one.given_unix_ms - given_unix_ms) < 5_000
        assert abs(one.lease_until_unix_ms - one.given_unix_ms - 20_000) <= 1
    first = listed[0]
    place = (first.partition, first.epoch, first.push, first.offset)
    consumer.extend(delivery(place), [], 60)
    longer = (await leases(house, queue, group))[0]
    assert 35_000 < longer.lease_until_unix_ms - first.lease_until_unix_ms < 45_000
    await house.confirm(consumer, delivery(place))
    assert_alike(await leases(house, queue, group), listed[1:])
    page = await house.broker.waiting_keys.list_leases(queue, group, 4, None)
    assert [one.offset for one in page.leases] == [one.offset for one in listed[1:5]]
    assert page.next is not None
    rest = await house.broker.waiting_keys.list_leases(queue, group, 1000, Place.parse(page.next))
    assert_alike([*page.leases, *rest.leases], listed[1:])
    consumer.leave()
    await gone(house, group)
    assert await leases(house, queue, group) == []


@pytest.mark.parametrize(
    "text",
    ["", "4", "4-", "4-00c0ffee", "x-00c0ffee00c0ffee", "4-00C0FFEE00c0ffee", "4-" + "0" * 17],
)
def test_a_place_that_no_answer_named_is_refused(text: str) -> None:
    """P12."""
    with pytest.raises(Refused, match="invalid_request"):
        HeldPlace.parse(text)
    assert str(HeldPlace.parse("4-00c0ffee00c0ffee")) == "4-00c0ffee00c0ffee"

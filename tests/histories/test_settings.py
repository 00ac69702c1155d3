"""Histories of effects on messages when queues and groups are made and changed, over memory, SQLite
and Redis."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.operator.removal import Removed
from gateway.wire.frames import Subscribe
from metadata.catalog import ANYBODY, Group, Queue
from push.errors import Refused
from push.places import CursorPlace, Partition
from push.storage_port import CursorWrite, Written
from tests.histories.house import House, Session, delivery, eventually, message, subscriptions_of
from tests.histories.redis_gateways import Gateway, a_server, emptied
from tests.servers.node import Node

QUEUE = "/v1/queues/orders"
GROUP = f"{QUEUE}/groups/billing"
WEEK_S = 604_800.0


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Server of its own."""
    with a_server() as started:
        yield started


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def house(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[House]:
    """Broker over each storage and catalog."""
    if request.param == "redis":
        opened: House = Gateway(folder, await emptied(request.getfixturevalue("node")))
    else:
        opened = House(folder, request.param)
    await opened.open()
    yield opened
    await opened.stop()


@pytest.fixture
async def http(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    """HTTP interface of the broker."""
    async with house.http() as client:
        yield client


async def made(http: httpx2.AsyncClient, path: str = QUEUE, **settings: Any) -> None:
    """Make a queue or a group with these settings."""
    answer = await http.put(path, json=settings)
    assert answer.status_code == 201, answer.text


async def published(house: House, count: int, key: str = "k") -> Queue:
    """Publish `count` messages, each in a record of its own, which retention deletes whole."""
    for number in range(count):
        (stored,) = await house.publish(house.find(), [message(number, key)])
        assert not isinstance(stored, str), stored
    return house.find()


async def settled(house: House, count: int, *, leaves: bool = True) -> Group:
    """Let the group's consumer settle the first `count` messages, and leave."""
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    given = await session.take(count)
    for place, _, _ in given[:count]:
        await house.confirm(consumer, delivery(place))
    if leaves:
        consumer.leave()
        await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    return group


async def looked(house: House) -> None:
    """Let the janitor look at everything."""
    queue = house.find()
    for _ in range(3):
        house.broker.janitor._touched |= house.broker.janitor._all()
        await house.broker.janitor.look()
    house.broker.queue_stats.on_change(queue.queue_id)


async def older(age_s: float) -> None:
    """Wait until the published messages are older than this age."""
    since = time.time()
    await eventually(lambda: time.time() - since > age_s + 0.002)


async def depth(http: httpx2.AsyncClient, path: str = QUEUE) -> int:
    """Return how many messages are retained."""
    return int((await http.get(path)).json()["depth"])


async def refused(
    http: httpx2.AsyncClient, path: str, settings: dict[str, Any], messages: int, **told: int
) -> None:
    """Check that the change is refused with these numbers, also if one message less is confirmed.
    Then make it, confirmed."""
    before = (await http.get(path)).json()["settings"]
    for query in ({}, {"deletes_max": messages - 1}):
        answer = await http.patch(path, json=settings, params=query)
        assert (answer.status_code, answer.json()["code"]) == (409, "would_delete"), answer.text
        assert {name: answer.json()[name] for name in told} == told
        assert f"{messages:,} messages" in answer.json()["detail"]
        assert (await http.get(path)).json()["settings"] == before
    confirmed = await http.patch(path, json=settings, params={"deletes_max": messages})
    assert confirmed.status_code == 200, confirmed.text
    assert {name: confirmed.json()[name] for name in told} == told
    assert {one["name"] for one in confirmed.json()["changes"]} == set(settings)


# --- Queues made again ----------------------------------------------------------------------------


async def test_making_a_queue_again_at_the_start_of_an_app_deletes_nothing(
    house: House, http: httpx2.AsyncClient
) -> None:
    """P1: This holds with defaults, with the present settings, and with other ones."""
    await made(http, retention_s=WEEK_S, partitions=1, attempts_max=9)
    await made(http, GROUP, lease_s=99)
    await published(house, 10)
    await settled(house, 10)
    await looked(house)
    assert await depth(http) == 10
    kept = (await http.get(QUEUE)).json()["settings"]
    of_group = (await http.get(GROUP)).json()["settings"]
    for _ in range(2):
        same: Sequence[dict[str, object]] = ({}, {"partitions": 1}, {"retention_s": WEEK_S})
        for body in same:
            assert (await http.put(QUEUE, json=body)).json()["created"] is False
        others: Sequence[dict[str, object]] = ({"partitions": 16}, {"retention_s": 0})
        for body in others:
            answer = await http.put(QUEUE, json=body)
            assert (answer.status_code, answer.json()["code"]) == (409, "settings_differ")
        of_groups: Sequence[dict[str, object]] = ({}, {"lease_s": 99}, {"start": "latest"})
        for body in of_groups:
            assert (await http.put(GROUP, json=body)).json()["created"] is False
        answer = await http.put(GROUP, json={"lease_s": 60})
        assert answer.json()["code"] == "settings_differ"
        assert (await http.post(f"{GROUP}/pull", json={})).json() == {"messages": []}
    await looked(house)
    assert await depth(http) == 10
    assert (await http.get(QUEUE)).json()["settings"] == kept
    assert (await http.get(GROUP)).json()["settings"] == of_group


async def test_the_first_dead_letter_finds_the_queue_that_was_made_for_it(
    house: House, http: httpx2.AsyncClient
) -> None:
    """The queue's settings stay, also if it is made while the letter is on its way."""
    await made(http, partitions=1, attempts_max=1)
    await made(http, f"{QUEUE}.dead-letters", retention_s=WEEK_S, partitions=2)
    queue = house.find()
    made_again = await house.broker._dead_letter_queue(queue)
    assert made_again.settings.retention_s == WEEK_S
    again, created = await house.broker.create_queue(
        ANYBODY, "orders.dead-letters", made_again.settings
    )
    assert (again, created) == (made_again, False)


# --- Changes that delete messages -----------------------------------------------------------------


async def test_a_shorter_retention_says_how_many_messages_it_deletes(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Unsettled messages stay. A longer retention, and one that contains everything, need no
    confirmation."""
    await made(http, retention_s=WEEK_S, partitions=1)
    await made(http, GROUP)
    await published(house, 10)
    await settled(house, 7)
    for harmless in (2 * WEEK_S, 3600.0):
        assert (await http.patch(QUEUE, json={"retention_s": harmless})).status_code == 200
    await refused(http, QUEUE, {"retention_s": 0.0}, 7, deleted=7, dead_lettered=0)
    await looked(house)
    assert await depth(http) == 3


async def test_a_retention_for_a_queue_without_groups_says_what_is_older(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Without a retention, and without a group, everything is kept for the first group."""
    await made(http, partitions=2)
    await published(house, 5)
    assert (await http.patch(QUEUE, json={"retention_s": 3600.0})).json()["deleted"] == 0
    assert (await http.patch(QUEUE, json={"retention_s": 0.0})).json()["deleted"] == 0
    await older(0.01)
    await refused(http, QUEUE, {"retention_s": 0.01}, 5, deleted=5, dead_lettered=0)
    await looked(house)
    assert await depth(http) == 0


async def test_a_bound_says_how_many_messages_it_moves_to_the_dead_letters(
    house: House, http: httpx2.AsyncClient
) -> None:
    """The number counts for each group that has more left than the bound. A bound that rejects
    moves nothing."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await made(http, f"{QUEUE}/groups/audit")
    await published(house, 10)
    await settled(house, 2)
    assert (await http.patch(QUEUE, json={"messages_max": 4})).status_code == 200
    await refused(http, QUEUE, {"overflow": "dead_letter"}, 10, deleted=0, dead_lettered=4 + 6)
    assert (await http.patch(QUEUE, json={"messages_max": 5})).status_code == 200


async def two_of_three_nacked(house: House) -> None:
    """Publish three messages. Two of them were tried once, and no consumer is left."""
    for key in "abc":
        await published(house, 1, key)
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    for place, _, _ in (await session.take(3))[:2]:
        consumer.nack(delivery(place), 3600, None)
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    await house.broker.cursor_writer.drain()


async def test_fewer_attempts_say_how_many_messages_they_end(
    house: House, http: httpx2.AsyncClient
) -> None:
    """This holds for a queue's setting and for a group's. Parked messages are not deleted."""
    await made(http, partitions=1, attempts_max=5, backoff_s=3600, backoff_max_s=3600)
    await made(http, GROUP)
    await two_of_three_nacked(house)
    assert (await http.patch(QUEUE, json={"attempts_max": 2})).status_code == 200
    parks = {"attempts_max": 1, "on_exhausted": "park"}
    assert (await http.patch(GROUP, json=parks)).status_code == 200
    undone = {"attempts_max": None, "on_exhausted": None}
    assert (await http.patch(GROUP, json=undone)).status_code == 200
    await refused(http, GROUP, {"attempts_max": 1}, 2, deleted=0, dead_lettered=2)
    assert (await http.patch(GROUP, json={"attempts_max": 5})).status_code == 200
    assert (await http.patch(QUEUE, json={"attempts_max": 1})).status_code == 200
    assert (await http.patch(QUEUE, json={"attempts_max": 2})).status_code == 200
    await refused(http, GROUP, {"attempts_max": 1}, 2, deleted=0, dead_lettered=2)


async def test_what_was_to_park_and_is_to_die_says_how_many_messages(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Fewer attempts and parking come in one step, and then parking ends in another one. [In two
    steps it deletes what in one it refuses to.]"""
    await made(http, partitions=1, attempts_max=5, backoff_s=0)
    await made(http, GROUP)
    await two_of_three_nacked(house)
    for what in (QUEUE, GROUP):
        parks = {"attempts_max": 1, "on_exhausted": "park"}
        assert (await http.patch(what, json=parks)).status_code == 200
        await refused(http, what, {"on_exhausted": "dead_letter"}, 2, deleted=0, dead_lettered=2)


async def test_what_is_parked_is_not_counted_where_nothing_parks_any_more(
    house: House, http: httpx2.AsyncClient
) -> None:
    """The key stays parked until an operator decides."""
    await made(http, partitions=1, attempts_max=1, on_exhausted="park")
    await made(http, GROUP)
    await published(house, 1, "a")
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    consumer.nack(delivery((await session.take(1))[0][0]), 0, None)
    await house.broker.cursor_writer.drain()
    assert (await house.broker.parking.list_keys(queue, group, 9)).keys_parked == 1
    for what in (QUEUE, GROUP):
        assert (await http.patch(what, json={"on_exhausted": "dead_letter"})).status_code == 200
    assert (await house.broker.parking.list_keys(queue, group, 9)).keys_parked == 1


async def test_fewer_attempts_count_one_that_is_under_way(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Of two messages in flight, the number counts the one that was tried before."""
    await made(http, partitions=1, attempts_max=5, backoff_s=0)
    await made(http, GROUP)
    for key in "ab":
        await published(house, 1, key)
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    first = (await session.take(2))[0][0]
    consumer.nack(delivery(first), 0, None)
    await session.take(3)
    await house.broker.cursor_writer.drain()
    await refused(http, GROUP, {"attempts_max": 2}, 1, deleted=0, dead_lettered=1)


async def test_a_group_that_is_to_expire_says_what_goes_with_it(
    house: House, http: httpx2.AsyncClient
) -> None:
    """This holds without a consumer. With one the group does not expire. Messages that no other
    group needs are deleted. The last group leaves its messages to the next one."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await published(house, 4)
    group = await settled(house, 1)
    assert (await http.patch(GROUP, json={"expires_s": 80})).json()["deleted"] == 0
    await made(http, f"{QUEUE}/groups/audit", start="latest")
    session, consumer = await house.subscribe(house.find(), group)
    await session.take(3)
    assert (await http.patch(GROUP, json={"expires_s": 60})).status_code == 200
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    assert (await http.patch(GROUP, json={"expires_s": 70})).status_code == 200
    await refused(http, GROUP, {"expires_s": 30.0}, 3, deleted=3, dead_lettered=0)


# --- Messages of one group alone ------------------------------------------------------------------


async def told(
    house: House, http: httpx2.AsyncClient, ask: Callable[[int], Awaitable[httpx2.Response]],
    messages: int, *, keeps: int,
) -> httpx2.Response:  # fmt: skip
    """Check that the act is refused with this number, also if one message less is allowed, and that
    nothing is deleted. Then allow it, and check that `keeps` stay. Return its answer."""
    await house.broker.cursor_writer.drain()
    await looked(house)
    before = await depth(http)
    for most in {0, messages - 1}:
        answer = await ask(most)
        assert (answer.status_code, answer.json()["code"]) == (409, "would_delete"), answer.text
        assert (answer.json()["deleted"], answer.json()["dead_lettered"]) == (messages, 0)
        assert f"{messages:,} messages" in answer.json()["detail"]
    await looked(house)
    assert await depth(http) == before
    done = await ask(messages)
    assert done.status_code in {200, 201}, done.text
    await looked(house)
    assert await depth(http) == keeps
    return done


def seeking(http: httpx2.AsyncClient, to: object) -> Callable[[int], Awaitable[httpx2.Response]]:
    """Return the seek of the group, with as many messages allowed."""
    return lambda most: http.post(
        f"{GROUP}/seek", json={"to": to}, params={"deletes_max": most} if most else {}
    )


def deleting(http: httpx2.AsyncClient) -> Callable[[int], Awaitable[httpx2.Response]]:
    """Return the deletion of the group, with as many messages allowed."""
    return lambda most: http.delete(GROUP, params={"deletes_max": most} if most else {})


@pytest.mark.parametrize("to", ["latest", {"offset": 99}, {"unix_ms": 9_000_000_000_000}])
async def test_a_seek_says_how_many_messages_nobody_needs_then(
    house: House, http: httpx2.AsyncClient, to: object
) -> None:
    """P1: With a queue as it is made by default, messages that the group skips are deleted for
    good."""
    await made(http, partitions=2)
    await made(http, GROUP)
    await published(house, 9)
    done = await told(house, http, seeking(http, to), 9, keeps=0)
    assert (done.json()["deleted"], done.json()["lag"]) == (9, 0)


async def test_a_seek_counts_only_what_it_skips(house: House, http: httpx2.AsyncClient) -> None:
    """The count has neither settled messages nor those still ahead. To seek back is free."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await published(house, 9)
    await settled(house, 2)
    await told(house, http, seeking(http, {"offset": 5}), 3, keeps=4)
    back = await http.post(f"{GROUP}/seek", json={"to": "earliest"})
    assert (back.status_code, back.json()["deleted"], back.json()["lag"]) == (200, 0, 4)


async def test_a_seek_counts_nothing_that_another_group_or_the_retention_keeps(
    house: House, http: httpx2.AsyncClient
) -> None:
    """The other group has settled three of nine. Later a retention keeps all of them."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await made(http, f"{QUEUE}/groups/audit")
    await published(house, 9)
    for offset in (0, 1, 4):
        await settled_alone(house, "audit", offset)
    assert (await http.patch(QUEUE, json={"retention_s": WEEK_S})).status_code == 200
    done = await http.post(f"{GROUP}/seek", json={"to": "latest"})
    assert (done.status_code, done.json()["deleted"]) == (200, 0)
    assert (await http.post(f"{GROUP}/seek", json={"to": "earliest"})).json()["lag"] == 9
    assert (await http.patch(QUEUE, json={"retention_s": 0})).status_code == 200
    await told(house, http, seeking(http, "latest"), 3, keeps=6)


async def test_a_seek_counts_messages_set_aside(house: House, http: httpx2.AsyncClient) -> None:
    """A message that waits for its next attempt goes with the others, wherever the seek goes."""
    await made(http, partitions=1, backoff_s=3600, backoff_max_s=3600)
    await made(http, GROUP)
    await published(house, 3, "a")
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    ((place, _, _),) = (await session.take(1))[:1]
    consumer.nack(delivery(place), 3600, None)
    await published(house, 2, "b")
    for place, _, _ in await session.take(3):
        if place[3] > 2:
            await house.confirm(consumer, delivery(place))
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)
    await told(house, http, seeking(http, "latest"), 3, keeps=0)


async def test_what_comes_during_a_seek_to_the_end_is_not_skipped(house: House) -> None:
    """The end is that of the moment at which it was counted."""
    queue = await house.queue(partitions=1)
    await house.group(queue)
    await published(house, 2)

    async def begin(removed: Removed) -> None:
        assert removed.deleted == 2
        await published(house, 1)

    done = await house.broker.seek_group(
        ANYBODY, queue, "billing", "latest", deletes_max=2, begin=begin
    )
    described = await house.broker.describe_group(ANYBODY, queue, "billing")
    assert (done.deleted, described["lag"]) == (2, 1)


async def test_deleting_a_group_says_what_goes_with_it(
    house: House, http: httpx2.AsyncClient
) -> None:
    """P1: It counts messages that this group alone had not settled. The last group leaves its
    messages to the next one."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await made(http, f"{QUEUE}/groups/audit")
    await published(house, 9)
    for offset in (0, 1, 4):
        await settled_alone(house, "audit", offset)
    done = await told(house, http, deleting(http), 3, keeps=6)
    assert done.json() == {"deleted": 3}
    last = await http.delete(f"{QUEUE}/groups/audit")
    assert (last.status_code, last.json()) == (200, {"deleted": 0})
    await looked(house)
    assert await depth(http) == 6


async def settled_alone(house: House, name: str, offset: int) -> None:
    """Settle this offset of the group, in the storage."""
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, name)
    place = CursorPlace(group.group_id, Partition(queue.queue_id, 0))
    token = bytes(16)
    owned = await house.broker.storage.own(place, token=token, assignment=0)
    write = CursorWrite(place, owned.epoch, token, settled=((offset, offset),))
    assert await house.broker.storage.write_cursors([write]) == [Written()]


# --- The first group ------------------------------------------------------------------------------


async def test_the_first_group_says_how_many_messages_it_begins_behind(
    house: House, http: httpx2.AsyncClient
) -> None:
    """P1: Until it comes they are kept for the first group. A second one, and one that begins at
    the start, lose nothing."""
    await made(http, partitions=2)
    await published(house, 7)

    async def creating(most: int) -> httpx2.Response:
        query = {"deletes_max": most} if most else {}
        return await http.put(GROUP, json={"start": "latest"}, params=query)

    assert (await http.get(GROUP)).status_code == 404
    await told(house, http, creating, 7, keeps=0)
    await published(house, 3)
    assert (await creating(0)).json()["created"] is False
    second = await http.put(f"{QUEUE}/groups/audit", json={"start": "latest"})
    assert second.status_code == 201
    await looked(house)
    assert await depth(http) == 3


async def test_a_retention_keeps_what_the_first_group_begins_behind(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Then the group may begin anywhere."""
    await made(http, partitions=1, retention_s=WEEK_S)
    await published(house, 3)
    assert (await http.put(GROUP, json={"start": "latest"})).status_code == 201
    await looked(house)
    assert await depth(http) == 3


async def test_nothing_goes_where_the_first_group_is_made_by_a_subscribe_that_agrees_to_nothing(
    house: House, http: httpx2.AsyncClient
) -> None:
    """P1: It is refused. The frame may agree to that number."""
    await made(http, partitions=1)
    await published(house, 3)
    session = Session("s")
    subscriptions = subscriptions_of(house, session)
    asked = Subscribe(ref=1, subscription=1, queue="orders", group="billing", credit=1)
    late = msgspec.structs.replace(asked, start="latest")
    for most in (0, 2):
        with pytest.raises(Refused) as told_:
            await subscriptions.open(session, msgspec.structs.replace(late, deletes_max=most))
        assert (told_.value.code.name, told_.value.more["deleted"]) == ("would_delete", 3)
    assert (await http.get(GROUP)).status_code == 404
    await looked(house)
    assert await depth(http) == 3
    await subscriptions.open(session, msgspec.structs.replace(late, deletes_max=3))
    assert (await http.get(GROUP)).json()["lag"] == 0

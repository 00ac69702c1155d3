"""What making and changing queues and groups does to messages: over memory, SQLite and Redis."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from metadata.catalog import ANYBODY, Group, Queue
from tests.histories.house import House, delivery, eventually, message
from tests.histories.redis_gateways import Gateway, a_server, emptied
from tests.servers.node import Node

QUEUE = "/v1/queues/orders"
GROUP = f"{QUEUE}/groups/billing"
WEEK_S = 604_800.0


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A server of its own."""
    with a_server() as started:
        yield started


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def house(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[House]:
    """A broker over each storage and catalog."""
    if request.param == "redis":
        opened: House = Gateway(folder, await emptied(request.getfixturevalue("node")))
    else:
        opened = House(folder, request.param)
    await opened.open()
    yield opened
    await opened.stop()


@pytest.fixture
async def http(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    """Its HTTP interface."""
    async with house.http() as client:
        yield client


async def made(http: httpx2.AsyncClient, path: str = QUEUE, **settings: Any) -> None:
    """A queue or a group with these settings."""
    answer = await http.put(path, json=settings)
    assert answer.status_code == 201, answer.text


async def published(house: House, count: int, key: str = "k") -> Queue:
    """So many messages, each in a record of its own, which retention deletes whole."""
    for number in range(count):
        (stored,) = await house.publish(house.find(), [message(number, key)])
        assert not isinstance(stored, str), stored
    return house.find()


async def settled(house: House, count: int, *, leaves: bool = True) -> Group:
    """The group's consumer settles the first ones, and leaves."""
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    given = await session.take(count)
    for place, _, _ in given[:count]:
        await house.confirm(consumer, delivery(place))
    if leaves:
        consumer.leave()
        await eventually(lambda: not house.broker.groups.runtimes[group.group_id].slots)
    return group


async def looked(house: House) -> None:
    """The janitor has looked at everything."""
    queue = house.find()
    for _ in range(3):
        house.broker.janitor._touched |= house.broker.janitor._all()
        await house.broker.janitor.look()
    house.broker.stock.changed(queue.queue_id)


async def depth(http: httpx2.AsyncClient, path: str = QUEUE) -> int:
    """Messages that are retained."""
    return int((await http.get(path)).json()["depth"])


async def refused(
    http: httpx2.AsyncClient, path: str, settings: dict[str, Any], messages: int, **told: int
) -> None:
    """The change is refused with these numbers, also where it is confirmed for one message less,
    and made when it is confirmed."""
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


# --- Nothing goes by making it again --------------------------------------------------------------


async def test_making_a_queue_again_at_the_start_of_an_app_deletes_nothing(
    house: House, http: httpx2.AsyncClient
) -> None:
    """P1: with defaults, with the settings that it has, and with other ones."""
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
    """Its settings stay, also where it is made while the letter is on its way."""
    await made(http, partitions=1, attempts_max=1)
    await made(http, f"{QUEUE}.dead-letters", retention_s=WEEK_S, partitions=2)
    queue = house.find()
    made_again = await house.broker._dead_letter_queue(queue)
    assert made_again.settings.retention_s == WEEK_S
    again, created = await house.broker.create_queue(
        ANYBODY, "orders.dead-letters", made_again.settings
    )
    assert (again, created) == (made_again, False)


# --- What deletes says how many -------------------------------------------------------------------


async def test_a_shorter_retention_says_how_many_messages_it_deletes(
    house: House, http: httpx2.AsyncClient
) -> None:
    """What is unsettled stays; a longer retention, and one that everything is within, need no
    word."""
    await made(http, retention_s=WEEK_S, partitions=1)
    await made(http, GROUP)
    await published(house, 10)
    await settled(house, 7)
    for harmless in (2 * WEEK_S, 3600.0):
        assert (await http.patch(QUEUE, json={"retention_s": harmless})).status_code == 200
    await refused(http, QUEUE, {"retention_s": 0.0}, 7, deleted=7, dead_lettered=0)
    await looked(house)
    assert await depth(http) == 3


async def test_a_retention_for_a_queue_without_groups_says_that_all_of_it_goes(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Without one, and without a group, everything is kept for whoever comes first."""
    await made(http, partitions=2)
    await published(house, 5)
    await refused(http, QUEUE, {"retention_s": 3600.0}, 5, deleted=5, dead_lettered=0)


async def test_a_bound_says_how_many_messages_it_moves_to_the_dead_letters(
    house: House, http: httpx2.AsyncClient
) -> None:
    """For each group that has left more; a bound that rejects moves nothing."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await made(http, f"{QUEUE}/groups/audit")
    await published(house, 10)
    await settled(house, 2)
    assert (await http.patch(QUEUE, json={"messages_max": 4})).status_code == 200
    await refused(http, QUEUE, {"overflow": "dead_letter"}, 10, deleted=0, dead_lettered=4 + 6)
    assert (await http.patch(QUEUE, json={"messages_max": 5})).status_code == 200


async def test_fewer_attempts_say_how_many_messages_they_end(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Of a queue's setting and of a group's; what is parked is not gone."""
    await made(http, partitions=1, attempts_max=5, backoff_s=3600, backoff_max_s=3600)
    await made(http, GROUP)
    for key in "abc":
        await published(house, 1, key)
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    session, consumer = await house.subscribe(queue, group)
    for place, _, _ in (await session.take(3))[:2]:
        consumer.nack(delivery(place), 3600, None)
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].slots)
    await house.broker.flusher.drain()
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


async def test_a_group_that_is_to_expire_says_what_goes_with_it(
    house: House, http: httpx2.AsyncClient
) -> None:
    """Where nobody consumes; with a consumer it does not."""
    await made(http, partitions=1)
    await made(http, GROUP)
    await published(house, 4)
    group = await settled(house, 1)
    session, consumer = await house.subscribe(house.find(), group)
    await session.take(3)
    assert (await http.patch(GROUP, json={"expires_s": 60})).status_code == 200
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].slots)
    assert (await http.patch(GROUP, json={"expires_s": 70})).status_code == 200
    await refused(http, GROUP, {"expires_s": 30.0}, 3, deleted=3, dead_lettered=0)

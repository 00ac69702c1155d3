"""Pause, purge, peek and dead letters over HTTP, over the whole broker."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from gateway.models import Place
from metadata.catalog import Queue
from push import limits
from push.errors import Refused
from tests.histories.house import House, delivery, eventually, message

PATH = "/v1/queues/orders"


@pytest.fixture
async def queue(house: House) -> Queue:
    """With a group `billing`, and four messages of the keys user-7 and user-8."""
    queue = await house.queue(attempts_max=1)
    await house.group(queue)
    await house.publish(queue, [message(n, f"user-{7 + n % 2}", id=f"i{n}") for n in range(4)])
    return queue


@pytest.fixture
async def http(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    async with house.http() as http:
        yield http


async def die(house: House, queue: Queue, count: int) -> None:
    """The first messages of the queue become dead letters."""
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)

    def buried() -> bool:
        for place, body, _ in session.given:
            if body < count:  # those that return with an earlier one come again
                consumer.nack(delivery(place), 0, "declined")
        return house.broker.dead_letters.moved_total == count

    await eventually(buried)
    await house.broker.cursor_writer.drain()
    consumer.leave()


async def test_a_queue_is_paused_and_resumed(queue: Queue, http: httpx2.AsyncClient) -> None:
    assert (await http.get(PATH)).json()["paused"] is False
    for verb, paused in (("pause", True), ("pause", True), ("resume", False), ("resume", False)):
        answer = await http.post(f"{PATH}/{verb}")
        assert (answer.status_code, answer.json()["paused"]) == (200, paused)
        assert (await http.get(PATH)).json()["paused"] is paused
    assert (await http.get("/v1/queues")).json()["queues"][0]["paused"] is False


async def test_a_purge_says_how_much_it_was(queue: Queue, http: httpx2.AsyncClient) -> None:
    assert (await http.post(f"{PATH}/purge", json={"group": "billing"})).json() == {"messages": 4}
    described = (await http.get(PATH)).json()
    assert (described["depth"], described["groups"][0]["lag"]) == (4, 0)
    assert (await http.post(f"{PATH}/purge", json={"all": True})).json() == {"messages": 4}
    assert (await http.get(PATH)).json()["depth"] == 0


async def test_messages_are_looked_at(queue: Queue, http: httpx2.AsyncClient) -> None:
    answer = (await http.get(f"{PATH}/messages", params={"limit": "3"})).json()
    assert [one["body"] for one in answer["messages"]] == [0, 1, 2]
    assert answer["next"] == "0-3"
    rest = (await http.get(f"{PATH}/messages", params={"after": answer["next"]})).json()
    (one,) = rest["messages"]
    published = one.pop("published_unix_ms")
    assert published > 0
    assert one == {"id": "i3", "partition": 0, "offset": 3, "key": "user-8", "body": 3}
    assert "next" not in rest
    keyed = {"key": "user-8", "offset": "2", "group": "billing"}
    answer = (await http.get(f"{PATH}/messages", params=keyed)).json()
    assert [(one["offset"], one["state"]) for one in answer["messages"]] == [(3, "ready")]


async def test_dead_letters_are_listed_and_go_back(
    house: House, queue: Queue, http: httpx2.AsyncClient
) -> None:
    nothing = {"queue": "orders.dead-letters", "messages": []}
    assert (await http.get(f"{PATH}/dead-letters")).json() == nothing
    assert (await http.post(f"{PATH}/dead-letters/redrive")).json() == {"messages": 0}
    await die(house, queue, 3)
    listed = (await http.get(f"{PATH}/dead-letters", params={"limit": "2"})).json()
    assert [one["id"] for one in listed["messages"]] == ["i0", "i1"]
    assert listed["messages"][0]["nack"] == "declined"
    assert listed["messages"][0]["origin"] == {
        "queue": "orders", "group": "billing", "partition": 0, "offset": 0,
    }  # fmt: skip
    assert listed["next"] == "0-2"
    keyed = (await http.get(f"{PATH}/dead-letters", params={"key": "user-8"})).json()
    assert [one["id"] for one in keyed["messages"]] == ["i1"]
    path = f"{PATH}/dead-letters/redrive"
    assert (await http.post(path, json={"key": "user-8"})).json() == {"messages": 1}
    answer = (await http.post(path, json={"limit": 1, "reason": "exhausted"})).json()
    assert answer == {"messages": 1, "next": "0-2"}
    assert (await http.post(path, json={"after": "0-2"})).json() == {"messages": 1}
    assert (await http.get(f"{PATH}/dead-letters")).json()["messages"] == []
    peeked = (await http.get(f"{PATH}/messages", params={"group": "billing"})).json()
    assert [one["id"] for one in peeked["messages"]] == ["i3", "i1", "i0", "i2"]


@pytest.mark.parametrize(
    ("line", "body", "code"),
    [
        ("POST /purge", {}, "invalid_request"),
        ("POST /purge", {"all": False}, "invalid_request"),
        ("POST /purge", {"group": "billing", "all": True}, "invalid_request"),
        ("POST /purge", {"group": "other"}, "group_not_found"),
        ("POST /purge", {"all": True, "more": 1}, "invalid_request"),
        ("POST /dead-letters/redrive", {"limit": 0}, "invalid_request"),
        ("POST /dead-letters/redrive", {"limit": 1001}, "invalid_request"),
        ("POST /dead-letters/redrive", {"key": ""}, "invalid_request"),
        ("POST /dead-letters/redrive", {"key": "k" * 1025}, "invalid_request"),
        ("POST /dead-letters/redrive", {"reason": "r" * 65}, "invalid_request"),
        ("POST /dead-letters/redrive", {"after": "4"}, "invalid_request"),
        ("GET /messages?limit=0", None, "invalid_request"),
        ("GET /messages?limit=1001", None, "invalid_request"),
        ("GET /messages?partition=1", None, "invalid_request"),
        ("GET /messages?partition=x", None, "invalid_request"),
        ("GET /messages?partition=-1", None, "invalid_request"),
        ("GET /messages?partition=" + "9" * 5000, None, "invalid_request"),
        ("GET /messages?offset=1", None, "invalid_request"),
        (f"GET /messages?partition=0&offset={limits.OFFSET_MAX + 1}", None, "invalid_request"),
        ("GET /messages?key=", None, "invalid_request"),
        ("GET /messages?key=" + "k" * 1025, None, "invalid_request"),
        ("GET /messages?after=0", None, "invalid_request"),
        ("GET /messages?after=a-b", None, "invalid_request"),
        ("GET /messages?group=", None, "invalid_name"),
        ("GET /messages?group=other", None, "group_not_found"),
        ("GET /dead-letters?limit=1001", None, "invalid_request"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_is_said_and_changes_nothing(
    queue: Queue,
    http: httpx2.AsyncClient,
    line: str,
    body: dict[str, Any] | None,
    code: str,
) -> None:
    """P12."""
    method, path = line.split(" ", 1)
    answer = await http.request(method, PATH + path, json=body)
    assert answer.json()["code"] == code
    described = (await http.get(PATH)).json()
    assert (described["depth"], described["groups"][0]["lag"]) == (4, 4)


async def test_what_is_just_within_the_bounds_is_taken(
    queue: Queue, http: httpx2.AsyncClient
) -> None:
    for query in (
        "limit=1000",
        f"partition=0&offset={limits.OFFSET_MAX}",
        "key=" + "k" * 1024,
        "after=0-" + "9" * 18,
        "after=7-0",
    ):
        answer = await http.get(f"{PATH}/messages?{query}")
        assert answer.status_code == 200, query
    within = {"limit": 1000, "key": "k" * 1024, "reason": "r" * 64, "after": "0-0"}
    assert (await http.post(f"{PATH}/dead-letters/redrive", json=within)).status_code == 200


@pytest.mark.parametrize("verb", ["pause", "resume", "purge", "dead-letters/redrive"])
async def test_a_queue_that_is_not_there_is_said(http: httpx2.AsyncClient, verb: str) -> None:
    for name, code in (("other", "queue_not_found"), ("o!", "invalid_name")):
        answer = await http.post(f"/v1/queues/{name}/{verb}", json={"all": True})
        # Its body is judged before the queue is looked for, behind the name.
        is_judged_first = verb == "dead-letters/redrive" and code == "queue_not_found"
        assert answer.json()["code"] == ("invalid_request" if is_judged_first else code)
        answer = await http.get(f"/v1/queues/{name}/dead-letters")
        assert answer.json()["code"] == code


def test_a_place_is_its_own_text() -> None:
    assert Place.parse(str(Place(4, 130))) == Place(4, 130)
    for text in ("", "-", "4", "4-", "-1", "4-1-1", "４-1", "4-" + "1" * 19):
        with pytest.raises(Refused, match="invalid_request"):
            Place.parse(text)

"""Histories of queues that the first publish makes, if the broker runs with `--auto-create`. They
are made only for messages that they can take."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from metadata.catalog import ANYBODY
from push import limits
from tests.histories.house import House, Socket, eventually

BAD: list[dict[str, Any]] = [
    {"key": "", "body": 1},
    {"key": "k" * (limits.KEY_BYTES_MAX + 1), "body": 1},
    {"body": "x" * limits.MESSAGE_BYTES_MAX_DEFAULT},
]
CODES = ["invalid_message", "invalid_message", "message_too_large"]


@pytest.fixture
async def making(house: House) -> House:
    """Broker that makes queues."""
    house.broker.config = msgspec.structs.replace(house.broker.config, auto_create=True)
    return house


@pytest.fixture
async def http(making: House) -> AsyncIterator[httpx2.AsyncClient]:
    async with making.http() as http:
        yield http


def queues(house: House) -> list[str]:
    """Return the names of the existing queues."""
    return [queue.name for queue in house.broker.metadata.list_queues(ANYBODY)]


async def post(http: httpx2.AsyncClient, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Publish to the queue `new`. Return the result of each message."""
    answer = await http.post(
        "/v1/queues/new/messages", content=msgspec.json.encode({"messages": messages})
    )
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = json.loads(answer.content)["results"]
    return results


async def test_messages_that_are_all_refused_make_no_queue(
    making: House, http: httpx2.AsyncClient
) -> None:
    """P12, R5: Bad input changes nothing. Each message has its own error."""
    for _ in range(2):
        results = await post(http, BAD)
        assert [result["error"]["code"] for result in results] == CODES
        assert queues(making) == []


async def test_one_message_that_can_be_stored_makes_the_queue(
    making: House, http: httpx2.AsyncClient
) -> None:
    """R5: This holds at each place in the batch. The other messages are refused."""
    await post(http, BAD)
    *refused, stored = await post(http, [*BAD, {"key": "k", "body": 1}])
    assert [result["error"]["code"] for result in refused] == CODES
    assert stored["offset"] == 0
    assert queues(making) == ["new"]


async def test_a_session_s_refused_messages_make_no_queue(making: House) -> None:
    """P12, R5, R7: Several publishes with sequences are sent at once. Then a good one makes the
    queue. Messages sent after a refused one are held up as in an existing queue."""
    socket = Socket(making)
    socket.say(type="hello", producer="ann")
    socket.say(type="publish", ref=1, queue="new", messages=BAD, sequence=1)
    socket.say(type="publish", ref=2, queue="new", messages=BAD[2:], sequence=4)
    await eventually(lambda: len(socket.frames) == 3)
    told = {frame["ref"]: frame["receipts"] for frame in socket.frames[1:]}
    assert [receipt["code"] for receipt in told[1]] == CODES
    assert [receipt["code"] for receipt in told[2]] == CODES[2:]
    assert queues(making) == []
    socket.say(
        type="publish", ref=3, queue="new", messages=[{"key": "k", "body": 1}],
        sequence=5, resolved=5,
    )  # fmt: skip
    await eventually(lambda: len(socket.frames) == 4)
    assert socket.frames[3]["receipts"][0][1] == 0
    assert queues(making) == ["new"]


async def test_a_good_publish_that_waits_behind_bad_ones_makes_the_queue(making: House) -> None:
    """R7: All of them are answered in the order in which they came."""
    socket = Socket(making)
    socket.say(type="hello")
    socket.say(type="publish", ref=1, queue="new", messages=BAD[:1])
    socket.say(type="publish", ref=2, queue="new", messages=[{"key": "k", "body": 1}])
    await eventually(lambda: len(socket.frames) == 3)
    assert [frame["ref"] for frame in socket.frames[1:]] == [1, 2]
    assert socket.frames[1]["receipts"][0]["code"] == "invalid_message"
    assert socket.frames[2]["receipts"][0][1] == 0


async def test_a_bad_name_is_refused_as_such(making: House, http: httpx2.AsyncClient) -> None:
    """P12: This holds too if the messages are bad."""
    socket = Socket(making)
    socket.say(type="hello")
    socket.say(type="publish", ref=1, queue="no spaces", messages=BAD[:1])
    assert (await socket.until("error"))["code"] == "invalid_name"
    answer = await http.post("/v1/queues/.new/messages", json={"messages": BAD[:1]})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_name")
    assert queues(making) == []

"""Limits of a broker process, from outside: a client over its limit gets everything through,
later."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import tocsin

from loadtests.server import Server
from loadtests.trials.trial import admin
from tests.system.talk import http_to, talking

RATE = 4000
BURST = 4000
COUNT = 10_000
SOONEST_S = (COUNT - BURST) / RATE
LATEST_S = 3 * SOONEST_S + 5
"""The latest time, for a machine with much else to do."""
KEYS = 10
SETTINGS = {
    "TOCSIN_LIMIT_PRINCIPAL": "connections=4/s+2,sessions=6,requests=20/s+10,in_flight=1500",
    "TOCSIN_LIMIT_ADDRESS": "connections=1/min+3,failures=1/min+2",
    "TOCSIN_TRUSTED_PROXIES": "127.0.0.1",
    "TOCSIN_TOKEN": "a-token-for-the-tests-of-limits",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker in its default configuration."""
    with Server(tmp_path_factory.mktemp("plain") / "data", level="warning") as server:
        yield server


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Server]:
    """A broker with low limits, for the clients of a proxy on this machine."""
    with Server(tmp_path / "data", level="warning", settings=SETTINGS) as server:
        yield server


async def bodies(client: tocsin.Client, queue: str, count: int) -> AsyncIterator[Any]:
    """Yield the bodies of `count` messages from the start."""
    async with client.read(queue, start="earliest") as messages:
        async for message in messages:
            yield message
            count -= 1
            if not count:
                return


@pytest.mark.parametrize("transport", ["websocket", "long-poll"])
async def test_a_producer_over_its_limit_gets_everything_through_in_order_and_once(
    plain: Server, transport: Literal["websocket", "long-poll"]
) -> None:
    queue = f"over-{transport}"
    async with tocsin.connect(plain.url, transport=transport) as client:
        await client.create_queue(queue, partitions=4, publish_messages_per_s=RATE)
        began = time.monotonic()
        published = [
            client.publish(queue, number, key=f"k{number % KEYS}") for number in range(COUNT)
        ]
        receipts = await asyncio.gather(*published)
        took_s = time.monotonic() - began
        places = [(receipt.partition, receipt.offset) for receipt in receipts]
        assert not any(receipt.duplicate for receipt in receipts)
        assert len(set(places)) == COUNT
        last: dict[str, int] = {}
        async for message in bodies(client, queue, COUNT):
            assert last.get(message.key, -1) < message.body  # P3
            last[message.key] = message.body
        described = await client.queue(queue)
    assert described["depth"] == COUNT
    assert described["counters"]["refused"] > 0
    assert SOONEST_S * 0.98 <= took_s <= LATEST_S


@pytest.mark.parametrize("way", ["one by one", "together", "HTTP"])
async def test_a_limit_lets_no_more_through_at_once_than_it_allows_a_second(
    plain: Server, way: str
) -> None:
    """Whether they come singly, in one publish, or over HTTP; and all get through, in order."""
    queue, rate, count = f"slow-{way.replace(' ', '-')}", 10, 35
    async with tocsin.connect(plain.url) as client, http_to(plain) as http:
        await client.create_queue(queue, partitions=1, publish_messages_per_s=rate)
        began = time.monotonic()
        if way == "HTTP":
            body = {"messages": [{"body": number} for number in range(count)]}
            answer = (await http.post(f"/v1/queues/{queue}/messages", json=body)).json()
            stored = [one for one in answer["results"] if "offset" in one]
            assert (len(stored), len(answer["results"])) == (rate, count)
            assert answer["results"][rate]["error"]["code"] == "rate_limited"
            assert (await client.queue(queue))["depth"] == rate
            return
        batch = [{"body": number, "key": "k"} for number in range(count)]
        if way == "together":
            publishing = asyncio.ensure_future(client.publish_many(queue, batch))
        else:
            each = [client.publish(queue, one["body"], key="k") for one in batch]
            publishing = asyncio.ensure_future(asyncio.gather(*each))
        while not publishing.done():
            depth = (await client.queue(queue))["depth"]
            assert depth <= rate + rate * (time.monotonic() - began)
            await asyncio.wait((publishing,), timeout=0.05)
        assert len(await publishing) == count
        assert time.monotonic() - began >= (count - rate) / rate * 0.98
        assert [one.body async for one in bodies(client, queue, count)] == list(range(count))


async def test_two_producers_share_a_limit_and_both_get_through(plain: Server) -> None:
    """One publishes much at once, the other one by one: neither starves."""
    async with tocsin.connect(plain.url) as many, tocsin.connect(plain.url) as few:
        await many.create_queue("shared", partitions=2, publish_messages_per_s=RATE)
        began = time.monotonic()

        async def one_by_one() -> int:
            for number in range(200):
                await few.publish("shared", number, key="few")
            return 200

        batch = [{"body": number, "key": "many"} for number in range(COUNT)]
        receipts, count = await asyncio.gather(many.publish_many("shared", batch), one_by_one())
        assert len(receipts) + count == (await many.queue("shared"))["depth"]
        assert time.monotonic() - began >= SOONEST_S * 0.98


async def test_who_connects_too_often_is_let_in_later(narrow: Server) -> None:
    token = SETTINGS["TOCSIN_TOKEN"]
    clients = [tocsin.connect(narrow.url, token=token) for _ in range(5)]
    began = time.monotonic()
    try:
        await asyncio.gather(*(client.__aenter__() for client in clients))
        assert time.monotonic() - began >= 0.74  # three of them, at four a second
        held = tocsin.connect(narrow.url, token=token)
        async with held:
            with pytest.raises(tocsin.Busy, match="too_many"):
                async with tocsin.connect(narrow.url, token=token):
                    raise AssertionError("a seventh session")
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)


async def test_calls_over_http_wait_for_their_turn(narrow: Server) -> None:
    async with tocsin.connect(narrow.url, token=SETTINGS["TOCSIN_TOKEN"]) as client:
        began = time.monotonic()
        await asyncio.gather(*(client.create_queue(f"q{number}") for number in range(20)))
        assert time.monotonic() - began >= 0.49  # ten at once, then twenty a second


def frame_of(ref: int, messages: int) -> dict[str, Any]:
    """Return a publish without sequences."""
    return {
        "type": "publish", "ref": ref, "queue": "orders",
        "messages": [{"key": f"k{number}", "body": number} for number in range(messages)],
    }  # fmt: skip


async def test_the_number_of_unanswered_messages_is_bounded(narrow: Server) -> None:
    """Both frames come at once, so no commit can come between. The second is refused whole, and the
    same publish goes through as soon as there is room."""
    token = SETTINGS["TOCSIN_TOKEN"]
    async with talking(narrow, token=token) as talk, http_to(narrow, token) as http:
        assert (await http.put("/v1/queues/orders", json={"partitions": 1})).status_code == 201
        await talk.say(json.dumps([frame_of(1, 1000), frame_of(2, 501)]))
        error = await talk.get("error", ref=2)
        assert (error["code"], error["retry"], error["retry_after_s"] > 0) == (
            "too_many_in_flight", True, True,
        )  # fmt: skip
        await talk.get("ok", ref=1)
        await talk.say(json.dumps([frame_of(3, 1000), frame_of(4, 500)]))
        assert [(await talk.get("ok", "error", ref=ref))["type"] for ref in (3, 4)] == ["ok", "ok"]
        depth = (await http.get("/v1/queues/orders")).json()["depth"]
    assert depth == 1000 + 1500
    async with tocsin.connect(narrow.url, token=token) as client:
        receipts = await asyncio.gather(*(client.publish("orders", n) for n in range(5000)))
        assert len({(one.partition, one.offset) for one in receipts}) == 5000


async def test_a_token_has_its_own_limit_and_its_principal_none_by_that(narrow: Server) -> None:
    said = ("token", "create", "meter", "--right", "publish,manage:*")
    slow = await admin(narrow, *said, "--limits", "messages=500/s+1000")
    fast = await admin(narrow, *said)
    async with talking(narrow, token=slow["token"]) as talk, http_to(narrow, slow["token"]) as http:
        assert (await http.put("/v1/queues/orders", json={"partitions": 1})).status_code == 201
        assert (await talk.ask(**frame_of(1, 1000)))["type"] == "ok"
        error = await talk.ask(**frame_of(2, 1000))
        assert error["code"] == "rate_limited"
        assert "this credential may have messages=500/s+1000" in error["detail"]
        assert 0 < error["retry_after_s"] <= 2
    async with talking(narrow, token=fast["token"]) as talk:
        for ref in (1, 2, 3):
            assert (await talk.ask(**frame_of(ref, 1000)))["type"] == "ok"


HANDSHAKE = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: tocsin.v1", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


def get(server: Server, path: str, *headers: str) -> tuple[int, dict[str, str], Any]:
    """Return the status, headers and body of the answer to one request, as from behind the
    proxy."""
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *headers, "", ""]
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as made:
        made.sendall("\r\n".join(lines).encode())
        answer = made.makefile("rb")
        status = int(answer.readline().split()[1])
        found: dict[str, str] = {}
        while (line := answer.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            found[name.lower()] = value
        body = answer.read(int(found.get("content-length", "0")))
        return status, found, json.loads(body or b"null")


def ask(server: Server, *headers: str) -> tuple[int, dict[str, str], Any]:
    """Return the answer to a handshake, in the form of `get`."""
    return get(server, "/v1/ws", *HANDSHAKE, *headers)


def test_an_address_that_connects_too_often_hears_when_it_may(narrow: Server) -> None:
    there, elsewhere = "X-Forwarded-For: 192.0.2.7", "X-Forwarded-For: 192.0.2.8"
    assert [ask(narrow, there)[0] for _ in range(3)] == [101] * 3
    status, headers, problem = ask(narrow, there)
    assert (status, problem["code"], problem["retry"]) == (429, "rate_limited", True)
    assert 0 < problem["retry_after_s"] <= 60
    assert 0 <= int(headers["retry-after"]) - problem["retry_after_s"] < 1
    assert ask(narrow, elsewhere)[0] == 101
    assert ask(narrow)[0] == 101  # this machine itself is not counted


def test_wrong_credentials_close_the_door_to_their_address_alone(narrow: Server) -> None:
    there, elsewhere = "X-Forwarded-For: 192.0.2.9", "X-Forwarded-For: 2001:db8::9"
    wrong, right = (
        "Authorization: Bearer wrong",
        f"Authorization: Bearer {SETTINGS['TOCSIN_TOKEN']}",
    )
    path = "/v1/queues"
    assert [get(narrow, path, there, wrong)[0] for _ in range(2)] == [401, 401]
    status, headers, problem = get(narrow, path, there, right)  # the credential is not checked
    assert (status, problem["code"]) == (429, "rate_limited")
    assert headers["retry-after"] == "60"
    assert ask(narrow, there, wrong)[0] == 429
    assert get(narrow, path, elsewhere, right)[0] == 200
    assert get(narrow, path, right)[0] == 200
    assert [get(narrow, path, wrong)[0] for _ in range(5)] == [401] * 5

"""A broker that is killed as soon as it has answered a nack: count, delay and reason exist when it
is started again (R16, R19, R24)."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tocsin
import tocsin.blocking

from loadtests.server import SERVE, Server
from tests.system.talk import http_to, talking

DELAY_S = 3600
GROUP = "/v1/queues/orders/groups/billing"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running broker. A killed one leaves nothing in its log."""
    server = Server(tmp_path / "data", command=SERVE)
    server.spawn()
    try:
        server.wait_ready()
        yield server
    finally:
        server.discard()


def again(server: Server) -> None:
    """Kill the broker now, and start it again."""
    server.kill()
    server.spawn()
    server.wait_ready()


async def prepare(server: Server, **settings: Any) -> None:
    async with http_to(server) as http:
        await http.put("/v1/queues/orders", json={"partitions": 1, **settings})
        await http.put(GROUP, json={})
        sent = {"messages": [{"key": "k", "body": 0}]}
        assert (await http.post("/v1/queues/orders/messages", json=sent)).status_code == 200


async def nacked_by_socket(server: Server, **nack: Any) -> None:
    """Nack over a WebSocket, and kill the broker at its answer."""
    async with talking(server) as talk:
        await talk.ask(
            type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=1
        )
        push = await talk.get("push")
        place = [push["partition"], push["epoch"], push["push"], push["offset"], push["offset"]]
        answer = await talk.ask(type="nack", ref=2, subscription=1, deliveries=[place], **nack)
        again(server)
    assert answer["settled"] == 1


async def nacked_by_receipt(server: Server, **nack: Any) -> None:
    """Nack by receipt, and kill the broker at its answer."""
    async with http_to(server) as http:
        pulled = (await http.post(f"{GROUP}/pull", json={"wait_s": 5})).json()["messages"]
        receipts = [one["receipt"] for one in pulled]
        answer = await http.post(f"{GROUP}/nack", json={"receipts": receipts, **nack})
        again(server)
    assert answer.json()["settled"] == 1


NACKS = pytest.mark.parametrize("nacked", [nacked_by_socket, nacked_by_receipt])


@NACKS
async def test_a_nack_that_was_answered_is_there_after_a_kill(server: Server, nacked: Any) -> None:
    """[Over a WebSocket, killed within 20 ms, count, delay and reason were gone each time.]"""
    await prepare(server)
    began_unix_ms = time.time() * 1000
    await nacked(server, delay_s=DELAY_S, reason="card declined")
    async with http_to(server) as http:
        empty = await http.post(f"{GROUP}/pull", json={"wait_s": 1})
        (held,) = (await http.get(f"{GROUP}/held")).json()["keys"]
        (told,) = (await http.get("/v1/queues/orders/explain?key=k")).json()["groups"]
    assert empty.json()["messages"] == [], "its delay counts still"
    assert (held["reason"], held["attempts"], held["nack"]) == ("backoff", 1, "card declined")
    assert held["until_unix_ms"] > began_unix_ms + 0.9 * DELAY_S * 1000
    assert told["head"]["nack"] == "card declined"


@NACKS
async def test_a_rejection_that_was_answered_is_there_after_a_kill(
    server: Server, nacked: Any
) -> None:
    await prepare(server, on_exhausted="park")
    await nacked(server, reject=True, reason="no such account")
    async with http_to(server) as http:
        answer = await http.get(f"{GROUP}/parked")
    assert answer.status_code == 200, answer.text
    (parked,) = answer.json()["keys"]
    assert (parked["reason"], parked["attempts"], parked["nack"]) == (
        "rejected", 1, "no such account",
    )  # fmt: skip


# --- Through the SDK -----------------------------------------------------------------------------


async def test_a_handler_rejects_through_the_sdk(server: Server) -> None:
    """In asyncio and blocking, and by receipt; the dead letters show the reason."""
    async with tocsin.connect(server.url) as client:
        await client.create_queue("orders", partitions=1)
        await client.create_group("orders", "billing")
        sent = [{"body": n, "key": f"k{n}"} for n in range(3)]
        await client.publish_many("orders", sent)
        async with client.subscribe("orders", group="billing", credit=1) as messages:
            message = await anext(messages)
            with pytest.raises(tocsin.InvalidRequest):
                await message.reject("x" * 1025)
            with pytest.raises(tocsin.InvalidRequest):
                await message.reject("\ud800")
            await message.reject("asyncio")
            with pytest.raises(tocsin.StaleDelivery):
                await message.ack()
        await asyncio.to_thread(reject_blocking, server.url)
        (pulled,) = await client.pull("orders", "billing", wait_s=5)
        done = await client.reject_receipts("orders", "billing", [pulled.receipt], reason="receipt")
        assert done.settled == 1
        async with asyncio.timeout(10):
            letters: list[tocsin.DeadLetter] = []
            while len(letters) < len(sent):
                letters = [one async for one in client.dead_letters("orders")]
    assert [(one.reason, one.nack) for one in letters] == [
        ("rejected", "asyncio"), ("rejected", "blocking"), ("rejected", "receipt"),
    ]  # fmt: skip


async def test_a_confirmed_rejection_of_the_sdk_is_there_after_a_kill(server: Server) -> None:
    """[It returned when the rejection was queued: the message came again.]"""
    await prepare(server, on_exhausted="park")
    async with (
        tocsin.connect(server.url) as client,
        client.subscribe("orders", group="billing", credit=1) as messages,
    ):
        await (await anext(messages)).reject("no such account", confirm=True)
        again(server)
    async with http_to(server) as http:
        (parked,) = (await http.get(f"{GROUP}/parked")).json()["keys"]
    assert (parked["reason"], parked["nack"]) == ("rejected", "no such account")


def reject_blocking(url: str) -> None:
    with (
        tocsin.blocking.connect(url) as client,
        client.subscribe("orders", group="billing", credit=1) as messages,
    ):
        next(iter(messages)).reject("blocking")

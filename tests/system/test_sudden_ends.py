"""`kill -9` between an answer and the next frame: what was answered holds (P1, P4, P5, P10)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.admin.client import delete_queue
from loadtests.server import Server
from tests.system.talk import Talk, http_to, running, talking

QUEUE = "/v1/queues/orders"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A broker with a queue."""
    with running(tmp_path) as server:
        async with http_to(server) as http:
            settings = {"partitions": 1, "retention_s": 3600}
            assert (await http.put(QUEUE, json=settings)).status_code == 201
        yield server


def killed(server: Server) -> None:
    """Kill it, and start it again over its files."""
    server.kill()
    server.start()


async def publish(talk: Talk, first: int, count: int) -> list[list[object]]:
    """Publish numbers under their own sequences; return the receipts."""
    messages = [{"key": "k", "body": n} for n in range(first, first + count)]
    answer = await talk.ask(
        type="publish", ref=1, queue="orders", messages=messages, sequence=first
    )
    receipts: list[list[object]] = answer["receipts"]
    return receipts


async def subscribe(talk: Talk, number: int, **fields: object) -> None:
    """Subscribe to the queue."""
    fields = {"queue": "orders", "credit": 1000, **fields}
    answer = await talk.ask(type="subscribe", ref=2, subscription=number, **fields)
    assert answer["type"] == "ok", answer


async def given(talk: Talk, number: int, count: int) -> tuple[list[int], list[int]]:
    """Return the bodies of `count` messages of a subscription, and the place of the last push."""
    bodies: list[int] = []
    while len(bodies) < count:
        push = await talk.get("push", subscription=number)
        bodies += [message["body"] for message in push["messages"]]
    assert len(bodies) == count
    return bodies, [push["partition"], push.get("epoch", 0), push.get("push", 0)]


async def test_what_was_answered_before_a_kill_holds_after_it(server: Server) -> None:
    """P4: a repeated publish is a duplicate. P5: confirmed messages do not come again, others do.
    R11: a group that began at the end exists. R23: messages given to an at-most-once group do not
    come again. R1, R24: a pull's receipt is stale. P10: a reader resumes."""
    async with http_to(server) as http, talking(server, producer="p") as talk:
        await http.put(f"{QUEUE}/groups/once", json={"semantics": "at_most_once"})
        await subscribe(talk, 1, group="acking")
        await subscribe(talk, 2, group="once")
        await subscribe(talk, 3)
        assert await publish(talk, 0, 10) == [[0, n] for n in range(10)]
        bodies, place = await given(talk, 1, 10)
        assert bodies == list(range(10))
        ack = {"type": "ack", "ref": 3, "subscription": 1}
        assert (await talk.ask(**ack, deliveries=[[*place, 0, 3, 7, 7]]))["settled"] == 5
        assert (await given(talk, 2, 10))[0] == list(range(10))
        assert (await given(talk, 3, 10))[0] == list(range(10))
        await subscribe(talk, 4, group="late", start="latest")
        pulled = await http.post(f"{QUEUE}/groups/pulling/pull", json={"wait_s": 5})
        receipt = pulled.json()["messages"][0]["receipt"]
        queue_id = (await http.get(QUEUE)).json()["queue_id"]

    killed(server)

    async with http_to(server) as http, talking(server, producer="p") as talk:
        assert await publish(talk, 0, 11) == [*([0, n, True] for n in range(10)), [0, 10]]
        await subscribe(talk, 1, group="acking")
        assert (await given(talk, 1, 6))[0] == [4, 5, 6, 8, 9, 10]
        await subscribe(talk, 2, group="once")
        assert (await given(talk, 2, 1))[0] == [10]
        await subscribe(talk, 4, group="late")
        assert (await given(talk, 4, 1))[0] == [10]
        position = {"queue_id": queue_id, "partitions": {"0": [1, 9]}}
        answer = await talk.ask(
            type="subscribe", ref=5, subscription=5, queue="orders", credit=9, position=position
        )
        assert [line["verdict"] for line in answer["positions"]] == ["resumed"]
        assert (await given(talk, 5, 2))[0] == [9, 10]
        done = await http.post(f"{QUEUE}/groups/pulling/ack", json={"receipts": [receipt]})
        assert done.json() == {"settled": 0, "stale": [receipt]}


async def test_a_deleted_queue_stays_deleted_after_a_kill(server: Server) -> None:
    """R1, R2: a new queue under its name has its own id, offsets and groups."""
    async with http_to(server) as http, talking(server, producer="p") as talk:
        await subscribe(talk, 1, group="g")
        await subscribe(talk, 2)
        await publish(talk, 0, 5)
        await given(talk, 1, 5)
        old_id = (await http.get(QUEUE)).json()["queue_id"]
        pulled = await http.post(f"{QUEUE}/groups/pulling/pull", json={"wait_s": 5})
        receipt = pulled.json()["messages"][0]["receipt"]
        delete_queue(server.data_dir, "orders", "orders")
        for number in (1, 2):
            error = await talk.get("error", subscription=number)
            assert error["code"] == "queue_not_found"
        assert (await http.put(QUEUE, json={"partitions": 1})).status_code == 201
        assert await publish(talk, 0, 1) == [[0, 0]]

    killed(server)

    async with http_to(server) as http, talking(server, producer="p") as talk:
        described = (await http.get(QUEUE)).json()
        assert described["queue_id"] != old_id
        assert (described["depth"], described["groups"]) == (1, [])
        assert await publish(talk, 0, 2) == [[0, 0, True], [0, 1]]
        position = {"queue_id": old_id, "partitions": {"0": [1, 0]}}
        answer = await talk.ask(
            type="subscribe", ref=5, subscription=5, queue="orders", credit=9, position=position
        )
        assert answer["code"] == "position_unknown"
        await http.put(f"{QUEUE}/groups/pulling", json={})
        done = await http.post(f"{QUEUE}/groups/pulling/ack", json={"receipts": [receipt]})
        assert done.json()["code"] == "invalid_receipt"

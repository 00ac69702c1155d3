"""What a session and a request are told that are over a limit, and what happens then."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gateway.auth.auth import Authenticator
from gateway.limits.limiter import Limiter
from gateway.limits.spec import OF_ADDRESS, parse_limits
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.wire import frames
from metadata.catalog import QueueSettings
from push.places import Partition
from runtime.addresses import ClientAddress
from tests.gateway.asgi import client_of
from tests.gateway.plain_metadata import MemoryBroker, broker_in_memory, running
from tests.gateway.session.test_session import Socket, publish, until
from tests.histories.house import House

RATE = 1000
"""Messages a second, and at once."""


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with running(MemoryBroker(auto_create=True)) as made:
        await made.add_queue("q")
        await made.add_queue("other")
        yield made


def socket_of(broker: MemoryBroker, limits: str = f"messages={RATE}/s") -> Socket:
    made = Socket(broker, limiter=Limiter(parse_limits(limits)))
    made.say({"type": "hello", "producer": "p"})
    assert made.answer()["type"] == "welcome"
    return made


async def said(socket: Socket, count: int, sequence: int, *, now: float = 0, **more: Any) -> str:
    """Return the answer to a publish of this many messages from this sequence on."""
    frame = publish(1, *range(count), sequence=sequence, **more)
    (answer,) = await socket.ask(frame, now=now, count=1)
    assert answer["ref"] == 1
    return "ok" if answer["type"] == "ok" else str(answer["code"])


# --- WebSocket and long poll --------------------------------------------------------------------


async def test_a_publish_is_admitted_whole_or_refused_whole(broker: MemoryBroker) -> None:
    socket = socket_of(broker)
    assert await said(socket, 600, 0) == "ok"
    socket.say(publish(2, *range(500), sequence=600))
    answer = socket.answer()
    assert answer["type"] == "error"
    assert (answer["ref"], answer["code"], answer["retry"]) == (2, "rate_limited", True)
    assert answer["retry_after_s"] == pytest.approx(0.1, abs=1e-8)
    assert len(broker.submitted) == 1
    assert await said(socket, 500, 600, now=answer["retry_after_s"]) == "ok"


async def test_behind_what_was_refused_nothing_of_the_queue_is_stored(broker: MemoryBroker) -> None:
    """R7. [A large publish is over the limit, a small one behind it is not: it overtakes.]"""
    socket = socket_of(broker)
    assert await said(socket, 900, 0) == "ok"
    assert await said(socket, 500, 900) == "rate_limited"
    assert await said(socket, 1, 1400) == "out_of_sequence"
    assert await said(socket, 1, 1401, now=5.0) == "out_of_sequence"
    assert await said(socket, 1, 0, queue="other", now=5.0) == "ok"  # another order
    assert await said(socket, 200, 900, now=5.0, resolved=900) == "ok"  # also in pieces
    assert await said(socket, 1, 1400, now=5.0, resolved=900) == "out_of_sequence"
    assert await said(socket, 300, 1100, now=5.0, resolved=1100) == "ok"
    assert await said(socket, 2, 1400, now=5.0, resolved=1400) == "ok"
    assert [one.sequence for one in broker.submitted] == [0, 0, 900, 1100, 1400]


async def test_of_more_than_a_burst_what_it_holds_is_admitted_in_order(
    broker: MemoryBroker,
) -> None:
    """R5, R7: the others are refused in their places, and nothing behind them is stored before."""
    socket = socket_of(broker, "messages=10/s")
    (first,) = await socket.ask(publish(1, *range(25), sequence=0), count=1)
    assert [isinstance(one, list) for one in first["receipts"]] == [True] * 10 + [False] * 15
    assert {one["code"] for one in first["receipts"][10:]} == {"rate_limited"}
    assert first["receipts"][10]["retry_after_s"] == pytest.approx(1, abs=0.01)
    assert await said(socket, 1, 25) == "out_of_sequence"
    assert await said(socket, 10, 10, now=0.5) == "rate_limited"
    assert await said(socket, 10, 10, now=1.0, resolved=10) == "ok"
    assert await said(socket, 1, 25, now=2.0, resolved=20) == "out_of_sequence"
    assert await said(socket, 5, 20, now=2.0, resolved=20) == "ok"
    assert await said(socket, 1, 25, now=2.0, resolved=25) == "ok"
    assert [(one.sequence, len(one.messages)) for one in broker.submitted] == [
        (0, 10), (10, 10), (20, 5), (25, 1),
    ]  # fmt: skip


async def test_what_is_out_of_sequence_is_charged_to_nobody(broker: MemoryBroker) -> None:
    socket = socket_of(broker)
    assert await said(socket, 600, 0) == "ok"
    assert await said(socket, 500, 600) == "rate_limited"
    for number in range(20):
        assert await said(socket, 400, 1100 + number, now=0.05) == "out_of_sequence"
    assert await said(socket, 500, 600, now=0.1) == "ok"


async def test_what_the_producer_has_given_up_holds_up_nobody(broker: MemoryBroker) -> None:
    socket = socket_of(broker)
    assert await said(socket, 600, 0) == "ok"
    assert await said(socket, 500, 600) == "rate_limited"
    assert await said(socket, 1, 1100) == "out_of_sequence"
    assert await said(socket, 1, 1100, resolved=1100) == "ok"


async def test_without_sequences_every_publish_is_for_itself(broker: MemoryBroker) -> None:
    socket = socket_of(broker)
    answers = await socket.ask(
        publish(1, *range(900)), publish(2, *range(500)), publish(3, 1), count=3
    )
    types = {answer["ref"]: answer["type"] for answer in answers}
    assert types == {1: "ok", 2: "error", 3: "ok"}


async def test_a_queue_in_the_making_is_charged_too(broker: MemoryBroker) -> None:
    broker.messages.stall("create_queue")
    socket = socket_of(broker)
    said = (publish(1, *range(900), queue="new"), publish(2, *range(500), queue="new"))
    assert await socket.ask(*said) == []
    broker.messages.well()
    await until(lambda: len(socket.sent) == 2)
    second, first = socket.answers()
    assert (first["ref"], first["type"]) == (1, "ok")
    assert (second["ref"], second["type"], second["code"]) == (2, "error", "rate_limited")


async def test_a_session_beyond_the_bound_is_refused_for_now(broker: MemoryBroker) -> None:
    limiter = Limiter(parse_limits("sessions=1"))
    first, second = Socket(broker, limiter=limiter), Socket(broker, limiter=limiter)
    first.say({"type": "hello"})
    assert first.answer()["type"] == "welcome"
    second.say({"type": "hello"}, publish(1, 1))
    answer = second.answer()
    assert (answer["code"], answer["retry"], answer["retry_after_s"]) == ("too_many", True, 1.0)
    assert second.close_code == frames.OVERLOADED
    assert broker.submitted == []
    first.session.end()
    third = Socket(broker, limiter=limiter)
    third.say({"type": "hello"})
    assert third.answer()["type"] == "welcome"


async def test_a_hello_with_a_wrong_token_counts_where_it_comes_from(broker: MemoryBroker) -> None:
    limiter = Limiter(address=parse_limits("failures=1/s+2", OF_ADDRESS))

    def hello(token: str, address: str) -> tuple[object, ...]:
        socket = Socket(broker, Authenticator("the-right-token"), limiter)
        socket.address = ClientAddress(address, False)
        socket.say({"type": "hello", "token": token})
        assert socket.close_code is None or not socket.session.is_welcome
        return (socket.close_code, *(answer.get("code") for answer in socket.answers()))

    assert hello("wrong", "192.0.2.7") == (frames.UNAUTHORIZED,)
    assert hello("wrong", "192.0.2.7") == (frames.UNAUTHORIZED,)
    assert hello("the-right-token", "192.0.2.7") == (frames.OVERLOADED, "rate_limited")
    assert hello("the-right-token", "192.0.2.8") == (None, None)
    assert [hello("wrong", "127.0.0.1") for _ in range(5)] == [(frames.UNAUTHORIZED,)] * 5


# --- HTTP ---------------------------------------------------------------------------------------


@pytest.mark.looptime
async def test_over_http_a_client_that_waits_as_asked_gets_everything_through() -> None:
    """At twice the limit, by `Retry-After` alone, in virtual time."""
    broker = broker_in_memory()
    limiter = Limiter()
    application = Application(broker, Authenticator(None), limiter=limiter)
    loop = asyncio.get_running_loop()
    async with client_of(application) as http:
        await http.put("/v1/queues/q", json={"partitions": 1, "publish_messages_per_s": RATE})
        began, refusals, stored = loop.time(), 0, 0
        for first in range(0, 5 * RATE, RATE // 2):
            messages = [{"body": number, "key": "k"} for number in range(first, first + RATE // 2)]
            while True:
                answer = await http.post("/v1/queues/q/messages", json={"messages": messages})
                if answer.status_code == 200:
                    break
                problem = answer.json()
                assert (answer.status_code, problem["code"]) == (429, "rate_limited")
                assert problem["retry"] is True
                seconds = int(answer.headers["Retry-After"])
                assert 0 <= seconds - problem["retry_after_s"] < 1
                refusals += 1
                await asyncio.sleep(seconds)
            stored += len(answer.json()["results"])
            await asyncio.sleep(0.25)  # 2,000 a second, as far as it is let
        took_s = loop.time() - began
    (queue,) = broker.metadata.list_all_queues()
    read = await broker.storage.read(Partition(queue.queue_id, 0), 0, 1 << 40)
    kept = msgspec.json.decode(b"[" + b",".join(record.payload for record in read.records) + b"]")
    assert [message["body"] for message in kept] == list(range(5 * RATE))
    assert stored == 5 * RATE
    assert refusals > 0
    assert 4 - 0.5 <= took_s <= 8
    assert limiter.refused == {"queue.messages": refusals}


@pytest.mark.looptime
async def test_requests_are_counted_and_the_exact_wait_is_enough() -> None:
    application = Application(
        broker_in_memory(), Authenticator(None), limiter=Limiter(parse_limits("requests=4/s+2"))
    )
    async with client_of(application) as http:
        statuses = [(await http.get("/v1/queues")).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        refused = (await http.get("/v1/queues")).json()
        assert 0.24 < refused["retry_after_s"] <= 0.25
        assert "requests=4/s+2" in refused["detail"]
        await asyncio.sleep(refused["retry_after_s"])
        assert (await http.get("/v1/queues")).status_code == 200
        assert (await http.get("/healthz")).status_code == 200  # supervisors are not counted


async def test_a_limit_of_the_queue_is_a_setting_that_can_change(house: House) -> None:
    async with house.http() as http:
        settings = {"publish_messages_per_s": 0.5, "publish_bytes_per_s": 1_000_000}
        made = await http.put("/v1/queues/q", json=settings)
        assert made.status_code == 201
        described = (await http.get("/v1/queues/q")).json()["settings"]
        assert {name: described[name] for name in settings} == settings
        batch = {"messages": [{"body": 1}] * 1000}
        admitted = await http.post("/v1/queues/q/messages", json=batch)
        first, *others = admitted.json()["results"]
        assert (admitted.status_code, first["offset"], len(others)) == (200, 0, 999)
        assert {one["error"]["code"] for one in others} == {"rate_limited"}
        assert others[0]["error"]["retry_after_s"] == pytest.approx(2, abs=0.1)
        states = await house.broker.storage.partitions(house.find("q").queue_id)
        assert sum(state.end for state in states) == 1
        assert (await http.post("/v1/queues/q/messages", json=batch)).status_code == 429
        await http.put("/v1/queues/q", json={})
        assert (await http.post("/v1/queues/q/messages", json=batch)).status_code == 429
        await http.patch("/v1/queues/q", json={"publish_messages_per_s": None})
        assert (await http.post("/v1/queues/q/messages", json=batch)).status_code == 200
        refused = await http.patch("/v1/queues/q", json={"publish_messages_per_s": 0})
        assert refused.status_code == 400


async def test_who_asks_too_many_sessions_by_long_poll_hears_429(broker: MemoryBroker) -> None:
    limiter = Limiter(parse_limits("sessions=1"))
    connections = Connections(SessionServices(broker, Authenticator(None), limiter=limiter))
    application = Application(
        broker_in_memory(), Authenticator(None), LongPolls(connections), limiter=limiter
    )
    async with client_of(application) as http:
        first = await http.post("/v1/sessions", json={"type": "hello"})
        assert first.status_code == 201
        second = await http.post("/v1/sessions", json={"type": "hello"})
        assert (second.status_code, second.json()["code"]) == (429, "too_many")
        assert second.headers["Retry-After"] == "1"
        await http.delete(f"/v1/sessions/{first.json()['session']}")
        assert (await http.post("/v1/sessions", json={"type": "hello"})).status_code == 201
    for connection in list(connections):
        connection.close(frames.DRAINING)
    connections.deadlines.close()


def test_old_settings_of_a_queue_have_no_limit() -> None:
    """A catalog from before these settings reads on."""
    before = msgspec.json.decode(b'{"partitions":4,"retention_s":60}', type=QueueSettings)
    assert before.publish_messages_per_s is None
    assert before.publish_bytes_per_s is None

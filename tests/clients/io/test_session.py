"""The client and the whole broker, over sockets that are cut: a session goes on (R22)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
import tocsin

from gateway.broker import Broker
from gateway.config import Config
from gateway.net.websocket import WebSocketConnection
from gateway.server import OnFatal, Server
from gateway.session.session import Session
from gateway.wire import frames
from tests.gateway.conftest import never

TRANSPORTS: list[Literal["websocket", "long-poll"]] = ["websocket", "long-poll"]


async def whole(config: Config, on_fatal: OnFatal) -> Broker:
    return await Broker.open(config, on_fatal=on_fatal)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = await Server.open(Config(data_dir=tmp_path / "data", port=0), whole, on_fatal=never)
    yield server
    await server.stop()


def cut(server: Server) -> int:
    """Cut every socket, as a proxy would that dies; long polls just end. How many."""
    connections = list(server.connections)
    for connection in connections:
        if isinstance(connection, WebSocketConnection):
            connection._transport.abort()
        else:
            connection.close(frames.HEARTBEAT)
    return len(connections)


class Losses:
    """A part of a session that waits for its connection to be lost."""

    def __init__(self, lost: asyncio.Event) -> None:
        self.lost = lost

    def opened(self) -> None:
        pass

    def disconnected(self) -> None:
        self.lost.set()

    def failed(self, error: tocsin.TocsinError) -> None:
        pass

    def collect(self, *, now: float) -> list[bytes]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def expire(self, *, now: float) -> None:
        pass


async def publish(client: tocsin.Client, count: int, keys: int = 10) -> None:
    await client.publish_many("q", [{"body": n, "key": f"k{n % keys}"} for n in range(count)])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cut_gives_nothing_twice_and_keeps_every_order(
    server: Server, transport: Literal["websocket", "long-poll"]
) -> None:
    count, ran = 600, list[int]()
    done = asyncio.Event()

    async def handler(message: tocsin.Message) -> None:
        ran.append(message.body)
        if len(ran) in (100, 250, 400):
            cut(server)
        await asyncio.sleep(0.001)
        if len(ran) == count:
            done.set()

    async with tocsin.connect(server.url, transport=transport) as client:
        await client.create_queue("q", partitions=4)
        async with client.subscribe("q", "g", credit=150) as messages:
            running = asyncio.ensure_future(messages.run(handler, concurrency=20))
            await publish(client, count)
            async with asyncio.timeout(20):
                await done.wait()
            running.cancel()
            messages._ledger.check()
    assert sorted(ran) == list(range(count))
    for key in range(10):
        assert [n for n in ran if n % 10 == key] == list(range(key, count, 10))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_confirmed_ack_outlives_its_connection(
    server: Server, transport: Literal["websocket", "long-poll"]
) -> None:
    async with tocsin.connect(server.url, transport=transport) as client:
        await client.create_queue("q")
        await publish(client, 1)
        async with client.subscribe("q", "g") as messages:
            message = await anext(messages)
            acking = asyncio.ensure_future(message.ack(confirm=True))
            await asyncio.sleep(0)
            assert cut(server) == 1
            async with asyncio.timeout(10):
                await acking
        assert (await client.group("q", "g"))["lag"] == 0


async def test_what_was_closed_while_nothing_carried_it_is_left_when_the_session_goes_on(
    server: Server,
) -> None:
    """Else its partitions would wait for a consumer that is gone."""
    async with tocsin.connect(server.url) as client, tocsin.connect(server.url) as other:
        await client.create_queue("q")
        messages = client.subscribe("q", "g")
        await messages.__aenter__()
        assert client._session is not None
        client._session._connector.on_drain(0.5)
        lost = asyncio.Event()
        client._session.add(Losses(lost))
        cut(server)
        await lost.wait()
        await messages.close()
        await publish(other, 5)
        async with other.subscribe("q", "g") as others, asyncio.timeout(10):
            assert sorted([(await anext(others)).body for _ in range(5)]) == list(range(5))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_handler_may_take_longer_than_a_lease(
    server: Server, transport: Literal["websocket", "long-poll"]
) -> None:
    """One message of a key is worked on, 30 wait behind it, for three leases: nothing comes again,
    and other keys are not held up."""
    ran: list[tuple[str | None, Any, int]] = []

    async def handler(message: tocsin.Message) -> None:
        ran.append((message.key, message.body, message.attempt))
        await asyncio.sleep(3.0 if message.body == 0 else 0.0)

    async with tocsin.connect(server.url, transport=transport) as client:
        await client.create_queue("q", lease_s=1)
        async with client.subscribe("q", "g") as messages:
            running = asyncio.ensure_future(messages.run(handler, concurrency=3))
            await client.publish_many("q", [{"body": n, "key": "slow"} for n in range(31)])
            await client.publish_many("q", [{"body": -n, "key": f"k{n}"} for n in range(1, 20)])
            async with asyncio.timeout(10):
                while len(ran) < 50:
                    await asyncio.sleep(0.02)
                    if len(ran) < 20:
                        assert ran[0] == ("slow", 0, 1)
            running.cancel()
    slow = [entry for entry in ran if entry[0] == "slow"]
    assert slow == [("slow", n, 1) for n in range(31)]


async def test_a_handler_that_hangs_is_cancelled_when_its_lease_may_not_be_prolonged_any_more(
    server: Server,
) -> None:
    """R20, and the message comes again: never while the first handler is still at work."""
    at_work: list[int] = []
    ended = asyncio.Event()

    async def handler(message: tocsin.Message) -> None:
        if message.key == "other":
            return
        assert not at_work
        at_work.append(message.attempt)
        try:
            if message.attempt == 1:
                await asyncio.sleep(3600)
        finally:
            at_work.pop()
        ended.set()

    async with tocsin.connect(server.url) as client:
        await client.create_queue("q", lease_s=1, lease_total_s=2, backoff_s=0.1, backoff_max_s=0.1)
        async with client.subscribe("q", "g") as messages:
            running = asyncio.ensure_future(messages.run(handler, concurrency=2))
            await client.publish("q", 0, key="hangs")
            for n in range(20):
                await client.publish("q", n, key="other")
            async with asyncio.timeout(10):
                await ended.wait()
            assert not running.done()
            running.cancel()


async def test_without_a_session_to_come_back_to_everything_comes_again(tmp_path: Path) -> None:
    """`linger_s=0`: what is held returns to the group with the connection."""
    server = await Server.open(Config(data_dir=tmp_path / "data", port=0), whole, on_fatal=never)
    try:
        async with tocsin.connect(server.url, linger_s=0) as client:
            await client.create_queue("q")
            await publish(client, 1)
            async with client.subscribe("q", "g") as messages, asyncio.timeout(10):
                first = await anext(messages)
                cut(server)
                second = await anext(messages)
                assert (second.offset, second.body) == (first.offset, first.body)
                with pytest.raises(tocsin.StaleDelivery):
                    await first.ack()
                await second.ack(confirm=True)
    finally:
        await server.stop()


async def test_a_group_that_is_deleted_while_nothing_connects_the_client_ends_its_subscription(
    server: Server,
) -> None:
    """Else it waits for ever for what never comes; what else the session has goes on."""
    async with tocsin.connect(server.url) as client, tocsin.connect(server.url) as other:
        await client.create_queue("q")
        async with client.subscribe("q", "g") as messages, client.subscribe("q", "h") as others:
            waiting = asyncio.ensure_future(anext(messages))
            assert client._session is not None
            client._session._connector.on_drain(0.5)
            lost = asyncio.Event()
            client._session.add(Losses(lost))
            cut(server)
            await lost.wait()
            await other.delete_group("q", "g")
            async with asyncio.timeout(10):
                with pytest.raises(tocsin.GroupNotFound):
                    await waiting
                await publish(other, 1)
                assert (await anext(others)).body == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_gives_up_joining_leaves_nothing_behind_at_the_broker(
    server: Server, transport: Literal["websocket", "long-poll"]
) -> None:
    """A subscribe is cancelled while it is under way: else its partitions would for ever go to a
    consumer that nobody listens for."""
    async with tocsin.connect(server.url, transport=transport) as client:
        await client.create_queue("q", partitions=1)
        await publish(client, 5)
        joining = asyncio.ensure_future(client.subscribe("q", "g").__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        async with client.subscribe("q", "g") as messages, asyncio.timeout(10):
            assert sorted([(await anext(messages)).body for _ in range(5)]) == list(range(5))


async def test_who_gives_up_reading_leaves_nothing_behind_at_the_broker(server: Server) -> None:
    async with tocsin.connect(server.url) as client:
        await client.create_queue("q")
        joining = asyncio.ensure_future(client.read("q").__aenter__())
        await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait((joining,))
        async with client.read("q") as messages, asyncio.timeout(10):
            await publish(client, 1)
            assert (await anext(messages)).body == 0
        (session,) = server.connections.services.sessions._by_id.values()
        assert isinstance(session, Session)
        assert session._protocol.open_subscriptions == []


async def test_cancelling_run_returns_what_its_handlers_had_in_hand(server: Server) -> None:
    """Else nobody works on it, and its lease is prolonged all the same."""
    began = asyncio.Event()

    async def handler(message: tocsin.Message) -> None:
        began.set()
        await asyncio.Event().wait()

    async with tocsin.connect(server.url) as client, asyncio.timeout(10):
        await client.create_queue("q", partitions=1)
        async with client.subscribe("q", "g") as messages:
            running = asyncio.ensure_future(messages.run(handler))
            await client.publish("q", 0, key="k")
            await client.publish("q", 1, key="k")
            await began.wait()
            running.cancel()
            await asyncio.wait((running,))
            assert running.cancelled()
            again = await anext(messages)
            assert (again.body, again.attempt) == (0, 2)
            await again.ack()
            assert (await anext(messages)).body == 1


async def test_a_handler_that_swallows_its_cancellation_does_not_keep_run_going(
    server: Server,
) -> None:
    ran: list[int] = []
    began = asyncio.Event()

    async def handler(message: tocsin.Message) -> None:
        ran.append(message.body)
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async with tocsin.connect(server.url) as client, asyncio.timeout(10):
        await client.create_queue("q", partitions=1)
        async with client.subscribe("q", "g") as messages:
            await publish(client, 10)
            running = asyncio.ensure_future(messages.run(handler))
            await began.wait()
            running.cancel()
            await asyncio.wait((running,))
            assert (running.cancelled(), len(ran)) == (True, 1)


async def test_a_subscribe_that_is_under_way_when_the_connection_is_lost_succeeds_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker still works on it when the client, back again, says it once more."""
    async with tocsin.connect(server.url) as client, asyncio.timeout(10):
        await client.create_queue("q")
        broker = server.connections.services.broker
        put_group, stalls = broker.put_group, [asyncio.Event()]
        asked = asyncio.Event()

        async def slow(*args: Any, **options: Any) -> Any:
            asked.set()
            if stalls:
                await stalls[0].wait()
            return await put_group(*args, **options)

        async with client.subscribe("q", "other"):
            monkeypatch.setattr(broker, "put_group", slow)
            messages = client.subscribe("q", "g")
            joining = asyncio.ensure_future(messages.__aenter__())
            await asked.wait()
            refused, stall = asyncio.Event(), stalls.pop()
            answered = messages._on_answer

            def hears(answer: Any) -> None:
                if answer is not None and answer.code == "overloaded":
                    refused.set()
                    stall.set()
                answered(answer)

            monkeypatch.setattr(messages, "_on_answer", hears)
            cut(server)
            await refused.wait()
            monkeypatch.setattr(messages, "_on_answer", answered)
            await joining
            await publish(client, 3)
            assert sorted([(await anext(messages)).body for _ in range(3)]) == [0, 1, 2]
            await messages.close()


async def test_a_prolongation_ends_with_the_lease_though_no_broker_comes_back(
    server: Server,
) -> None:
    async with tocsin.connect(server.url) as client, asyncio.timeout(10):
        await client.create_queue("q", lease_s=1)
        await publish(client, 1)
        async with client.subscribe("q", "g", auto_extend=False) as messages:
            message = await anext(messages)
            assert client._session is not None
            client._session._connector.on_drain(3600)
            lost = asyncio.Event()
            client._session.add(Losses(lost))
            cut(server)
            await lost.wait()
            with pytest.raises(tocsin.StaleDelivery):
                await message.extend()

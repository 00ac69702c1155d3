"""The client against a fake broker over real sockets."""

import asyncio

import msgspec
import pytest
import tocsin
import uvloop

from gateway.wire import frames
from tests.clients.fake_broker import FakeBroker


async def test_a_receipt_comes_when_the_message_is_stored(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    receipt = await client.publish("orders", {"total": 12}, key="user-7", id="i-1")
    assert broker.bodies("orders") == [{"total": 12}]
    assert (receipt.offset, receipt.duplicate, receipt.id) == (0, False, "i-1")
    assert receipt.durability == tocsin.Durability("all", 1)


async def test_a_client_says_what_it_is_called(broker: FakeBroker) -> None:
    for name in ("worker-1", "w" * 128):
        async with tocsin.connect(broker.url, name=name):
            assert broker.received(frames.Hello)[-1].client == name


@pytest.mark.parametrize("name", ["", "w" * 129])
def test_a_name_has_up_to_128_characters(name: str) -> None:
    with pytest.raises(ValueError, match=f"1 to 128 characters, not {len(name)}"):
        tocsin.connect(name=name)


async def test_publishes_of_one_turn_travel_in_one_frame(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await asyncio.gather(*(client.publish("orders", n, key="k") for n in range(50)))
    assert len(broker.received(frames.Publish)) == 1
    assert broker.bodies("orders") == list(range(50))


async def test_bytes_are_delivered_as_bytes(broker: FakeBroker, client: tocsin.Client) -> None:
    await client.publish("orders", b"\x00\xff", content_type="image/x-icon")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        assert message.body == message.body_bytes == b"\x00\xff"
        assert message.is_binary
        assert message.content_type == "image/x-icon"


async def test_a_message_says_everything_that_was_published(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await client.publish("orders", {"a": 1.50}, key="k", id="i", headers={"h": "v"})
    await client.publish("orders", None)
    async with client.subscribe("orders", "g") as messages:
        first, second = await anext(messages), await anext(messages)
        first, second = sorted((first, second), key=lambda m: m.key is None)
        assert (first.key, first.body, first.id) == ("k", {"a": 1.5}, "i")
        assert first.headers == {"h": "v"}
        assert (first.attempt, first.published_unix_ms) == (1, 1_763_690_400_000)
        assert (second.key, second.body, second.headers) == (None, None, {})
        assert second.id == f"id-1-{second.partition}-{second.offset}"


UNDECODABLE = {
    "float": b"1e400",
    "negative": b"-1e400",
    "inside": b'{"a":[1,1e400]}',
    "integer": b"1" * 4301,
}


@pytest.mark.parametrize("body", UNDECODABLE.values(), ids=UNDECODABLE)
async def test_a_body_that_python_cannot_hold_is_an_error_that_names_its_bytes(
    broker: FakeBroker, client: tocsin.Client, body: bytes
) -> None:
    """Valid JSON that the broker takes: the message can be read and settled all the same."""
    await client.publish("orders", msgspec.Raw(body), key="k", id="i-1")
    async with client.subscribe("orders", "g") as messages:
        message = await anext(messages)
        told = f"message i-1 is JSON of {len(body)} bytes .*out of range.*message.body_bytes"
        with pytest.raises(tocsin.UndecodableBody, match=told) as raised:
            _ = message.body
        assert isinstance(raised.value, tocsin.TocsinError)
        assert raised.value.message_id == "i-1"
        assert message.body_bytes == body
        await message.ack(confirm=True)


async def test_the_largest_numbers_that_python_holds_are_decoded(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    bodies = {b"1e308": 1e308, b"1" * 4300: int("1" * 4300), b"1e-400": 0.0}
    for body in bodies:
        await client.publish("orders", msgspec.Raw(body), key="k")
    async with client.subscribe("orders", "g") as messages:
        for value in bodies.values():
            message = await anext(messages)
            assert message.body == value
            await message.ack()


@pytest.mark.parametrize("body", [object(), "\ud800", {1: object()}])
async def test_what_has_no_json_form_is_refused_here(client: tocsin.Client, body: object) -> None:
    with pytest.raises(tocsin.InvalidRequest):
        await client.publish("orders", body)


async def test_wrong_types_are_refused_here_and_never_spoil_a_frame(client: tocsin.Client) -> None:
    """R5: the broker could only refuse the whole frame; here each message has its own outcome."""
    wrong = ({"key": ""}, {"key": 7}, {"id": 7}, {"headers": {"a": 1}}, {"ttl_s": "1"}, {"ky": "k"})
    for fields in wrong:
        with pytest.raises(tocsin.PublishManyFailed) as failed:
            await client.publish_many("orders", [{"body": 1}, {"body": 1, **fields}])
        good, bad = failed.value.outcomes
        assert isinstance(good, tocsin.Receipt)
        assert isinstance(bad, tocsin.InvalidRequest)


async def test_callers_that_waited_for_room_travel_together(broker: FakeBroker) -> None:
    broker.welcome |= {"in_flight_max": 10}
    async with tocsin.connect(broker.url) as client:
        await asyncio.gather(*(client.publish("orders", n, key="k") for n in range(100)))
    assert len(broker.received(frames.Publish)) <= 20
    assert broker.bodies("orders") == list(range(100))


async def test_a_caller_that_gave_up_waiting_lets_the_others_pass(broker: FakeBroker) -> None:
    broker.welcome |= {"in_flight_max": 1}
    async with tocsin.connect(broker.url) as client:
        publishing = [asyncio.ensure_future(client.publish("orders", n)) for n in range(4)]
        await asyncio.sleep(0)
        publishing[1].cancel()
        publishing[2].cancel()
        outcomes = await asyncio.gather(*publishing, return_exceptions=True)
    assert [isinstance(one, tocsin.Receipt) for one in outcomes] == [True, False, False, True]
    assert broker.bodies("orders") == [0, 3]


async def test_an_unknown_queue_is_an_error_of_its_own(client: tocsin.Client) -> None:
    with pytest.raises(tocsin.QueueNotFound):
        await client.publish("nowhere", 1)
    with pytest.raises(tocsin.QueueNotFound):
        async with client.subscribe("nowhere", "g"):
            pass


async def test_publish_many_tells_each_message_its_fate(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    receipts = await client.publish_many(
        "orders", [{"body": 1, "key": "k"}, tocsin.NewMessage(2, key="k")]
    )
    assert [receipt.offset for receipt in receipts] == [0, 1]
    broker.refuse(lambda message: "message_too_large" if bytes(message.body) == b"4" else None, 3)
    with pytest.raises(tocsin.PublishManyFailed) as failed:
        await client.publish_many("orders", [{"body": n, "key": "k"} for n in (3, 4, 5)])
    first, second, third = failed.value.outcomes
    assert isinstance(first, tocsin.Receipt)
    assert isinstance(second, tocsin.TooLarge)
    assert isinstance(third, tocsin.Receipt)
    assert await client.publish_many("orders", []) == []


async def test_more_than_may_be_in_flight_waits_and_keeps_its_order(broker: FakeBroker) -> None:
    broker.welcome |= {"in_flight_max": 7, "messages_per_publish_max": 3}
    async with tocsin.connect(broker.url) as client:
        many = client.publish_many("orders", [{"body": n, "key": "k"} for n in range(100)])
        single = [client.publish("orders", n, key="k") for n in range(100, 120)]
        await asyncio.gather(many, *single)
    assert broker.bodies("orders") == list(range(120))
    assert max(len(frame.messages) for frame in broker.received(frames.Publish)) == 3


@pytest.mark.parametrize("code", ["queue_full", "overloaded", "storage_full", "unknown"])
async def test_a_refusal_for_the_moment_is_waited_out_in_order(
    broker: FakeBroker, client: tocsin.Client, code: str
) -> None:
    broker.refuse(code, times=2)
    receipts = await asyncio.gather(*(client.publish("orders", n, key="k") for n in range(20)))
    assert broker.bodies("orders") == list(range(20))
    assert [receipt.offset for receipt in receipts] == list(range(20))


async def test_a_publish_without_an_answer_ends_in_time(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    broker.silent = True
    with pytest.raises(tocsin.PublishTimeout):
        await client.publish("orders", 1, timeout_s=0.05)


async def test_a_publish_that_is_refused_too_long_says_why(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    broker.refuse("queue_full", times=1000)
    with pytest.raises(tocsin.PublishTimeout, match="queue_full"):
        await client.publish("orders", 1, timeout_s=0.3)


async def test_waiting_for_room_ends_in_time_too(broker: FakeBroker) -> None:
    broker.welcome |= {"in_flight_max": 2}
    broker.silent = True
    async with tocsin.connect(broker.url) as client:
        waiting = asyncio.gather(
            *(client.publish("orders", n, timeout_s=5) for n in range(2)), return_exceptions=True
        )
        await broker.until(lambda: broker.received(frames.Publish))
        with pytest.raises(tocsin.PublishTimeout):
            await client.publish("orders", 2, timeout_s=0.05)
        with pytest.raises(tocsin.PublishManyFailed):
            await client.publish_many("orders", [{"body": 3}], timeout_s=0.05)
        await client.close()
        assert [type(outcome) for outcome in await waiting] == [tocsin.ClientClosed] * 2


async def test_unanswered_messages_are_sent_again_and_stored_once(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """P4: under the same sequences, in order."""
    broker.silent = True
    publishing = asyncio.gather(*(client.publish("orders", n, key="k") for n in range(5)))
    await broker.until(lambda: len(broker.logs["orders"]) == 5)
    broker.silent = False
    broker.cut()
    receipts = await publishing
    assert [receipt.offset for receipt in receipts] == list(range(5))
    assert all(receipt.duplicate for receipt in receipts)
    assert broker.bodies("orders") == list(range(5))
    assert len({frame.producer for frame in broker.received(frames.Hello)}) == 1


async def test_what_is_published_while_disconnected_waits(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    broker.refuse_connections = 503
    broker.cut()
    await broker.until(lambda: not broker.sockets)
    publishing = asyncio.ensure_future(client.publish("orders", 1))
    broker.refuse_connections = 0
    assert (await publishing).offset == 0


def test_a_deadline_that_has_passed_is_kept_on_uvloop_too() -> None:
    """Its `call_at` gives another kind of handle for a time that is over."""

    async def whole() -> None:
        async with FakeBroker() as broker, tocsin.connect(broker.url) as client:
            broker.queue("orders")
            session, now = client._session, asyncio.get_running_loop().time()
            assert session is not None
            for late_s in (1.0, 0.5, 2.0):
                session.wake_at(now - late_s)
            assert (await client.publish("orders", 1)).offset == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


async def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(tocsin.CannotConnect, match=r"http://127\.0\.0\.1:9"):
        async with tocsin.connect("http://127.0.0.1:9"):
            pass
    for url in ("ws://somewhere", "http://", "http://[::1", "http://h:65536", "http://h/?token=x"):
        with pytest.raises(ValueError, match="URL"):
            tocsin.connect(url)


@pytest.mark.parametrize("text", ["", "two words", "of-a-file\n", "schlüssel"])
async def test_a_token_that_cannot_be_one_is_said_and_not_shown(
    broker: FakeBroker, text: str
) -> None:
    with pytest.raises(ValueError, match="token") as told:
        tocsin.connect(broker.url, token=text)
    assert not text or text not in str(told.value)
    with pytest.raises(tocsin.NoToken, match="function") as failed:
        async with tocsin.connect(broker.url, token=lambda: text):
            pass
    assert not text or text not in str(failed.value)


async def test_a_server_that_is_no_broker_is_said() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(tocsin.CannotConnect, match="404"):
            async with tocsin.connect(f"http://127.0.0.1:{port}"):
                pass


async def test_a_wrong_token_is_said(broker: FakeBroker) -> None:
    broker.refuse_connections = 401
    with pytest.raises(tocsin.Unauthorized):
        async with tocsin.connect(broker.url, token="x"):
            pass


async def test_a_fresh_token_is_tried_where_there_is_one(broker: FakeBroker) -> None:
    """4401: reconnect with a fresh token."""
    asked: list[int] = []

    def token() -> str:
        asked.append(1)
        return "t"

    async with tocsin.connect(broker.url, token=token) as client:
        broker.close(4401, "expired")
        await broker.until(lambda: broker.connected == 2)
        await client.publish("orders", 1)
    assert len(asked) == 2


async def test_a_session_that_is_ended_for_good_is_not_opened_again(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """4500-4999."""
    broker.silent = True
    publishing = asyncio.ensure_future(client.publish("orders", 1))
    async with client.subscribe("orders", "g") as messages:
        waiting = asyncio.ensure_future(anext(messages))
        await broker.until(lambda: broker.logs["orders"])
        await waiting
        waiting = asyncio.ensure_future(anext(messages))
        broker.close(4501, "revoked")
        with pytest.raises(tocsin.SessionEnded, match="revoked"):
            await publishing
        with pytest.raises(tocsin.SessionEnded):
            await waiting
    with pytest.raises(tocsin.SessionEnded):
        await client.publish("orders", 2)
    assert broker.connected == 1


async def test_a_draining_broker_gets_nothing_new_and_says_when_to_come_back(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    """P14"""
    broker.say({"type": "drain", "reconnect_after_s": 0.05, "reason": "bye"})
    await client.queue("orders")  # a round trip: the drain has arrived
    publishing = asyncio.ensure_future(client.publish("orders", 1))
    await client.queue("orders")
    assert broker.received(frames.Publish) == []
    broker.close(4000, "going down")
    await publishing
    assert broker.connected == 2


async def test_a_silent_connection_is_asked_and_then_given_up(broker: FakeBroker) -> None:
    broker.welcome["heartbeat_s"] = 0.05
    async with tocsin.connect(broker.url):
        await broker.until(lambda: broker.received(frames.Ping))
        for socket in broker.sockets:
            socket.transport.pause_reading()
        await broker.until(lambda: broker.connected == 2)


async def test_a_client_is_used_inside_its_context(broker: FakeBroker) -> None:
    client = tocsin.connect(broker.url)
    with pytest.raises(tocsin.ClientClosed):
        await client.publish("orders", 1)
    with pytest.raises(tocsin.ClientClosed):
        client.subscribe("orders", "g")
    with pytest.raises(tocsin.ClientClosed):
        await client.queue("orders")
    await client.close()


async def test_settings_come_from_the_environment(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_URL", broker.url)
    monkeypatch.setenv("TOCSIN_TOKEN", "secret")
    async with tocsin.connect() as client:
        assert client.url == broker.url
        assert client.is_connected

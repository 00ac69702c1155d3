"""Brokers, and what stands before them, that answer what cannot be: never a hang, nothing lost."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import tocsin
from tocsin.io import longpoll
from tocsin.io.longpoll import LongPoll
from tocsin.proto.connect_policy import ReconnectDelay

from gateway.server import Server
from gateway.wire import frames
from tests.clients.fake_broker import FakeBroker
from tests.clients.io.test_session import Losses, publish, server
from tests.conformance.virtual import run

__all__ = ["server"]


# --- tokens ---------------------------------------------------------------------------------------


async def test_a_token_that_cannot_be_had_at_first_is_said(broker: FakeBroker) -> None:
    def token() -> str:
        raise KeyError("SECRET")

    with pytest.raises(tocsin.NoToken, match="SECRET") as caught:
        async with tocsin.connect(broker.url, token=token):
            pass
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("bad", [KeyError("SECRET"), OSError("down"), None])
async def test_a_token_that_cannot_be_had_for_a_while_is_asked_for_again(
    broker: FakeBroker, bad: Exception | None
) -> None:
    """What hands out the tokens is down, or answers nonsense, while the connection is lost."""
    asked: list[int] = []

    def token() -> Any:
        asked.append(1)
        if len(asked) in (2, 3):
            if bad is None:
                return None
            raise bad
        return "t"

    async with tocsin.connect(broker.url, token=token) as client, asyncio.timeout(10):
        broker.cut()
        await client.publish("orders", 1)
    assert len(asked) == 4


# --- frames that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "revoked", "subscription": 1, "deliveries": [[1]]},
        {"type": "ok", "ref": "x"},
        {"type": "push", "subscription": 1, "messages": 5},
        7,
    ],
)
async def test_a_frame_that_cannot_be_costs_the_connection_only(
    broker: FakeBroker, frame: Any
) -> None:
    async with (
        asyncio.timeout(10),
        tocsin.connect(broker.url) as client,
        client.subscribe("orders", "g") as messages,
    ):
        broker.say(frame)
        await broker.until(lambda: broker.connected == 2)
        await client.publish("orders", 1)
        assert (await anext(messages)).body == 1


async def test_a_receipt_that_cannot_be_is_no_answer(broker: FakeBroker) -> None:
    """P1: the message is published again under its sequence, and not forgotten."""
    broker.silent = True
    async with tocsin.connect(broker.url) as client, asyncio.timeout(10):
        publishing = asyncio.ensure_future(client.publish("orders", 1, timeout_s=None))
        await broker.until(lambda: broker.logs["orders"])
        ref = broker.received(frames.Publish)[-1].ref
        broker.silent = False
        broker.say({"type": "ok", "ref": ref, "receipts": [[0]]})
        assert (await publishing).duplicate


# --- answers to polls that cannot be --------------------------------------------------------------

Tamper = Callable[[dict[str, Any]], bytes]


def _changed(**fields: Any) -> Tamper:
    return lambda batch: json.dumps({**batch, **fields}).encode()


def _unforeseen(batch: dict[str, Any]) -> bytes:
    raise RuntimeError(f"nobody thought of this at batch {batch['batch']}")


TAMPERS: dict[str, Tamper] = {
    "another session's": _changed(session="somebody"),
    "a batch that goes back": lambda b: json.dumps({**b, "batch": b["batch"] - 2}).encode(),
    "a batch too far": lambda b: json.dumps({**b, "batch": b["batch"] + 1}).encode(),
    "frames that are none": _changed(
        frames=[{"type": "revoked", "subscription": 1, "deliveries": [[1]]}]
    ),
    "no frames": _changed(frames=5),
    "half of it": lambda b: json.dumps(b).encode()[:-5],
    "no JSON": lambda b: b"<html>hello</html>",
    "an error of the library": _unforeseen,
    "no UTF-8": lambda b: b'{"session": "\xff", "batch": 1}',
}


@pytest.mark.parametrize("kind", TAMPERS)
async def test_an_answer_to_a_poll_that_cannot_be_costs_the_connection_only(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that mixes answers up, caches them, or puts its own page there: the session comes
    back, and every message is given once."""
    tampered = asyncio.Event()
    request = LongPoll._request

    async def between(self: LongPoll, method: str, path: str, content: bytes | None) -> bytes:
        data = await request(self, method, path, content)
        if method == "GET" and b'"push"' in data and not tampered.is_set():
            tampered.set()
            return TAMPERS[kind](json.loads(data))
        return data

    monkeypatch.setattr(LongPoll, "_request", between)
    got: list[int] = []
    async with tocsin.connect(server.url, transport="long-poll") as client, asyncio.timeout(15):
        await client.create_queue("q", partitions=1)
        async with client.subscribe("q", "g") as messages:
            lost = asyncio.Event()
            assert client._session is not None
            client._session.add(Losses(lost))
            await publish(client, 20)
            while len(got) < 20:
                message = await anext(messages)
                got.append(message.body)
                await message.ack()
            await lost.wait()
            assert tampered.is_set()
    assert got == sorted(got)


async def test_what_answers_polls_at_once_is_not_asked_all_the_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that answers from memory: the client neither spins nor hangs."""
    polls: list[float] = []
    third = asyncio.Event()
    loop = asyncio.get_running_loop()
    request = LongPoll._request

    async def between(self: LongPoll, method: str, path: str, content: bytes | None) -> bytes:
        if method == "GET":
            polls.append(loop.time())
            if len(polls) == 3:
                third.set()
            await asyncio.sleep(0)
            session, after = path.split("/")[3], path.partition("after=")[2].partition("&")[0]
            return json.dumps({"session": session, "batch": int(after), "frames": []}).encode()
        return await request(self, method, path, content)

    monkeypatch.setattr(LongPoll, "_request", between)
    async with tocsin.connect(server.url, transport="long-poll"), asyncio.timeout(5):
        await third.wait()
    assert polls[2] - polls[0] >= 2 * longpoll.PAUSE_S - 0.01


@pytest.mark.parametrize(("answers", "ends"), [(True, False), (False, True)])
def test_an_answer_ends_the_time_of_failed_requests(
    answers: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A broker that was busy for longer than the patience was given up at the next lost request,
    because the first one before it still counted.] Without an answer between them they do."""

    async def history() -> None:
        lost = tocsin.CannotConnect("lost")
        busy = tocsin.Busy("busy", retry=True, retry_after_s=2 * longpoll.PATIENCE_S)
        loop, asked_at = asyncio.get_running_loop(), list[float]()

        async def request(self: LongPoll, method: str, path: str, content: bytes | None) -> bytes:
            asked_at.append(loop.time())
            if len(asked_at) == 2 and answers:
                raise busy
            if answers and len(asked_at) > 3:
                return b"{}"
            raise lost

        monkeypatch.setattr(LongPoll, "_request", request)
        carrier = LongPoll("http://127.0.0.1:1", None)
        if ends:
            with pytest.raises(tocsin.CannotConnect):
                await carrier._request_repeatedly("POST", "/frames", b"[]")
            patience_s = longpoll.REQUEST_TIMEOUT_S + longpoll.PATIENCE_S
            assert asked_at[-1] - asked_at[0] == pytest.approx(patience_s, abs=longpoll.PAUSE_S)
        else:
            assert await carrier._request_repeatedly("POST", "/frames", b"[]") == b"{}"
        carrier.abort()
        await carrier.wait_closed()

    run(history())


async def test_an_answer_that_trickles_for_ever_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(longpoll, "BODY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(longpoll, "REQUEST_TIMEOUT_S", 0.1)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: 1000000\r\n\r\n")
        try:
            while not reader.at_eof():
                writer.write(b" ")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 0.01)
        finally:
            writer.close()

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with asyncio.timeout(5):
            with pytest.raises(tocsin.CannotConnect):
                async with tocsin.connect(f"http://127.0.0.1:{port}", transport="long-poll"):
                    pass


def test_a_broker_that_is_never_understood_is_asked_ever_more_seldom() -> None:
    """It welcomes and then talks nonsense: else that is a connection every 60 ms for ever."""
    reconnecting = ReconnectDelay(rng=Random(1), fresh_tokens=False)
    delays = []
    for _ in range(10):
        delays.append(reconnecting.next_delay_s(now=0.0))
        reconnecting.on_connect()
        reconnecting.on_protocol_error()
    assert delays[0] <= 0.1
    assert delays[9] > 3.0
    reconnecting.on_connect()
    assert reconnecting.next_delay_s(now=0.0) <= 0.1


async def test_a_client_that_is_cancelled_while_it_opens_leaves_nothing_open(
    broker: FakeBroker,
) -> None:
    """At each of its awaits."""
    for turns in range(12):
        opening = asyncio.ensure_future(tocsin.connect(broker.url).__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait((opening,))
        if not opening.cancelled():
            await opening.result().close()
    async with tocsin.connect(broker.url):
        pass  # whatever was opened before has been accepted by now
    await broker.until(lambda: not broker.sockets)

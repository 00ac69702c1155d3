"""The end of a credential ends what it has let in (P11): sessions over either transport, those that
linger, requests that wait. And a session takes fresh ones before."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest

from gateway.auth.auth import Authenticator
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.wire import frames
from tests.gateway.asgi import client_of
from tests.gateway.net.test_longpoll import Client
from tests.gateway.plain_tokens import PlainTokens, record, text
from tests.gateway.raw_sockets import Gateway, Wire, connect, serve
from tests.gateway.rest.test_rest import check_problem
from tests.histories.house import House

WALL: Final = 1_763_690_400.0
MANY: Final = 30
"""Sessions of each kind; `python -m loadtests.trials revoke` has hundreds."""


class Guarded:
    """A broker with tokens, its sockets and its HTTP interface."""

    def __init__(self, house: House) -> None:
        self.wall = WALL
        self.tokens = PlainTokens()
        self.tokens.put(record("abcdefgh", "billing"))
        self.tokens.put(record("bbbbbbbb", "billing"))
        self.tokens.put(record("cccccccc", "shop"))
        self.auth = Authenticator("operator-0123456789", tokens=self.tokens)
        self.tokens.on_revoked(lambda one: self.auth.on_credential_ended(one.credential))
        around = SessionServices(house.broker, self.auth, wall=lambda: self.wall)
        self.connections = Connections(around)
        self.sessions = around.sessions
        self.application = Application(
            house.broker, self.auth, LongPolls(self.connections), wall=lambda: self.wall
        )

    def http(self, token_id: str = "abcdefgh") -> Any:
        return client_of(self.application, authorization=f"Bearer {text(token_id)}")


@pytest.fixture
async def guarded(house: House) -> Guarded:
    await house.queue()
    return Guarded(house)


@pytest.fixture
async def gateway(guarded: Guarded) -> AsyncIterator[Gateway]:
    async with serve(guarded.connections) as made:
        yield made


async def open_session(gateway: Gateway, token_id: str = "abcdefgh", **hello: object) -> Wire:
    wire = await connect(gateway)
    await wire.send({"type": "hello", "token": text(token_id), **hello})
    assert (await wire.receive())["type"] == "welcome"
    return wire


async def subscribe(wire: Wire) -> None:
    await wire.send({"type": "subscribe", "ref": 1, "subscription": 1, "queue": "orders",
                     "group": "billing", "credit": 10})  # fmt: skip
    assert (await wire.receive())["type"] == "ok"


async def renew(wire: Wire, token: str, ref: int = 7) -> dict[str, Any]:
    await wire.send({"type": "auth", "ref": ref, "token": token})
    return await wire.receive()


async def until(true: Callable[[], bool]) -> None:
    """What comes about by itself."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


# --- Revoked --------------------------------------------------------------------------------------


async def test_a_revoked_token_ends_its_sessions_and_no_others(
    guarded: Guarded, gateway: Gateway
) -> None:
    wires = [await open_session(gateway) for _ in range(MANY)]
    others = [await open_session(gateway, one) for one in ("bbbbbbbb", "cccccccc")]
    async with guarded.http() as http:
        polls = [Client(http) for _ in range(MANY)]
        for one in polls:
            await one.open()
        waiting = [asyncio.create_task(one.poll(30)) for one in polls]
        await asyncio.sleep(0)
        guarded.tokens.drop("abcdefgh")
        async with asyncio.timeout(5):
            closes = [await wire.closed() for wire in wires]
            answers = [(await one).json() for one in waiting]
        assert set(closes) == {(4501, frames.REVOKED.reason)}
        assert {answer["close"]["code"] for answer in answers} == {4501}
        check_problem(await polls[0].poll(0), "unauthorized")
    for wire in others:
        await wire.send({"type": "ping", "ref": 1})
        assert (await wire.receive())["type"] == "pong"
    for wire in (*wires, *others):
        await wire.close()
    assert guarded.auth.tracked_count("token:abcdefgh") == 0


async def test_a_session_that_lingers_ends_with_its_token(
    guarded: Guarded, gateway: Gateway
) -> None:
    wire = await open_session(gateway, linger_s=300)
    await subscribe(wire)
    wire.writer.transport.abort()
    async with asyncio.timeout(5):
        await until(lambda: len(guarded.sessions) > 0)
        guarded.tokens.drop("abcdefgh")
        await until(lambda: not len(guarded.sessions))
    assert guarded.auth.tracked_count("token:abcdefgh") == 0


async def test_a_pull_that_waits_ends_with_its_token(guarded: Guarded, house: House) -> None:
    path = "/v1/queues/orders/groups/g/pull"
    async with guarded.http() as http:
        waiting = asyncio.create_task(http.post(path, json={"wait_s": 30}))
        async with asyncio.timeout(5):
            await until(lambda: guarded.auth.tracked_count("token:abcdefgh") > 0)
            guarded.tokens.drop("abcdefgh")
            check_problem(await waiting, "unauthorized")
    async with guarded.http("cccccccc") as http:
        pulled = await http.post(path, json={"wait_s": 0})
        assert pulled.json() == {"messages": []}
    assert guarded.auth.tracked_count("token:abcdefgh") == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/queues/orders/messages", b'{"messages": [{"body": 1}]}'),
        ("/v1/queues/orders/groups/g/pull", b'{"wait_s": 30}'),
        ("/v1/sessions", b'{"type": "hello"}'),
    ],
)
@pytest.mark.parametrize("way", ["revoked", "over"])
async def test_what_is_asked_slowly_is_not_begun_when_the_token_has_ended(
    guarded: Guarded, house: House, path: str, body: bytes, way: str
) -> None:
    """Whoever holds a thousand bodies back by their last byte has no half a minute more."""
    if way == "over":
        guarded.tokens.put(record("abcdefgh", "billing", ends=WALL + 0.1))

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:-1]
        if way == "revoked":
            guarded.tokens.drop("abcdefgh")
        else:
            await asyncio.sleep(0.15)
        yield body[-1:]

    async with guarded.http() as http, asyncio.timeout(5):
        check_problem(await http.post(path, content=slowly()), "unauthorized")
    assert len(guarded.connections) == 0
    assert house.broker.publisher.commits.messages_total == 0


async def test_a_pull_whose_token_ends_while_its_group_is_made_does_not_wait(
    guarded: Guarded, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = house.broker.put_group

    async def put_group(*args: Any) -> Any:
        guarded.tokens.drop("abcdefgh")
        return await make(*args)

    monkeypatch.setattr(house.broker, "put_group", put_group)
    async with guarded.http() as http, asyncio.timeout(5):
        answer = await http.post("/v1/queues/orders/groups/new/pull", json={"wait_s": 30})
        check_problem(answer, "unauthorized")
    assert guarded.auth.tracked_count("token:abcdefgh") == 0


async def test_who_has_shaken_hands_and_not_said_hello_ends_too(
    guarded: Guarded, gateway: Gateway
) -> None:
    wire = await connect(gateway, Authorization=f"Bearer {text()}")
    guarded.tokens.drop("abcdefgh")
    async with asyncio.timeout(4):
        assert (await wire.closed())[0] == 4501
    await wire.close()


async def test_one_that_cannot_end_does_not_keep_the_others(guarded: Guarded) -> None:
    ended: list[int] = []

    class One:
        def __init__(self, number: int) -> None:
            self.number = number

        def revoked(self) -> None:
            ended.append(self.number)
            if self.number == 3:
                raise RuntimeError("a bug")

    for number in range(10):
        guarded.auth.track("token:abcdefgh", One(number))
    guarded.tokens.drop("abcdefgh")
    async with asyncio.timeout(5):
        await until(lambda: len(ended) == 10)
    assert sorted(ended) == list(range(10))


# --- Over -----------------------------------------------------------------------------------------


async def test_a_token_that_runs_out_ends_its_sessions(guarded: Guarded, gateway: Gateway) -> None:
    guarded.tokens.put(record("dddddddd", "billing", ends=WALL + 0.3))
    wires = [await open_session(gateway, "dddddddd") for _ in range(MANY)]
    async with guarded.http("dddddddd") as http:
        polls = [Client(http) for _ in range(MANY)]
        for one in polls:
            await one.open()
        waiting = [asyncio.create_task(one.poll(30)) for one in polls]
        async with asyncio.timeout(5):
            closes = [await wire.closed() for wire in wires]
            answers = [(await one).json() for one in waiting]
    assert set(closes) == {(4401, frames.UNAUTHORIZED.reason)}
    assert {answer["close"]["code"] for answer in answers} == {4401}
    for wire in wires:
        await wire.close()


async def test_a_session_that_lingers_ends_when_its_token_does(
    guarded: Guarded, gateway: Gateway
) -> None:
    guarded.tokens.put(record("dddddddd", "billing", ends=WALL + 0.3))
    wire = await open_session(gateway, "dddddddd", linger_s=300)
    await subscribe(wire)
    wire.writer.transport.abort()
    async with asyncio.timeout(5):
        await until(lambda: len(guarded.sessions) > 0)
        await until(lambda: not len(guarded.sessions))


# --- Fresh ones -----------------------------------------------------------------------------------


async def test_a_session_takes_a_fresh_token_and_ends_with_that(
    guarded: Guarded, gateway: Gateway
) -> None:
    guarded.tokens.put(record("dddddddd", "billing", ends=WALL + 0.2))
    guarded.tokens.put(record("eeeeeeee", "billing", "read:x", ends=WALL + 3600))
    wire = await connect(gateway)
    await wire.send({"type": "hello", "token": text("dddddddd")})
    assert (await wire.receive())["right_lasts_s"] == 0.2
    assert await renew(wire, text("eeeeeeee")) == {"type": "ok", "ref": 7, "right_lasts_s": 3600.0}
    guarded.tokens.drop("dddddddd")
    await asyncio.sleep(0.25)  # the first one is over, twice
    await wire.send({"type": "ping", "ref": 1})
    assert (await wire.receive())["type"] == "pong"
    guarded.tokens.drop("eeeeeeee")
    async with asyncio.timeout(5):
        assert (await wire.closed())[0] == 4501
    await wire.close()


async def test_somebody_else_s_token_or_a_wrong_one_changes_nothing(
    guarded: Guarded, gateway: Gateway
) -> None:
    guarded.tokens.put(record("dddddddd", "billing", tenant="acme"))
    wire = await open_session(gateway)
    for token, code in (
        (text("cccccccc"), "forbidden"), (text("dddddddd"), "forbidden"),
        ("operator-0123456789", "forbidden"), ("wrong", "unauthorized"), ("", "unauthorized"),
    ):  # fmt: skip
        answer = await renew(wire, token)
        assert (answer["type"], answer["code"], answer["ref"]) == ("error", code, 7)
    assert guarded.auth.tracked_count("token:abcdefgh") == 1
    assert (await renew(wire, text("bbbbbbbb")))["right_lasts_s"] is None
    assert guarded.auth.tracked_count("token:abcdefgh") == 0
    await wire.close()


async def test_a_long_poll_takes_a_fresh_token(guarded: Guarded) -> None:
    guarded.tokens.put(record("dddddddd", "billing", ends=WALL + 0.3))
    async with guarded.http() as http:
        http.headers["authorization"] = f"Bearer {text('dddddddd')}"
        client = Client(http)
        await client.open()
        http.headers["authorization"] = f"Bearer {text()}"
        await client.say({"type": "auth", "ref": 1, "token": text()})
        (ok,) = await client.frames()
        assert (ok["type"], ok["right_lasts_s"]) == ("ok", None)
        waiting = await client.poll(0.5)
        assert "close" not in waiting.json()
    guarded.connections.deadlines.close()


async def test_auth_before_hello_breaks_the_protocol(gateway: Gateway) -> None:
    wire = await connect(gateway)
    await wire.send({"type": "auth", "ref": 1, "token": text()})
    assert (await wire.closed())[0] == 4502
    await wire.close()


async def test_a_session_that_comes_back_is_here_by_what_it_shows_then(
    guarded: Guarded, gateway: Gateway
) -> None:
    wire = await open_session(gateway, linger_s=300)
    await wire.send({"type": "hello"})
    await wire.close()
    wire = await connect(gateway)
    await wire.send({"type": "hello", "token": text(), "linger_s": 300})
    session = (await wire.receive())["session"]
    await subscribe(wire)
    wire.writer.transport.abort()
    back = await connect(gateway)
    await back.send({"type": "hello", "token": text("bbbbbbbb"), "session": session,
                     "linger_s": 300})  # fmt: skip
    assert (await back.receive())["resumed"] == [1]
    guarded.tokens.drop("abcdefgh")
    await back.send({"type": "ping", "ref": 1})
    assert (await back.receive())["type"] == "pong"
    guarded.tokens.drop("bbbbbbbb")
    async with asyncio.timeout(5):
        assert (await back.closed())[0] == 4501
    await back.close()

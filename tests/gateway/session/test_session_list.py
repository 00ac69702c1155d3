"""`GET /v1/sessions`: every figure of a session against what it did, in two states and more."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.auth.auth import Authenticator
from gateway.models import SessionList
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from metadata.catalog import Principal
from push import limits
from tests.gateway.asgi import client_of
from tests.gateway.net.test_longpoll import Client
from tests.histories.house import House, Socket, eventually, message, numbered

Shown = dict[str, Any]


def name(number: int) -> str:
    """A session's id; ascending."""
    return f"{number:022}"


@pytest.fixture
def connections(house: House) -> Connections:
    return Connections(SessionServices(house.broker, Authenticator(None)))


@pytest.fixture
def polls(connections: Connections) -> LongPolls:
    return LongPolls(connections)


@pytest.fixture
async def http(
    house: House, connections: Connections, polls: LongPolls
) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(Application(house.broker, Authenticator(None), polls)) as client:
        yield client
    connections.deadlines.close()


async def listed(http: httpx2.AsyncClient, **query: object) -> list[Shown]:
    """The sessions, all in the form that /openapi.json says."""
    answer = await http.get("/v1/sessions", params={k: str(v) for k, v in query.items()})
    assert answer.status_code == 200, answer.text
    msgspec.convert(answer.json(), SessionList)
    sessions: list[Shown] = answer.json()["sessions"]
    return sessions


async def test_a_session_is_shown_with_what_it_has(
    house: House, connections: Connections, http: httpx2.AsyncClient
) -> None:
    queue = await house.queue(partitions=3)
    begun = int(time.time() * 1000)
    socket = Socket(house, connections.services, name(1))
    assert await listed(http) == []  # it has not said hello
    socket.say(type="hello", client="worker-1", linger_s=30)
    (bare,) = await listed(http)
    assert begun <= bare.pop("opened_unix_ms") <= time.time() * 1000
    assert begun - 2 <= bare.pop("heard_unix_ms") <= time.time() * 1000 + 2  # of two clocks
    assert bare == {
        "session": name(1), "client": "worker-1", "principal": "anybody", "transport": "websocket",
        "linger_s": 30.0, "linger_until_unix_ms": None, "draining": False, "unsent_bytes": 0,
        "subscriptions": [],
    }  # fmt: skip
    await house.publish(queue, [message(n, f"k{n}") for n in range(9)])
    socket.say(
        type="subscribe", ref=1, subscription=4, queue="orders", group="billing",
        start="earliest", credit=5,
    )  # fmt: skip
    socket.say(type="subscribe", ref=2, subscription=2, queue="orders", keys=["k1", "k2"], credit=7)
    await socket.until_true(lambda: sum(len(f.get("messages", ())) for f in socket.frames) >= 5)
    (given,) = await listed(http)
    reader, consumer = given["subscriptions"]
    assert reader == {
        "subscription": 2, "queue": "orders", "group": None, "keys": 2, "behind": [],
        "credit": {"granted": 7, "used": 0, "open": 7},
    }  # fmt: skip
    assert consumer == {
        "subscription": 4, "queue": "orders", "group": "billing", "in_flight": 5,
        "partitions": [0, 1, 2], "credit": {"granted": 5, "used": 5, "open": 0},
    }  # fmt: skip
    push = next(f for f in socket.frames if f["type"] == "push")
    place = [push["partition"], push["epoch"], push["push"], push["offset"], push["offset"]]
    socket.say(type="ack", subscription=4, deliveries=[place])
    socket.say(type="credit", subscription=4, granted=6)
    await socket.until_true(lambda: sum(len(f.get("messages", ())) for f in socket.frames) >= 6)
    acked = (await listed(http))[0]["subscriptions"][1]
    assert (acked["in_flight"], acked["credit"]) == (5, {"granted": 6, "used": 6, "open": 0})
    socket.session.drain(1.0)
    assert (await listed(http))[0]["draining"]


async def test_a_session_without_a_transport_is_shown_as_waited_for(
    house: House, connections: Connections, http: httpx2.AsyncClient
) -> None:
    await house.group(await house.queue())
    socket = Socket(house, connections.services, name(1))
    socket.say(type="hello", linger_s=30)
    socket.say(type="subscribe", ref=1, subscription=1, queue="orders", group="billing", credit=1)
    await socket.until_ref(1)
    lost_unix_ms = int(time.time() * 1000)
    socket.session.on_transport_lost()
    (lost,) = await listed(http)
    assert (lost["transport"], lost["client"]) == (None, None)
    assert 0 <= lost["linger_until_unix_ms"] - lost_unix_ms - 30_000 < 5_000
    back = Socket(house, connections.services, name(2))
    back.say(type="hello", session=name(1), linger_s=30)
    (here,) = await listed(http)
    assert (here["session"], here["transport"]) == (name(1), "websocket")
    assert here["linger_until_unix_ms"] is None
    back.session.end()
    assert await listed(http) == []


async def test_what_a_long_poll_has_not_taken_is_unsent(
    house: House, http: httpx2.AsyncClient, polls: LongPolls
) -> None:
    queue = await house.queue()
    client = Client(http)
    await client.open(client="page")
    await client.say(
        {"type": "subscribe", "ref": 1, "subscription": 1, "queue": "orders", "credit": 100}
    )
    await client.frames()
    await client.poll(0)
    (before,) = await listed(http)
    assert (before["transport"], before["client"], before["unsent_bytes"]) == (
        "long-poll", "page", 0,
    )  # fmt: skip
    await house.publish(queue, numbered(3))
    await eventually(lambda: next(iter(polls._by_id.values())).unsent_bytes > 0)
    (waiting,) = await listed(http)
    batch = (await client.poll(5)).json()
    frames = msgspec.json.encode(batch["frames"])
    assert waiting["unsent_bytes"] == len(frames) - 1 - len(batch["frames"])  # [ , ]
    assert waiting["heard_unix_ms"] >= before["heard_unix_ms"] - 2  # of two clocks


async def test_when_a_session_was_heard_of_last_moves_with_what_it_says(
    house: House, connections: Connections, http: httpx2.AsyncClient
) -> None:
    socket = Socket(house, connections.services, name(1))
    socket.say(type="hello")
    (first,) = await listed(http)
    now = asyncio.get_running_loop().time()
    socket.session.on_bytes(now=now - 7)
    (silent,) = await listed(http)
    assert 6_900 <= first["heard_unix_ms"] - silent["heard_unix_ms"] <= 7_100
    socket.say(type="ping", ref=1)
    assert (await listed(http))[0]["heard_unix_ms"] >= first["heard_unix_ms"] - 2


async def test_sessions_are_listed_in_pages_and_only_ones_own(
    house: House, connections: Connections, http: httpx2.AsyncClient
) -> None:
    """P9, P11."""
    for number in (3, 1, 5, 2, 4):
        Socket(house, connections.services, name(number)).say(type="hello")
    answer = (await http.get("/v1/sessions", params={"limit": "2"})).json()
    assert [one["session"] for one in answer["sessions"]] == [name(1), name(2)]
    assert answer["next"] == name(2)
    assert [one["session"] for one in await listed(http, limit=2, after=name(2))] == [
        name(3), name(4),
    ]  # fmt: skip
    last = (await http.get("/v1/sessions", params={"after": name(4)})).json()
    assert ([one["session"] for one in last["sessions"]], "next" in last) == ([name(5)], False)
    assert "next" not in (await http.get("/v1/sessions", params={"limit": "5"})).json()
    stranger = Principal("stranger", "default")
    assert connections.services.sessions.page(stranger, 10, "").sessions == []


async def test_a_page_of_sessions_with_many_subscriptions_is_shorter(
    house: House,
    connections: Connections,
    http: httpx2.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P9: on both sides of the bound; one session is shown whatever it has."""
    await house.queue()
    for number, subscriptions in ((1, 2), (2, 2), (3, 1), (4, 5), (5, 0)):
        socket = Socket(house, connections.services, name(number))
        socket.say(type="hello")
        for one in range(1, subscriptions + 1):
            socket.say(type="subscribe", ref=one, subscription=one, queue="orders", credit=1)
            await socket.until_ref(one)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_PER_PAGE_MAX", 4)
    pages: list[list[str]] = []
    after = ""
    while True:
        page = (await http.get("/v1/sessions", params={"after": after})).json()
        pages.append([one["session"] for one in page["sessions"]])
        after = page.get("next")
        if after is None:
            break
        assert after == pages[-1][-1]
    assert pages == [[name(1), name(2)], [name(3)], [name(4)], [name(5)]]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=x", "after=%00"])
async def test_a_wrong_question_is_refused(http: httpx2.AsyncClient, query: str) -> None:
    """P12."""
    answer = await http.get(f"/v1/sessions?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert (await http.get("/v1/sessions?limit=1000")).status_code == 200


async def test_of_several_gateways_the_one_that_answers_is_named(
    house: House, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await http.get("/v1/sessions")
    assert answer.json() == {"sessions": []}, "there is one broker, which needs no name"
    monkeypatch.setattr(house.broker.groups.presence, "is_shared", True)
    monkeypatch.setattr(house.broker.groups.presence, "gateway", "3f2a")
    answer = await http.get("/v1/sessions")
    assert answer.json() == {"sessions": [], "gateway": "3f2a", "gateways": ["3f2a"]}

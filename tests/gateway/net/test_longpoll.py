"""Sessions by long poll: numbered posts, batches that come until they have arrived."""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.deliverylog.lines import DispatchedLine
from gateway.models import Admission
from gateway.net import longpoll
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from gateway.wire.protocol import Timing
from metadata.catalog import ANYBODY, Principal
from push import limits
from tests.gateway.asgi import client_of
from tests.histories.house import House, eventually, message, numbered
from tests.histories.logged import Logged

Batch = dict[str, Any]


class Client:
    """What a browser does where WebSockets do not get through."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.path = ""
        self.session = ""
        self.batch = 0
        self.number = 0

    async def open(self, **hello: Any) -> Batch:
        answer = await self.http.post("/v1/sessions", json={"type": "hello", **hello})
        assert answer.status_code == 201, answer.text
        batch: Batch = answer.json()
        assert answer.headers["location"] == f"/v1/sessions/{batch['session']}"
        self.path = f"/v1/sessions/{batch['session']}/frames"
        self.session = batch["frames"][0]["session"]
        self.batch, self.number = batch["batch"], 0
        return batch

    async def say(self, *frames: Any, number: int | None = None) -> httpx2.Response:
        self.number += number is None
        query = {"number": str(self.number if number is None else number)}
        return await self.http.post(self.path, params=query, json=list(frames))

    async def poll(self, wait_s: float = 5.0, after: int | None = None) -> httpx2.Response:
        query = {"after": str(self.batch if after is None else after), "wait_s": str(wait_s)}
        return await self.http.get(self.path, params=query)

    async def frames(self, wait_s: float = 5.0) -> list[Batch]:
        """The next batch's."""
        answer = await self.poll(wait_s)
        assert answer.status_code == 200, answer.text
        self.batch = answer.json()["batch"]
        frames: list[Batch] = answer.json()["frames"]
        return frames


@pytest.fixture
def connections(house: House) -> Connections:
    timing = Timing(hello_timeout_s=5, heartbeat_s=0.1, heartbeat_timeout_s=0.1)
    return Connections(SessionServices(house.broker, Authenticator(None), timing=timing))


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


@pytest.fixture
async def client(http: httpx2.AsyncClient, house: House) -> Client:
    """In the group `billing` of the queue `orders`."""
    await house.queue()
    return await joined(http)


async def joined(http: httpx2.AsyncClient) -> Client:
    """In the group `billing` of the queue `orders`, which there is."""
    client = Client(http)
    await client.open(linger_s=30)
    await client.say(
        {"type": "subscribe", "ref": 1, "subscription": 1, "queue": "orders", "group": "billing",
         "credit": 100}
    )  # fmt: skip
    answered: list[Batch] = []
    while not answered:  # a busy machine may be slower than the heartbeat, which is an empty batch
        answered = await client.frames()
    (ok,) = answered
    assert ok["ref"] == 1
    return client


async def test_the_frames_are_those_of_the_websocket(client: Client, house: House) -> None:
    """Published, pushed, acked, over requests alone."""
    await client.say({"type": "publish", "ref": 2, "queue": "orders", "messages": [{"body": 7}]})
    frames = await client.frames()
    while len(frames) < 2:
        frames += await client.frames()
    kinds = {frame["type"]: frame for frame in frames}
    assert kinds["ok"]["receipts"] == [[0, 0]]
    push = kinds["push"]
    assert [one["body"] for one in push["messages"]] == [7]
    place = [push["partition"], push["epoch"], push["push"], 0, 0]
    await client.say({"type": "ack", "ref": 3, "subscription": 1, "deliveries": [place]})
    (answer,) = await client.frames()
    assert (answer["ref"], answer["settled"]) == (3, 1)


async def test_a_batch_comes_again_until_it_has_arrived(client: Client, house: House) -> None:
    """The answer to a poll is lost: the next one asks for it again, and nothing is missing."""
    await house.publish(house.find(), numbered(1))
    lost = (await client.poll()).json()
    again = (await client.poll()).json()
    assert again == lost
    assert [frame["type"] for frame in again["frames"]] == ["push"]
    client.batch = again["batch"]
    assert await client.frames(wait_s=0) == []


async def test_a_message_that_came_before_does_nothing(client: Client) -> None:
    """The answer to a post is lost, and the client says it again."""
    await client.say({"type": "ping", "ref": 5})
    answer = await client.say({"type": "ping", "ref": 5}, number=client.number)
    assert answer.status_code == 202
    assert await client.frames() == [{"type": "pong", "ref": 5}]
    assert await client.frames(wait_s=0) == []


async def test_a_message_behind_a_missing_one_is_refused(client: Client) -> None:
    """Frames are never applied out of order."""
    answer = await client.say({"type": "ping"}, number=client.number + 2)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    last = client.number
    detail = f"message {last + 2} comes after {last}: one is missing"
    assert answer.json()["detail"] == detail
    assert (await client.say({"type": "ping"})).status_code == 202


async def test_a_message_before_the_last_one_is_refused_as_one_that_was_taken(
    client: Client,
) -> None:
    """[Its error said that one is missing, and the description that it does nothing.]"""
    for _ in range(3):
        await client.say({"type": "ping"})
    answer = await client.say({"type": "ping"}, number=1)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert (
        answer.json()["detail"]
        == f"message 1 was taken already, and {client.number} is the last one"
    )
    assert (await client.say({"type": "ping"})).status_code == 202


@pytest.mark.parametrize("after", [7, -1, "x"])
async def test_a_poll_for_another_batch_is_refused(client: Client, after: Any) -> None:
    answer = await client.poll(after=after)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("wait_s", [-1.0, limits.PULL_WAIT_S_MAX + 0.1, float("nan")])
async def test_a_wait_has_bounds(client: Client, wait_s: float) -> None:
    answer = await client.poll(wait_s=wait_s)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_a_second_poll_takes_over(client: Client, house: House) -> None:
    """One tab, two requests: the one before ends empty, and no frame is torn in two."""
    first = asyncio.create_task(client.poll())
    await asyncio.sleep(0)
    while not first.done():
        second = asyncio.create_task(client.poll())
        await asyncio.wait((first,), timeout=0.05)
    assert first.result().json()["frames"] == []
    await house.publish(house.find(), numbered(1))
    assert [frame["type"] for frame in (await second).json()["frames"]] == ["push"]


async def test_who_holds_a_poll_open_is_alive(client: Client, connections: Connections) -> None:
    """Three heartbeats: each answers the poll, and the next one is the sign of life."""
    for _ in range(3):
        assert await client.frames() == []
    assert len(connections) == 1


async def test_who_polls_no_more_loses_the_transport_and_may_come_back(
    client: Client, connections: Connections
) -> None:
    """R22: the session lingers; a poll hears why, and a hello finds its subscription."""
    await eventually(lambda: not len(connections))
    batch = (await client.poll()).json()
    assert batch["close"]["code"] == 4001
    assert (await client.say({"type": "ping"})).json()["code"] == "session_not_found"
    session = client.session
    (welcome,) = (await client.open(session=session, linger_s=30))["frames"]
    assert (welcome["session"], welcome["resumed"]) == (session, [1])
    held = {"type": "held", "ref": 7, "subscription": 1, "received": 0, "deliveries": []}
    await client.say(held)
    assert await client.frames() == [{"type": "ok", "ref": 7, "revoked": []}]
    await eventually(lambda: not len(connections))  # it is watched again


async def test_an_ended_session_returns_what_it_held(client: Client, house: House) -> None:
    await house.publish(house.find(), numbered(1))
    await client.frames()
    gone = await client.http.delete(client.path.removesuffix("/frames"))
    assert gone.status_code == 204
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    other, _ = await house.subscribe(queue, group)
    assert [body for _, body, _ in await other.take(1)] == [0]


async def test_who_posts_and_never_polls_is_answered_no_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: answers that nobody fetches have a bound; after a poll it goes on."""
    monkeypatch.setattr(longpoll, "UNREAD_BYTES_MAX", 100)
    while (answer := await client.say(*[{"type": "ping", "ref": n} for n in range(5)])).is_success:
        pass
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many")
    client.number -= 1
    await client.frames()
    await client.frames(wait_s=0)
    assert (await client.say({"type": "ping"})).is_success


async def test_while_a_large_batch_is_on_its_way_its_client_is_heard(
    client: Client, house: House
) -> None:
    """P6: on a slow line it acks and extends what it holds."""
    await house.publish(house.find(), [message("x" * 200_000, "k")])
    (push,) = await client.frames()
    for _ in range(3):
        assert (await client.say({"type": "ping"})).is_success
    place = [push["partition"], push["epoch"], push["push"], 0, 0]
    ack = {"type": "ack", "ref": 3, "subscription": 1, "deliveries": [place]}
    assert (await client.say(ack)).is_success


async def is_put_off(house: House, *, by_s: float) -> None:
    """Wait until something has been in flight for so long."""
    queue = house.find()
    group = house.broker.metadata.find_group(ANYBODY, queue, "billing")
    runtime = house.broker.groups.runtimes[group.group_id]
    pushes = [
        push
        for member in runtime.members.values()
        for owned in member.owned_partitions.values()
        for push in owned.delivery.leases.pushes.values()
    ]
    await eventually(lambda: any(push.due_at > push.given_at + by_s for push in pushes))


async def test_the_lease_of_what_is_in_a_large_batch_does_not_run_on_its_way(
    http: httpx2.AsyncClient, house: House
) -> None:
    """R20: until the next poll says that it has arrived; then a whole one."""
    queue = await house.queue(lease_s=0.1)
    client = await joined(http)
    await house.publish(queue, [message("x" * 200_000, "k")])
    (push,) = await client.frames()
    place = [push["partition"], push["epoch"], push["push"], 0, 0]
    await is_put_off(house, by_s=1.2)
    assert await client.frames(wait_s=0.02) == []
    await client.say({"type": "ack", "ref": 3, "subscription": 1, "deliveries": [place]})
    (answer,) = await client.frames()
    assert (answer["ref"], answer["settled"], answer["stale"]) == (3, 1, [])


async def test_the_lease_of_what_is_in_a_large_batch_runs_from_its_arrival(
    http: httpx2.AsyncClient, house: House
) -> None:
    """P6: a handler that hangs keeps it no longer."""
    queue = await house.queue(lease_s=0.1)
    client = await joined(http)
    await house.publish(queue, [message("x" * 200_000, "k")])
    assert [frame["type"] for frame in await client.frames()] == ["push"]
    await is_put_off(house, by_s=1.2)
    frames: list[Batch] = []
    while not frames:
        frames = await client.frames()
    assert frames[0]["type"] == "revoked"


async def test_a_large_backlog_comes_in_several_batches(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: an answer has a bound; one frame beyond it comes alone."""
    monkeypatch.setattr(limits, "POLL_BYTES_MAX", 1000)
    await house.publish(house.find(), [message("x" * 600, f"k{n}") for n in range(4)])
    await client.say(*[{"type": "ping", "ref": n} for n in range(40)])
    frames: list[Batch] = []
    while len(frames) < 41:
        batch = await client.frames()
        assert len(batch) < 41
        frames += batch
    assert [frame["ref"] for frame in frames if frame["type"] == "pong"] == list(range(40))


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "invalid_request"), (b'{"type":"ping"}', "invalid_request"), (b"", "invalid_request")],
)
async def test_what_does_not_begin_with_hello_opens_nothing(
    http: httpx2.AsyncClient, connections: Connections, body: bytes, code: str
) -> None:
    """P12."""
    answer = await http.post("/v1/sessions", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert len(connections) == 0


async def test_nobody_s_session_is_not_found(http: httpx2.AsyncClient) -> None:
    for method, path in (("GET", "/frames"), ("POST", "/frames"), ("DELETE", "")):
        answer = await http.request(
            method, f"/v1/sessions/nobody{path}", params={"after": "0", "number": "1"}
        )
        assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")


async def test_somebody_else_s_poll_and_session_are_nobody_s(
    client: Client, polls: LongPolls
) -> None:
    """P11: also for who knows the names."""
    (poll,) = polls._by_id.values()
    assert poll.session is not None
    poll.principal = Principal("somebody")
    poll.session._credential.admission = Admission(poll.principal)
    for method, path in (
        ("GET", client.path), ("POST", client.path),
        ("DELETE", client.path.removesuffix("/frames")),
    ):  # fmt: skip
        answer = await client.http.request(method, path, params={"after": "1", "number": "2"})
        assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")
    theirs = client.session
    (welcome,) = (await client.open(session=theirs, linger_s=30))["frames"]
    assert welcome["resumed"] is None
    assert welcome["session"] != theirs
    assert poll.end_reason is None


async def test_a_gateway_that_goes_down_tells_who_polls(
    client: Client, connections: Connections
) -> None:
    """P14: the drain frame, then the end with its code."""
    drained = asyncio.create_task(connections.drain(deadline_s=5, random=Random(1)))
    answer = (await client.poll()).json()
    assert [frame["type"] for frame in answer["frames"]] == ["drain"]
    client.batch = answer["batch"]
    close = answer.get("close") or (await client.poll()).json()["close"]
    assert close["code"] == 4000
    await drained
    refused = await client.http.post("/v1/sessions", json={"type": "hello"})
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")


async def test_a_session_that_ended_is_forgotten(
    client: Client, polls: LongPolls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longpoll, "KEPT_S", 0.01)
    await client.http.delete(client.path.removesuffix("/frames"))
    await eventually(lambda: not polls._by_id)
    assert (await client.poll()).json()["code"] == "session_not_found"


async def test_while_a_queue_is_being_made_a_message_is_refused_in_time(
    client: Client, polls: LongPolls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9, P12: nothing is read then, and the request does not wait for ever; said again under its
    number it counts."""
    monkeypatch.setattr(limits, "PULL_WAIT_S_MAX", 0.01)
    (poll,) = polls._by_id.values()
    poll.pause_reading()
    answer = await client.say({"type": "ping", "ref": 9})
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    poll.resume_reading()
    assert (await client.say({"type": "ping", "ref": 9}, number=client.number)).is_success
    assert await client.frames(wait_s=0) == [{"type": "pong", "ref": 9}]


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_late_request_of_the_poll_before_does_nothing_to_the_one_that_took_over(
    client: Client, method: str
) -> None:
    """A proxy holds a request back, or sends it twice, and meanwhile the client has come back.
    [An old message 1 counts; the new one, `held`, came before: nothing is pushed ever again.]"""
    path = client.path
    await client.open(session=client.session, linger_s=30)
    assert client.path != path
    late = await client.http.request(
        method, path.removesuffix("/frames") if method == "DELETE" else path,
        params={"number": "1", "after": "0"}, json={"type": "ping", "ref": 5},
    )  # fmt: skip
    assert late.status_code == {"POST": 404, "GET": 400, "DELETE": 204}[method]
    await client.say({"type": "held", "ref": 7, "subscription": 1, "received": 0, "deliveries": []})
    assert await client.frames() == [{"type": "ok", "ref": 7, "revoked": []}]


async def test_the_poll_that_was_replaced_hears_why(client: Client) -> None:
    path, batch = client.path, client.batch
    await client.open(session=client.session, linger_s=30)
    answer = (await client.http.get(path, params={"after": str(batch)})).json()
    assert (answer["frames"], answer["close"]["code"]) == ([], 4503)


async def test_what_ended_polls_keep_has_a_bound(
    http: httpx2.AsyncClient,
    polls: LongPolls,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P9: whoever opens and ends sessions all day costs no more; the last ones still tell why."""
    monkeypatch.setattr(longpoll, "ENDED_MAX", 2)
    clients = [Client(http) for _ in range(3)]
    for one in clients:
        await one.open()
        await one.http.delete(one.path.removesuffix("/frames"))
    assert [(await one.poll()).status_code for one in clients] == [404, 200, 200]
    monkeypatch.setattr(longpoll, "ENDED_BYTES_MAX", 1000)
    clients = [Client(http) for _ in range(2)]
    for one in clients:
        await one.open()
        await one.say(*[{"type": "ping", "ref": n} for n in range(25)])
        await one.say({"type": "hello"})  # 4502: what it has to say goes before the reason
    assert [(await one.poll()).status_code for one in clients] == [404, 200]
    assert polls._ended_bytes <= 1000
    for _ in range(3):
        await http.post("/v1/sessions", content=b"{")
    assert (len(polls._ended), len(connections)) == (1, 0)


async def test_what_is_pushed_is_logged_as_written_when_a_poll_takes_it(
    client: Client, house: House
) -> None:
    """And never, where the session ends before; nothing of it is kept."""
    logged = Logged(house)
    await house.publish(house.find(), numbered(1))
    waiting = logged.of(DispatchedLine)
    while not any(frame["type"] == "push" for frame in await client.frames()):
        pass
    (taken,) = logged.of(DispatchedLine)
    assert (waiting, taken.transport, taken.session) == ([], "long_poll", client.session)
    assert taken.written_unix_us is not None
    await house.publish(house.find(), numbered(1))
    await client.http.delete(client.path.removesuffix("/frames"))
    (_, left) = logged.of(DispatchedLine)
    assert left.written_unix_us is None
    assert not logged.log.held

"""The end of sessions, one by one and all together: their held deliveries come again, and no
others.

P1, P6, P14, over real sockets and a real process.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed

from loadtests.server import Server
from tests.histories.house import offsets_of
from tests.system.talk import Frame, Talk, http_to, running, silent, talking

COUNT = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Broker for all of these except the drains."""
    with running(tmp_path_factory.mktemp("ends")) as server:
        yield server


async def filled(http: httpx2.AsyncClient, name: str, *, partitions: int = 8, **more: Any) -> None:
    """Create a queue of COUNT messages of 100 keys, numbered, and a group that starts before
    them."""
    await empty(http, name, partitions=partitions, **more)
    await fill(http, name)


async def empty(http: httpx2.AsyncClient, name: str, *, partitions: int = 8, **more: Any) -> None:
    """Create a queue, and a group."""
    await http.put(f"/v1/queues/{name}", json={"partitions": partitions, **more})
    await http.put(f"/v1/queues/{name}/groups/g", json={})


async def fill(http: httpx2.AsyncClient, name: str) -> None:
    """Publish COUNT messages of 100 keys, numbered."""
    path = f"/v1/queues/{name}"
    messages = [{"key": f"k{n % 100}", "body": n} for n in range(COUNT)]
    answer = (await http.post(f"{path}/messages", json={"messages": messages})).json()
    assert all("offset" in result for result in answer["results"])


async def shared(http: httpx2.AsyncClient, name: str, consumers: int) -> None:
    """Wait until this many consumers of the group own its partitions. A single consumer would be
    given everything, and held deliveries do not move."""
    async with asyncio.timeout(30):
        while True:
            places = (await http.get(f"/v1/queues/{name}/groups/g")).json()["partitions"]
            owners = [place["owner"]["consumer"] for place in places if place["owner"]]
            if len(owners) == len(places) and len(set(owners)) == consumers:
                return
            await asyncio.sleep(0.01)


async def join(talk: Talk, queue: str, credit: int = 10_000) -> None:
    """Subscribe as consumer 1 of the group."""
    answer = await talk.ask(
        type="subscribe", ref=1, subscription=1, queue=queue, group="g", credit=credit
    )
    assert answer["type"] == "ok", answer


async def pushes(talk: Talk, count: int) -> list[Frame]:
    """Return pushes with `count` messages in total."""
    got: list[Frame] = []
    while sum(len(push["messages"]) for push in got) < count:
        got.append(await talk.get("push"))
    assert sum(len(push["messages"]) for push in got) == count
    return got


def bodies(got: list[Frame]) -> list[int]:
    """Return the bodies in pushes."""
    return [message["body"] for push in got for message in push["messages"]]


def in_key_order(numbers: list[int]) -> bool:
    """Whether the messages of each key came in the order in which they were published (P3)."""
    keys: dict[int, int] = {}
    for number in numbers:
        if keys.get(number % 100, -1) >= number:
            return False
        keys[number % 100] = number
    return True


def deliveries(got: list[Frame]) -> list[list[int]]:
    """Return the delivery list of whole pushes."""
    return [[p["partition"], p["epoch"], p["push"], p["offset"], offsets_of(p)[-1]] for p in got]


@pytest.mark.parametrize("end", ["unsubscribe", "close", "vanish", "break the protocol"])
async def test_a_thousand_unsettled_deliveries_return(server: Server, end: str) -> None:
    """P6: to a waiting consumer, at once, in order, at their first attempt. Settled messages do not
    come."""
    queue = "return-" + end.replace(" ", "-")
    async with http_to(server) as http, talking(server) as heir, talking(server) as talk:
        await filled(http, queue, partitions=1)
        await join(talk, queue)
        got = await pushes(talk, COUNT)
        assert in_key_order(bodies(got))
        partition, epoch, push, first, _ = deliveries(got)[0]
        settle = [[partition, epoch, push, first, first + 99]]
        answer = await talk.ask(type="ack", ref=2, subscription=1, deliveries=settle)
        assert answer["settled"] == 100
        await join(heir, queue)
        began = time.monotonic()
        if end == "unsubscribe":
            await talk.ask(type="unsubscribe", ref=3, subscription=1)
        elif end == "close":
            await talk.connection.close()
        elif end == "vanish":
            talk.connection.transport.abort()
        else:
            await talk.connection.send(b"binary")
        again = await pushes(heir, COUNT - 100)
        assert time.monotonic() - began < 2
        assert bodies(again) == bodies(got)[100:]
        assert {one.get("attempt", 1) for one in again} == {1}
        await heir.ask(type="ack", ref=4, subscription=1, deliveries=deliveries(again))
        lag = (await http.get(f"/v1/queues/{queue}/groups/g")).json()["lag"]
        assert lag == 0


async def test_consumers_come_and_go_all_the_time(server: Server) -> None:
    """R14, R20, P1, P3: for two seconds sockets join and vanish while messages flow. No message is
    lost, each key stays in order, and each message is confirmed once."""
    queue = "churn"
    confirmed: dict[int, int] = {}
    in_order: list[int] = []
    async with http_to(server) as http:
        await http.put(f"/v1/queues/{queue}", json={"partitions": 8})
        await http.put(f"/v1/queues/{queue}/groups/g", json={})
        published = 0
        ends = time.monotonic() + 2

        async def produce() -> None:
            nonlocal published
            while time.monotonic() < ends:
                batch = [
                    {"key": f"k{n % 100}", "body": n} for n in range(published, published + 50)
                ]
                path = f"/v1/queues/{queue}/messages"
                await http.post(path, json={"messages": batch})
                published += 50

        async def consume(leave_at: float, rude: bool) -> None:
            async with talking(server) as talk:
                await join(talk, queue)
                ref = 100
                while time.monotonic() < leave_at:
                    try:
                        async with asyncio.timeout(0.1):
                            push = await talk.get("push")
                    except TimeoutError:
                        continue
                    ref += 1
                    answer = await talk.ask(
                        type="ack", ref=ref, subscription=1, deliveries=deliveries([push])
                    )
                    if answer["type"] == "ok" and not answer["stale"]:
                        in_order.extend(bodies([push]))
                        for body in bodies([push]):
                            confirmed[body] = confirmed.get(body, 0) + 1
                if rude:
                    talk.connection.transport.abort()

        async def churn(number: int) -> None:
            turn = 0
            while time.monotonic() < ends:
                turn += 1
                await consume(time.monotonic() + 0.15 + 0.1 * number, rude=turn % 2 == 0)

        async with asyncio.timeout(30):
            await asyncio.gather(produce(), *(churn(number) for number in range(4)))
            while len(confirmed) < published:
                await consume(time.monotonic() + 0.3, rude=False)
    assert published > 100
    assert set(confirmed) == set(range(published))
    assert set(confirmed.values()) == {1}  # P5: confirmed, and never given again
    assert in_key_order(in_order)


class Witness:
    """A consumer through a drain: its messages, and those with a confirmed ack."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.confirmed: list[int] = []
        self.code = 0
        self.busy = asyncio.Event()
        """Set when it has received a few hundred messages, or has failed."""
        self.drain: Frame = {}


async def taken(talk: Talk, witness: Witness, held: list[Frame]) -> None:
    """Take everything that comes before the broker goes down."""
    while not witness.drain:
        frame = await talk.get("push", "drain")
        if frame["type"] == "drain":
            witness.drain = frame
            return
        held.append(frame)
        witness.given += bodies([frame])
        if len(witness.given) > 300:
            witness.busy.set()


async def drained(server: Server, witness: Witness, *, settles: bool) -> None:
    """Consume until the broker goes down. `settles`: confirm held deliveries when `drain` comes."""
    held: list[Frame] = []
    async with silent(server) as talk:
        await talk.tell(type="hello")
        await join(talk, "orders")
        try:
            await taken(talk, witness, held)
        finally:
            witness.busy.set()
        if settles and held:
            for ref, push in enumerate(held, 10):
                await talk.tell(type="ack", ref=ref, subscription=1, deliveries=deliveries([push]))
        code, said = await talk.ended()
        witness.code = code
        for frame in said:
            assert frame["type"] != "push", "given something after the drain began"
            if frame["type"] == "ok" and frame["ref"] >= 10:
                assert not frame["stale"]
                witness.confirmed += bodies([held[frame["ref"] - 10]])


async def test_a_stop_is_clean(tmp_path: Path) -> None:
    """P14: SIGTERM with consumers in the middle, one that settles its deliveries and one that does
    not, a waiting pull, a publishing producer. Each is informed; every stored message is settled or
    comes again, and no confirmed one does."""
    with running(tmp_path, "--drain-s", "3") as server:
        async with http_to(server) as http:
            await empty(http, "orders")
            await http.put("/v1/queues/empty", json={"partitions": 1})
            good, bad = Witness(), Witness()
            tasks = [
                asyncio.ensure_future(drained(server, good, settles=True)),
                asyncio.ensure_future(drained(server, bad, settles=False)),
            ]
            waiting = asyncio.ensure_future(
                http.post("/v1/queues/empty/groups/g/pull", json={"wait_s": 25})
            )
            await shared(http, "orders", 2)
            stored: list[int] = []
            under_way = asyncio.Event()
            going = asyncio.ensure_future(produce_until_closed(server, stored, under_way))
            async with asyncio.timeout(30):
                await under_way.wait()
            await fill(http, "orders")
            await asyncio.gather(good.busy.wait(), bad.busy.wait())
            began = time.monotonic()
            stopping = asyncio.ensure_future(asyncio.to_thread(server.stop))
            assert (await waiting).json() == {"messages": []}
            assert time.monotonic() - began < 1
            await asyncio.gather(*tasks)
            assert good.code == bad.code == 4000
            assert 0 <= good.drain["reconnect_after_s"] <= 5
            assert sorted(good.confirmed) == sorted(good.given)
            await stopping
            assert time.monotonic() - began < 4
            await going
    assert not set(good.given) & set(bad.given)
    with running(tmp_path) as server:
        async with talking(server) as talk:
            await join(talk, "orders")
            expected = (set(range(COUNT)) | set(stored)) - set(good.confirmed)
            again: list[int] = []
            while not expected <= set(again):
                again += bodies([await talk.get("push")])
            assert len(again) == len(set(again))
            assert set(again) - expected <= {max(stored) + 1}  # sent, and cut off unanswered


async def produce_until_closed(server: Server, stored: list[int], under_way: asyncio.Event) -> None:
    """Publish one after the other; note acknowledged messages in `stored`."""
    async with silent(server) as talk:
        await talk.tell(type="hello", producer="p")
        number = COUNT
        with suppress(ConnectionClosed):
            while True:
                message = {"key": f"k{number % 100}", "body": number}
                await talk.tell(
                    type="publish", ref=number, queue="orders", messages=[message],
                    sequence=number, resolved=number,
                )  # fmt: skip
                frame = await talk.get("ok", "error", "drain")
                if frame["type"] == "drain":
                    break
                assert frame["type"] == "ok", frame
                stored.append(number)
                under_way.set()
                number += 1
        code, said = await talk.ended()
        assert code == 4000
        stored += [frame["ref"] for frame in said if frame["type"] == "ok"]


async def test_a_broker_that_goes_down_takes_nobody_in(tmp_path: Path) -> None:
    """P14: while it drains it is not ready and opens no subscription; its port is closed."""
    with running(tmp_path, "--drain-s", "3") as server:
        async with http_to(server) as http, silent(server) as talk:
            await talk.tell(type="hello")
            await filled(http, "orders")
            await join(talk, "orders", credit=1)
            await talk.get("push")  # held, so that the session stays
            stopping = asyncio.ensure_future(asyncio.to_thread(server.stop))
            await talk.get("drain")
            subscribe = {"type": "subscribe", "ref": 5, "subscription": 2, "queue": "orders"}
            answer = await talk.ask(**subscribe, credit=1)
            assert answer["code"] == "draining"
            assert (await talk.ask(type="ping", ref=6))["type"] == "pong"
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", server.port)
            code, _ = await talk.ended()
            assert code == 4000
            await stopping

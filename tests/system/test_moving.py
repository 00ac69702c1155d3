"""Sessions that outlive a broker process, over real sockets: a client's deliveries stay its own,
and do not go to another one (R22)."""

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
import tocsin
from websockets.exceptions import ConnectionClosed

from loadtests.server import SERVE, Server
from tests.histories.house import eventually, offsets_of
from tests.system.talk import UNEXPECTED, Frame, Talk, http_to, silent

COUNT = 400
KEYS = 40


async def hello(talk: Talk, **more: object) -> Frame:
    await talk.tell(type="hello", linger_s=20, **more)
    return await talk.get("welcome")


async def join(talk: Talk, **more: object) -> None:
    answer = await talk.ask(
        type="subscribe", ref=1, subscription=1, queue="q", group="g", credit=1000, **more
    )
    assert answer["type"] == "ok", answer


async def publish(http: httpx2.AsyncClient, first: int) -> None:
    """Publish COUNT numbers from `first` on, of KEYS keys."""
    numbers = range(first, first + COUNT)
    messages = [{"key": f"k{n % KEYS}", "body": n} for n in numbers]
    answer = (await http.post("/v1/queues/q/messages", json={"messages": messages})).json()
    assert all("offset" in result for result in answer["results"])


async def given(*talks: Talk) -> list[Frame]:
    """Return all pushes of these sessions, until COUNT messages have come to them."""

    async def read(talk: Talk) -> None:
        with suppress(ConnectionClosed):
            while True:
                await talk.read()

    def pushes() -> list[Frame]:
        return [frame for talk in talks for frame in talk.kept if frame["type"] == "push"]

    readers = [asyncio.create_task(read(talk)) for talk in talks]
    try:
        await eventually(lambda: len(bodies(pushes())) >= COUNT)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return pushes()


def bodies(pushes: list[Frame]) -> list[int]:
    return [message["body"] for push in pushes for message in push["messages"]]


def deliveries(pushes: list[Frame]) -> list[list[int]]:
    """Return each message's delivery by itself, because offsets that a push skipped are not
    held."""
    return [
        [push["partition"], push["epoch"], push["push"], offset, offset]
        for push in pushes
        for offset in offsets_of(push)
    ]


@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
async def test_what_a_client_holds_outlives_the_process(tmp_path: Path, end: str) -> None:
    """R22, P5: even if it is sent away while its handlers are at work. None of its messages goes to
    the consumer that came first; settled messages stay settled."""
    server = Server(tmp_path / "data", command=[*SERVE, "--drain-s", "1"])
    server.start()
    try:
        async with http_to(server) as http, silent(server) as talk:
            session = (await hello(talk))["session"]
            await http.put("/v1/queues/q", json={"partitions": 4, "lease_s": 60})
            await http.put("/v1/queues/q/groups/g", json={})
            await join(talk)
            await publish(http, 0)
            held = deliveries(await given(talk))
            # Some in each partition, because one without deliveries in flight may move before it is
            # checked.
            answer = await talk.ask(type="ack", ref=2, subscription=1, deliveries=held[::4])
            assert answer["settled"] == COUNT // 4
            await asyncio.to_thread(server.kill if end == "kill -9" else server.stop)
        server.start()
        async with http_to(server) as http, silent(server) as rival, silent(server) as talk:
            await hello(rival)
            await join(rival)
            welcome = await hello(talk, session=session)
            assert (welcome["session"], welcome["resumed"]) == (session, None)
            await join(talk, held=True)
            said = await talk.ask(type="held", ref=3, subscription=1, received=0, deliveries=held)
            assert said["revoked"] == []
            answer = await talk.ask(type="ack", ref=4, subscription=1, deliveries=held)
            assert (answer["settled"], answer["stale"]) == (COUNT, [])
            await publish(http, COUNT)
            assert sorted(bodies(await given(talk, rival))) == [*range(COUNT, 2 * COUNT)]
    finally:
        server.kill()
    assert not UNEXPECTED.search(server.log_path.read_bytes())


async def test_a_name_is_kept_by_long_poll_too(tmp_path: Path) -> None:
    """R22."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        async with http_to(server) as http:
            hello: Frame = {"type": "hello", "linger_s": 20}
            opened = (await http.post("/v1/sessions", json=hello)).json()
            session = opened["frames"][0]["session"]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            again = (await http.post("/v1/sessions", json={**hello, "session": session})).json()
            (welcome,) = again["frames"]
            assert (welcome["session"], welcome["resumed"]) == (session, None)
    finally:
        server.kill()
    assert not UNEXPECTED.search(server.log_path.read_bytes())


@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
async def test_handlers_at_work_go_on_while_the_process_ends(tmp_path: Path, end: str) -> None:
    """R22: two clients of the SDK. Handlers that began before the end are settled after it, none
    runs twice, neither here nor there, and each key goes on in order (P3)."""
    server = Server(tmp_path / "data", command=[*SERVE, "--drain-s", "1"])
    server.start()
    ran: list[int] = []
    goes_on = asyncio.Event()

    async def handler(message: tocsin.Message) -> None:
        ran.append(message.body)
        await goes_on.wait()

    try:
        async with tocsin.connect(server.url) as client, tocsin.connect(server.url) as other:
            await client.create_queue("q", partitions=4)
            async with (
                client.subscribe("q", "g", credit=COUNT) as ours,
                other.subscribe("q", "g", credit=COUNT) as theirs,
            ):
                running = [
                    asyncio.ensure_future(one.run(handler, concurrency=KEYS))
                    for one in (ours, theirs)
                ]
                messages = [{"body": n, "key": f"k{n % KEYS}"} for n in range(COUNT)]
                await client.publish_many("q", messages)
                await eventually(lambda: len(ran) == KEYS)
                await asyncio.to_thread(server.kill if end == "kill -9" else server.stop)
                await asyncio.to_thread(server.start)
                goes_on.set()
                async with asyncio.timeout(30):
                    while (await client.group("q", "g"))["lag"]:  # noqa: ASYNC110 (no event tells)
                        await asyncio.sleep(0.05)
                for run in running:
                    run.cancel()
    finally:
        server.kill()
    assert sorted(ran) == [*range(COUNT)]
    for key in range(KEYS):
        assert [n for n in ran if n % KEYS == key] == [*range(key, COUNT, KEYS)]

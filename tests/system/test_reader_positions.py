"""Readers that kept their position, against a broker process: they get the true verdict per
partition (P10, R26), whatever happened to the log and to the token meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import tocsin

from gateway.admin import client as admin
from loadtests.server import Server
from tests.system.talk import running

KEYS = [f"k{n}" for n in range(8)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker process."""
    with running(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[tocsin.Client]:
    """A client of the broker."""
    async with tocsin.connect(server.url) as client:
        yield client


async def publish(client: tocsin.Client, queue: str, first: int, count: int = 8) -> None:
    """Publish messages with the bodies first, first + 1, ..., one record each, over the keys in
    turn."""
    for number in range(first, first + count):
        await client.publish(queue, number, key=KEYS[number % len(KEYS)])


async def take(reader: tocsin.Reader, count: int) -> list[int]:
    """Return the bodies of the next `count` messages."""
    async with asyncio.timeout(20):
        return [(await anext(reader)).body for _ in range(count)]


async def trimmed(client: tocsin.Client, queue: str) -> None:
    """Let a group settle everything, and retention pass it. A pull may bring nothing yet from a
    partition that the group has only just been given."""
    async with asyncio.timeout(20):
        while (await client.group(queue, "sweeper"))["lag"]:
            pulled = await client.pull(queue, "sweeper", messages_max=100, wait_s=1)
            await client.ack_receipts(queue, "sweeper", [message.receipt for message in pulled])
    for _ in range(200):
        if all(p["start"] == p["end"] for p in (await client.queue(queue))["partitions"]):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("retention has not passed it")


async def delete(server: Server, queue: str) -> None:
    """Delete a queue as an operator does."""
    await asyncio.to_thread(admin.delete_queue, server.data_dir, queue, queue)


def forged(position: tocsin.Position, partition: int, place: tuple[int, int]) -> tocsin.Position:
    """Return the position with another place in one partition."""
    places = {**position.partitions, str(partition): place}
    return tocsin.Position(queue_id=position.queue_id, partitions=places)


def fullest(position: tocsin.Position) -> tuple[int, int, int]:
    """Return the fullest partition, its generation and its end; the hash of a key decides its
    partition."""
    number, (generation, end) = max(position.partitions.items(), key=lambda item: item[1][1])
    return int(number), generation, end


async def test_a_reader_resumes_after_a_restart_without_a_loss_or_a_double(
    tmp_path: Path,
) -> None:
    """Both the broker and the reader are started again."""
    store = tocsin.FilePositions(tmp_path / "positions")
    server = Server(tmp_path / "data")
    server.start()
    try:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders", partitions=3, retention_s=3600)
            async with client.read("orders", start="earliest", position_store=store) as reader:
                await publish(client, "orders", 0)
                before = await take(reader, 5)
        server.stop()
        server.start()
        async with tocsin.connect(server.url) as client:
            await publish(client, "orders", 8)
            async with client.read("orders", start="latest", position_store=store) as reader:
                assert {v.kind for v in reader.verdicts.values()} == {"resumed"}
                assert len(reader.verdicts) == 3
                after = await take(reader, 11)
        assert sorted(before + after) == list(range(16))
        server.stop()
    finally:
        server.kill()


async def break_off(reading: tocsin.Reader) -> None:
    """Fail while the third message is being handled."""
    async with reading as reader:
        assert await take(reader, 3) == [0, 1, 2]
        raise ZeroDivisionError


async def test_what_was_being_done_when_the_reader_broke_off_comes_again(
    client: tocsin.Client,
) -> None:
    store = tocsin.MemoryPositions()
    await client.create_queue("breaks", partitions=1, retention_s=3600)
    await publish(client, "breaks", 0)
    reading = client.read("breaks", start="earliest", position_store=store)
    with pytest.raises(ZeroDivisionError):
        await break_off(reading)
    async with client.read("breaks", position_store=store) as reader:
        assert await take(reader, 2) == [2, 3]


async def test_a_gap_where_retention_has_passed_the_position(client: tocsin.Client) -> None:
    await client.create_queue("passed", partitions=2)
    await client.create_group("passed", "sweeper")
    await publish(client, "passed", 0)
    async with client.read("passed", start="earliest") as reader:
        await take(reader, 8)
        end = reader.position
    assert end is not None
    full, generation, last = fullest(end)
    await trimmed(client, "passed")
    async with client.read("passed", start=forged(end, full, (generation, 2))) as reader:
        assert reader.verdicts[full] == tocsin.Verdict(full, "gap", last, (2, last - 1))
        assert reader.verdicts[1 - full].kind == "resumed"
        with pytest.raises(tocsin.Gap) as told:
            await take(reader, 1)
        assert (told.value.partition, told.value.first, told.value.last) == (full, 2, last - 1)
        await publish(client, "passed", 8)
        assert sorted(await take(reader, 8)) == list(range(8, 16))


async def test_a_gap_in_mid_stream_is_reported_before_later_messages(client: tocsin.Client) -> None:
    await client.create_queue("overtaken", partitions=1)
    await client.create_group("overtaken", "sweeper")
    await publish(client, "overtaken", 0)
    gaps: list[tocsin.Gap] = []
    reading = client.read("overtaken", start="earliest", credit=2, on_gap=gaps.append)
    async with reading as reader:
        assert await take(reader, 1) == [0]
        await trimmed(client, "overtaken")
        await publish(client, "overtaken", 8, count=2)
        bodies = await take(reader, 2)
        while bodies[-1] != 9:
            bodies += await take(reader, 1)
    (gap,) = gaps
    assert bodies == [*range(1, gap.first), 8, 9]
    assert gap.last == 7


@pytest.mark.parametrize("place", ["beyond the end", "of another generation"])
async def test_a_forged_token_is_unknown_where_it_is_forged(
    client: tocsin.Client, place: str
) -> None:
    queue = "forged-" + place.split(maxsplit=1)[0]
    await client.create_queue(queue, partitions=2, retention_s=3600)
    await publish(client, queue, 0)
    async with client.read(queue, start="earliest") as reader:
        await take(reader, 8)
        true = reader.position
    assert true is not None
    generation, end = true.partitions["1"]
    lie = (generation, end + 1) if place == "beyond the end" else (generation + 1, end)
    with pytest.raises(tocsin.PositionUnknown, match=r"partitions 1.*on_unknown") as told:
        async with client.read(queue, start=forged(true, 1, lie)):
            pass
    assert [(v.partition, v.kind) for v in told.value.verdicts] == [(1, "unknown")]
    async with client.read(queue, start=forged(true, 1, lie), on_unknown="earliest") as reader:
        assert (reader.verdicts[0].kind, reader.verdicts[1].kind) == ("resumed", "unknown")
        again = await take(reader, end)
        assert {n for n in range(8) if n in again} == set(again), "partition 1 from its start"
    async with client.read(queue, start=forged(true, 1, lie), on_unknown="latest") as reader:
        assert (reader.verdicts[0].kind, reader.verdicts[1].kind) == ("resumed", "unknown")
        await publish(client, queue, 8)
        assert sorted(await take(reader, 8)) == list(range(8, 16)), "nothing of before"


async def test_a_gap_beside_an_unknown_partition_is_reported_too(
    client: tocsin.Client,
) -> None:
    """Continuing at the end takes several subscribes; none of them swallows a verdict."""
    await client.create_queue("both", partitions=2)
    await client.create_group("both", "sweeper")
    await publish(client, "both", 0)
    async with client.read("both", start="earliest") as reader:
        await take(reader, 8)
        end = reader.position
    assert end is not None
    await trimmed(client, "both")
    full, generation, last = fullest(end)
    broken = forged(forged(end, full, (generation, last - 1)), 1 - full, (generation + 1, 0))
    gaps: list[tocsin.Gap] = []
    reading = client.read("both", start=broken, on_unknown="latest", on_gap=gaps.append)
    async with reading as reader:
        assert reader.verdicts[full] == tocsin.Verdict(full, "gap", last, (last - 1, last - 1))
        assert reader.verdicts[1 - full].kind == "unknown"
        await publish(client, "both", 8)
        assert sorted(await take(reader, 8)) == list(range(8, 16))
    assert [(gap.partition, gap.first, gap.last) for gap in gaps] == [(full, last - 1, last - 1)]


@pytest.mark.parametrize("choice", ["raise", "earliest", "latest", "callback"])
async def test_a_token_of_a_queue_that_was_deleted_and_made_again(
    server: Server, client: tocsin.Client, choice: str
) -> None:
    """R1: the name is the same, the queue is not."""
    queue = f"again-{choice}"
    store = tocsin.MemoryPositions()
    await client.create_queue(queue, partitions=3, retention_s=3600)
    async with client.read(queue, start="earliest", position_store=store) as reader:
        await publish(client, queue, 0)
        await take(reader, 8)
    await delete(server, queue)
    with pytest.raises(tocsin.QueueNotFound):
        async with client.read(queue, position_store=store):
            pass
    await client.create_queue(queue, partitions=2, retention_s=3600)
    await publish(client, queue, 8)
    if choice == "raise":
        with pytest.raises(tocsin.PositionUnknown, match="another queue"):
            async with client.read(queue, position_store=store):
                pass
        return
    asked: list[tocsin.PositionUnknown] = []

    def ask(error: tocsin.PositionUnknown) -> str:
        asked.append(error)
        return "earliest"

    on_unknown: Any = ask if choice == "callback" else choice
    reading = client.read(queue, position_store=store, on_unknown=on_unknown)
    async with reading as reader:
        assert [v.kind for v in reader.verdicts.values()] == ["unknown"] * 2
        await publish(client, queue, 16)
        bodies = await take(reader, 8 if choice == "latest" else 16)
        assert sorted(bodies) == list(range(16 if choice == "latest" else 8, 24))
    assert len(asked) == (choice == "callback")
    async with client.read(queue, position_store=store) as reader:
        assert [v.kind for v in reader.verdicts.values()] == ["resumed"] * 2


async def test_a_queue_made_again_while_the_reader_was_away_from_the_broker(
    tmp_path: Path,
) -> None:
    """In mid-stream: the verdict comes with the connection, after the messages that came before."""
    server = Server(tmp_path / "data")
    server.start()
    try:
        async with tocsin.connect(server.url) as client:
            await client.create_queue("orders", partitions=2, retention_s=3600)
            await publish(client, "orders", 0)
            going_on = client.read("orders", start="earliest", on_unknown="earliest")
            raising = client.read("orders", start="earliest")
            async with going_on as reader, raising as stern:
                assert len(await take(reader, 3)) == 3
                await take(stern, 8)
                server.kill()
                await asyncio.to_thread(replace_queue, server)
                rest = await take(reader, 13)
                assert sorted(rest[5:]) == list(range(100, 108))
                assert {v.kind for v in reader.verdicts.values()} == {"unknown"}
                with pytest.raises(tocsin.PositionUnknown):
                    await take(stern, 1)
        server.stop()
    finally:
        server.kill()


def replace_queue(server: Server) -> None:
    """Replace the queue unseen by the readers; the broker has another address meanwhile."""
    hidden = Server(server.data_dir)
    hidden.start()
    admin.delete_queue(server.data_dir, "orders", "orders")

    async def fill() -> None:
        async with tocsin.connect(hidden.url) as client:
            await client.create_queue("orders", partitions=2, retention_s=3600)
            await publish(client, "orders", 100)

    asyncio.run(fill())
    hidden.stop()
    server.start()

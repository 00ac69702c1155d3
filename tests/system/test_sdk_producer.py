"""A program that numbers its messages under a name of its own runs again and again. The broker
stores the messages of each run (P4, R6)."""

import asyncio

import pytest
import tocsin
import tocsin.blocking

from loadtests.server import Server

RUNS, COUNT = 3, 5
NAMED = "checkout-1"


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
async def test_each_run_under_the_same_name_stores_its_messages(
    server: Server, at_once: bool
) -> None:
    receipts: list[tocsin.Receipt] = []
    for run in range(RUNS):  # within a second
        async with tocsin.connect(server.url, producer=NAMED) as client:
            assert client.producer == NAMED
            for queue in ("orders", "bills"):
                await client.create_queue(queue, partitions=1)
                if at_once:
                    publishes = [client.publish(queue, [run, n], key="k") for n in range(COUNT)]
                    receipts += await asyncio.gather(*publishes)
                else:
                    for n in range(COUNT):
                        receipts.append(await client.publish(queue, [run, n], key="k"))
    assert not any(receipt.duplicate for receipt in receipts)
    with tocsin.blocking.connect(server.url) as reading:
        for queue in ("orders", "bills"):
            with reading.read(queue, start="earliest", idle_s=1) as messages:
                found = [message.body for message in messages]
            assert found == [[run, n] for run in range(RUNS) for n in range(COUNT)]


@pytest.mark.parametrize("producer", [None, NAMED])
async def test_a_client_that_is_opened_again_stores_its_messages(
    server: Server, producer: str | None
) -> None:
    client = tocsin.connect(server.url, producer=producer)
    receipts: list[tocsin.Receipt] = []
    for run in range(RUNS):
        async with client:
            await client.create_queue("orders", partitions=1)
            for n in range(COUNT):
                receipts.append(await client.publish("orders", [run, n], key="k"))
    assert [receipt.offset for receipt in receipts] == list(range(RUNS * COUNT))

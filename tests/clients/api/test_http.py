"""The calls over HTTP against a fake broker."""

from datetime import UTC, datetime

import pytest
import tocsin

from tests.clients.fake_broker import FakeBroker


async def test_queues_are_created_described_and_listed(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    made = await client.create_queue("new", partitions=4, lease_s=5)
    assert (made["settings"]["partitions"], made["settings"]["lease_s"]) == (4, 5)
    assert (await client.queue("new"))["name"] == "new"
    assert [queue["name"] async for queue in client.queues()] == ["new", "orders"]


async def test_groups_are_made_sought_and_deleted(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    await client.create_group("orders", "g", start=when, attempts_max=3)
    await client.seek_group("orders", "g", "earliest")
    await client.seek_group("orders", "g", when)
    await client.seek_group("orders", "g", 17)
    assert (await client.group("orders", "g"))["lag"] == 0
    await client.delete_group("orders", "g")
    with pytest.raises(tocsin.GroupNotFound):
        await client.group("orders", "g")
    bodies = [body for _, _, body in broker.calls if body]
    at = {"unix_ms": 1_767_225_600_000}
    assert bodies == [
        {"attempts_max": 3, "start": at},
        {"to": "earliest"},
        {"to": at},
        {"to": {"offset": 17}},
    ]


async def test_pulled_messages_are_settled_by_their_receipts(
    broker: FakeBroker, client: tocsin.Client
) -> None:
    await client.publish("orders", {"n": 1}, key="k")
    await client.publish("orders", b"\x00", id="i")
    first, second = sorted(
        await client.pull("orders", "g", messages_max=5), key=lambda message: message.key is None
    )
    assert (first.key, first.body, first.attempt) == ("k", {"n": 1}, 1)
    assert (second.body, second.id) == (b"\x00", "i")
    assert await client.pull("orders", "g", wait_s=0.1) == []
    done = await client.ack_receipts("orders", "g", [first.receipt])
    assert done == tocsin.Settled(1)
    assert (await client.extend_receipts("orders", "g", [second.receipt], lease_s=9)).settled == 1
    await client.nack_receipts("orders", "g", [second.receipt], delay_s=1)
    assert (await client.pull("orders", "g"))[0].attempt == 2
    assert (await client.ack_receipts("orders", "g", [first.receipt])).stale == [first.receipt]


async def test_a_client_pauses_queues_like_http(broker: FakeBroker, client: tocsin.Client) -> None:
    """What operators do has one implementation; see tests/gateway/cli/test_upkeep_command.py."""
    assert (await client.pause_queue("orders"))["paused"] is True
    assert (await client.resume_queue("orders"))["paused"] is False
    assert [(method, path) for method, path, _ in broker.calls[-2:]] == [
        ("POST", "/v1/queues/orders/pause"), ("POST", "/v1/queues/orders/resume"),
    ]  # fmt: skip


async def test_a_problem_document_becomes_its_exception(client: tocsin.Client) -> None:
    with pytest.raises(tocsin.QueueNotFound) as error:
        await client.queue("a/b c")
    assert error.value.code == "queue_not_found"
    assert "a%2Fb%20c" in error.value.detail


async def test_an_answer_that_is_no_problem_document_is_no_broker(broker: FakeBroker) -> None:
    async with tocsin.Http(f"{broker.url}/elsewhere") as http:
        with pytest.raises(tocsin.CannotConnect, match="404"):
            await http.queue("orders")


async def test_nobody_there_is_said() -> None:
    async with tocsin.Http("http://127.0.0.1:9") as http:
        with pytest.raises(tocsin.CannotConnect, match="cannot reach"):
            await http.queue("orders")


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_that_would_be_another_path_is_refused_before_it_is_sent(
    broker: FakeBroker, client: tocsin.Client, name: str
) -> None:
    """P12: quoting cannot keep these from meaning another resource."""
    with pytest.raises(tocsin.InvalidRequest, match="is not a name"):
        await client.create_queue(name)
    with pytest.raises(tocsin.InvalidRequest, match="is not a name"):
        await client.create_group("orders", name)
    assert broker.calls == []

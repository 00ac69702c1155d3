"""`tocsin queue explain`, and the SDK's calls about keys and sessions, over the whole broker."""

import json

import tocsin

from gateway.auth.auth import Authenticator
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices
from metadata.catalog import Queue
from runtime.listener import Listener, bind
from tests.gateway.cli.test_upkeep_command import Run, http, queue, run, url
from tests.histories.house import House, Socket, delivery, eventually, message
from tests.histories.test_scheduling import outcomes

__all__ = ["http", "queue", "run", "url"]


async def test_a_key_is_explained_in_a_few_lines(house: House, queue: Queue, run: Run) -> None:
    result = await run("queue", "explain", "orders", "user-8")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("user-8 goes to partition 0 of orders (key hash ")
    assert lines[2] == "billing: no consumer"
    assert "Also: backlog." in result.output
    assert "Its partition is owned by nobody here." in result.output
    assert "The first message has the id i1, published 20" in result.output
    assert "0 in flight, 2 messages of the key waiting." in result.output
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group, credit=2)
    places = [place for place, _, _ in await session.take(2)]
    given = (await run("queue", "explain", "orders", "user-8", "--group", "billing")).output
    assert "billing: in flight" in given
    assert f"owned by {session.client}, consumer {consumer.name}, by websocket, in epoch" in given
    assert "This has lasted since 20" in given
    consumer.nack(delivery(places[0]), 60, None)
    shown = json.loads((await run("queue", "explain", "orders", "user-7", "--json")).output)
    assert (shown["key"], shown["groups"][0]["group"]) == ("user-7", "billing")


async def test_what_is_wrong_is_said(queue: Queue, run: Run) -> None:
    """P12. A key may be any text, and none of it moves the cursor."""
    for arguments, code, text in (
        (("other", "k"), 1, "queue_not_found"),
        (("orders", "k", "--group", "other"), 1, "group_not_found"),
        (("orders", "k" * 1025), 1, "key has 1 to 1024 bytes"),
        (("orders",), 2, "Missing argument"),
    ):
        result = await run("queue", "explain", *arguments)
        assert (result.exit_code, text in result.output) == (code, True), result.output
    odd = (await run("queue", "explain", "orders", "\x1b[2J\u202euser")).output
    assert odd.startswith(" [2J user goes to partition 0")
    assert "No message of this key waits." in odd


async def test_the_sdk_lists_page_by_page(house: House, queue: Queue, http: tocsin.Http) -> None:
    group = await house.group(queue, attempts_max=3)
    session, consumer = await house.subscribe(queue, group)
    given = await session.take(4)
    leases = [lease async for lease in http.leases("orders", "billing")]
    assert [lease["offset"] for lease in leases] == [0, 1, 2, 3]
    assert [key async for key in http.held_keys("orders", "billing")] == []
    consumer.nack(delivery(given[0][0]), 60, None)
    (key,) = [key async for key in http.held_keys("orders", "billing")]
    assert (key["key"], key["reason"], key["messages"]) == ("user-7", "backoff", 2)
    told = await http.explain("orders", "user-7")
    assert (told["groups"][0]["waits_for"], "next" in told) == ("backoff", False)
    for number in range(120):  # more than one answer has
        await house.group(queue, f"g{number:03}")
    assert len((await http.explain("orders", "user-7"))["groups"]) == 121
    consumer.leave()
    await eventually(lambda: not house.broker.groups.runtimes[group.group_id].owned_partitions)


async def test_the_sdk_lists_sessions(house: House) -> None:
    connections = Connections(SessionServices(house.broker, Authenticator(None)))
    bound = bind("127.0.0.1", 0)
    listener = Listener(
        Application(house.broker, Authenticator(None), LongPolls(connections)), bound
    )
    await listener.start()
    for number in range(130):
        Socket(house, connections.services, f"{number:022}").say(type="hello", client=f"c{number}")
    async with tocsin.Http(f"http://127.0.0.1:{bound.getsockname()[1]}") as http:
        names = [session["client"] async for session in http.sessions()]
    assert names == [f"c{number}" for number in range(130)]
    connections.deadlines.close()
    await listener.finish(1)


async def test_what_of_a_key_is_scheduled_is_said(house: House, queue: Queue, run: Run) -> None:
    await outcomes(house, message(9, "user-7", delay_s=3600.5))
    lines = (await run("queue", "explain", "orders", "user-7")).output.splitlines()
    assert lines[1] == "One message of this key is scheduled; it is due in 1 h 0 min."

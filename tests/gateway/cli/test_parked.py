"""Parked keys over HTTP and by `tocsin admin park`, over the whole broker."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result

from gateway.admin.server import AdminSocket
from gateway.cli.serve import admin as admin_command
from metadata.catalog import GroupSettings, Principal, QueueSettings
from push import limits
from tests.histories.house import House, Session, delivery, message

PATH = "/v1/queues/orders/groups/billing/parked"


@pytest.fixture
async def session(house: House) -> Session:
    """Of a consumer of `billing`, where the keys user-7 (two messages) and user-8 are parked."""
    queue = await house.queue(on_exhausted="park", attempts_max=1)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "user-7"), message(1, "user-8"), message(2, "user-7")])
    given = await session.take(3)
    for place, _, _ in given[:2]:
        consumer.nack(delivery(place), 0, None)
    await house.broker.cursor_writer.drain()
    session.frames.clear()
    return session


@pytest.fixture
async def http(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    async with house.http() as http:
        yield http


@pytest.fixture
async def run(house: House, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """`tocsin admin park …` of this house, in a thread: the socket is answered by this loop."""
    socket = AdminSocket(tmp_path, house.broker)
    await socket.start()

    async def command(*arguments: str) -> Result:
        invoke: Callable[..., Result] = CliRunner().invoke
        line = ("park", *arguments, "--data-dir", str(tmp_path))
        return await asyncio.to_thread(invoke, admin_command, line)

    yield command
    await socket.stop()


async def test_parked_keys_are_listed_over_http(session: Session, http: httpx2.AsyncClient) -> None:
    answer = (await http.get(PATH)).json()
    assert answer["keys_parked"] == 2
    keys = {key["key"]: key for key in answer["keys"]}
    assert (keys["user-7"]["messages"], keys["user-8"]["messages"]) == (2, 1)
    assert (keys["user-7"]["offset"], keys["user-7"]["attempts"]) == (0, 1)
    one = (await http.get(PATH, params={"limit": "1"})).json()
    assert (len(one["keys"]), one["keys_parked"]) == (1, 2)


async def test_a_decision_over_http_is_answered_when_it_is_durable(
    session: Session, http: httpx2.AsyncClient
) -> None:
    answer = await http.post(PATH, json={"decision": "retry", "key": "user-7"})
    assert answer.status_code == 200
    assert [key["key"] for key in answer.json()["keys"]] == ["user-7"]
    assert [key["key"] for key in (await http.get(PATH)).json()["keys"]] == ["user-8"]
    assert (await session.take(1))[0][1] == 0
    again = await http.post(PATH, json={"decision": "retry", "key": "user-7"})
    assert (again.status_code, again.json()["code"]) == (409, "not_parked")
    hashed = (await http.get(PATH)).json()["keys"][0]["key_hash"]
    answer = await http.post(PATH, json={"decision": "skip", "key_hash": hashed})
    assert answer.json()["keys"][0]["key"] == "user-8"
    empty = await http.post(PATH, json={"decision": "release", "all": True})
    assert empty.json() == {"decision": "release", "keys": [], "keys_parked": 0}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "retry"},
        {"decision": "retry", "all": False},
        {"decision": "retry", "key": "user-7", "all": True},
        {"decision": "retry", "key": "user-7", "key_hash": "0" * 16},
        {"decision": "forget", "key": "user-7"},
        {"decision": "retry", "key": ""},
        {"decision": "retry", "key": "k" * (limits.KEY_BYTES_MAX + 1)},
        {"decision": "retry", "key": 7},
        {"decision": "retry", "key_hash": "0" * 15},
        {"decision": "retry", "key_hash": "0" * 17},
        {"decision": "retry", "key_hash": "G" * 16},
        {"decision": "retry", "key": "user-7", "more": 1},
    ],
    ids=str,
)
async def test_a_wrong_decision_is_refused_and_changes_nothing(
    session: Session, http: httpx2.AsyncClient, body: dict[str, object]
) -> None:
    """P12."""
    answer = await http.post(PATH, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert (await http.get(PATH)).json()["keys_parked"] == 2


async def test_what_is_not_there_is_said(session: Session, http: httpx2.AsyncClient) -> None:
    """P12."""
    longest = "k" * limits.KEY_BYTES_MAX
    for path, body, code in (
        (PATH, {"decision": "skip", "key": longest}, "not_parked"),
        (PATH, {"decision": "skip", "key_hash": "f" * 16}, "not_parked"),
        (PATH.replace("billing", "other"), {"decision": "skip", "all": True}, "group_not_found"),
        (PATH.replace("orders", "other"), {"decision": "skip", "all": True}, "queue_not_found"),
        (PATH.replace("billing", "b!"), {"decision": "skip", "all": True}, "invalid_name"),
    ):
        assert (await http.post(path, json=body)).json()["code"] == code
    for limit in ("0", "1001", "x", "-1", "1" * 5000):
        assert (await http.get(PATH, params={"limit": limit})).json()["code"] == "invalid_request"
    assert (await http.get(PATH, params={"limit": "1000"})).json()["keys_parked"] == 2


# --- The commands ------------------------------------------------------------------------------


async def test_the_command_lists_and_decides(session: Session, run: Callable[..., Any]) -> None:
    listed = await run("list", "orders", "billing")
    assert listed.exit_code == 0, listed.output
    assert "user-7: exhausted since 20" in listed.output
    assert "2 waiting, first offset 0 of partition 0, 1 attempt" in listed.output
    shown = json.loads((await run("list", "orders", "billing", "--json")).stdout)
    assert shown["keys_parked"] == 2
    assert "And 1 more" in (await run("list", "orders", "billing", "--limit", "1")).output
    done = await run("release", "orders", "billing", "user-7")
    assert (done.exit_code, done.stdout) == (0, "Released user-7: 2 messages waited.\n")
    hashed = next(key["key_hash"] for key in shown["keys"] if key["key"] == "user-8")
    done = await run("skip", "orders", "billing", "--hash", hashed, "--json")
    assert json.loads(done.stdout)["decision"] == "skip"
    for arguments in (("list", "orders", "billing"), ("retry", "orders", "billing", "--all")):
        assert (
            await run(*arguments)
        ).stdout == "Nothing is parked in the group billing of orders.\n"


async def test_a_command_that_is_wrong_says_why(session: Session, run: Callable[..., Any]) -> None:
    """P12."""
    for arguments, code, text in (
        (("retry", "orders", "billing"), 2, "Give exactly one of KEY, --hash and --all."),
        (("retry", "orders", "billing", "user-7", "--all"), 2, "Give exactly one of"),
        (("retry", "orders", "billing", "user-9"), 1, "not_parked: the key 'user-9'"),
        (("retry", "orders", "billing", "--hash", "x"), 1, "invalid_request"),
        (("list", "orders", "other"), 1, "group_not_found"),
        (("list", "other", "billing"), 1, "queue_not_found"),
        (("list", "orders", "billing", "--limit", "0"), 2, "--limit"),
    ):
        result = await run(*arguments)
        assert (result.exit_code, text in result.output) == (code, True), result.output
    assert "user-7" in (await run("list", "orders", "billing")).output


async def test_another_tenants_keys_are_reached_by_its_name_alone(
    session: Session, house: House, run: Callable[..., Any]
) -> None:
    alice = Principal("alice", "acme")
    settings = QueueSettings(partitions=1, on_exhausted="park", attempts_max=1)
    queue, _ = await house.broker.create_queue(alice, "orders", settings)
    group, _ = await house.broker.put_group(alice, queue, "billing", GroupSettings(), None)
    theirs, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "user-7"), message(1, "hers")])
    for place, _, _ in await theirs.take(2):
        consumer.nack(delivery(place), 0, None)
    await house.broker.cursor_writer.drain()

    async def listed(*more: str) -> set[str]:
        shown = json.loads((await run("list", "orders", "billing", "--json", *more)).stdout)
        return {key["key"] for key in shown["keys"]}

    of_acme = ("--tenant", "acme")
    assert await listed() == await listed("--tenant", "default") == {"user-7", "user-8"}
    assert await listed(*of_acme) == {"user-7", "hers"}
    assert "not_parked" in (await run("skip", "orders", "billing", "hers")).output
    done = await run("retry", "orders", "billing", "user-7", *of_acme)
    assert done.stdout == "Retrying user-7: 1 message waited.\n"
    assert (await listed(*of_acme), await listed()) == ({"hers"}, {"user-7", "user-8"})
    nobody = await run("list", "orders", "billing", "--tenant", "nobody")
    assert (nobody.exit_code, "queue_not_found" in nobody.output) == (1, True)

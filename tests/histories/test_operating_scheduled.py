"""Histories of what operators see of scheduled messages, and of what they rule: figures, metrics,
explanations, purges, usage, and a clock that has jumped."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting import audit as audit_trail
from gateway.accounting.writer import AccountingWriter
from gateway.auth.auth import Authenticator
from gateway.operator.explain import SCHEDULED_MAX, scheduled_sentence
from gateway.rest.app import Application
from metadata.catalog import ANYBODY
from push.due import DOUBT_S
from tests.gateway.asgi import client_of
from tests.histories.gateways import Town, town
from tests.histories.house import House, eventually, message
from tests.histories.test_figures import shown_queue
from tests.histories.test_purging import purge
from tests.histories.test_rights import asked
from tests.histories.test_scheduling import LONG, Clocks, outcomes
from tests.waiting import becomes

BELIEVE = "/v1/scheduled/believe-clock"
OPERATOR = ["manage:*"]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    opened = House(tmp_path, "memory")
    await opened.open()
    await opened.queue(partitions=3)
    yield opened
    await opened.stop()


async def scheduled(house: House) -> tuple[int, int | None]:
    """Return number and first due time that the queue's description has."""
    found = (await shown_queue(house))["scheduled"]
    assert (found["bytes"] > 0) == (found["messages"] > 0) == (found["next_unix_ms"] is not None)
    return found["messages"], found["next_unix_ms"]


async def test_a_description_has_what_is_scheduled_beside_what_is_retained(house: House) -> None:
    queue = house.find()
    await house.group(queue)
    assert await scheduled(house) == (0, None)
    found = await outcomes(house, *(message(n, f"k{n}", delay_s=1000 - n) for n in range(9)))
    assert await scheduled(house) == (9, min(one.due_unix_ms for one in found))
    shown = await shown_queue(house)
    assert (shown["depth"], shown["bytes"], shown["oldest_unix_ms"]) == (0, 0, None)
    assert shown["groups"][0]["lag"] == 0
    await outcomes(house, message("now"))
    assert (await shown_queue(house))["depth"] == 1
    assert (await scheduled(house))[0] == 9


async def test_a_description_follows_each_change_of_what_is_scheduled(house: House) -> None:
    """Figures are remembered; what changes them is noticed."""
    await house.group(house.find())
    await outcomes(house, message(1, "k", id="x", delay_s=50), message(2, "k", id="y", delay_s=60))
    _, first = await scheduled(house)
    path = "/v1/queues/orders/scheduled/{}?key=k"
    await asked(house, OPERATOR, "POST", path.format("x"), {"delay_s": 5000})
    count, second = await scheduled(house)
    assert first is not None and second is not None  # noqa: PT018
    assert (count, second > first) == (2, True)
    await asked(house, OPERATOR, "DELETE", path.format("y"))
    assert (await scheduled(house))[0] == 1
    await asked(house, OPERATOR, "POST", path.format("x"), {"delay_s": 0})
    await eventually(lambda: house.broker.mover.moved_total)
    assert await scheduled(house) == (0, None)
    assert (await shown_queue(house))["depth"] == 1


async def test_unchanged_figures_of_what_is_scheduled_are_not_read_again(house: House) -> None:
    await outcomes(house, message(1, delay_s=50))
    await scheduled(house)
    reads = 0
    real = house.broker.storage.due.states

    async def states(queue_id: str) -> Any:
        nonlocal reads
        reads += 1
        return await real(queue_id)

    house.broker.storage.due.states = states  # type: ignore[method-assign]
    for _ in range(3):
        assert (await scheduled(house))[0] == 1
    assert reads == 0
    await outcomes(house, message(2, delay_s=50))
    assert (await scheduled(house))[0] == 2
    assert reads == 1


@town(2)
async def test_another_gateway_learns_of_what_was_scheduled_though_notices_are_lost(
    town: Town,
) -> None:
    one, two = town.gateways
    for gateway in town.gateways:
        Clocks(gateway.broker.mover)
        gateway.storage.due.is_deaf = True
    await town.group(partitions=4)
    assert (await two.broker.describe_queue(ANYBODY, "orders"))["scheduled"] == {
        "messages": 0, "bytes": 0, "next_unix_ms": None,
    }  # fmt: skip
    await outcomes(one, *(message(n, f"k{n}", delay_s=5000) for n in range(8)))
    loop = asyncio.get_running_loop()
    until = loop.time() + 10
    found: Any = {"messages": 0}
    while found["messages"] != 8:
        found = (await two.broker.describe_queue(ANYBODY, "orders"))["scheduled"]
        assert loop.time() < until
        await asyncio.sleep(0.5)


async def test_what_a_right_on_some_keys_shows_has_no_figures(house: House) -> None:
    """P11."""
    await outcomes(house, message(1, delay_s=50))
    for rights, shows in ((["read:orders"], True), (["read:orders:a"], False)):
        _, shown = await asked(house, rights, "GET", "/v1/queues/orders")
        assert ("scheduled" in shown) is shows


async def metric(house: House, name: str) -> float:
    samples = await house.broker.metrics.collect()
    labels = ("default", "orders") if name == "tocsin_scheduled_messages" else ()
    return samples.number(name, *labels)


@town(1)
async def test_metrics_count_what_waits_what_was_moved_and_how_late(town: Town) -> None:
    (one,) = town.gateways
    Clocks(one.broker.mover)
    session, _ = await one.consumer(await town.group(**LONG))
    await outcomes(one, *(message(n, delay_s=2) for n in range(3)), message(9, delay_s=500))
    assert await metric(one, "tocsin_scheduled_messages") == 4
    await session.take(3)
    assert await metric(one, "tocsin_scheduled_messages") == 1
    assert await metric(one, "tocsin_scheduled_moved_total") == 3
    late = (await one.broker.metrics.collect()).histogram("tocsin_scheduled_late_seconds")
    assert late.count == 3
    assert late.total < 3


# --- A clock that has jumped ----------------------------------------------------------------------


@town(1)
async def test_a_stopped_mover_is_seen_and_an_operator_has_it_go_on(town: Town) -> None:
    (one,) = town.gateways
    clocks, mover = Clocks(one.broker.mover), one.broker.mover
    session, _ = await one.consumer(await town.group(**LONG))
    await outcomes(one, message("in an hour", delay_s=3600))
    _, ready = await asked(one, [], "GET", "/readyz")
    assert ready == {"ready": True, "not_ready": []}
    clocks.set_s += 7200
    await becomes(lambda: mover.clock.doubt_s)
    assert await metric(one, "tocsin_scheduled_stopped") == 1
    assert await metric(one, "tocsin_clock_jumps_total") == 1
    status, ready = await asked(one, [], "GET", "/readyz")
    assert (status, ready["ready"], ready["not_ready"]) == (200, True, [])
    (note,) = ready["notes"]
    assert "because the clock of this gateway was set ahead by 2 h 0 min" in note
    facts: Any = (await one.broker.describe())["scheduled"]
    assert DOUBT_S - 5 < facts["stopped_s"] <= DOUBT_S
    assert (facts["clock_jumps"], round(facts["clock_jump_s"])) == (1, 7200)
    status, answer = await asked(one, OPERATOR, "POST", BELIEVE)
    assert (status, round(answer["jump_s"]), answer["moving"]) == (200, 7200, True)
    assert await becomes(lambda: session.bodies) < 5
    assert await metric(one, "tocsin_scheduled_stopped") == 0
    assert one.broker.notes() == []


async def test_a_clock_that_has_not_jumped_is_believed_anyway(house: House) -> None:
    believed = {"jump_s": 0.0, "is_apart": False, "moving": True}
    assert await asked(house, OPERATOR, "POST", BELIEVE) == (200, believed)


@pytest.mark.parametrize("rights", [["manage:orders"], ["publish,consume,read:*"], ["observe:*"]])
async def test_who_may_not_say_that_a_clock_is_right(house: House, rights: list[str]) -> None:
    """P11: it concerns every queue."""
    status, answer = await asked(house, rights, "POST", BELIEVE)
    assert (status, answer["code"]) == (403, "forbidden")


async def test_acts_and_usage_have_each_scheduled_message_once(house: House) -> None:
    """The line of an act has the message's id. Usage counts a message when it is published, and not
    when it is due."""
    accounting = AccountingWriter.open(
        house.folder, is_usage_on=True, usage_bytes_max=1 << 20, audit_bytes_max=1 << 20
    )
    await house.group(house.find())
    application = Application(house.broker, Authenticator(None), accounting=accounting)
    async with client_of(application) as http:
        body = {"messages": [{"body": n, "key": "k", "id": f"i{n}", "delay_s": 50} for n in "ab"]}
        await http.post("/v1/queues/orders/messages", json=body)
        await http.delete("/v1/queues/orders/scheduled/ia?key=k")
        await http.post("/v1/queues/orders/scheduled/ib?key=k", json={"delay_s": 0})
        await eventually(lambda: house.broker.mover.moved_total)
        await http.post(BELIEVE)
    counter = accounting.usage.counter("default", "anybody", "orders")
    assert counter.messages_in == 2
    await accounting.stop()
    told = [
        (one["action"], one["outcome"], (one.get("details") or {}).get("id"))
        for one in audit_trail.read(house.folder)
        if "count" not in one
    ]
    assert told == [
        ("scheduled.cancel", "ok", "ia"),
        ("scheduled.change", "ok", "ib"),
        ("scheduled.believe_clock", "ok", None),
    ]
    published = (await shown_queue(house))["counters"]["published"]
    assert published == 2


# --- Explanations and purges ----------------------------------------------------------------------


async def test_a_key_says_what_of_it_is_scheduled(house: House) -> None:
    explain = "/v1/queues/orders/explain?key="
    _, before = await asked(house, OPERATOR, "GET", f"{explain}a")
    assert "scheduled" not in before
    (_, first, _) = await outcomes(
        house,
        message(1, "a", delay_s=7200),
        message(2, "a", delay_s=3600.5),
        message(3, "b", delay_s=60),
    )
    _, told = await asked(house, OPERATOR, "GET", f"{explain}a")
    assert told["scheduled"] == {
        "messages": 2,
        "next_unix_ms": first.due_unix_ms,
        "is_exact": True,
        "text": "2 messages of this key are scheduled; the next one is due in 1 h 0 min.",
    }
    many = [message(n, "c", delay_s=60) for n in range(SCHEDULED_MAX + 5)]
    await outcomes(house, *many)
    _, told = await asked(house, OPERATOR, "GET", f"{explain}c")
    assert (told["scheduled"]["messages"], told["scheduled"]["is_exact"]) == (SCHEDULED_MAX, False)
    assert told["scheduled"]["text"].startswith("At least 20 messages of this key are scheduled;")


def test_a_sentence_about_what_is_scheduled() -> None:
    at = int(time.time() * 1000) + 41_000
    assert scheduled_sentence(1, at, is_exact=True) == (
        "One message of this key is scheduled; it is due in 41 s."
    )
    assert scheduled_sentence(3, at - 60_000, is_exact=True).endswith("is due at once.")


async def test_a_purge_of_all_takes_what_is_scheduled_and_counts_it(house: House) -> None:
    queue = house.find()
    await house.group(queue)
    await outcomes(house, message(1), *(message(n, f"k{n}", delay_s=900) for n in range(4)))
    assert await purge(house, queue, "billing") == 1
    assert (await scheduled(house))[0] == 4, "they are no group's yet"
    assert await purge(house, queue) == 5
    assert await scheduled(house) == (0, None)

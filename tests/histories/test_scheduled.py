"""Scheduled messages over HTTP (R32): lists, changes, ids, errors, rights (P11, P12)."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from push import limits
from tests.histories.house import House
from tests.histories.test_rights import asked

QUEUE = "/v1/queues/orders"
EVERYTHING = ["publish,consume,read,manage:*"]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    opened = House(tmp_path, "memory")
    await opened.open()
    await opened.queue(partitions=3)
    yield opened
    await opened.stop()


async def ask(house: House, method: str, path: str, body: Any = None, *, rights: Any = None) -> Any:
    """Return (status, answer) of a request."""
    return await asked(house, rights or EVERYTHING, method, f"{QUEUE}{path}", body)


async def publish(house: House, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    status, answer = await ask(house, "POST", "/messages", {"messages": list(messages)})
    assert status == 200
    results: list[dict[str, Any]] = answer["results"]
    return results


def later(body: Any, after_s: float = 3600, key: str | None = "k", **fields: Any) -> dict[str, Any]:
    message = {"body": body, "delay_s": after_s, **fields}
    return message if key is None else {**message, "key": key}


async def test_a_receipt_has_a_ticket_and_a_time(house: House) -> None:
    before_ms = time.time() * 1000
    scheduled, now = await publish(house, later(1, id="x"), {"body": 2, "key": "k"})
    assert before_ms + 3_600_000 <= scheduled["due_unix_ms"] <= time.time() * 1000 + 3_600_001
    assert scheduled["id"] == "x"
    assert scheduled["ticket"].endswith(f"-1-{scheduled['partition']}-t0")
    assert "offset" not in scheduled
    assert not scheduled["duplicate"]
    assert now["offset"] == 0
    (again,) = await publish(house, later(1, id="x"))
    assert (again["ticket"], again["duplicate"]) == (scheduled["ticket"], True)
    (nameless,) = await publish(house, later(3))
    assert nameless["id"] == nameless["ticket"]


async def test_what_is_to_come_is_listed_by_time_in_parts(house: House) -> None:
    await publish(house, *(later(n, 1000 - 10 * n, f"k{n % 5}") for n in range(25)))
    bodies: list[int] = []
    after = ""
    while True:
        status, answer = await ask(house, "GET", f"/scheduled?limit=4{after}")
        assert status == 200
        assert answer["count"] == 25
        bodies += [one["body"] for one in answer["messages"]]
        times = [one["due_unix_ms"] for one in answer["messages"]]
        assert times == sorted(times)
        if "next" not in answer:
            break
        assert len(answer["messages"]) == 4
        after = f"&after={answer['next']}"
    assert bodies == [*range(24, -1, -1)]
    _, of_key = await ask(house, "GET", "/scheduled?key=k3")
    assert [one["body"] for one in of_key["messages"]] == [23, 18, 13, 8, 3]
    assert {one["key"] for one in of_key["messages"]} == {"k3"}


async def test_many_that_are_due_at_once_are_listed_once_each(house: House) -> None:
    due = int(time.time() * 1000) + 10**6
    await publish(
        house,
        *({"body": n, "key": f"k{n}", "deliver_at_unix_ms": due} for n in range(30)),
    )
    found: list[int] = []
    after = ""
    while True:
        _, answer = await ask(house, "GET", f"/scheduled?limit=7{after}")
        found += [one["body"] for one in answer["messages"]]
        if "next" not in answer:
            break
        after = f"&after={answer['next']}"
    assert sorted(found) == list(range(30))


async def test_large_ones_are_listed_in_parts_that_are_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P9: by bytes, not only by number; and each once, in order."""
    monkeypatch.setattr(limits, "LOOK_BYTES_MAX", 30_000)
    monkeypatch.setattr(limits, "LOOK_ANSWER_BYTES_MAX", 30_000)
    for first in range(0, 30, 10):
        large = [later(f"{n} {'x' * 3000}", 1000 + n, f"k{n}") for n in range(first, first + 10)]
        await publish(house, *large)
    found: list[str] = []
    after = ""
    while True:
        _, answer = await ask(house, "GET", f"/scheduled?limit=100{after}")
        assert 0 < len(answer["messages"]) < 12
        found += [one["body"].split()[0] for one in answer["messages"]]
        if "next" not in answer:
            break
        after = f"&after={answer['next']}"
    assert found == [str(n) for n in range(30)]


async def test_one_is_shown_with_its_content(house: House) -> None:
    fields: dict[str, Any] = {
        "headers": {"a": "b"},
        "ttl_s": 60.0,
        "content_type": "text/x",
        "sent_unix_ms": 5,
    }
    await publish(house, later({"deep": [1]}, id="x", **fields))
    status, shown = await ask(house, "GET", "/scheduled/x?key=k")
    assert status == 200
    assert (shown["id"], shown["key"], shown["body"]) == ("x", "k", {"deep": [1]})
    assert {name: shown[name] for name in fields} == fields
    assert (await ask(house, "GET", f"/scheduled/{shown['ticket']}"))[1] == shown


async def test_a_cancelled_message_never_comes_and_its_id_says_so(house: House) -> None:
    group = await house.group(house.find())
    session, _ = await house.subscribe(house.find(), group)
    await publish(house, later(1, 0.2, id="x"), later(2, 0.3, id="y"))
    status, cancelled = await ask(house, "DELETE", "/scheduled/x?key=k")
    assert (status, cancelled["id"]) == (200, "x")
    assert "body" not in cancelled
    await session.take(1)
    assert session.bodies == [2]
    assert await ask(house, "DELETE", "/scheduled/x?key=k") == problem(409, "cancelled")
    assert await ask(house, "POST", "/scheduled/x?key=k", {"delay_s": 1}) == problem(
        409, "cancelled"
    )
    (again,) = await publish(house, later(1, id="x"))
    assert again["error"]["code"] == "cancelled"
    by_ticket = await ask(house, "DELETE", f"/scheduled/{cancelled['ticket']}")
    assert by_ticket == problem(409, "cancelled")


class problem:  # noqa: N801
    """Equal to the answer with this status and code."""

    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, tuple)
        return (self.status, self.code) == (other[0], other[1]["code"])

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.status} {self.code}"


async def test_what_was_due_is_neither_cancelled_nor_changed(house: House) -> None:
    group = await house.group(house.find())
    session, _ = await house.subscribe(house.find(), group)
    (one,) = await publish(house, later(1, 0.05, id="x"))
    await session.take(1)
    for path in ("/scheduled/x?key=k", f"/scheduled/{one['ticket']}"):
        assert await ask(house, "DELETE", path) == problem(409, "already_due")
        assert await ask(house, "POST", path, {"delay_s": 9}) == problem(409, "already_due")
        assert await ask(house, "GET", path) == problem(409, "already_due")
    (now,) = await publish(house, {"body": 1, "key": "k", "id": "z"})
    assert "offset" in now
    assert await ask(house, "DELETE", "/scheduled/z?key=k") == problem(409, "already_due")


async def test_an_id_that_nobody_knows(house: House) -> None:
    (one,) = await publish(house, later(1, id="x"))
    other = one["ticket"].replace("-t0", "-t7")
    for path in (
        "/scheduled/nobody",
        "/scheduled/nobody?key=k",
        "/scheduled/x?key=other",
        f"/scheduled/{other}",
        f"/scheduled/{one['ticket']}?key=other",
        "/scheduled/q-1-0-t0",
    ):
        assert await ask(house, "DELETE", path) == problem(404, "id_unknown"), path
    assert await ask(house, "GET", "/scheduled/x?key=") == problem(400, "invalid_request")


async def test_an_id_of_several_keys_needs_its_key(house: House) -> None:
    """R8: ids are one per key."""
    await publish(
        house, later(1, id="x", key="a"), later(2, id="x", key="b"), later(3, id="x", key=None)
    )
    assert await ask(house, "DELETE", "/scheduled/x") == problem(409, "ambiguous")
    assert (await ask(house, "DELETE", "/scheduled/x?key=b"))[0] == 200
    assert await ask(house, "DELETE", "/scheduled/x") == problem(409, "ambiguous")
    assert (await ask(house, "DELETE", "/scheduled/x?key=a"))[0] == 200
    status, shown = await ask(house, "GET", "/scheduled/x")
    assert (status, shown["body"]) == (200, 3)


async def test_an_id_that_many_keys_have_is_found_under_each(house: House) -> None:
    """More than a look at the id's hash answers."""
    keys = [f"k{number}" for number in range(120)]
    await publish(house, *(later(1, 3600 + n, id="x", key=key) for n, key in enumerate(keys)))
    for key in keys[::17]:
        _, shown = await ask(house, "GET", f"/scheduled/x?key={key}")
        assert shown["key"] == key
    assert (await ask(house, "DELETE", "/scheduled/x?key=k119"))[0] == 200
    again = problem(409, "cancelled")
    assert await ask(house, "DELETE", "/scheduled/x?key=k119") == again


async def test_nothing_is_scheduled_while_the_clock_is_in_doubt(house: House) -> None:
    """R32: a time that is judged by a clock that has jumped may be wrong by years."""
    await publish(house, later(1, id="x"))
    clock, jump_s = house.broker.mover.clock, 86_400
    clock.wall = lambda: time.time() + jump_s
    assert not clock.is_believed()
    refused, now = await publish(house, later(2), {"body": 3, "key": "k"})
    assert refused["error"]["code"] == "clock_in_doubt"
    assert now["offset"] == 0
    change = await ask(house, "POST", "/scheduled/x?key=k", {"delay_s": 1})
    assert change == problem(503, "clock_in_doubt")
    assert (await ask(house, "POST", "/scheduled/x?key=k", {"body": 5}))[0] == 200
    _, shown = await ask(house, "GET", "/scheduled/x?key=k")
    assert shown["body"] == 5
    assert shown["due_unix_ms"] < (time.time() + 3601) * 1000
    clock.believe()
    (scheduled,) = await publish(house, later(2))
    assert scheduled["due_unix_ms"] > (time.time() + jump_s) * 1000


async def test_a_message_is_moved_and_replaced(house: House) -> None:
    group = await house.group(house.find())
    session, _ = await house.subscribe(house.find(), group)
    await publish(house, later("old", id="x", ttl_s=50), later("other", id="y"))
    status, moved = await ask(house, "POST", "/scheduled/x?key=k", {"delay_s": 7200})
    assert status == 200
    _, shown = await ask(house, "GET", "/scheduled/x?key=k")
    assert shown["due_unix_ms"] == moved["due_unix_ms"] > (time.time() + 7000) * 1000
    assert (shown["body"], shown["ttl_s"]) == ("old", 50)
    at = int(time.time() * 1000) + 100
    status, _ = await ask(
        house, "POST", "/scheduled/x?key=k", {"deliver_at_unix_ms": at, "body": "new"}
    )
    assert status == 200
    assert (await ask(house, "POST", "/scheduled/y?key=k", {"delay_s": 0}))[0] == 200
    await session.take(2)
    assert sorted(session.bodies) == ["new", "other"]


async def test_bad_changes_change_nothing(house: House) -> None:
    await publish(house, later("old", id="x"))
    _, before = await ask(house, "GET", "/scheduled/x?key=k")
    most = limits.SCHEDULE_S_MAX
    for change, code in [
        ({}, "invalid_request"),
        ({"headers": {"a": "b"}}, "invalid_request"),
        ({"delay_s": -1}, "invalid_message"),
        ({"delay_s": most + 1}, "invalid_message"),
        ({"deliver_at_unix_ms": 1.5}, "invalid_request"),
        ({"delay_s": 1, "deliver_at_unix_ms": 1}, "invalid_message"),
        ({"body": "x" * 2_000_000}, "message_too_large"),
        ({"body": 1, "body_base64": "AAEC"}, "invalid_message"),
        ({"key": "other", "body": 1}, "invalid_request"),
    ]:
        status, answer = await ask(house, "POST", "/scheduled/x?key=k", change)
        assert (status >= 400, answer["code"]) == (True, code), change
    assert (await ask(house, "GET", "/scheduled/x?key=k"))[1] == before


async def test_bad_places_to_go_on_from(house: House) -> None:
    for after in ("x", "1-2", "1-2-3-4", "-1-0-0", "99999999999999999-0-0", "1-0-99999999999999"):
        answer = await ask(house, "GET", f"/scheduled?after={after}")
        assert answer == problem(400, "invalid_request"), after


async def test_who_may_see_and_who_may_cancel(house: House) -> None:
    """P11."""
    await publish(house, later(1, id="x", key="a"), later(2, id="y", key="b"))
    one = "/scheduled/x?key=a"
    reader, manager = ["read:orders:a"], ["manage:orders"]
    publisher, other = ["publish:orders:a"], ["publish:orders:b"]
    for path in ("/scheduled", "/scheduled?key=b", "/scheduled/y?key=b", "/scheduled/x"):
        assert await ask(house, "GET", path, rights=reader) == problem(403, "forbidden")
    _, seen = await ask(house, "GET", "/scheduled?key=a", rights=reader)
    assert [one["body"] for one in seen["messages"]] == [1]
    assert (await ask(house, "GET", one, rights=reader))[1]["body"] == 1
    _, managed = await ask(house, "GET", "/scheduled", rights=manager)
    assert {one["key"]: one.get("body") for one in managed["messages"]} == {"a": None, "b": None}
    for rights in (publisher, ["consume:orders"], ["read:other"]):
        assert await ask(house, "GET", "/scheduled", rights=rights) == problem(403, "forbidden")
    for rights in (reader, other, ["consume:orders"], ["manage:other"]):
        assert await ask(house, "DELETE", one, rights=rights) == problem(403, "forbidden")
        change = await ask(house, "POST", one, {"delay_s": 1}, rights=rights)
        assert change == problem(403, "forbidden")
    status, shown = await ask(house, "POST", one, {"delay_s": 5000}, rights=publisher)
    assert status == 200
    assert "body" not in shown
    assert (await ask(house, "DELETE", one, rights=publisher))[0] == 200
    assert (await ask(house, "DELETE", "/scheduled/y?key=b", rights=manager))[0] == 200


async def test_changes_at_the_same_time_are_one_after_the_other(house: House) -> None:
    await publish(house, later(0, id="x"))
    answers = await asyncio.gather(
        *(ask(house, "POST", "/scheduled/x?key=k", {"body": n}) for n in range(1, 6)),
        *(ask(house, "POST", "/scheduled/x?key=k", {"delay_s": 9000 + n}) for n in range(5)),
    )
    assert {status for status, _ in answers} == {200}
    _, shown = await ask(house, "GET", "/scheduled/x?key=k")
    assert shown["body"] in range(1, 6)
    assert shown["due_unix_ms"] > (time.time() + 8900) * 1000


async def test_pulls_and_peeks_say_when_a_message_was_due(house: House) -> None:
    await house.group(house.find())
    (one,) = await publish(house, later(1, 0.01, id="x", sent_unix_ms=7))
    status, pulled = await ask(house, "POST", "/groups/billing/pull", {"wait_s": 10})
    assert status == 200
    (message,) = pulled["messages"]
    assert message["deliver_at_unix_ms"] == one["due_unix_ms"]
    assert message["sent_unix_ms"] == 7
    _, peeked = await ask(house, "GET", "/messages")
    assert [each["deliver_at_unix_ms"] for each in peeked["messages"]] == [one["due_unix_ms"]]


@pytest.mark.parametrize("overflow", ["reject", "dead_letter"])
async def test_a_queue_takes_as_much_as_it_may_have_scheduled(house: House, overflow: str) -> None:
    """P10: what is due now goes on, and what is cancelled makes room."""
    bounds = {"overflow": overflow, "due_messages_max": 3, "due_bytes_max": 400}
    assert (await ask(house, "PATCH", "", bounds))[0] == 200
    stored = await publish(house, *(later(n, id=f"m{n}") for n in range(4)))
    assert ["error" in one for one in stored] == [False] * 3 + [True]
    assert (stored[3]["error"]["code"], stored[3]["error"]["retry"]) == ("schedule_full", True)
    (now,) = await publish(house, {"body": "now", "key": "k9"})
    assert now["offset"] == 0
    grown = await ask(house, "POST", "/scheduled/m0?key=k", {"body": "x" * 300})
    assert grown == problem(429, "schedule_full")
    assert (await ask(house, "DELETE", "/scheduled/m1?key=k"))[0] == 200
    large, small = await publish(house, later("x" * 300, key="k5"), later(5, key="k5"))
    assert large["error"]["code"] == "schedule_full"
    assert "ticket" in small
    assert (await ask(house, "PATCH", "", {"due_messages_max": 0, "due_bytes_max": 0}))[0] == 200
    assert "ticket" in (await publish(house, later("x" * 300, key="k5")))[0]


async def test_a_queue_that_overflows_into_dead_letters_bounds_what_waits(house: House) -> None:
    """Nothing that is scheduled can be moved to the dead letters."""
    bounds = {"overflow": "dead_letter", "messages_max": 2, "due_messages_max": 5}
    assert (await ask(house, "PATCH", "", bounds))[0] == 200
    stored = await publish(house, *(later(n) for n in range(3)))
    assert ["error" in one for one in stored] == [False, False, True]

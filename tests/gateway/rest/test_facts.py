"""The facts about keys over HTTP, over the whole broker: form, bounds, wrong questions."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.models import Explained, HeldKeys, LeaseList
from push import limits
from tests.histories.house import House, Session, delivery, message

QUEUE = "/v1/queues/orders"
GROUP = f"{QUEUE}/groups/billing"


@pytest.fixture
async def session(house: House) -> Session:
    """Of a consumer of `billing`, where user-7 backs off and user-8 is in flight."""
    queue = await house.queue(backoff_s=60, backoff_max_s=60)
    group = await house.group(queue)
    session, consumer = await house.subscribe(queue, group)
    await house.publish(queue, [message(0, "user-7"), message(1, "user-8")])
    consumer.nack(delivery((await session.take(2))[0][0]), 60, None)
    return session


@pytest.fixture
async def http(house: House) -> AsyncIterator[httpx2.AsyncClient]:
    async with house.http() as http:
        yield http


async def told(http: httpx2.AsyncClient, path: str, kind: Any, **query: str) -> Any:
    """An answer; it has the form that /openapi.json says."""
    answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    msgspec.convert(answer.json(), kind)
    assert set(answer.json()) <= set(kind.__struct_fields__)
    return answer.json()


async def test_the_answers_have_the_form_that_is_described(
    session: Session, http: httpx2.AsyncClient
) -> None:
    one = await told(http, f"{QUEUE}/explain", Explained, key="user-7")
    (group,) = one["groups"]
    assert (group["group"], group["waits_for"], group["head"]["offset"]) == (
        "billing",
        "backoff",
        0,
    )
    assert group["owner"]["session"] == session.session_id
    assert "tried again in" in group["text"]
    (key,) = (await told(http, f"{GROUP}/held", HeldKeys))["keys"]
    assert (key["key"], key["reason"]) == ("user-7", "backoff")
    (lease,) = (await told(http, f"{GROUP}/leases", LeaseList))["leases"]
    assert (lease["key"], lease["offset"]) == ("user-8", 1)


async def test_a_key_of_1024_bytes_passes_and_one_of_1025_is_refused(
    session: Session, http: httpx2.AsyncClient
) -> None:
    """Bytes, not letters; markup, emoji and text that runs the other way are keys like others."""
    for key in ("k" * 1024, "é" * 512, "<b>&amp;</b>", "🦉", "שלום", "\t\x00", "a b/c?d#e%25"):
        assert (await told(http, f"{QUEUE}/explain", Explained, key=key))["key"] == key
    for key in ("k" * 1025, "é" * 512 + "k", ""):
        answer = await http.get(f"{QUEUE}/explain", params={"key": key})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert limits.KEY_BYTES_MAX == 1024


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{QUEUE}/explain", "invalid_request"),
        (f"{QUEUE}/explain?key=k&group=-", "invalid_name"),
        (f"{QUEUE}/explain?key=k&after=-", "invalid_name"),
        (f"{QUEUE}/explain?key=k&group=other", "group_not_found"),
        ("/v1/queues/other/explain?key=k", "queue_not_found"),
        (f"{GROUP}/held?limit=0", "invalid_request"),
        (f"{GROUP}/held?limit=1001", "invalid_request"),
        (f"{GROUP}/held?after=4-122", "invalid_request"),
        (f"{QUEUE}/groups/other/held", "group_not_found"),
        (f"{GROUP}/leases?limit=0", "invalid_request"),
        (f"{GROUP}/leases?limit=1001", "invalid_request"),
        (f"{GROUP}/leases?after=x", "invalid_request"),
        (f"{QUEUE}/groups/other/leases", "group_not_found"),
    ],
)
async def test_a_wrong_question_is_refused(
    session: Session, http: httpx2.AsyncClient, path: str, code: str
) -> None:
    """P12."""
    answer = await http.get(path)
    assert answer.json()["code"] == code
    assert (await http.get(f"{GROUP}/held?limit=1000")).status_code == 200
    assert (await http.get(f"{GROUP}/leases?limit=1000")).status_code == 200

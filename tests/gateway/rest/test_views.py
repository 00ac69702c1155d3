"""What a right shows of a queue and its groups: what it needs, and no more (P11)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from gateway.auth.auth import Authenticator
from gateway.broker import Broker
from gateway.models import Admission
from gateway.rest.app import Application
from gateway.rest.views import group_view
from metadata.catalog import ANYBODY
from metadata.rights import parse_rights
from push.errors import Refused
from tests.gateway.asgi import client_of
from tests.histories.house import House
from tests.waiting import becomes

QUEUE = "/v1/queues/orders"
GROUP = f"{QUEUE}/groups/billing"
EVERY = "publish,consume,read,manage:*"
SECRETS = ("anybody", "ops", "retention", "86399", "lag", "depth", "partition")
"""What stands in a whole description: names, settings and figures."""
Ask = Callable[..., Awaitable[httpx2.Response]]


class Anyone(Authenticator):
    """Takes the presented token for a list of rights."""

    def check_token(self, presented: str | None, **_: object) -> Admission:
        if presented is None:
            raise Refused("unauthorized")
        return Admission(ANYBODY, rights=parse_rights(presented.split()))


@asynccontextmanager
async def asking(broker: Broker) -> AsyncIterator[Ask]:
    """A queue with settings, an alert, two messages and a group that pulls; ask as somebody with
    some rights."""
    async with client_of(Application(broker, Anyone("unknown"))) as http:

        async def ask(rights: str, method: str, path: str, body: object = None) -> httpx2.Response:
            headers = {"Authorization": f"Bearer {rights}"}
            return await http.request(method, path, json=body, headers=headers)

        assert (await ask(EVERY, "PUT", "/v1/queues/ops")).status_code == 201
        alert = {"name": "much", "when": "depth", "above": 1000, "queue": "ops"}
        settings = {"partitions": 1, "retention_s": 86399, "attempts_max": 1, "alerts": [alert]}
        assert (await ask(EVERY, "PUT", QUEUE, settings)).status_code == 201
        messages = [{"key": key, "body": key} for key in ("a", "b")]
        await ask(EVERY, "POST", f"{QUEUE}/messages", {"messages": messages})
        yield ask


async def pull(ask: Ask) -> dict[str, Any]:
    answer = await ask(EVERY, "POST", f"{GROUP}/pull", {"messages_max": 1, "wait_s": 10})
    (message,) = answer.json()["messages"]
    found: dict[str, Any] = message
    return found


@pytest.mark.parametrize(
    "rights", ["read:orders:a", "publish:orders:a", "read,publish:orders:*a*", "read:*:a"]
)
async def test_a_right_on_some_keys_shows_that_the_queue_is_there_and_no_more(
    broker: Broker, rights: str
) -> None:
    async with asking(broker) as ask:
        await pull(ask)
        found = await ask(rights, "GET", QUEUE)
        assert {*found.json()} == {"name", "queue_id"}
        texts = [found.text]
        for query in ("", "?brief=true"):
            answer = await ask(rights, "GET", f"/v1/queues{query}")
            (listed,) = [one for one in answer.json()["queues"] if one["name"] == "orders"]
            assert {*listed} == {"name", "queue_id"}
        for path in (
            GROUP, f"{QUEUE}/metrics", f"{GROUP}/held", f"{GROUP}/leases", f"{GROUP}/parked",
            f"{QUEUE}/explain?key=a", f"{QUEUE}/messages?key=a&group=billing",
            f"{QUEUE}/messages", f"{QUEUE}/dead-letters", "/metrics", "/v1/clusters",
        ):  # fmt: skip
            answer = await ask(rights, "GET", path)
            assert answer.status_code == 403, (path, answer.text)
            texts.append(answer.text)
            ghost = await ask(rights, "GET", path.replace("billing", "ghost"))
            assert ghost.text == answer.text
        for text in texts:
            assert not [word for word in SECRETS if word in text], text


@pytest.mark.parametrize(
    ("rights", "shown", "hidden"),
    [
        ("publish:orders", "settings paused", "alerts holder depth counters groups dead_letters"),
        ("read:orders", "settings depth counters dead_letters", "alerts holder groups"),
        ("consume:orders", "settings depth groups", "alerts holder"),
        ("observe:orders", "settings depth groups alerts", "holder"),
        ("manage:orders", "settings depth groups alerts holder dead_letters", ""),
        ("read:orders:a manage:orders", "settings alerts holder groups", ""),
    ],
)
async def test_each_right_shows_what_it_needs(
    broker: Broker, rights: str, shown: str, hidden: str
) -> None:
    async with asking(broker) as ask:
        found = (await ask(rights, "GET", QUEUE)).json()
        fields = {*found, *found["settings"]}
        assert {*shown.split()} <= fields
        assert not {*hidden.split()} & fields
        assert found["settings"]["retention_s"] == 86399


@pytest.mark.parametrize(
    ("rights", "is_shown"),
    [("consume:orders", True), ("manage:orders", True), ("observe:orders", False)],
)
async def test_who_consumes_is_for_those_who_do_and_who_operate(
    broker: Broker, rights: str, is_shown: bool
) -> None:
    """Figures name nobody's session."""
    async with asking(broker) as ask:
        await pull(ask)
        found = (await ask(rights, "GET", GROUP)).json()
        assert found["lag"] == 2
        assert "consumers" in found
        assert ("members" in found) is ("absent" in found) is is_shown
        for place in found["partitions"]:
            assert ("owner" in place) is ("member" in place) is is_shown


def test_a_partition_names_its_owner_to_those_who_consume_and_who_operate() -> None:
    place = {"partition": 0, "lag": 2, "owner": {"session": "s"}, "member": "s.1"}
    described = {"name": "billing", "members": ["s.1"], "absent": [], "partitions": [place]}
    for right, is_shown in (("consume", True), ("manage", True), ("observe", False)):
        (seen,) = group_view(described, parse_rights([f"{right}:orders"]), "orders")["partitions"]
        assert seen == (place if is_shown else {"partition": 0, "lag": 2})


@pytest.mark.parametrize("rights", ["read:orders", "publish:orders"])
async def test_groups_are_not_for_those_who_only_read_or_publish(
    broker: Broker, rights: str
) -> None:
    async with asking(broker) as ask:
        await pull(ask)
        texts = []
        for group in ("billing", "ghost"):
            answer = await ask(rights, "GET", f"{QUEUE}/groups/{group}")
            assert answer.json()["code"] == "forbidden"
            texts.append(answer.text)
        assert texts[0] == texts[1]
        assert (await ask(rights, "GET", f"{QUEUE}/metrics")).status_code == 403
        path = f"{QUEUE}/messages?group=billing"
        assert (await ask(rights, "GET", path)).status_code == 403
        assert (await ask("read,consume:orders", "GET", path)).status_code == 200


async def test_a_letter_names_its_group_to_those_who_see_groups(house: House) -> None:
    async with asking(house.broker) as ask:
        message = await pull(ask)
        await ask(EVERY, "POST", f"{GROUP}/nack", {"receipts": [message["receipt"]]})
        path = f"{QUEUE}/dead-letters?key={message['key']}"
        letters: list[Any] = []
        async with asyncio.timeout(20):
            while not letters:
                await asyncio.sleep(0)
                letters = (await ask(EVERY, "GET", path)).json()["messages"]
        assert letters[0]["origin"]["group"] == "billing"
        (letter,) = (await ask(f"read:orders:{message['key']}", "GET", path)).json()["messages"]
        assert {*letter["origin"]} == {"queue", "partition", "offset"}
        assert letter["body"] == letters[0]["body"]


async def test_a_letter_that_died_twice_names_no_group_to_those_who_only_read(house: House) -> None:
    """Nor what was said where it died: in `earlier`, and in the headers that it had as a letter.
    [Both were there, also with the right to read one key.]"""
    async with asking(house.broker) as ask:
        dead = f"{QUEUE}.dead-letters"
        assert (await ask(EVERY, "PUT", dead, {"partitions": 1})).status_code == 201
        for queue in (QUEUE, dead):
            group = f"{queue}/groups/SECRET-GROUP"
            few = {"messages_max": 1, "wait_s": 10}
            (message,) = (await ask(EVERY, "POST", f"{group}/pull", few)).json()["messages"]
            said = {"receipts": [message["receipt"]], "reject": True, "reason": "SECRET-REASON"}
            assert (await ask(EVERY, "POST", f"{group}/nack", said)).json()["settled"] == 1
        path = f"{dead}/dead-letters?key={message['key']}"
        letters: list[Any] = []

        async def found() -> bool:
            letters[:] = (await ask(EVERY, "GET", path)).json()["messages"]
            return bool(letters)

        await becomes(found, within_s=10)
        assert letters[0]["earlier"][0]["group"] == "SECRET-GROUP"
        for rights in (f"read:orders.dead-letters:{message['key']}", "read:orders.dead-letters"):
            answer = await ask(rights, "GET", path)
            assert "SECRET" not in answer.text
            (letter,) = answer.json()["messages"]
            assert {*letter["earlier"][0]} == {"queue", "partition", "offset"}
            assert letter["headers"]["tocsin-dead-letter-reason"] == "rejected"

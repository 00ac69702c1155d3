"""Histories of rights with more than one effect: sending order, queues made on first use, rights
that become fewer, and queues that take the dead letters of others (P11)."""

from typing import Any

import msgspec
import pytest

from gateway.auth.auth import Authenticator
from gateway.models import Admission
from gateway.rest.app import Application
from gateway.session.directory import SessionServices, new_session_id
from gateway.wire import frames
from metadata.catalog import ANYBODY, Principal
from metadata.rights import parse_rights
from tests.gateway.asgi import client_of
from tests.histories.house import Frame, House, Socket, numbered


def admitted(*rights: str, tenant: str = "default", name: str = "ann") -> Admission:
    """Return an admission with these rights."""
    return Admission(Principal(name, tenant), rights=parse_rights(rights))


class Doorman(Authenticator):
    """Authenticator that admits every client as ann, with the rights that the token consists of."""

    def __init__(self) -> None:
        super().__init__("a token")

    def check_token(self, presented: str | None, **_: object) -> Admission:
        return admitted(*(presented or "").split(";"))


async def asked(house: House, rights: list[str], method: str, path: str, body: Any = None) -> Any:
    """Return (status, answer) of a request with these rights."""
    application = Application(house.broker, Doorman())
    headers = {"Authorization": f"Bearer {';'.join(rights)}"}
    async with client_of(application) as http:
        answer = await http.request(method, path, json=body, headers=headers)
    return answer.status_code, answer.json() if answer.content else None


def socket(house: House, *rights: str, around: SessionServices | None = None) -> Socket:
    """Make a session with these rights."""
    around = around or SessionServices(house.broker, Doorman())
    found = Socket(house, around, new_session_id(), admitted(*rights))
    found.say(type="hello", producer="p", linger_s=30)
    return found


async def said(session: Socket, **frame: Any) -> Frame:
    """Send a frame, and return its answer."""
    ref = len(session.frames) + 1000
    session.say(ref=ref, **frame)
    return await session.until_ref(ref)


def publish(*keys: str | None, queue: str = "orders", **more: Any) -> Frame:
    """Return a frame with a message of each key."""
    messages = [{"body": n, **({} if k is None else {"key": k})} for n, k in enumerate(keys)]
    return {"type": "publish", "queue": queue, "messages": messages, **more}


async def test_a_message_of_another_key_is_refused_in_its_place(house: House) -> None:
    await house.queue()
    session = socket(house, "publish:orders:mine")
    answer = await said(session, **publish("mine", "yours", None, "mine"))
    first, second, third, fourth = answer["receipts"]
    assert [first, fourth] == [[0, 0], [0, 1]]
    assert second["code"] == third["code"] == "forbidden"
    assert "'yours'" in second["detail"]
    assert not second["retry"]
    path = "/v1/queues/orders/messages"
    body = {"messages": [{"body": 1}, {"body": 2, "key": "mine"}]}
    status, answer = await asked(house, ["publish:orders:mine"], "POST", path, body)
    assert status == 200
    assert answer["results"][0]["error"]["code"] == "forbidden"
    assert answer["results"][1]["offset"] == 2


async def test_behind_a_forbidden_message_none_of_its_key_is_stored(house: House) -> None:
    """R7: The right comes in the middle of a stream."""
    await house.queue()
    session = socket(house, "publish:orders:mine")
    first = await said(session, **publish("yours", "mine", sequence=0))
    assert first["receipts"][0]["code"] == "forbidden"
    assert first["receipts"][1]["code"] == "out_of_sequence"  # one partition, one order
    assert (await said(session, type="auth", token="publish:orders"))["type"] == "ok"
    late = await said(session, **publish("yours", sequence=2))
    assert late["receipts"][0]["code"] == "out_of_sequence"
    again = await said(session, **publish("yours", "mine", "yours", sequence=0))
    assert again["receipts"] == [[0, 0], [0, 1], [0, 2]]


async def test_a_queue_is_made_by_who_may_publish_and_only_for_a_message_that_may(
    house: House,
) -> None:
    house.broker.config = msgspec.structs.replace(house.broker.config, auto_create=True)
    session = socket(house, "publish:new:mine", "consume:new")
    assert (await said(session, **publish("mine", queue="other")))["code"] == "forbidden"
    answer = await said(session, **publish("yours", None, queue="new"))
    assert [one["code"] for one in answer["receipts"]] == ["forbidden", "forbidden"]
    assert not house.broker.metadata.list_queues(ANYBODY)
    answer = await said(session, **publish("yours", "mine", queue="new"))
    assert answer["receipts"][0]["code"] == "forbidden"
    assert answer["receipts"][1][1] == 0
    assert [queue.name for queue in house.broker.metadata.list_queues(ANYBODY)] == ["new"]
    subscribe = {"type": "subscribe", "subscription": 1, "queue": "new", "group": "g", "credit": 1}
    assert (await said(session, **subscribe))["type"] == "ok"


async def test_who_may_less_now_loses_what_that_does_not_cover(house: House) -> None:
    queue = await house.queue()
    await house.publish(queue, numbered(4))
    other = await house.queue("feed")
    await house.publish(other, numbered(1))
    session = socket(house, "consume,read:*")
    ask = {"type": "subscribe", "credit": 10}
    await said(session, **ask, subscription=1, queue="orders", group="g")
    await said(session, **ask, subscription=2, queue="feed", group="g")
    await said(session, **ask, subscription=3, queue="orders", start="earliest")
    await said(session, **ask, subscription=4, queue="orders", start="earliest", keys=["k"])
    await session.until_true(lambda: len(session.frames) >= 9)
    session.frames.clear()
    assert (await said(session, type="auth", token="consume:feed;read:orders:k"))["type"] == "ok"
    errors = {one["subscription"]: one["code"] for one in session.of_type("error")}
    assert errors == {1: "forbidden", 3: "forbidden"}
    group = house.broker.metadata.find_group(ANYBODY, queue, "g")
    assert not house.broker.groups.runtimes[group.group_id].members  # others wait for its messages
    session.frames.clear()
    await house.publish(queue, numbered(1, first=9))
    await house.publish(other, numbered(1, first=9))
    await session.until_true(lambda: len(session.frames) == 2)
    assert {one["subscription"] for one in session.frames} == {2, 4}
    ack = await said(session, type="ack", subscription=1, deliveries=[[0, 1, 0, 0, 3]])
    assert ack["settled"] == 0
    assert (await said(session, type="unsubscribe", subscription=1))["type"] == "ok"
    again = await said(session, **ask, subscription=1, queue="orders", group="g")
    assert again["code"] == "forbidden"


async def test_a_session_that_comes_back_has_the_rights_of_now(house: House) -> None:
    await house.queue()
    around = SessionServices(house.broker, Doorman())
    session = socket(house, "consume:orders", around=around)
    ask = {"type": "subscribe", "credit": 10, "queue": "orders", "group": "g"}
    assert (await said(session, **ask, subscription=1))["type"] == "ok"
    session.session.on_transport_lost()
    again = Socket(house, around, new_session_id(), admitted("publish:orders"))
    again.say(type="hello", session=session.session.session_id, linger_s=30)
    error = await again.until("error")
    assert (error["subscription"], error["code"]) == (1, "forbidden")


async def test_only_ones_own_session_is_come_back_to_and_no_tenant_learns_of_anothers(
    house: House,
) -> None:
    around = SessionServices(house.broker, Doorman())
    mine = socket(house, "consume:*", around=around)
    session_id = mine.session.session_id
    for number, (name, tenant) in enumerate((("ben", "default"), ("ann", "other"))):
        for known in (session_id, new_session_id()):
            other = Socket(house, around, new_session_id(), admitted(tenant=tenant, name=name))
            other.say(type="hello", session=known, linger_s=30)
            (welcome,) = other.frames
            assert welcome["resumed"] is None
            # A principal beside it gets another id. For another tenant both ids are the same.
            assert number == 0 or welcome["session"] == known
            other.session.end()
    assert mine.close_code is None
    for tenant, shown in (("default", [session_id]), ("other", [])):
        boss = Principal("boss", tenant)
        listed = around.sessions.page(boss, 10, "", whole_tenant=True)
        assert [one.session for one in listed.sessions] == shown
        assert around.sessions.page(boss, 10, "").sessions == []
    back = Socket(house, around, new_session_id(), admitted("consume:*"))
    back.say(type="hello", session=session_id, linger_s=30)
    assert mine.close_code is frames.REPLACED


@pytest.mark.parametrize(
    ("rights", "named", "status"),
    [
        (["manage:orders"], None, 201),
        (["manage:orders"], "orders.dead-letters", 201),
        (["manage:orders"], "secret", 403),
        (["manage:orders", "publish,consume,read:secret"], "secret", 403),
        (["manage:orders", "manage:secret"], "secret", 201),
    ],
)
async def test_to_send_dead_letters_elsewhere_is_to_manage_that(
    house: House, rights: list[str], named: str | None, status: int
) -> None:
    body = {"partitions": 1, "dead_letter_queue": named}
    found, answer = await asked(house, rights, "PUT", "/v1/queues/orders", body)
    assert found == status
    if status == 403:
        assert "the right to manage, on the queue 'secret'" in answer["detail"]
        await house.queue()
    again = {"dead_letter_queue": named}
    found, answer = await asked(house, rights, "PATCH", "/v1/queues/orders", again)
    assert found == (403 if status == 403 else 200)
    if status == 403:
        assert "the right to manage, on the queue 'secret'" in answer["detail"]


async def test_a_circle_of_dead_letters_names_no_queue_that_one_may_not_see(house: House) -> None:
    """P11. [It had the names of all: who may manage two queues learns of those between them.]"""
    await house.queue("x")
    await house.queue("secret", dead_letter_queue="x")
    await house.queue("hidden", dead_letter_queue="secret")
    await house.queue("y", dead_letter_queue="hidden")
    few, more = ["manage:x", "manage:y"], ["manage:x", "manage:y", "observe:hidden"]
    named = {"dead_letter_queue": "y"}
    for rights, between in ((few, "another queue"), (more, "hidden")):
        status, answer = await asked(house, rights, "PATCH", "/v1/queues/x", named)
        assert (status, answer["code"]) == (400, "invalid_request")
        assert f"x → y → {between} → another queue → x" in answer["detail"]
    await house.queue("apart", dead_letter_queue="new")
    rights, named = ["manage:new", "manage:between"], {"dead_letter_queue": "between"}
    await house.queue("between", dead_letter_queue="apart")
    status, answer = await asked(house, rights, "PUT", "/v1/queues/new", named)
    assert (status, answer["code"]) == (400, "invalid_request")
    assert "new → between → another queue → new" in answer["detail"]


async def test_an_alert_to_a_queue_needs_the_right_to_publish_there(house: House) -> None:
    """This holds for a part or the whole, and for one alert or all of them. To change another
    setting needs no such right."""
    await house.queue()
    alert = {"name": "late", "when": "lag", "above": 1, "queue": "ops"}
    part = {field: alert[field] for field in ("when", "above", "queue")}
    path = "/v1/queues/orders"
    few, more = ["manage:orders"], ["manage:orders", "publish:ops"]
    for alerts in ([alert], {"late": part}, {"late": {"queue": "ops"}}):
        found, answer = await asked(house, few, "PATCH", path, {"alerts": alerts})
        assert (found, answer["code"]) == (403, "forbidden")
        assert (await asked(house, more, "PATCH", path, {"alerts": alerts}))[0] == 200
    for harmless in ({"late": {"above": 2}}, {"late": None}):
        assert (await asked(house, few, "PATCH", path, {"alerts": harmless}))[0] == 200


async def test_what_another_queue_holds_is_for_who_has_a_right_there(house: House) -> None:
    await house.queue("secret")
    await house.publish(house.find("secret"), numbered(3))
    await house.queue(dead_letter_queue="secret")
    for rights, messages in ((["consume:orders"], None), (["consume:orders", "read:secret"], 3)):
        _, found = await asked(house, rights, "GET", "/v1/queues/orders")
        assert found["dead_letters"] == {"queue": "secret", "messages": messages}
        _, listed = await asked(house, rights, "GET", "/v1/queues")
        assert [queue["name"] for queue in listed["queues"]] == (
            ["orders"] if messages is None else ["orders", "secret"]
        )
        assert listed["queues"][0]["dead_letters"]["messages"] == messages
    path = "/v1/queues/orders/dead-letters/redrive"
    assert (await asked(house, ["manage:orders"], "POST", path, {}))[0] == 403
    assert (await asked(house, ["manage:orders", "manage:secret"], "POST", path, {}))[0] == 200


async def test_who_reads_some_keys_looks_at_these_alone(house: House) -> None:
    queue = await house.queue()
    await house.publish(queue, numbered(1, "mine"))
    await house.publish(queue, numbered(1, "yours"))
    rights = ["read:orders:mine"]
    for below in ("messages", "dead-letters"):
        path = f"/v1/queues/orders/{below}"
        status, answer = await asked(house, rights, "GET", path)
        assert (status, answer["code"]) == (403, "forbidden")
        assert (await asked(house, rights, "GET", f"{path}?key=yours"))[0] == 403
        status, answer = await asked(house, rights, "GET", f"{path}?key=mine")
        assert status == 200
        assert {one["key"] for one in answer["messages"]} <= {"mine"}
    session = socket(house, *rights)
    ask = {"type": "subscribe", "credit": 10, "queue": "orders"}
    for more in ({}, {"keys": ["mine", "yours"]}, {"start": "earliest"}, {"keys": ["yours"]}):
        assert (await said(session, **ask, subscription=1, **more))["code"] == "forbidden"
    place = {"position": {"queue_id": queue.queue_id, "partitions": {"0": [1, 0]}}}
    assert (await said(session, **ask, subscription=1, **place))["code"] == "forbidden"
    answer = await said(session, **ask, subscription=1, keys=["mine"], start="earliest")
    assert answer["type"] == "ok"
    await session.until_true(lambda: session.frames[-1]["type"] == "push")
    assert [one["key"] for one in session.frames[-1]["messages"]] == ["mine"]

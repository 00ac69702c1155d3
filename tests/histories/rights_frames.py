"""Every frame of a session, for any actor, and its right answers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.wire import frames
from tests.histories.house import Frame
from tests.histories.rights_acts import Choice, Undone
from tests.histories.rights_model import ACTORS, GHOST, KEYS, Actor
from tests.histories.rights_world import Client, Subscribed, World

NOT_MINE: Final = 999
"""The number of a subscription that no session has."""
CREDIT: Final = 3
SUBSCRIPTIONS_KEPT: Final = 6
SESSIONS_KEPT: Final = 40


async def hello(world: World, actor: Actor, choice: Choice) -> bool:
    """Open a session that names one to resume, of its own or of another actor."""
    client = Client(world, actor)
    more: dict[str, Any] = {"linger_s": 30}
    named = world.session_of(actor, choice.foreign, choice.number)
    if named is not None:
        more["session"] = named
    client.say(type="hello", token=actor.token, **more)
    await world.settle()
    if not actor.is_let_in:
        assert client.close_code is frames.UNAUTHORIZED
        assert not client.frames
        return False
    (welcome,) = client.of_type("welcome")
    if choice.foreign:
        assert welcome["resumed"] is None
    world.sessions[actor.tenant, welcome["session"]] = actor
    for one in list(world.sessions)[:-SESSIONS_KEPT]:
        if world.sessions[one].token not in world.clients:
            del world.sessions[one]
    client.session.end()
    return True


async def ping(world: World, actor: Actor, choice: Choice) -> bool:
    """Ping; without a hello there is no answer."""
    if choice.foreign or not actor.is_let_in:
        client = Client(world, actor)
        client.say(type="ping", ref=1)
        assert client.close_code is frames.HELLO_FIRST
        return False
    answer = await (await world.client(actor)).ask(type="ping")
    assert answer["type"] == "pong"
    return True


async def publish(world: World, actor: Actor, choice: Choice) -> bool:
    """Publish; each message is judged on its key."""
    client = await world.client(actor)
    if client.close_code is not None:
        return False

    def frame(queue: str) -> Frame:
        messages = [world.message(actor, choice.queue, key) for key in KEYS]
        return {"type": "publish", "queue": queue, "messages": messages}

    answer = await client.ask(**frame(choice.queue))
    allowed = client.actor.may_some(("publish",), choice.queue)
    if await _is_refused(client, answer, choice.queue, allowed, frame(GHOST)):
        return False
    for key, receipt in zip(KEYS, answer["receipts"], strict=True):
        refused = isinstance(receipt, dict) and receipt["code"] == "forbidden"
        assert refused is not client.actor.may("publish", choice.queue, key)
    return True


async def _is_refused(
    client: Client, answer: Frame, queue: str, allowed: bool, ghost: Frame
) -> bool:
    """Whether a frame was refused for lack of a right. A refusal must be the same for a queue that
    does not exist."""
    code = answer.get("code", "")
    assert (code == "forbidden") is not allowed, answer
    verb = "publish" if ghost["type"] == "publish" else "consume" if "group" in ghost else "read"
    if not client.actor.may_some((verb,), queue):
        assert _without(await client.ask(**ghost), GHOST) == _without(answer, queue)
    elif code:
        exists = queue in client.world.queues_of(client.actor.tenant)
        assert (code == "queue_not_found") is not exists, answer
        raise Undone
    return not allowed


def _without(answer: Frame, queue: str) -> tuple[str, str]:
    return answer["code"], answer["detail"].replace(f"'{queue}'", "'…'")


async def subscribe(world: World, actor: Actor, choice: Choice) -> bool:
    """Subscribe as a consumer, or as a reader of every key, of one or of two."""
    client = await world.client(actor)
    if client.close_code is not None:
        return False
    wanted = {0: None, 1: ("k1",), 2: ("k1", "k2")}[choice.number % 3]
    group = choice.group if choice.number % 2 else None
    asked = Subscribed(choice.queue, group, wanted if group is None else None)
    allowed = may(client.actor, asked)
    ghost = _frame(client, replace(asked, queue=GHOST))
    number, answer = await _subscribe(client, asked, choice)
    if await _is_refused(client, answer, choice.queue, allowed, ghost):
        return False
    for old in list(client.subscribed)[:-SUBSCRIPTIONS_KEPT]:
        del client.subscribed[old]
        await client.ask(type="unsubscribe", subscription=old)
    assert number in client.subscribed
    return True


def may(actor: Actor, asked: Subscribed) -> bool:
    """Whether this subscription is allowed for this actor, by the naive model."""
    if asked.keys is None:
        return actor.may(asked.verb, asked.queue)
    return all(actor.may(asked.verb, asked.queue, key) for key in asked.keys)


def _frame(client: Client, asked: Subscribed) -> Frame:
    client.last_number += 1
    frame: Frame = {
        "type": "subscribe", "subscription": client.last_number, "queue": asked.queue,
        "credit": CREDIT,
    }  # fmt: skip
    if asked.group is not None:
        return {**frame, "group": asked.group}
    if asked.keys is not None:
        frame["keys"] = list(asked.keys)
    return {**frame, "start": "earliest"}


async def _subscribe(client: Client, asked: Subscribed, choice: Choice) -> tuple[int, Frame]:
    frame = _frame(client, asked)
    number = frame["subscription"]
    if asked.group is None and choice.foreign:
        # A place of another tenant's queue with this name.
        every = client.world.house.broker.metadata.list_all_queues()
        others = [q for q in every if q.tenant != client.actor.tenant and q.name == asked.queue]
        if others:
            del frame["start"]
            frame["position"] = {"queue_id": others[0].queue_id, "partitions": {"0": [1, 0]}}
    client.subscribed[number] = asked
    answer = await client.ask(**frame)
    if answer["type"] == "error":
        client.subscribed.pop(number, None)
        if "position" in frame and may(client.actor, asked):
            assert answer["code"] in ("position_unknown", "queue_not_found"), answer
            raise Undone
    return number, answer


async def _mine(world: World, actor: Actor, choice: Choice) -> tuple[Client, int]:
    """Return a subscription to a group of this actor's, or an unknown number."""
    client = await world.client(actor)
    if choice.foreign or client.close_code is not None:
        return client, NOT_MINE
    mine = [number for number, one in client.subscribed.items() if one.group is not None]
    if not mine and await subscribe(world, actor, replace(choice, number=1)):
        mine = [client.last_number]
    return client, mine[choice.number % len(mine)] if mine else NOT_MINE


def _settling(**more: Any) -> "Act":
    async def act(world: World, actor: Actor, choice: Choice) -> bool:
        """Settle deliveries of another actor, or its own."""
        client, number = await _mine(world, actor, choice)
        if client.close_code is not None:
            return False
        own = [place for sub, place in client.given if sub == number]
        others = [place for one in world.clients.values() for _, place in one.given[-5:]]
        places = own if own and choice.number % 3 else others or [[0, 1, 0, 0, 0]]
        place = places[choice.number % len(places)]
        answer = await client.ask(subscription=number, deliveries=[place], **more)
        if (number, place) in client.given:
            client.given.remove((number, place))
        return _is_subscribed(answer, number)

    return act


def _is_subscribed(answer: Frame, number: int) -> bool:
    code = answer.get("code", "")
    assert (code == "not_subscribed") is (number == NOT_MINE), answer
    if number != NOT_MINE and code:
        assert code in ("not_delivered", "invalid_request"), answer
        raise Undone
    return number != NOT_MINE


async def unsubscribe(world: World, actor: Actor, choice: Choice) -> bool:
    """Leave one of its own subscriptions."""
    client, number = await _mine(world, actor, choice)
    if client.close_code is not None:
        return False
    client.subscribed.pop(number, None)
    client.given = [one for one in client.given if one[0] != number]
    return _is_subscribed(await client.ask(type="unsubscribe", subscription=number), number)


async def credit(world: World, actor: Actor, choice: Choice) -> bool:
    """Grant credit, which is answered only if it is an error."""
    client, number = await _mine(world, actor, choice)
    if client.close_code is not None:
        return False
    del client.frames[:]
    granted = client.received.get(number, 0) + CREDIT
    client.say(type="credit", subscription=number, granted=granted)
    await world.settle()
    refused = [one for one in client.of_type("error") if one["code"] == "not_subscribed"]
    assert bool(refused) is (number == NOT_MINE)
    return not refused


async def held(world: World, actor: Actor, choice: Choice) -> bool:
    """Resume a session that lost its socket, and report its held deliveries."""
    client, number = await _mine(world, actor, choice)
    if client.close_code is not None:
        return False
    if number == NOT_MINE:
        frame = {"type": "held", "subscription": number, "received": 0}
        return _is_subscribed(await client.ask(**frame), number)
    client.session.on_transport_lost()
    again = Client(world, actor)
    again.actor = client.actor
    consumers = {n: one for n, one in client.subscribed.items() if one.group is not None}
    again.subscribed, again.last_number, again.ref = consumers, client.last_number, client.ref
    again.received, again.given = client.received, client.given
    world.clients[actor.token] = again
    session = client.session.session_id
    again.say(type="hello", token=actor.token, session=session, linger_s=60)
    again.actor = actor  # with the rights of its token
    await world.settle()
    (welcome,) = again.of_type("welcome")
    for n in list(again.subscribed):
        if n not in (welcome["resumed"] or ()):
            del again.subscribed[n]
    again.given = []
    for n in list(again.subscribed):
        received = again.received.get(n, 0)
        answer = await again.ask(type="held", subscription=n, received=received, deliveries=[])
        assert answer["type"] == "ok", answer
    return True


async def auth(world: World, actor: Actor, choice: Choice) -> bool:
    """Present another token of the same principal, with other rights: subscriptions that it does
    not cover end. A token of another principal changes nothing."""
    client = await world.client(actor)
    if client.close_code is not None:
        return False
    other = ACTORS[choice.number % len(ACTORS)]
    if choice.foreign:
        answer = await client.ask(type="auth", token=other.token)
        expected = "forbidden" if other.is_let_in else "unauthorized"
        assert answer.get("code", expected) == expected
        if other == actor:
            client.actor = actor
        assert (answer["type"] == "ok") is (other == actor)
        return other == actor
    before = dict(client.subscribed)
    if not other.is_let_in:
        raise Undone
    client.actor = replace(actor, texts=other.texts, table=other.table)
    answer = await client.ask(type="auth", token=f"{actor.token}~{other.token}")
    assert answer["type"] == "ok"
    for number, asked in before.items():
        assert (number in client.subscribed) is may(client.actor, asked), asked
    client.given = [one for one in client.given if one[0] in client.subscribed]
    return True


Act = Callable[[World, Actor, Choice], Awaitable[bool]]
FRAMES: Final[Mapping[str, Act]] = {
    "hello": hello, "publish": publish, "subscribe": subscribe, "unsubscribe": unsubscribe,
    "credit": credit, "ack": _settling(type="ack"), "nack": _settling(type="nack", delay_s=0),
    "extend": _settling(type="extend"), "held": held, "ping": ping, "auth": auth,
}  # fmt: skip

"""A broker with several tenants, whose every answer and frame is checked when it is sent."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import msgspec

from gateway.auth.auth import Authenticator
from gateway.models import Admission
from gateway.net.connections import Connections
from gateway.net.longpoll import LongPolls
from gateway.rest.app import Application
from gateway.session.directory import SessionServices, new_session_id
from metadata.catalog import Principal
from metadata.rights import parse_rights
from push.errors import Refused
from tests.gateway.asgi import client_of
from tests.histories.house import Frame, House, Socket, offsets_of
from tests.histories.rights_model import ACTORS, GHOST, KEYS, OWN_NAMES, SETTINGS, TENANTS, Actor

SETTLE_S: Final = 0.03
"""Virtual time in which everything immediate has been done, and written."""
SCHEDULED: Final = 12
"""Messages of each key that are scheduled, under the ids later-0, later-1 …"""
LASTS_S: Final = 25.0
"""The length of a history. It ends before time alone acts: an idle pull leaves, a drain is cut
off."""


def admission_of(actor: Actor) -> Admission:
    """Return the admission that an actor's credential gives."""
    principal = Principal(actor.name, actor.tenant)
    return Admission(principal, rights=parse_rights(actor.texts))


class Doorman(Authenticator):
    """An authenticator that knows the actors' tokens. `one~another` is a token of one, with the
    rights of another."""

    def __init__(self) -> None:
        super().__init__("a token that nobody has")
        self._known = {actor.token: actor for actor in ACTORS if actor.is_let_in}

    def check_token(self, presented: str | None, **_: object) -> Admission:
        """Return the admission of a token. Raises Refused."""
        whose, _tilde, like = (presented or "").partition("~")
        actor, other = self._known.get(whose), self._known.get(like or whose)
        if actor is None or other is None:
            raise Refused("unauthorized", "this token is not valid here")
        return admission_of(actor)._replace(rights=parse_rights(other.texts))


@dataclass(frozen=True)
class Subscribed:
    """A subscription of a client."""

    queue: str
    group: str | None
    keys: tuple[str, ...] | None

    @property
    def verb(self) -> str:
        """The verb that it needs."""
        return "read" if self.group is None else "consume"


class Client(Socket):
    """The session of an actor. Each frame is checked when it is sent, by the rights of that
    moment."""

    def __init__(self, world: "World", actor: Actor) -> None:
        super().__init__(world.house, world.around, new_session_id(), None)
        self.world = world
        self.actor = actor
        self.subscribed: dict[int, Subscribed] = {}
        self.received: dict[int, int] = {}
        self.given: list[tuple[int, list[int]]] = []
        """(subscription, delivery) of each message pushed to a consumer."""
        self.ref = self.last_number = 0

    def send(self, frame: bytes) -> None:
        """Keep a frame, and check it."""
        super().send(frame)
        one = self.frames[-1]
        self.world.check_text(self.actor, frame.decode())
        if one["type"] == "push":
            self._check_push(one)
        else:
            assert not list(bodies_in(one))
        if one["type"] == "error" and "subscription" in one and "deliveries" not in one:
            self.subscribed.pop(one["subscription"], None)

    def _check_push(self, push: Frame) -> None:
        number = push["subscription"]
        mine = self.subscribed[number]
        for body in bodies_in(push):
            self.world.check_body(self.actor, body, mine.verb, mine.queue)
            assert mine.keys is None or body["k"] in mine.keys
        count = len(push["messages"])
        self.received[number] = self.received.get(number, 0) + count
        if count and "epoch" in push:
            place = [push["partition"], push["epoch"], push["push"]]
            for offset in offsets_of(push):
                self.given.append((number, [*place, offset, offset]))

    async def ask(self, **frame: Any) -> Frame:
        """Send a frame with a ref; return its answer, or `{}` if the session was closed."""
        self.ref += 1
        self.say(ref=self.ref, **frame)
        await self.world.settle()
        found = [one for one in self.frames if one.get("ref") == self.ref]
        del self.frames[:-20]
        return found[-1] if found else {}


@dataclass
class Receipt:
    """The receipt of a pulled message."""

    tenant: str
    queue: str
    group: str
    text: str


@dataclass
class World:
    """The broker, its clients, and the checks of everything that they get."""

    house: House
    receipts: list[Receipt] = field(default_factory=list)
    polls: dict[str, Actor] = field(default_factory=dict)
    """Long polls by the id of their requests."""
    sessions: dict[tuple[str, str], Actor] = field(default_factory=dict)
    """Sessions by tenant and id."""
    places: dict[str, list[int]] = field(default_factory=dict)
    """For each long poll, [messages posted, last batch]."""
    clients: dict[str, Client] = field(default_factory=dict)
    number: int = 0
    folder: Any = None

    async def open(self) -> None:
        """Create three queues of the same names in every tenant, and one that no other tenant
        has."""
        self.ends = asyncio.get_running_loop().time() + LASTS_S
        self.around = SessionServices(self.house.broker, Doorman())
        connections = Connections(self.around)
        application = Application(self.house.broker, self.around.auth, LongPolls(connections))
        self._http = client_of(application)
        await self._http.__aenter__()
        for boss in (actor for actor in ACTORS if actor.name == "boss"):
            for name in ("orders", "feed", "shared", OWN_NAMES[boss.tenant]):
                answer = await self.rest(boss, "PUT", f"/v1/queues/{name}", settings_of(name))
                assert answer.status_code == 201, answer.text
                for group in ("billing", "audit"):
                    path = f"/v1/queues/{name}/groups/{group}"
                    assert (await self.rest(boss, "PUT", path, {})).status_code == 201
                messages = [self.message(boss, name, key) for key in KEYS]
                messages += [
                    {**self.message(boss, name, key), "id": f"later-{n}", "delay_s": 86_400}
                    for key in KEYS
                    for n in range(SCHEDULED)
                ]
                path = f"/v1/queues/{name}/messages"
                await self.rest(boss, "POST", path, {"messages": messages})

    async def close(self) -> None:
        """End all clients."""
        for client in self.clients.values():
            client.session.end()
        await self._http.__aexit__(None, None, None)

    def message(self, actor: Actor, queue: str, key: str | None) -> dict[str, Any]:
        """Return a message whose body says where it belongs."""
        self.number += 1
        body = {"of": actor.tenant, "q": queue, "k": key, "n": self.number}
        return {"body": body} if key is None else {"body": body, "key": key}

    async def rest(
        self, actor: Actor, method: str, path: str, body: Any = None, **query: Any
    ) -> httpx2.Response:
        """Send a request of this actor."""
        headers = {"Authorization": f"Bearer {actor.token}"}
        answer = await self._http.request(method, path, json=body, params=query, headers=headers)
        assert answer.status_code != 500, answer.text
        self.check_text(actor, answer.text)
        return answer

    async def client(self, actor: Actor) -> Client:
        """Return the actor's session, a new one if it has none."""
        found = self.clients.get(actor.token)
        if found is None or found.close_code is not None:
            found = Client(self, actor)
            found.say(type="hello", token=actor.token, linger_s=60, producer=actor.name)
            if found.close_code is None:
                (welcome,) = found.of_type("welcome")
                self.clients[actor.token] = found
                self.sessions[actor.tenant, welcome["session"]] = actor
        return found

    def queues_of(self, tenant: str) -> set[str]:
        """Return the names of a tenant's queues."""
        every = self.house.broker.metadata.list_all_queues()
        return {queue.name for queue in every if queue.tenant == tenant}

    def session_of(self, actor: Actor, foreign: bool, number: int) -> str | None:
        """Return the id of a session of this actor, or of another one; None if none exists."""
        own = [session for (_, session), owner in self.sessions.items() if owner == actor]
        every = [session for _, session in self.sessions]
        found = [session for session in every if session not in own] if foreign else own
        return found[number % len(found)] if found else None

    @property
    def is_over(self) -> bool:
        """Whether it is time for another history."""
        return asyncio.get_running_loop().time() > self.ends

    async def settle(self) -> None:
        """Let everything immediate happen."""
        await asyncio.sleep(SETTLE_S)

    # --- Checks ---------------------------------------------------------------------------------

    def check_text(self, actor: Actor, text: str) -> None:
        """Check that an answer or a frame has nothing of another tenant."""
        assert actor.is_let_in or "unauthorized" in text, text
        for queue in self.house.broker.metadata.list_all_queues():
            if queue.tenant != actor.tenant:
                assert queue.queue_id not in text, text
                for one in OWN_NAMES:
                    assert one == actor.tenant or f'"of":"{one}"' not in text, text

    def check_body(self, actor: Actor, body: dict[str, Any], verb: str, queue: str) -> None:
        """Check that a message delivered to this actor from this queue is allowed."""
        assert body["of"] == actor.tenant, body
        assert body["q"] == queue or queue == "shared" or queue == f"{body['q']}.dead-letters"
        assert actor.may(verb, queue, body["k"]), (actor.token, verb, queue, body)

    async def state(self) -> dict[str, list[object]]:
        """Return everything durable, and deliveries in flight, by tenant."""
        broker, found = self.house.broker, {tenant: list[object]() for tenant in TENANTS}
        for queue in sorted(broker.metadata.list_all_queues(), key=lambda one: one.queue_id):
            assert queue.name != GHOST
            of_queue: list[object] = [queue]
            for place in await broker.storage.partitions(queue.queue_id):
                of_queue.append(place.certified)
            for due in await broker.storage.due.states(queue.queue_id):
                waits = await broker.storage.due.look(due.partition, count_max=1000)
                of_queue.append([(one.number, one.version) for one in waits.messages])
            principal = Principal("auditor", queue.tenant)
            for group in broker.metadata.list_groups(principal, queue):
                runtime = broker.groups.runtimes.get(group.group_id)
                owned_partitions = runtime.owned_partitions if runtime is not None else {}
                open_counts = [
                    owned.delivery.leases.open_count for owned in owned_partitions.values()
                ]
                cursors = await broker.storage.cursors(queue.queue_id, group.group_id)
                of_queue.append((group, open_counts, cursors))
            found[queue.tenant].append(of_queue)
        return found


def settings_of(queue: str) -> dict[str, object]:
    """Return the settings of a queue with this name."""
    every = {
        "partitions": 1,
        "attempts_max": 1,
        "lease_s": 3600,
        "lease_total_s": 3600,
        "retention_s": 3600,
    }
    return {**every, **SETTINGS.get(queue, {})}


def bodies_in(value: object) -> Iterator[dict[str, Any]]:
    """Yield bodies of messages, anywhere inside a value."""
    if isinstance(value, dict):
        if "of" in value and "n" in value:
            yield value
        else:
            for one in value.values():
                yield from bodies_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from bodies_in(one)


def json_of(answer: httpx2.Response) -> Any:
    """Return the body of an answer; None if it has none."""
    return msgspec.json.decode(answer.content) if answer.content else None

"""Every HTTP operation of a broker, for any actor, and its right answers."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx2

from tests.histories.rights_model import EVERY, GHOST, KEYS, NEEDED, Actor
from tests.histories.rights_world import (
    SCHEDULED,
    Receipt,
    World,
    bodies_in,
    json_of,
    settings_of,
)

NOT_GIVEN: Final = "A" * 66
"""A receipt that no client was given."""


@dataclass(frozen=True)
class Choice:
    """The subject of a step. `foreign`: with another actor's objects."""

    queue: str
    group: str
    key: str | None
    foreign: bool
    number: int


@dataclass(frozen=True)
class Ask:
    """A request below the queue's path. `key`: the key that it names; `also`: a second queue on
    which it needs `manage`."""

    method: str
    below: str = ""
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = EVERY
    also: str | None = None


Make = Callable[[World, Actor, Choice], Ask]


def _group(choice: Choice, verb: str = "") -> str:
    return f"/groups/{choice.group}{verb}"


def _receipts(world: World, actor: Actor, choice: Choice) -> dict[str, Any]:
    """Return receipts of this actor's tenant, queue and group, or of another one."""
    place = (actor.tenant, choice.queue, choice.group)
    texts = [
        one.text
        for one in world.receipts
        if ((one.tenant, one.queue, one.group) == place) is not choice.foreign
    ]
    return {"receipts": [texts[choice.number % len(texts)] if texts else NOT_GIVEN]}


def _with_key(choice: Choice) -> dict[str, Any]:
    return {} if choice.key is None else {"key": choice.key}


def _scheduled(method: str, choice: Choice, body: Any = None) -> Ask:
    below = f"/scheduled/later-{choice.number % SCHEDULED}"
    key = EVERY if choice.key is None else choice.key
    return Ask(method, below, body, query=_with_key(choice), key=key)


def _other(queue: str) -> str | None:
    return "shared" if queue == "feed" else None


REST: Final[Mapping[str, Make]] = {
    "put_queue": lambda w, a, c: Ask("PUT", "", settings_of(c.queue), also=_other(c.queue)),
    "change_queue": lambda w, a, c: Ask("PATCH", "", settings_of(c.queue), also=_other(c.queue)),
    "get_queue": lambda w, a, c: Ask("GET"),
    "publish": lambda w, a, c: Ask(
        "POST", "/messages", {"messages": [w.message(a, c.queue, key) for key in KEYS]}
    ),
    "put_group": lambda w, a, c: Ask("PUT", _group(c), {}),
    "change_group": lambda w, a, c: Ask("PATCH", _group(c), {"lease_s": 3000 + c.number}),
    "get_group": lambda w, a, c: Ask("GET", _group(c)),
    "delete_group": lambda w, a, c: Ask("DELETE", _group(c)),
    "seek_group": lambda w, a, c: Ask("POST", _group(c, "/seek"), {"to": "earliest"}),
    "pull": lambda w, a, c: Ask("POST", _group(c, "/pull"), {"messages_max": 1 + c.number % 3}),
    "ack": lambda w, a, c: Ask("POST", _group(c, "/ack"), _receipts(w, a, c)),
    "nack": lambda w, a, c: Ask(
        "POST", _group(c, "/nack"), {**_receipts(w, a, c), "delay_s": 0}
    ),
    "extend": lambda w, a, c: Ask("POST", _group(c, "/extend"), _receipts(w, a, c)),
    "list_parked": lambda w, a, c: Ask("GET", _group(c, "/parked")),
    "decide_parked": lambda w, a, c: Ask(
        "POST", _group(c, "/parked"), {"decision": ("retry", "skip")[c.number % 2], "all": True}
    ),
    "explain_key": lambda w, a, c: Ask("GET", "/explain", query={"key": c.key or "k1"}),
    "list_held": lambda w, a, c: Ask("GET", _group(c, "/held")),
    "list_leases": lambda w, a, c: Ask("GET", _group(c, "/leases")),
    "pause_queue": lambda w, a, c: Ask("POST", "/pause"),
    "resume_queue": lambda w, a, c: Ask("POST", "/resume"),
    "purge_queue": lambda w, a, c: Ask("POST", "/purge", {"group": c.group}),
    "peek_queue": lambda w, a, c: Ask(
        "GET", "/messages", query=_with_key(c), key=EVERY if c.key is None else c.key
    ),
    "list_dead_letters": lambda w, a, c: Ask(
        "GET", "/dead-letters", query=_with_key(c), key=EVERY if c.key is None else c.key
    ),
    "list_scheduled": lambda w, a, c: Ask(
        "GET", "/scheduled", query=_with_key(c), key=EVERY if c.key is None else c.key
    ),
    "show_scheduled": lambda w, a, c: _scheduled("GET", c),
    "cancel_scheduled": lambda w, a, c: _scheduled("DELETE", c),
    "change_scheduled": lambda w, a, c: _scheduled("POST", c, {"delay_s": 90_000}),
    "queue_metrics": lambda w, a, c: Ask("GET", "/metrics"),
    "redrive_dead_letters": lambda w, a, c: Ask(
        "POST", "/dead-letters/redrive", {}, also=_other(c.queue)
    ),
}  # fmt: skip
"""The operations on a queue."""


def code_of(answer: httpx2.Response) -> str:
    """Return the code of a problem; "" if it is none."""
    found = json_of(answer) if answer.status_code >= 400 else {}
    return str(found["code"]) if answer.status_code >= 400 else ""


def _may(actor: Actor, name: str, queue: str, ask: Ask) -> bool:
    if name in ("peek_queue", "list_dead_letters"):
        allowed = actor.may("read", queue, ask.key)
    elif name.endswith("_scheduled"):
        allowed = any(actor.may(verb, queue, ask.key) for verb in NEEDED[name])
    else:
        allowed = actor.may_some(NEEDED[name], queue)
    return allowed and (ask.also is None or actor.may("manage", ask.also))


async def on_queue(world: World, actor: Actor, name: str, choice: Choice) -> bool:
    """Do an operation; return whether it was allowed and done (True), or refused for lack of a
    right (False). Raises Undone if it is allowed and cannot be done."""
    queues = world.queues_of(actor.tenant)
    if name in ("ack", "nack", "extend") and not choice.foreign:
        with suppress(Undone):
            await on_queue(world, actor, "pull", choice)
    if name == "put_queue" and actor.may("manage", "*") and choice.queue not in queues:
        choice = replace(choice, queue="orders")  # other tenants' own names stay theirs
    ask = REST[name](world, actor, choice)
    answer = await _say(world, actor, choice.queue, ask)
    code = code_of(answer)
    if not actor.is_let_in:
        assert code == "unauthorized"
        return False
    if not _may(actor, name, choice.queue, ask):
        assert code == "forbidden", answer.text
        ghost = await _say(world, actor, GHOST, ask)
        if not actor.may_some(NEEDED[name], choice.queue):
            assert _without(answer, choice.queue) == _without(ghost, GHOST)
        return False
    if choice.queue not in queues and name != "put_queue":
        assert code == "queue_not_found", answer.text
        ghost = await _say(world, actor, GHOST, ask)
        if actor.may_some(NEEDED[name], GHOST):
            assert _without(answer, choice.queue) == _without(ghost, GHOST)
        raise Undone
    assert code not in ("forbidden", "unauthorized", "queue_not_found"), answer.text
    _check_answer(world, actor, name, choice, answer)
    if code:
        raise Undone
    return True


class Undone(Exception):
    """The operation was allowed, and had nothing to act on."""


async def _say(world: World, actor: Actor, queue: str, ask: Ask) -> httpx2.Response:
    path = f"/v1/queues/{queue}{ask.below}"
    return await world.rest(actor, ask.method, path, ask.body, **ask.query)


def _without(answer: httpx2.Response, queue: str) -> tuple[int, str]:
    return answer.status_code, answer.text.replace(f"'{queue}'", "'…'")


def _check_answer(
    world: World, actor: Actor, name: str, choice: Choice, answer: httpx2.Response
) -> None:
    if name == "queue_metrics":
        shown = set(re.findall(r'tenant="([^"]*)",queue="([^"]*)"', answer.text))
        assert shown == {(actor.tenant, choice.queue)}
        return
    found = json_of(answer)
    if (
        name in ("get_queue", "put_queue", "change_queue", "pause_queue", "resume_queue")
        and "name" in found
    ):
        _check_shown(actor, found)
    verb = {"pull": "consume", "list_dead_letters": "read"}.get(name)
    if name in ("peek_queue", "list_scheduled", "show_scheduled"):
        verb = "read"
    for body in bodies_in(found):
        assert verb is not None, f"{name} shows bodies"
        world.check_body(actor, body, verb, choice.queue)
    if name == "pull":
        for one in found["messages"]:
            place = (actor.tenant, choice.queue, choice.group)
            world.receipts.append(Receipt(*place, one["receipt"]))
        del world.receipts[:-40]
    if name == "publish":
        for key, result in zip(KEYS, found["results"], strict=True):
            refused = result.get("error", {}).get("code") == "forbidden"
            assert refused is not actor.may("publish", choice.queue, key)
    if name in ("ack", "nack", "extend") and choice.foreign:
        assert code_of(answer) in ("invalid_receipt", "group_not_found"), answer.text


def _check_shown(actor: Actor, queue: Mapping[str, Any]) -> None:
    """Check that a queue shows what this actor's rights show, and nothing else."""
    alerts = {"alerts"} & {*queue.get("settings", ())}
    said = {"created", "changes", "deleted", "dead_lettered"}  # of the call, not the queue
    assert {*queue} - said | alerts == actor.sees(queue["name"]), (actor, queue)
    letters = queue.get("dead_letters", {"queue": queue["name"] + ".dead-letters"})
    if letters["queue"] != queue["name"] + ".dead-letters":
        assert letters["messages"] is None or "depth" in actor.sees(letters["queue"])


# --- Operations without a queue -----------------------------------------------------------------


async def list_queues(world: World, actor: Actor, choice: Choice) -> bool:
    """List the queues on which there is a right, and no others."""
    brief = bool(choice.number % 2)
    answer = await world.rest(actor, "GET", "/v1/queues", brief=str(brief).lower())
    if not actor.is_let_in:
        assert code_of(answer) == "unauthorized"
        return False
    for queue in json_of(answer)["queues"]:
        if not brief:
            _check_shown(actor, queue)
    names = {queue["name"] for queue in json_of(answer)["queues"]}
    every = world.queues_of(actor.tenant)
    assert names == {name for name in every if actor.may_some(("publish", *_REST_VERBS), name)}
    return True


_REST_VERBS: Final = ("consume", "read", "manage")


async def list_sessions(world: World, actor: Actor, choice: Choice) -> bool:
    """List the actor's own sessions; with the right to manage everything, those of the tenant."""
    answer = await world.rest(actor, "GET", "/v1/sessions")
    if not actor.is_let_in:
        assert code_of(answer) == "unauthorized"
        return False
    for one in json_of(answer)["sessions"]:
        owner = world.sessions[actor.tenant, one["session"]]
        assert owner == actor or (actor.may("manage", "*") and owner.tenant == actor.tenant)
    return True


async def list_clusters(world: World, actor: Actor, choice: Choice) -> bool:
    """List the clusters, which needs the right to manage everything."""
    code = code_of(await world.rest(actor, "GET", "/v1/clusters"))
    if not actor.is_let_in:
        assert code == "unauthorized"
        return False
    is_allowed = actor.may("manage", "*")
    assert code == ("" if is_allowed else "forbidden")
    return is_allowed


async def believe_clock(world: World, actor: Actor, choice: Choice) -> bool:
    """Say that the gateway's clock is right, which needs the right to manage everything."""
    answer = await world.rest(actor, "POST", "/v1/scheduled/believe-clock")
    code = code_of(answer)
    if not actor.is_let_in:
        assert code == "unauthorized"
        return False
    is_allowed = actor.may("manage", "*")
    assert code == ("" if is_allowed else "forbidden")
    return is_allowed


async def metrics(world: World, actor: Actor, choice: Choice) -> bool:
    """Get metrics, which needs the right to observe, or manage, everything. They show the actor's
    tenant only."""
    answer = await world.rest(actor, "GET", "/metrics")
    code = code_of(answer)
    if not actor.is_let_in:
        assert code == "unauthorized"
        return False
    is_allowed = actor.may("manage", "*") or actor.may("observe", "*")
    assert code == ("" if is_allowed else "forbidden")
    shown = set(re.findall(r'tenant="([^"]*)"', answer.text))
    own = {actor.tenant} if is_allowed and world.queues_of(actor.tenant) else set()
    assert shown == own, (shown, own)
    return is_allowed


async def open_session(world: World, actor: Actor, choice: Choice) -> bool:
    """Open a long poll; it may name a session, another actor's or its own."""
    hello: dict[str, Any] = {"type": "hello", "linger_s": 30}
    named = world.session_of(actor, choice.foreign, choice.number)
    if named is not None:
        hello["session"] = named
    answer = await world.rest(actor, "POST", "/v1/sessions", hello)
    if not actor.is_let_in:
        assert code_of(answer) == "unauthorized"
        return False
    batch = json_of(answer)
    assert answer.status_code == 201, answer.text
    welcome = batch["frames"][0]
    if choice.foreign:
        assert welcome["resumed"] is None
    world.sessions[actor.tenant, welcome["session"]] = actor
    world.polls[batch["session"]] = actor
    world.places[batch["session"]] = [0, batch["batch"]]
    return True


async def _on_poll(
    world: World, actor: Actor, choice: Choice, method: str, below: str
) -> httpx2.Response | None:
    """Return the answer of the actor's own long poll. None: it was another actor's, and is answered
    as unknown."""
    mine = [one for one, owner in world.polls.items() if owner == actor]
    if not mine and not choice.foreign and await open_session(world, actor, choice):
        mine = [*world.polls][-1:]
    others = [one for one, owner in world.polls.items() if owner != actor]
    others += [one for _, one in world.sessions] or ["A" * 22]
    few = others if choice.foreign or not mine else mine
    poll = few[choice.number % len(few)]
    place = world.places.get(poll, [0, 0])
    query: dict[str, Any] = {"after": place[1], "wait_s": 0} if method == "GET" else {}
    body = None
    if method == "POST":
        query, body = {"number": place[0] + 1}, {"type": "ping", "ref": 1}
    answer = await world.rest(actor, method, f"/v1/sessions/{poll}{below}", body, **query)
    if not actor.is_let_in:
        assert code_of(answer) == "unauthorized"
        return None
    if few is others:
        assert code_of(answer) == "session_not_found", answer.text
        ghost = await world.rest(actor, method, f"/v1/sessions/{'B' * 22}{below}", body, **query)
        assert answer.text == ghost.text
        return None
    if answer.status_code >= 400 or method == "DELETE" or "close" in json_of(answer):
        assert code_of(answer) in ("", "session_not_found"), answer.text
        del world.polls[poll], world.places[poll]
    elif method == "POST":
        place[0] += 1
    else:
        place[1] = json_of(answer)["batch"]
    if code_of(answer):
        raise Undone
    return answer


async def post_frames(world: World, actor: Actor, choice: Choice) -> bool:
    """Send a frame over a long poll."""
    return await _on_poll(world, actor, choice, "POST", "/frames") is not None


async def poll_frames(world: World, actor: Actor, choice: Choice) -> bool:
    """Poll for frames."""
    answer = await _on_poll(world, actor, choice, "GET", "/frames")
    assert answer is None or not list(bodies_in(json_of(answer)))  # none of them subscribes
    return answer is not None


async def end_session(world: World, actor: Actor, choice: Choice) -> bool:
    """End a long poll."""
    return await _on_poll(world, actor, choice, "DELETE", "") is not None


def _plain(method: str, path: str, *codes: str) -> Callable[..., Any]:
    """Return an act that every authenticated actor may do; `codes` are its possible answers."""

    async def act(world: World, actor: Actor, choice: Choice) -> bool:
        code = code_of(await world.rest(actor, method, path))
        assert code in (codes if actor.is_let_in else ("unauthorized",)), code
        return actor.is_let_in

    return act


OTHERS: Final[Mapping[str, Callable[[World, Actor, Choice], Any]]] = {
    "list_queues": list_queues,
    "list_sessions": list_sessions,
    "list_clusters": list_clusters,
    "believe_clock": believe_clock,
    "metrics": metrics,
    "open_session": open_session,
    "post_frames": post_frames,
    "poll_frames": poll_frames,
    "end_session": end_session,
    "create_ticket": _plain("POST", "/v1/tickets", "", "too_many"),
    "openapi": _plain("GET", "/openapi.json", ""),
    "websocket": _plain("GET", "/v1/ws", "invalid_request"),
}

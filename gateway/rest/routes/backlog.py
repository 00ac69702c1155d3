"""REST: what waits. Scheduled messages; keys that wait and why, deliveries in flight, parked keys,
and an operator's decisions about parked keys.
"""

from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.models import (
    Decided,
    Explained,
    HeldKeys,
    HeldPlace,
    LeaseList,
    ParkedKeys,
    Place,
    WhichKey,
)
from gateway.operator.scheduled import (
    Believed,
    ScheduledChange,
    ScheduledList,
    ScheduledMessage,
)
from gateway.rest.accounting import act_of, hash_text, key_fields
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    group_name,
    limit_parameter,
    principal,
    query_limit,
    queue_name,
    read_body,
    rights,
)
from metadata.catalog import Group, Queue
from metadata.rights import ALL_KEYS, KeyScope
from metadata.rights import Verb as RightVerb
from push import limits
from push.errors import Refused
from push.places import Verb, check_name
from runtime.operation import decode, reply

KEYS_DEFAULT: Final = 100


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A decision about parked keys. Name the keys by exactly one of `key`, `key_hash` (as the list
    of parked keys shows it) and `all`."""

    decision: Verb
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_BYTES_MAX)] | None = None
    key_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    all: bool = False

    def which(self) -> WhichKey:
        """Return the keys that are meant. Raises Refused(invalid_request)."""
        if (self.key is not None) + (self.key_hash is not None) + self.all != 1:
            raise Refused("invalid_request", "exactly one of key, key_hash and all")
        hashed = int(self.key_hash, 16) if self.key_hash is not None else None
        return WhichKey(key=self.key, key_hash=hashed, every=self.all)


_DECISION: Final = msgspec.json.Decoder(DecisionRequest)


async def explain_key(broker: Broker, request: Request) -> Response:
    """Show where a key goes, and for each group its consumer, what it waits for, and until when.
    This takes no message from anybody. For a key without messages, it shows where they would go."""
    query = request.query_params
    key, group, after = query.get("key"), query.get("group"), query.get("after", "")
    if key is None or not 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
        raise Refused("invalid_request", f"key has 1 to {limits.KEY_BYTES_MAX} bytes")
    if group is not None:
        check_name(group, "group")
    if after:
        check_name(after, "after")
    queue = find_queue(broker, request)
    return reply(await broker.explainer.explain(principal(request), queue, key, group, after))


async def list_held(broker: Broker, request: Request) -> Response:
    """List keys whose messages were tried and wait, with the reason, by partition and hash."""
    after = request.query_params.get("after")
    place = HeldPlace.parse(after) if after is not None else None
    asked = _group_and_limit(broker, request, limits.KEYS_PER_LOOK_MAX)
    return reply(await broker.waiting_keys.list_keys(*asked, place))


async def list_leases(broker: Broker, request: Request) -> Response:
    """List deliveries in flight at this gateway, by partition and offset."""
    after = request.query_params.get("after")
    place = Place.parse(after) if after is not None else None
    asked = _group_and_limit(broker, request, limits.KEYS_PER_LOOK_MAX)
    return reply(await broker.waiting_keys.list_leases(*asked, place))


async def list_parked(broker: Broker, request: Request) -> Response:
    """List parked keys, by partition."""
    asked = _group_and_limit(broker, request, limits.PARKED_PER_CALL_MAX)
    return reply(await broker.parking.list_keys(*asked))


async def decide_parked(broker: Broker, request: Request) -> Response:
    """Decide about parked keys. `retry` tries the first message once more. `skip` moves it to the
    dead letters. `release` unparks the key, and its messages have all their attempts again. The
    answer comes when the decision is durable."""
    name = group_name(request)
    wanted = decode(await read_body(request), _DECISION)
    which, queue = wanted.which(), find_queue(broker, request)
    group = broker.metadata.find_group(principal(request), queue, name)
    act = act_of(request)
    act.about(decision=wanted.decision, **key_fields(which, queue))
    decided = await broker.parking.decide(queue, group, wanted.decision, which)
    act.about(keys=len(decided.keys))
    return reply(decided)


def _group_and_limit(broker: Broker, request: Request, limit_max: int) -> tuple[Queue, Group, int]:
    """Return the queue and the group that a request names, and how many keys or deliveries it
    wants at most."""
    name = group_name(request)
    limit = query_limit(request, limit_max, KEYS_DEFAULT)
    queue = find_queue(broker, request)
    return queue, broker.metadata.find_group(principal(request), queue, name), limit


# --- Scheduled messages ---------------------------------------------------------------------------

LIST_DEFAULT: Final = 100
_CHANGE: Final = msgspec.json.Decoder(ScheduledChange)


async def list_scheduled(broker: Broker, request: Request) -> Response:
    """List the messages that wait until they are due, by due time. Their content is shown to a
    client that may read them."""
    query = request.query_params
    limit = query_limit(request, limits.LOOK_MESSAGES_MAX, LIST_DEFAULT)
    key, queue = _key(request), find_queue(broker, request)
    found = await broker.scheduled.list_messages(
        queue,
        key=key,
        after=query.get("after"),
        limit=limit,
        may_see=_scope(request, "read", "manage"),
        may_read=_scope(request, "read"),
    )
    return reply(found)


async def show_scheduled(broker: Broker, request: Request) -> Response:
    """Show a message that waits until it is due."""
    key, queue = _key(request), find_queue(broker, request)
    may_see, may_read = _scope(request, "read", "manage"), _scope(request, "read")
    shown = await broker.scheduled.show(
        queue, _id(request), key, may_see=may_see, may_read=may_read
    )
    return reply(shown)


async def cancel_scheduled(broker: Broker, request: Request) -> Response:
    """Cancel a message that is not due yet, for good. Published again under its id, it is answered
    `cancelled`. The answer comes when this is durable."""
    key, queue = _key(request), find_queue(broker, request)
    _note(request, queue, key)
    may = _scope(request, "manage", "publish")
    return reply(await broker.scheduled.cancel(queue, _id(request), key, may))


async def change_scheduled(broker: Broker, request: Request) -> Response:
    """Give a message that is not due yet another time, another content, or both. It keeps its id
    and its ticket. With a time that has passed, it comes at once."""
    change = decode(await read_body(request), _CHANGE)
    key, queue = _key(request), find_queue(broker, request)
    _note(request, queue, key)
    may = _scope(request, "manage", "publish")
    return reply(await broker.scheduled.change(queue, _id(request), key, change, may))


async def believe_clock(broker: Broker, request: Request) -> Response:
    """Have this gateway move scheduled messages by its clock as it is now, because an operator says
    that the clock is right. After a jump of the clock by more than a minute, or of the store's
    clock against it, nothing is moved for five minutes. Each gateway has a clock of its own: this
    is about the one that answers."""
    clock = broker.clock
    jump_s = round(clock.jump_s, 3)
    act_of(request).about(jump_s=jump_s)
    clock.believe()
    moving = clock.doubt_s <= 0
    return reply(Believed(jump_s=jump_s, is_apart=clock.is_apart, moving=moving))


def _id(request: Request) -> str:
    message_id: str = request.path_params["id"]
    return message_id


def _key(request: Request) -> str | None:
    key = request.query_params.get("key")
    if key is not None and not 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
        raise Refused("invalid_request", f"key has 1 to {limits.KEY_BYTES_MAX} bytes")
    return key


def _scope(request: Request, *verbs: RightVerb) -> KeyScope:
    """Return the keys that these rights cover together."""
    scopes = [rights(request).keys(verb, queue_name(request)) for verb in verbs]
    patterns: list[str] = []
    for scope in scopes:
        if scope is not None and scope.patterns is None:
            return ALL_KEYS
        patterns += scope.patterns or () if scope is not None else ()
    return KeyScope(tuple(patterns))


def _note(request: Request, queue: Queue, key: str | None) -> None:
    act_of(request).about(id=_id(request))
    if key is not None:
        act_of(request).about(key_hash=hash_text(key, queue))


# --- The operations ------------------------------------------------------------------------------

_QUEUE: Final = "/v1/queues/{queue}"
_GROUP: Final = f"{_QUEUE}/groups/{{group}}"
_ERRORS: Final = ("invalid_name", "invalid_request", "queue_not_found", "group_not_found")
_TEXT: Final = {"type": "string"}
_AFTER: Final = Parameter("after", "The place to go on, from `next` of the last answer.", _TEXT)
_ONE: Final = f"{_QUEUE}/scheduled/{{id}}"
_FIND: Final = ("invalid_name", "invalid_request", "queue_not_found")
_GONE: Final = ("id_unknown", "ambiguous", "already_due", "cancelled")
_KEY: Final = Parameter("key", "The key of the message that has this id.", _TEXT)

OPERATIONS: Final = (
    Operation(
        "GET",
        f"{_QUEUE}/scheduled",
        "List scheduled messages.",
        list_scheduled,
        {200: Answer("The messages, by due time.", ScheduledList)},
        needs="read or manage",
        query=(
            limit_parameter(limits.LOOK_MESSAGES_MAX),
            Parameter("key", "Only messages of this key.", _TEXT),
            Parameter("after", "The place to go on, from `next` of the last answer.", _TEXT),
        ),
        errors=_FIND,
    ),
    Operation(
        "GET",
        _ONE,
        "Show a scheduled message.",
        show_scheduled,
        {200: Answer("The message.", ScheduledMessage)},
        needs="read or manage",
        query=(_KEY,),
        errors=(*_FIND, *_GONE),
    ),
    Operation(
        "DELETE",
        _ONE,
        "Cancel a scheduled message.",
        cancel_scheduled,
        {200: Answer("The message that is cancelled.", ScheduledMessage)},
        needs="publish or manage",
        query=(_KEY,),
        errors=(*_FIND, *_GONE),
        act="scheduled.cancel",
    ),
    Operation(
        "POST",
        _ONE,
        "Move or replace a scheduled message.",
        change_scheduled,
        {200: Answer("The message as it is now.", ScheduledMessage)},
        needs="publish or manage",
        request=ScheduledChange,
        query=(_KEY,),
        errors=(
            *_FIND,
            *_GONE,
            "invalid_json",
            "request_too_large",
            "invalid_message",
            "message_too_large",
            "queue_full",
            "schedule_full",
            "storage_full",
            "clock_in_doubt",
            "overloaded",
        ),
        act="scheduled.change",
    ),
    Operation(
        "POST",
        "/v1/scheduled/believe-clock",
        "Have this gateway believe its clock after a jump.",
        believe_clock,
        {200: Answer("Scheduled messages are moved.", Believed)},
        needs="manage every",
        act="scheduled.believe_clock",
    ),
    Operation(
        "GET",
        f"{_QUEUE}/explain",
        "Explain what a key waits for.",
        explain_key,
        {200: Answer("Where the key goes, and what it waits for, by group.", Explained)},
        needs="consume or manage",
        query=(
            Parameter("key", f"The key: 1 to {limits.KEY_BYTES_MAX} bytes.", _TEXT),
            Parameter("group", "Only this group.", _TEXT),
            _AFTER,
        ),
        errors=_ERRORS,
    ),
    Operation(
        "GET",
        f"{_GROUP}/held",
        "List keys that wait.",
        list_held,
        {200: Answer("The keys, and why they wait.", HeldKeys)},
        needs="consume or manage",
        query=(limit_parameter(limits.KEYS_PER_LOOK_MAX), _AFTER),
        errors=_ERRORS,
    ),
    Operation(
        "GET",
        f"{_GROUP}/leases",
        "List deliveries in flight.",
        list_leases,
        {200: Answer("The deliveries, each with its lease.", LeaseList)},
        needs="consume or manage",
        query=(limit_parameter(limits.KEYS_PER_LOOK_MAX), _AFTER),
        errors=_ERRORS,
    ),
    Operation(
        "GET",
        f"{_GROUP}/parked",
        "List parked keys.",
        list_parked,
        {200: Answer("The keys, and how many there are.", ParkedKeys)},
        needs="consume or manage",
        query=(limit_parameter(limits.PARKED_PER_CALL_MAX),),
        errors=_ERRORS,
    ),
    Operation(
        "POST",
        f"{_GROUP}/parked",
        "Retry, skip or release parked keys.",
        decide_parked,
        {200: Answer("The decision is durable; the keys are shown as they were before.", Decided)},
        needs="manage",
        request=DecisionRequest,
        errors=(*_ERRORS, "invalid_json", "request_too_large", "not_parked", "unknown"),
        act="parked.decide",
    ),
)

"""REST: what operators do to queues: pause, purge, peek, and dead letters."""

from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    limit_parameter,
    principal,
    query_limit,
    query_number,
    queue_name,
    read_body,
    rights,
)
from gateway.rest.ports import BrokerPort
from gateway.rest.rest_account import act_of, shown_hash
from gateway.rest.routes.rest_queues import QueueDescription, described
from gateway.rest.views import shows_groups
from gateway.upkeep_values import (
    FoundDeadLetters,
    Look,
    Peeked,
    Place,
    Purged,
    Redriven,
    without_groups,
)
from metadata.catalog import check_name, other_dead_letter_queue
from push import limits
from push.errors import Refused
from push.ring import MEMBER_MAX
from runtime.http_forms import decode, reply

PEEK_DEFAULT: Final = 10
LETTERS_DEFAULT: Final = 100

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_BYTES_MAX)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class PurgeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """For whom. Exactly one of `group` and `all`: every group, and readers."""

    group: str | None = None
    all: bool = False


class RedriveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which dead letters go back, at most `limit` of them: all, those of a key, of a reason, those
    from a place on that the answer before has named as `next`."""

    key: Key | None = None
    reason: Reason | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=limits.LOOK_MESSAGES_MAX)] = (
        limits.LOOK_MESSAGES_MAX
    )
    after: Annotated[str, msgspec.Meta(max_length=64)] | None = None


_PURGE: Final = msgspec.json.Decoder(PurgeRequest)
_REDRIVE: Final = msgspec.json.Decoder(RedriveRequest)


async def pause_queue(broker: BrokerPort, request: Request) -> Response:
    """Nothing more is given out to its groups, durably. Publishing and readers go on."""
    return await _pause(broker, request, paused=True)


async def resume_queue(broker: BrokerPort, request: Request) -> Response:
    """What waited is given out again."""
    return await _pause(broker, request, paused=False)


async def _pause(broker: BrokerPort, request: Request, *, paused: bool) -> Response:
    name = queue_name(request)
    await broker.upkeep.pause(principal(request), name, paused=paused)
    return reply(await described(broker, request, name))


async def purge_queue(broker: BrokerPort, request: Request) -> Response:
    """Answered when it is durable. What is published meanwhile may stay or go."""
    wanted = decode(await read_body(request), _PURGE)
    if (wanted.group is not None) + wanted.all != 1:
        raise Refused("invalid_request", "exactly one of group and all")
    queue = find_queue(broker, request)
    if wanted.group is not None:
        broker.metadata.find_group(principal(request), queue, wanted.group)
    act = act_of(request)
    act.about(**msgspec.to_builtins(wanted))
    await act.begin()
    purged = await broker.upkeep.purge(principal(request), queue, wanted.group)
    act.about(messages=purged.messages)
    return reply(purged)


async def peek_queue(broker: BrokerPort, request: Request) -> Response:
    """Messages as they stand, taken from nobody. With `group`: those that it has not settled, and
    what each waits for, which needs `consume` or `manage`, too: it is what the group does."""
    group = request.query_params.get("group")
    if group is not None:
        check_name(group, "group")
        rights(request).check_one_of(("consume", "manage"), queue_name(request))
    look = _look(request, PEEK_DEFAULT)
    _check_read(request, look)
    queue = find_queue(broker, request)
    return reply(await broker.upkeep.peek(principal(request), queue, look, group))


async def list_dead_letters(broker: BrokerPort, request: Request) -> Response:
    """The dead letters of this queue that have not gone back, oldest first."""
    look = _look(request, LETTERS_DEFAULT)
    _check_read(request, look)
    queue = find_queue(broker, request)
    found = await broker.upkeep.dead_letters(principal(request), queue, look)
    if not shows_groups(rights(request), queue.name):
        found = without_groups(found)
    return reply(found)


async def redrive_dead_letters(broker: BrokerPort, request: Request) -> Response:
    """Answered when they stand in the queue again. Call it again with `next` until there is none;
    what went back before an error, or before a lost answer, does not go again. Where they stand in
    a queue that the settings name, it needs `manage` there, too."""
    wanted = decode(await read_body(request), _REDRIVE)
    after = Place.parse(wanted.after) if wanted.after is not None else None
    look = Look(limit=wanted.limit, key=wanted.key, reason=wanted.reason, after=after)
    queue = find_queue(broker, request)
    other = other_dead_letter_queue(queue.name, queue.settings.dead_letter_queue)
    if other is not None:
        rights(request).check("manage", other)
    act = act_of(request)
    if look.key is not None:
        act.about(key_hash=shown_hash(look.key, queue))
    act.about(reason=look.reason, limit=look.limit)
    redriven = await broker.upkeep.redrive(principal(request), queue, look)
    act.about(messages=redriven.messages)
    return reply(redriven)


def _check_read(request: Request, look: Look) -> None:
    """Who may read some keys only asks for one of these. Raises Refused(forbidden)."""
    keys = None if look.key is None else (look.key,)
    rights(request).check_keys("read", queue_name(request), keys)


def _look(request: Request, limit_default: int) -> Look:
    query = request.query_params
    key, after = query.get("key"), query.get("after")
    if key is not None and not 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
        raise Refused("invalid_request", f"key has 1 to {limits.KEY_BYTES_MAX} bytes")
    return Look(
        limit=query_limit(request, limits.LOOK_MESSAGES_MAX, limit_default),
        partition=query_number(request, "partition", high=MEMBER_MAX),
        offset=query_number(request, "offset", high=limits.OFFSET_MAX) or 0,
        key=key,
        reason=query.get("reason"),
        after=Place.parse(after) if after is not None else None,
    )


_QUEUE: Final = "/v1/queues/{queue}"
_FIND: Final = ("invalid_name", "queue_not_found")
_BODY: Final = ("invalid_json", "request_too_large")
_KEY: Final = Parameter("key", "Only messages of this key.", {"type": "string"})
_AFTER: Final = Parameter("after", "Where the answer before said to go on.", {"type": "string"})
_NUMBER: Final = {"type": "integer", "minimum": 0}

OPERATIONS: Final = (
    Operation(
        "POST",
        f"{_QUEUE}/pause",
        "Give nothing out to groups.",
        pause_queue,
        {200: Answer("The queue as it is now.", QueueDescription)},
        needs="manage",
        errors=_FIND,
        act="queue.pause",
    ),
    Operation(
        "POST",
        f"{_QUEUE}/resume",
        "Go on giving out.",
        resume_queue,
        {200: Answer("The queue as it is now.", QueueDescription)},
        needs="manage",
        errors=_FIND,
        act="queue.resume",
    ),
    Operation(
        "POST",
        f"{_QUEUE}/purge",
        "Drop what stands in a queue, for a group or for everybody.",
        purge_queue,
        {200: Answer("How many messages it was.", Purged)},
        needs="manage",
        request=PurgeRequest,
        errors=(*_FIND, *_BODY, "group_not_found"),
        act="queue.purge",
    ),
    Operation(
        "GET",
        f"{_QUEUE}/messages",
        "Look at messages without taking them.",
        peek_queue,
        {200: Answer("The messages, by partition and offset.", Peeked)},
        needs="read",
        query=(
            limit_parameter(limits.LOOK_MESSAGES_MAX),
            Parameter("partition", "Only messages of this one.", _NUMBER),
            Parameter("offset", "From here on in that partition, or in the key's.", _NUMBER),
            _KEY,
            Parameter("group", "What it has not settled, and why.", {"type": "string"}),
            _AFTER,
        ),
        errors=(*_FIND, "group_not_found"),
    ),
    Operation(
        "GET",
        f"{_QUEUE}/dead-letters",
        "List dead letters.",
        list_dead_letters,
        {200: Answer("The letters, where they come from, and why.", FoundDeadLetters)},
        needs="read",
        query=(
            limit_parameter(limits.LOOK_MESSAGES_MAX),
            _KEY,
            Parameter("reason", "Only those of this reason.", {"type": "string"}),
            _AFTER,
        ),
        errors=_FIND,
    ),
    Operation(
        "POST",
        f"{_QUEUE}/dead-letters/redrive",
        "Send dead letters back into their queue.",
        redrive_dead_letters,
        {200: Answer("How many stand in the queue again.", Redriven)},
        needs="manage",
        request=RedriveRequest,
        errors=(
            *_FIND,
            *_BODY,
            "message_too_large",
            "limit_reached",
            "queue_full",
            "too_many",
            "overloaded",
            "storage_full",
        ),
        act="dead_letters.redrive",
    ),
)

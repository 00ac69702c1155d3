"""REST: scheduled messages, which wait until they are due: list, show, cancel and change them, and
have a gateway believe its clock."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.operator.scheduled import Believed, Change, May, ScheduledList, ScheduledMessage
from gateway.rest.accounting import act_of, hash_text
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    limit_parameter,
    query_limit,
    queue_name,
    read_body,
    rights,
)
from metadata.catalog import Queue
from metadata.rights import Verb
from push import limits
from push.errors import Refused
from runtime.operation import decode, reply

LIST_DEFAULT: Final = 100
_CHANGE: Final = msgspec.json.Decoder(Change)


async def list_scheduled(broker: Broker, request: Request) -> Response:
    """List the messages that wait until they are due, by due time. Their content is shown to a
    client that may read them."""
    query = request.query_params
    limit = query_limit(request, limits.LOOK_MESSAGES_MAX, LIST_DEFAULT)
    key, queue = _key(request), find_queue(broker, request)
    found = await broker.scheduled.list_messages(
        queue, key=key, after=query.get("after"), limit=limit, may_read=_may(request, "read")
    )
    return reply(found)


async def show_scheduled(broker: Broker, request: Request) -> Response:
    """Show a message that waits until it is due."""
    key, queue = _key(request), find_queue(broker, request)
    may_read = _may(request, "read")
    return reply(await broker.scheduled.show(queue, _id(request), key, may_read))


async def cancel_scheduled(broker: Broker, request: Request) -> Response:
    """Cancel a message that is not due yet, for good. Published again under its id, it is answered
    `cancelled`. The answer comes when this is durable."""
    key, queue = _key(request), find_queue(broker, request)
    _note(request, queue, key)
    may = _may(request, "manage", "publish")
    return reply(await broker.scheduled.cancel(queue, _id(request), key, may))


async def change_scheduled(broker: Broker, request: Request) -> Response:
    """Give a message that is not due yet another time, another content, or both. It keeps its id
    and its ticket. With a time that has passed, it comes at once."""
    change = decode(await read_body(request), _CHANGE)
    key, queue = _key(request), find_queue(broker, request)
    _note(request, queue, key)
    may = _may(request, "manage", "publish")
    return reply(await broker.scheduled.change(queue, _id(request), key, change, may))


async def believe_clock(broker: Broker, request: Request) -> Response:
    """Have this gateway move scheduled messages by its clock as it is now, because an operator says
    that the clock is right. After a jump of the clock by more than a minute nothing is moved for
    five minutes. Each gateway has a clock of its own: this is about the one that answers."""
    mover = broker.mover
    jump_s = round(mover.jump_s, 3)
    act_of(request).about(jump_s=jump_s)
    mover.believe_clock()
    return reply(Believed(jump_s=jump_s, moving=mover.doubt_s <= 0))


def _id(request: Request) -> str:
    message_id: str = request.path_params["id"]
    return message_id


def _key(request: Request) -> str | None:
    key = request.query_params.get("key")
    if key is not None and not 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
        raise Refused("invalid_request", f"key has 1 to {limits.KEY_BYTES_MAX} bytes")
    return key


def _may(request: Request, *verbs: Verb) -> May:
    """Return whether one of these rights covers a key."""
    scopes = [rights(request).keys(verb, queue_name(request)) for verb in verbs]
    return lambda key: any(scope is not None and scope.allow(key) for scope in scopes)


def _note(request: Request, queue: Queue, key: str | None) -> None:
    act_of(request).about(id=_id(request))
    if key is not None:
        act_of(request).about(key_hash=hash_text(key, queue))


_QUEUE: Final = "/v1/queues/{queue}"
_ONE: Final = f"{_QUEUE}/scheduled/{{id}}"
_FIND: Final = ("invalid_name", "invalid_request", "queue_not_found")
_GONE: Final = ("id_unknown", "ambiguous", "already_due", "cancelled")
_TEXT: Final = {"type": "string"}
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
        request=Change,
        query=(_KEY,),
        errors=(
            *_FIND,
            *_GONE,
            "invalid_json",
            "request_too_large",
            "invalid_message",
            "message_too_large",
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
)

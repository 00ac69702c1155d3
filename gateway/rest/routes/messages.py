"""REST: publishing."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.deliverylog.log import origin_of_request
from gateway.operator.scheduled import (
    Believed,
    ScheduledChange,
    ScheduledList,
    ScheduledMessage,
)
from gateway.publish.batch import PendingPublish
from gateway.rest.accounting import act_of, counter_of, hash_text
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    allowance,
    find_queue,
    limit_parameter,
    principal,
    query_limit,
    queue_name,
    read_body,
    rights,
)
from gateway.wire.frames import error_fields, receipt_fields
from metadata.catalog import Queue
from metadata.rights import ALL_KEYS, KeyScope, Verb
from push import limits
from push.due import DueTicket
from push.errors import Refused, TocsinError
from push.message import Message
from push.places import Durability
from runtime.operation import decode, reply
from runtime.trace_context import Tracer, carried, current


class PublishRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages for one queue. Each gets its own result, because a batch is not atomic (R5)."""

    messages: Annotated[
        list[Message], msgspec.Meta(min_length=1, max_length=limits.MESSAGES_PER_PUBLISH_MAX)
    ]


class Failure(msgspec.Struct, omit_defaults=True):
    """Reason why one message was not stored, or why its fate is unknown."""

    code: str
    detail: str
    retry: bool
    retry_after_s: float | None = None


class PublishResult(msgspec.Struct, omit_defaults=True):
    """Result of one message: either `error`, or the other fields, which say where it is stored. A
    duplicate has the place of the original. A message that is scheduled has a `ticket` in place of
    an `offset`, and says when it is due, unless it is a duplicate."""

    id: str | None = None
    partition: int | None = None
    offset: int | None = None
    ticket: str | None = None
    due_unix_ms: int | None = None
    duplicate: bool | None = None
    error: Failure | None = None


class DurabilityMet(msgspec.Struct):
    """Durability of the stored messages: the level that the broker waited for, and the number of
    copies that are fsynced."""

    level: Durability
    copies: int


class PublishAnswer(msgspec.Struct):
    """The results of the messages, one for each, in order. The status is 200 even if some or all
    messages were refused. `durability` is left out if none was stored."""

    results: list[PublishResult]
    durability: DurabilityMet | msgspec.UnsetType = msgspec.UNSET


_REQUEST: Final = msgspec.json.Decoder(PublishRequest)


async def publish(broker: Broker, request: Request) -> Response:
    """Publish messages. The answer comes when they are durable. If the client goes away earlier,
    they are stored all the same. Sent again with the same ids, they are answered as duplicates
    (P4)."""
    name = queue_name(request)
    wanted = decode(await read_body(request), _REQUEST)
    trace = current()
    if trace is None:
        return await _publish(broker, request, name, wanted.messages)
    tracer: Tracer = request.app.tracer
    with tracer.publishing(name, trace) as own:
        return await _publish(broker, request, name, carried(wanted.messages, own))


async def _publish(
    broker: Broker, request: Request, name: str, messages: Sequence[Message]
) -> Response:
    keys = rights(request).check("publish", name)
    allowed = [one for one in messages if keys.is_all or keys.allow(one.key)]
    queue = await broker.queue_for_publish(principal(request), name, allowed)
    loop, charged = asyncio.get_running_loop(), allowance(request)
    messages, rest = _split(messages, charged.messages_max(queue, now=loop.time()))
    try:
        owed = charged.publish(queue, messages, now=loop.time())
    except Refused as refused:
        if not await charged.wait_for_share(refused):
            raise
        owed = charged.publish(queue, messages, now=loop.time())
    beyond = charged.refuse_beyond(queue, rest, now=loop.time()) if rest else None
    counter = counter_of(request.scope, request.app.accounting, broker)
    future: asyncio.Future[PendingPublish] = loop.create_future()

    def on_stored(answer: PendingPublish) -> None:
        owed()
        answer.count_in(counter)
        if not future.done():  # cancelled: nobody waits any more
            future.set_result(answer)

    who, log = principal(request).name, broker.delivery_log
    origin = origin_of_request(log, queue, who, messages, current())
    try:
        broker.publisher.submit(
            PendingPublish(queue, messages, on_stored, keys=keys, origin=origin)
        )
    except BaseException:
        owed()
        raise
    answer = await future
    met = {"durability": answer.durability} if answer.durability else {}
    results = _results(answer)
    if beyond is not None:
        results += [{"error": error_fields(beyond)}] * len(rest)
        for _ in rest:
            counter.count_refusal(beyond.code.name)
    return reply({"results": results, **met})


def _split(
    messages: Sequence[Message], most: int | None
) -> tuple[Sequence[Message], Sequence[Message]]:
    """Split messages into those that a rate admits at once and the rest, which is refused in its
    place (R5)."""
    most = len(messages) if most is None else most
    return messages[:most], messages[most:]


def _results(answer: PendingPublish) -> list[Mapping[str, object]]:
    results: list[Mapping[str, object]] = []
    for index, outcome in enumerate(answer.outcomes):
        if isinstance(outcome, TocsinError):
            results.append({"error": error_fields(outcome)})
        elif isinstance(outcome, DueTicket):
            fields = {"duplicate": False, **receipt_fields(outcome, answer.id_prefix)}
            results.append({"id": answer.ids(index), **fields})
        else:
            partition, offset, *duplicate = outcome
            results.append(
                {
                    "id": answer.ids(index),
                    "partition": partition,
                    "offset": offset,
                    "duplicate": bool(duplicate),
                }
            )
    return results


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


def _scope(request: Request, *verbs: Verb) -> KeyScope:
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


_QUEUE: Final = "/v1/queues/{queue}"
_ONE: Final = f"{_QUEUE}/scheduled/{{id}}"
_FIND: Final = ("invalid_name", "invalid_request", "queue_not_found")
_GONE: Final = ("id_unknown", "ambiguous", "already_due", "cancelled")
_TEXT: Final = {"type": "string"}
_KEY: Final = Parameter("key", "The key of the message that has this id.", _TEXT)

_SCHEDULED: Final = (
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
)

OPERATIONS: Final = (
    Operation(
        "POST",
        "/v1/queues/{queue}/messages",
        "Publish messages.",
        publish,
        {200: Answer("The result of each message.", PublishAnswer)},
        needs="publish",
        request=PublishRequest,
        errors=(
            "invalid_name",
            "invalid_json",
            "invalid_request",
            "queue_not_found",
            "request_too_large",
            "limit_reached",
            "rate_limited",
            "too_many_in_flight",
            "draining",
        ),
    ),
    *_SCHEDULED,
)

"""REST: queues: create, change, describe, list; pause, purge, peek, and their dead letters.

Deleting a queue does not exist over HTTP; `tocsin admin delete-queue` does it.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.models import (
    DeadLetterQueue,
    FoundDeadLetters,
    Look,
    Peeked,
    Place,
    Purged,
    QueueCounters,
    QueueGroup,
    QueuePartition,
    Redriven,
    without_groups,
)
from gateway.operator.removal import Removed
from gateway.operator.settings_change import ChangedSettings
from gateway.rest.accounting import act_of, asking, changes, hash_text
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    limit_parameter,
    principal,
    query_flag,
    query_limit,
    query_number,
    queue_name,
    read_body,
    rights,
)
from gateway.rest.views import queue_view, shows_groups, verbs_on_all
from metadata.catalog import (
    DeadLetterCircle,
    QueueSettings,
    check_name,
    other_dead_letter_queue,
)
from metadata.settings import QueueChange, QueueNaming, SettingChange, alerts_in, named_in
from push import limits
from push.errors import Refused
from push.ring import MEMBER_MAX
from runtime.loop.fairness import TimeSlices
from runtime.operation import decode, reply

DELETES_MAX: Final = (1 << 53) - 1
DELETES_MAX_PARAMETER: Final = Parameter(
    "deletes_max",
    "As many messages it may delete, or move to the dead letters.",
    {"type": "integer", "minimum": 0, "maximum": DELETES_MAX, "default": 0},
)
LEFT_OUT: Final = ("settings", "partitions", "dead_letters")
"""Fields that a brief list leaves out: more than half of it."""


PEEK_DEFAULT: Final = 10
LETTERS_DEFAULT: Final = 100

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_BYTES_MAX)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class QueueDescription(msgspec.Struct, kw_only=True):
    """A queue as `GET /v1/queues/{queue}` describes it; more fields may come. Fields that the
    rights of whoever asks do not show are left out."""

    name: str
    queue_id: str
    holder: str | msgspec.UnsetType = msgspec.UNSET
    """The principal that created it."""
    created_unix_ms: int | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    """Nothing is given out to its groups; see `POST /v1/queues/{queue}/pause`."""
    settings: QueueSettings | msgspec.UnsetType = msgspec.UNSET
    """Without `alerts` where the rights do not show them."""
    partitions: list[QueuePartition] | msgspec.UnsetType = msgspec.UNSET
    depth: int | msgspec.UnsetType = msgspec.UNSET
    """Messages that are retained."""
    bytes: int | msgspec.UnsetType = msgspec.UNSET
    oldest_unix_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """When the oldest of them was published; null: there is none."""
    counters: QueueCounters | msgspec.UnsetType = msgspec.UNSET
    dead_letters: DeadLetterQueue | msgspec.UnsetType = msgspec.UNSET
    groups: list[QueueGroup] | msgspec.UnsetType = msgspec.UNSET
    """By name."""


class ListedQueue(QueueDescription, kw_only=True):
    """The same in the list of all queues, where `?brief=true` leaves out `settings`, `partitions`
    and `dead_letters`."""


class CreatedQueue(QueueDescription, kw_only=True):
    """A queue that was asked for."""

    created: bool
    """False: it was there, and nothing of it was changed."""


class ChangedQueue(QueueDescription, kw_only=True):
    """A queue of which settings were changed."""

    changes: list[SettingChange]
    """The settings that have another value now."""
    deleted: int
    """How many messages the change deletes."""
    dead_lettered: int
    """How many messages it moves to the dead letters."""


class QueueList(msgspec.Struct):
    """A page of queues, by name."""

    queues: list[ListedQueue]
    next: str | None = None
    """There are more: ask again with `?after=<this>`."""
    unavailable: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Queues of which a storage cluster does not answer; left out: there are none."""
    gateway: str | msgspec.UnsetType = msgspec.UNSET
    """The gateway that answers, whose counters these are; left out: there are never others."""
    gateways: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """All that are there, with this one: the others count for themselves."""


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


_NAMING: Final = msgspec.json.Decoder(QueueNaming)
_CHANGE: Final = msgspec.json.Decoder(QueueChange)
_PURGE: Final = msgspec.json.Decoder(PurgeRequest)
_REDRIVE: Final = msgspec.json.Decoder(RedriveRequest)


async def put_queue(broker: Broker, request: Request) -> Response:
    """201 where it was made, with the settings that are named and the defaults of the others; 200
    where it was there, and nothing of it changes: where one of the settings that are named has
    another value, the answer is `settings_differ`. To name another queue for its dead letters needs
    `manage` there, too, and for its alerts `publish`: they are written into it."""
    name = queue_name(request)
    named = named_in(decode(await read_body(request), _NAMING))
    settings = QueueSettings(**named)
    with asking(request, named), _name_visible_queues(request):
        _check_others(request, name, settings.dead_letter_queue, settings.alerts)
        _, created = await broker.create_queue(principal(request), name, settings, frozenset(named))
    changed = changes(None, settings) if created else {}
    act_of(request).about(created=created, changed=changed)
    described_ = await described(broker, request, name)
    return reply({**described_, "created": created}, 201 if created else 200)


async def change_queue(broker: Broker, request: Request) -> Response:
    """Only the settings that are named change. A change that would delete messages, or move them to
    the dead letters, is refused with their number (`would_delete`), unless `deletes_max` allows as
    many. To name another queue for its dead letters needs `manage` there, too, and for its alerts
    `publish`."""
    name = queue_name(request)
    named = named_in(decode(await read_body(request), _CHANGE))
    with asking(request, named), _name_visible_queues(request):
        _check_others(request, name, named.get("dead_letter_queue"), alerts_in(named))
        done = await broker.settings.queue(
            principal(request),
            name,
            named,
            deletes_max=deletes_max(request),
            begin=beginning(request),
        )
    return reply({**await described(broker, request, name), **changed_fields(request, done)})


@contextmanager
def _name_visible_queues(request: Request) -> Iterator[None]:
    """Inside, the error about a circle of dead-letter queues names those that one may see (P11)."""
    try:
        yield
    except DeadLetterCircle as circle:
        raise DeadLetterCircle(circle.way, rights(request).sees) from None


def _check_others(
    request: Request, name: str, dead_letters: str | None, alerts: Iterable[Any]
) -> None:
    """Check the rights to name these: they are written into other queues."""
    other = other_dead_letter_queue(name, dead_letters)
    if other is not None:
        rights(request).check("manage", other)
    for alert in alerts:
        if isinstance(alert.queue, str):
            rights(request).check("publish", alert.queue)


def deletes_max(request: Request) -> int:
    """How many messages a change may delete. Raises Refused(invalid_request)."""
    return query_number(request, "deletes_max", high=DELETES_MAX, default=0) or 0


def beginning(request: Request) -> Callable[[Removed], Awaitable[None]]:
    """Return what notes in the audit trail, before it happens, that a change removes messages."""
    act = act_of(request)

    async def begin(removed: Removed) -> None:
        act.about(deleted=removed.deleted, dead_lettered=removed.dead_lettered)
        await act.begin()

    return begin


def changed_fields(request: Request, done: ChangedSettings) -> dict[str, object]:
    """Return the fields of a change in the answer, and in the audit trail."""
    act_of(request).about(changed={one.name: [one.before, one.after] for one in done.changes})
    return {
        "changes": done.changes,
        "deleted": done.removed.deleted,
        "dead_lettered": done.removed.dead_lettered,
    }


async def get_queue(broker: Broker, request: Request) -> Response:
    """One queue."""
    queue = find_queue(broker, request)
    return reply(await described(broker, request, queue.name))


async def described(broker: Broker, request: Request, name: str) -> dict[str, Any]:
    """A queue, as far as the rights of the request show it. Where they show that it is there and
    no more, the storage is not asked. Raises Refused(queue_not_found)."""
    allowed = rights(request)
    if not verbs_on_all(allowed, name):
        queue = broker.find_queue(principal(request), name)
        return {"name": queue.name, "queue_id": queue.queue_id}
    return queue_view(await broker.describe_queue(principal(request), name), allowed)


async def list_queues(broker: Broker, request: Request) -> Response:
    """A page of those on which there is any right: describing a queue asks the storage, and there
    may be 100,000 of them."""
    page = query_limit(request, limits.QUEUES_PER_PAGE_MAX, limits.QUEUES_PER_PAGE_MAX)
    after = request.query_params.get("after", "")
    if after:
        check_name(after, "after")
    who, allowed = principal(request), rights(request)
    left_out = LEFT_OUT if query_flag(request, "brief") else ()
    every = broker.metadata.list_queues(who)
    names = [queue.name for queue in every if queue.name > after and allowed.sees(queue.name)]
    is_spread = any(queue.clusters for queue in every)
    shown: list[msgspec.Raw] = []
    unavailable: list[str] = []
    slices = TimeSlices()
    for name in names[:page]:
        await slices.yield_if_over()
        try:
            queue = await described(broker, request, name)
            fields = {field: queue[field] for field in queue if field not in left_out}
            shown.append(msgspec.Raw(msgspec.json.encode(fields)))  # here: in slices, too
        except Refused as error:
            if error.code.name == "storage_unavailable" and is_spread:
                unavailable.append(name)
            elif error.code.name != "queue_not_found":  # deleted while we were describing
                raise
    more: dict[str, object] = {"next": names[page - 1]} if len(names) > page else {}
    if unavailable:
        more["unavailable"] = unavailable
    if broker.gateways:
        more |= {"gateway": broker.gateway, "gateways": broker.gateways}
    return reply({"queues": shown, **more})


async def pause_queue(broker: Broker, request: Request) -> Response:
    """Nothing more is given out to its groups, durably. Publishing and readers go on."""
    return await _pause(broker, request, paused=True)


async def resume_queue(broker: Broker, request: Request) -> Response:
    """What waited is given out again."""
    return await _pause(broker, request, paused=False)


async def _pause(broker: Broker, request: Request, *, paused: bool) -> Response:
    name = queue_name(request)
    await broker.upkeep.pause(principal(request), name, paused=paused)
    return reply(await described(broker, request, name))


async def purge_queue(broker: Broker, request: Request) -> Response:
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


async def peek_queue(broker: Broker, request: Request) -> Response:
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


async def list_dead_letters(broker: Broker, request: Request) -> Response:
    """The dead letters of this queue that have not gone back, oldest first."""
    look = _look(request, LETTERS_DEFAULT)
    _check_read(request, look)
    queue = find_queue(broker, request)
    found = await broker.upkeep.dead_letters(principal(request), queue, look)
    if not shows_groups(rights(request), queue.name):
        found = without_groups(found)
    return reply(found)


async def redrive_dead_letters(broker: Broker, request: Request) -> Response:
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
        act.about(key_hash=hash_text(look.key, queue))
    act.about(reason=look.reason, limit=look.limit)
    redriven = await broker.upkeep.redrive(principal(request), queue, look)
    act.about(messages=redriven.messages)
    return reply(redriven)


def _check_read(request: Request, look: Look) -> None:
    """Check that a client that may read some keys only asks for one of these. Raises
    Refused(forbidden)."""
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
        "GET",
        "/v1/queues",
        "List queues.",
        list_queues,
        {200: Answer("The queues, by name.", QueueList)},
        needs="any",
        query=(
            limit_parameter(limits.QUEUES_PER_PAGE_MAX),
            Parameter("after", "Only names behind this one.", {"type": "string"}),
            Parameter("brief", f"Without: {', '.join(LEFT_OUT)}.", {"type": "boolean"}),
        ),
        errors=("invalid_request", "invalid_name"),
    ),
    Operation(
        "PUT",
        _QUEUE,
        "Create a queue, if it is not there.",
        put_queue,
        {
            200: Answer("It was there, and is as it was.", CreatedQueue),
            201: Answer("It was created.", CreatedQueue),
        },
        needs="manage",
        request=QueueSettings,
        errors=(
            "invalid_name",
            "invalid_json",
            "invalid_request",
            "settings_differ",
            "request_too_large",
            "limit_reached",
        ),
        act="queue.put",
    ),
    Operation(
        "PATCH",
        _QUEUE,
        "Change settings of a queue.",
        change_queue,
        {200: Answer("The queue as it is now, and what has changed.", ChangedQueue)},
        needs="manage",
        request=QueueChange,
        query=(DELETES_MAX_PARAMETER,),
        errors=(
            "invalid_name",
            "invalid_json",
            "invalid_request",
            "queue_not_found",
            "setting_fixed",
            "would_delete",
            "request_too_large",
        ),
        act="queue.change",
    ),
    Operation(
        "GET",
        _QUEUE,
        "Describe a queue.",
        get_queue,
        {200: Answer("The queue.", QueueDescription)},
        needs="any",
        errors=("invalid_name", "queue_not_found"),
    ),
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

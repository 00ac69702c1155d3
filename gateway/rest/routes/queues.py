"""REST: create, change, describe, list, pause, purge and peek at queues, and their dead letters.

No queue can be deleted over HTTP. `tocsin admin delete-queue` deletes one.
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
    ScheduledFigures,
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
    other_dead_letter_queue,
)
from metadata.settings import QueueChange, QueueNaming, SettingChange, alerts_in, named_in
from push import limits
from push.errors import Refused
from push.places import check_name
from push.ring import MEMBER_MAX
from runtime.loop.fairness import TimeSlices
from runtime.operation import decode, reply

DELETES_MAX: Final = (1 << 53) - 1
DELETES_MAX_PARAMETER: Final = Parameter(
    "deletes_max",
    "The number of messages that may be deleted, or moved to the dead letters.",
    {"type": "integer", "minimum": 0, "maximum": DELETES_MAX, "default": 0},
)
LEFT_OUT: Final = ("settings", "partitions", "dead_letters")
"""Fields of each queue that a brief list leaves out. They are more than half of a list."""


PEEK_DEFAULT: Final = 10
LETTERS_DEFAULT: Final = 100

Key = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_BYTES_MAX)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class QueueDescription(msgspec.Struct, kw_only=True):
    """A queue, as `GET /v1/queues/{queue}` describes it. Fields that the client's rights do not
    show are left out. Later versions may add fields."""

    name: str
    queue_id: str
    holder: str | msgspec.UnsetType = msgspec.UNSET
    """The principal that created it."""
    created_unix_ms: int | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether nothing is delivered to its groups; see `POST /v1/queues/{queue}/pause`."""
    settings: QueueSettings | msgspec.UnsetType = msgspec.UNSET
    """The settings; without `alerts` if the rights do not show them."""
    partitions: list[QueuePartition] | msgspec.UnsetType = msgspec.UNSET
    depth: int | msgspec.UnsetType = msgspec.UNSET
    """Number of messages that are retained."""
    bytes: int | msgspec.UnsetType = msgspec.UNSET
    oldest_unix_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """Publish time of the oldest retained message; null if there is none."""
    scheduled: ScheduledFigures | msgspec.UnsetType = msgspec.UNSET
    counters: QueueCounters | msgspec.UnsetType = msgspec.UNSET
    dead_letters: DeadLetterQueue | msgspec.UnsetType = msgspec.UNSET
    groups: list[QueueGroup] | msgspec.UnsetType = msgspec.UNSET
    """The groups, by name."""


class ListedQueue(QueueDescription, kw_only=True):
    """A queue in the list of all queues. With `?brief=true`, `settings`, `partitions` and
    `dead_letters` are left out."""


class CreatedQueue(QueueDescription, kw_only=True):
    """A queue after a request to create it. `created` is false if it existed already; then
    nothing of it was changed."""

    created: bool


class ChangedQueue(QueueDescription, kw_only=True):
    """A queue after a change of its settings. `changes` lists the settings that have another value
    now. `deleted` is the number of messages that the change deletes, `dead_lettered` the number
    that it moves to the dead letters."""

    changes: list[SettingChange]
    deleted: int
    dead_lettered: int


class QueueList(msgspec.Struct):
    """A page of queues, by name."""

    queues: list[ListedQueue]
    next: str | None = None
    """Value for `?after=<this>` to get more; left out if there are no more."""
    unavailable: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Queues of which a storage cluster does not answer; left out if there are none."""
    gateway: str | msgspec.UnsetType = msgspec.UNSET
    """The gateway that answers, whose counters these are; left out if there are never others."""
    gateways: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """All living gateways, with this one; the others have counters of their own."""


class PurgeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Choice of what to purge, by exactly one of two fields. `group` purges for one group, `all`
    for every group and all readers."""

    group: str | None = None
    all: bool = False


class RedriveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Selection of dead letters to send back, at most `limit` of them. `key` and `reason` select
    some of them. `after` is the place to go on, from `next` of the last answer."""

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
    """Create a queue with the named settings, and defaults for the others. The answer is 201 if the
    queue was created, and 200 if it existed. An existing queue is never changed: if a named setting
    has another value there, the answer is `settings_differ`. Naming another queue for dead letters
    also needs `manage` on that queue. Naming one for alerts needs `publish` on it."""
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
    """Change the settings that are named, and no others. A change that would delete messages, or
    move them to the dead letters, is refused with their number (`would_delete`) unless
    `deletes_max` allows that many. Naming another queue for dead letters also needs `manage` on
    that queue. Naming one for alerts needs `publish` on it."""
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
    """Let an error about a circle of dead-letter queues name only those that the client may see
    (P11)."""
    try:
        yield
    except DeadLetterCircle as circle:
        raise DeadLetterCircle(circle.way, rights(request).sees) from None


def _check_others(
    request: Request, name: str, dead_letters: str | None, alerts: Iterable[Any]
) -> None:
    """Check the rights to name other queues for dead letters and alerts, because both are written
    there."""
    other = other_dead_letter_queue(name, dead_letters)
    if other is not None:
        rights(request).check("manage", other)
    for alert in alerts:
        if isinstance(alert.queue, str):
            rights(request).check("publish", alert.queue)


def deletes_max(request: Request) -> int:
    """Return how many messages a change may delete. Raises Refused(invalid_request)."""
    return query_number(request, "deletes_max", high=DELETES_MAX, default=0) or 0


def beginning(request: Request) -> Callable[[Removed], Awaitable[None]]:
    """Return a function that notes in the audit trail, before a change, how many messages the
    change deletes and moves to the dead letters."""
    act = act_of(request)

    async def begin(removed: Removed) -> None:
        act.about(deleted=removed.deleted, dead_lettered=removed.dead_lettered)
        await act.begin()

    return begin


def changed_fields(request: Request, done: ChangedSettings) -> dict[str, object]:
    """Note a change of settings in the audit trail, and return the fields of the answer that
    describe it."""
    act_of(request).about(changed={one.name: [one.before, one.after] for one in done.changes})
    return {
        "changes": done.changes,
        "deleted": done.removed.deleted,
        "dead_lettered": done.removed.dead_lettered,
    }


async def get_queue(broker: Broker, request: Request) -> Response:
    """Describe one queue: its settings, its partitions, its depth, and the lag of its groups."""
    queue = find_queue(broker, request)
    return reply(await described(broker, request, queue.name))


async def described(broker: Broker, request: Request, name: str) -> dict[str, Any]:
    """Describe a queue, as far as the rights of the request show it. If they show only that it
    exists, nothing is read from the storage. Raises Refused(queue_not_found)."""
    allowed = rights(request)
    if not verbs_on_all(allowed, name):
        queue = broker.find_queue(principal(request), name)
        return {"name": queue.name, "queue_id": queue.queue_id}
    return queue_view(await broker.describe_queue(principal(request), name), allowed)


async def list_queues(broker: Broker, request: Request) -> Response:
    """List queues on which the client has any right, one page at a time, by name."""
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
    """Pause a queue: deliver nothing more to its groups. Publishing and readers go on. The pause is
    durable."""
    return await _pause(broker, request, paused=True)


async def resume_queue(broker: Broker, request: Request) -> Response:
    """End the pause of a queue. Messages that waited are delivered again."""
    return await _pause(broker, request, paused=False)


async def _pause(broker: Broker, request: Request, *, paused: bool) -> Response:
    name = queue_name(request)
    await broker.upkeep.pause(principal(request), name, paused=paused)
    return reply(await described(broker, request, name))


async def purge_queue(broker: Broker, request: Request) -> Response:
    """Drop the messages of a queue, for one group or for all. Acks of deliveries in flight are
    stale. The answer comes when this is durable. Messages that are published meanwhile may be
    dropped or not."""
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
    """Show messages without taking them from anybody. With `group`, show those that this group has
    not settled, and what each waits for. That also needs `consume` or `manage`."""
    group = request.query_params.get("group")
    if group is not None:
        check_name(group, "group")
        rights(request).check_one_of(("consume", "manage"), queue_name(request))
    look = _look(request, PEEK_DEFAULT)
    _check_read(request, look)
    queue = find_queue(broker, request)
    return reply(await broker.upkeep.peek(principal(request), queue, look, group))


async def list_dead_letters(broker: Broker, request: Request) -> Response:
    """List the dead letters of this queue that have not gone back, oldest first."""
    look = _look(request, LETTERS_DEFAULT)
    _check_read(request, look)
    queue = find_queue(broker, request)
    found = await broker.upkeep.dead_letters(principal(request), queue, look)
    if not shows_groups(rights(request), queue.name):
        found = without_groups(found)
    return reply(found)


async def redrive_dead_letters(broker: Broker, request: Request) -> Response:
    """Send dead letters back into their queue. The answer comes when they are stored there. While
    the answer has a `next`, call it again with that. Letters that went back before an error, or
    before a lost answer, do not go again. If the queue's settings name another queue than its own
    for dead letters, this also needs `manage` on that one."""
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
_AFTER: Final = Parameter(
    "after", "The place to go on, from `next` of the last answer.", {"type": "string"}
)
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
            Parameter("after", "Only names that sort after this one.", {"type": "string"}),
            Parameter("brief", f"Leave out {', '.join(LEFT_OUT)}.", {"type": "boolean"}),
        ),
        errors=("invalid_request", "invalid_name"),
    ),
    Operation(
        "PUT",
        _QUEUE,
        "Create a queue, if it does not exist.",
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
        "Pause a queue.",
        pause_queue,
        {200: Answer("The queue as it is now.", QueueDescription)},
        needs="manage",
        errors=_FIND,
        act="queue.pause",
    ),
    Operation(
        "POST",
        f"{_QUEUE}/resume",
        "Resume a paused queue.",
        resume_queue,
        {200: Answer("The queue as it is now.", QueueDescription)},
        needs="manage",
        errors=_FIND,
        act="queue.resume",
    ),
    Operation(
        "POST",
        f"{_QUEUE}/purge",
        "Drop the messages of a queue, for one group or for all.",
        purge_queue,
        {200: Answer("The number of messages that were dropped.", Purged)},
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
            Parameter("partition", "Only messages of this partition.", _NUMBER),
            Parameter(
                "offset", "The first offset, in `partition` or in the partition of `key`.", _NUMBER
            ),
            _KEY,
            Parameter(
                "group",
                "Only messages that this group has not settled, each with what it waits for.",
                {"type": "string"},
            ),
            _AFTER,
        ),
        errors=(*_FIND, "group_not_found"),
    ),
    Operation(
        "GET",
        f"{_QUEUE}/dead-letters",
        "List dead letters.",
        list_dead_letters,
        {200: Answer("The letters, each with its origin and reason.", FoundDeadLetters)},
        needs="read",
        query=(
            limit_parameter(limits.LOOK_MESSAGES_MAX),
            _KEY,
            Parameter("reason", "Only letters of this reason.", {"type": "string"}),
            _AFTER,
        ),
        errors=_FIND,
    ),
    Operation(
        "POST",
        f"{_QUEUE}/dead-letters/redrive",
        "Send dead letters back into their queue.",
        redrive_dead_letters,
        {200: Answer("The number of letters that went back.", Redriven)},
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

"""REST: groups: create, change, describe, delete and seek."""

from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.models import GroupCounters, GroupPartition, SeekTo
from gateway.operator.removal import Begin, Removed
from gateway.rest.accounting import act_of, asking, changes
from gateway.rest.operation import (
    Answer,
    Operation,
    find_queue,
    group_name,
    principal,
    read_body,
    rights,
)
from gateway.rest.routes.queues import DELETES_MAX_PARAMETER, beginning, changed_fields, deletes_max
from gateway.rest.views import group_view
from gateway.wire.frames import Number, StartAt
from metadata.catalog import GroupSettings, GroupStart, Queue
from metadata.settings import GroupChange, SettingChange, named_in, naming
from push import limits
from push.errors import Refused
from runtime.operation import decode, reply

GroupRequest = msgspec.defstruct(
    "GroupRequest",
    [
        ("start", Literal["earliest", "latest"] | StartAt | None, None),
        *(
            (setting.name, setting.type, setting.default)
            for setting in msgspec.structs.fields(GroupSettings)
            if setting.name != "start"
        ),
    ],
    forbid_unknown_fields=True,
    kw_only=True,
)
"""GroupSettings, but `start` may also be a time: that is where the group starts, not a setting."""


class GroupDescription(msgspec.Struct, kw_only=True):
    """A group as `GET …/groups/{group}` describes it; more fields may come."""

    name: str
    group_id: str
    queue: str
    created_unix_ms: int
    settings: GroupSettings
    lag: int
    """Messages it has not settled."""
    consumers: int
    in_flight: int
    aside: int
    """Messages in side lines, in the storage."""
    keys_parked: int
    oldest_unix_ms: int | None
    """When the oldest message was published that it has not settled; null: it has settled all."""
    counters: GroupCounters
    partitions: list[GroupPartition]
    """Each with its owner, and what it waits for."""
    members: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The consumers here; left out, as `absent` and each partition's `owner` and `member`: the
    rights of whoever asks do not show them."""
    absent: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Those that are not here, and whose partitions wait for them."""


class CreatedGroup(GroupDescription, kw_only=True):
    """A group that was asked for. `created` false: it was there, and nothing of it was changed."""

    created: bool


class ChangedGroup(GroupDescription, kw_only=True):
    """A group of which settings were changed: those that have another value now, how many messages
    the change deletes, and how many it moves to the dead letters."""

    changes: list[SettingChange]
    deleted: int
    dead_lettered: int


class SoughtGroup(GroupDescription, kw_only=True):
    """A group that goes on somewhere else, and how many messages nobody needs since."""

    deleted: int


class DeletedGroup(msgspec.Struct, frozen=True):
    """How many messages went with a group: those that it alone had not settled."""

    deleted: int


class SeekPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Exactly one of: the first message published at or after a time; an offset, the same in
    every partition."""

    unix_ms: Number | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=limits.OFFSET_MAX)] | None = None


class SeekRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the group goes on: its start, its end, or a place."""

    to: Literal["earliest", "latest"] | SeekPlace


_NAMED: Final = msgspec.json.Decoder(
    naming(
        "GroupNaming",
        GroupSettings,
        "The settings of a group that are named.",
        types={"start": Literal["earliest", "latest"] | StartAt | None},
    )
)
_CHANGE: Final = msgspec.json.Decoder(GroupChange)
_SEEK: Final = msgspec.json.Decoder(SeekRequest)


async def put_group(broker: Broker, request: Request) -> Response:
    """201 where it was made; 200 where it was there, and nothing of it changes: where one of the
    settings that are named has another value, the answer is `settings_differ`. `start` only matters
    when it is made. The first group of a queue that keeps its messages for whoever comes first
    lets those go that it begins behind: `would_delete`, unless `deletes_max` allows as many."""
    name = group_name(request)
    named = named_in(decode(await read_body(request), _NAMED))
    start = named.pop("start", None)
    at: GroupStart | None = start.unix_ms if isinstance(start, StartAt) else start
    word: Any = {"start": start} if isinstance(start, str) else {}
    queue, who = find_queue(broker, request), principal(request)
    settings = GroupSettings(**named, **word)
    with asking(request, named):
        _, created = await broker.put_group(
            who,
            queue,
            name,
            settings,
            at,
            named=frozenset(named),
            deletes_max=deletes_max(request),
        )
    changed = changes(None, settings) if created else {}
    act_of(request).about(created=created, changed=changed)
    described = await _describe(broker, request, queue, name)
    return reply({**described, "created": created}, 201 if created else 200)


async def change_group(broker: Broker, request: Request) -> Response:
    """Only the settings that are named change; null: the queue's. A change that would delete
    messages, or move them to the dead letters, is refused with their number (`would_delete`),
    unless `deletes_max` allows as many."""
    name = group_name(request)
    named = named_in(decode(await read_body(request), _CHANGE))
    queue, who = find_queue(broker, request), principal(request)
    with asking(request, named):
        done = await broker.settings.group(
            who, queue, name, named, deletes_max=deletes_max(request), begin=beginning(request)
        )
    described = await _describe(broker, request, queue, name)
    return reply({**described, **changed_fields(request, done)})


async def get_group(broker: Broker, request: Request) -> Response:
    """One group."""
    name, queue = group_name(request), find_queue(broker, request)
    return reply(await _describe(broker, request, queue, name))


async def _describe(broker: Broker, request: Request, queue: Queue, name: str) -> dict[str, object]:
    """A group, as far as the rights of the request show it. Raises Refused(group_not_found)."""
    described = await broker.describe_group(principal(request), queue, name)
    return group_view(described, rights(request), queue.name)


async def delete_group(broker: Broker, request: Request) -> Response:
    """What other groups or the retention need stays. Messages that it alone had not settled go: it
    is refused with their number (`would_delete`), unless `deletes_max` allows as many. The last
    group of a queue without retention leaves everything to whoever comes next."""
    name, queue = group_name(request), find_queue(broker, request)
    broker.metadata.find_group(principal(request), queue, name)  # else there is nothing to begin
    removed = await broker.delete_group(
        principal(request), queue, name, deletes_max=deletes_max(request), begin=_begin(request)
    )
    return reply(DeletedGroup(removed.deleted))


async def seek_group(broker: Broker, request: Request) -> Response:
    """The group as it is afterwards. Deliveries of before no longer count: their acks are stale. A
    seek past messages that nobody else needs is refused with their number (`would_delete`), unless
    `deletes_max` allows as many."""
    name = group_name(request)
    wanted = decode(await read_body(request), _SEEK)
    queue, who = find_queue(broker, request), principal(request)
    to = _seek_to(wanted.to)
    broker.metadata.find_group(who, queue, name)  # else there is nothing to begin
    act_of(request).about(to=to)
    removed = await broker.seek_group(
        who, queue, name, to, deletes_max=deletes_max(request), begin=_begin(request)
    )
    described = await _describe(broker, request, queue, name)
    return reply({**described, "deleted": removed.deleted})


def _begin(request: Request) -> Begin:
    """Return what notes in the audit trail, before it happens, how many messages go."""
    act = act_of(request)

    async def begin(removed: Removed) -> None:
        act.about(deleted=removed.deleted)
        await act.begin()

    return begin


def _seek_to(to: Literal["earliest", "latest"] | SeekPlace) -> SeekTo:
    if not isinstance(to, SeekPlace):
        return to
    if (to.unix_ms is None) == (to.offset is None):
        raise Refused("invalid_request", "to: exactly one of unix_ms and offset - at `$.to`")
    if to.unix_ms is not None:
        return ("unix_ms", to.unix_ms)
    assert to.offset is not None
    return ("offset", to.offset)


_GROUP: Final = "/v1/queues/{queue}/groups/{group}"
_FIND: Final = ("invalid_name", "queue_not_found")
_BODY: Final = ("invalid_json", "invalid_request", "request_too_large")


OPERATIONS: Final = (
    Operation(
        "PUT",
        _GROUP,
        "Create a group, if it is not there.",
        put_group,
        {
            200: Answer("It was there, and is as it was.", CreatedGroup),
            201: Answer("It was created.", CreatedGroup),
        },
        needs="manage",
        request=GroupRequest,
        query=(DELETES_MAX_PARAMETER,),
        errors=(*_FIND, *_BODY, "settings_differ", "would_delete", "limit_reached"),
        act="group.put",
    ),
    Operation(
        "PATCH",
        _GROUP,
        "Change settings of a group.",
        change_group,
        {200: Answer("The group as it is now, and what has changed.", ChangedGroup)},
        needs="manage",
        request=GroupChange,
        query=(DELETES_MAX_PARAMETER,),
        errors=(*_FIND, *_BODY, "group_not_found", "would_delete"),
        act="group.change",
    ),
    Operation(
        "GET",
        _GROUP,
        "Describe a group.",
        get_group,
        {200: Answer("The group.", GroupDescription)},
        needs="consume or manage or observe",
        errors=(*_FIND, "group_not_found"),
    ),
    Operation(
        "DELETE",
        _GROUP,
        "Delete a group.",
        delete_group,
        {200: Answer("It is gone.", DeletedGroup)},
        needs="manage",
        query=(DELETES_MAX_PARAMETER,),
        errors=(*_FIND, "invalid_request", "group_not_found", "would_delete"),
        act="group.delete",
    ),
    Operation(
        "POST",
        f"{_GROUP}/seek",
        "Send a group to another place.",
        seek_group,
        {200: Answer("The group as it is now.", SoughtGroup)},
        needs="manage",
        request=SeekRequest,
        query=(DELETES_MAX_PARAMETER,),
        errors=(*_FIND, *_BODY, "group_not_found", "would_delete"),
        act="group.seek",
    ),
)

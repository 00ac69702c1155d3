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
"""GroupSettings, but `start` may also be a time. A time is the place where the group starts; no
setting records it."""


class GroupDescription(msgspec.Struct, kw_only=True):
    """A group, as `GET …/groups/{group}` describes it. Later versions may add fields."""

    name: str
    group_id: str
    queue: str
    created_unix_ms: int
    settings: GroupSettings
    lag: int
    """Number of messages that it has not settled."""
    consumers: int
    in_flight: int
    aside: int
    """Number of messages in side lines, in the storage."""
    keys_parked: int
    oldest_unix_ms: int | None
    """Publish time of the oldest message that it has not settled; null if it has settled all."""
    counters: GroupCounters
    partitions: list[GroupPartition]
    """The partitions, each with its owner and what it waits for."""
    members: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The consumers at all gateways. Left out, with `absent` and each partition's `owner` and
    `member`, if the client's rights do not show them."""
    absent: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Consumers that are at no gateway now, and whose partitions wait for them to come back."""


class CreatedGroup(GroupDescription, kw_only=True):
    """A group after a request to create it. `created` is false if it existed already; then
    nothing of it was changed."""

    created: bool


class ChangedGroup(GroupDescription, kw_only=True):
    """A group after a change of its settings. `changes` lists the settings that have another value
    now. `deleted` is the number of messages that the change deletes, `dead_lettered` the number
    that it moves to the dead letters."""

    changes: list[SettingChange]
    deleted: int
    dead_lettered: int


class SoughtGroup(GroupDescription, kw_only=True):
    """A group after a seek. `deleted` is the number of messages that nobody needs any more."""

    deleted: int


class DeletedGroup(msgspec.Struct, frozen=True):
    """Number of messages that were deleted with a group, because it alone had not settled them."""

    deleted: int


class SeekPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A place in a queue, given by exactly one of two fields. `unix_ms` is a time, and means the
    first message published at or after it. `offset` is an offset, the same in every partition."""

    unix_ms: Number | None = None
    offset: Annotated[int, msgspec.Meta(ge=0, le=limits.OFFSET_MAX)] | None = None


class SeekRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place where the group goes on: the queue's start, its end, or a place between."""

    to: Literal["earliest", "latest"] | SeekPlace


_NAMED: Final = msgspec.json.Decoder(
    naming(
        "GroupNaming",
        GroupSettings,
        "The settings of a group that a request names.",
        types={"start": Literal["earliest", "latest"] | StartAt | None},
    )
)
_CHANGE: Final = msgspec.json.Decoder(GroupChange)
_SEEK: Final = msgspec.json.Decoder(SeekRequest)


async def put_group(broker: Broker, request: Request) -> Response:
    """Create a group. The answer is 201 if the group was created, and 200 if it existed. An
    existing group is never changed: if a named setting has another value there, the answer is
    `settings_differ`. `start` only matters when the group is created. A queue without retention
    keeps its messages for its first group. If that group starts behind some of them, they are
    deleted; the request is refused (`would_delete`) unless `deletes_max` allows that many."""
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
    """Change the settings that are named, and no others. Null means the queue's own value. A
    change that would delete messages, or move them to the dead letters, is refused with their
    number (`would_delete`) unless `deletes_max` allows that many."""
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
    """Describe one group: its settings, its lag, and the state of each partition."""
    name, queue = group_name(request), find_queue(broker, request)
    return reply(await _describe(broker, request, queue, name))


async def _describe(broker: Broker, request: Request, queue: Queue, name: str) -> dict[str, object]:
    """Describe a group, as far as the rights of the request show it. Raises
    Refused(group_not_found)."""
    described = await broker.describe_group(principal(request), queue, name)
    return group_view(described, rights(request), queue.name)


async def delete_group(broker: Broker, request: Request) -> Response:
    """Delete a group. Messages that other groups or the retention need stay. Messages that this
    group alone had not settled are deleted with it; the request is refused with their number
    (`would_delete`) unless `deletes_max` allows that many. If it is the last group of a queue
    without retention, all messages stay for the next group."""
    name, queue = group_name(request), find_queue(broker, request)
    broker.metadata.find_group(principal(request), queue, name)  # else there is nothing to begin
    removed = await broker.delete_group(
        principal(request), queue, name, deletes_max=deletes_max(request), begin=_begin(request)
    )
    return reply(DeletedGroup(removed.deleted))


async def seek_group(broker: Broker, request: Request) -> Response:
    """Move a group to another place, and describe it as it is afterwards. Acks of earlier
    deliveries are stale. A seek past messages that nobody else needs is refused with their number
    (`would_delete`) unless `deletes_max` allows that many."""
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
    """Return a function that notes in the audit trail, before a change, how many messages it
    deletes."""
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
        "Create a group, if it does not exist.",
        put_group,
        {
            200: Answer("The group existed, and is unchanged.", CreatedGroup),
            201: Answer("The group was created.", CreatedGroup),
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
        {200: Answer("The group is deleted.", DeletedGroup)},
        needs="manage",
        query=(DELETES_MAX_PARAMETER,),
        errors=(*_FIND, "invalid_request", "group_not_found", "would_delete"),
        act="group.delete",
    ),
    Operation(
        "POST",
        f"{_GROUP}/seek",
        "Move a group to another place.",
        seek_group,
        {200: Answer("The group as it is now.", SoughtGroup)},
        needs="manage",
        request=SeekRequest,
        query=(DELETES_MAX_PARAMETER,),
        errors=(*_FIND, *_BODY, "group_not_found", "would_delete"),
        act="group.seek",
    ),
)

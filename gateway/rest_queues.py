"""REST: queues. Deleting one does not exist over HTTP; `tocsin admin delete-queue` does it."""

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.facts_values import DeadLetterQueue, QueueCounters, QueueGroup, QueuePartition
from gateway.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    limit_parameter,
    principal,
    query_flag,
    query_limit,
    queue_name,
    read_body,
    reply,
    rights,
)
from gateway.ports import BrokerPort
from gateway.rest_account import act_of, changes
from gateway.slices import Slices
from metadata.catalog import (
    DEAD_LETTERS,
    QueueSettings,
    check_name,
    other_dead_letter_queue,
    parse_settings,
)
from metadata.rights import Rights
from push import limits
from push.errors import Refused

LEFT_OUT: Final = ("settings", "partitions", "dead_letters")
"""What a brief list leaves out: more than half of it."""


class _Queue(msgspec.Struct, kw_only=True):
    name: str
    queue_id: str
    holder: str
    """The principal that created it."""
    created_unix_ms: int
    paused: bool
    """Nothing is given out to its groups; see `POST /v1/queues/{queue}/pause`."""
    depth: int
    """Messages that are retained."""
    bytes: int
    oldest_unix_ms: int | None
    """When the oldest of them was published; null: there is none."""
    counters: QueueCounters
    groups: list[QueueGroup]
    """By name."""


class QueueDescription(_Queue, kw_only=True):
    """A queue as `GET /v1/queues/{queue}` describes it; more fields may come."""

    settings: QueueSettings
    partitions: list[QueuePartition]
    dead_letters: DeadLetterQueue


class ListedQueue(_Queue, kw_only=True):
    """The same in the list of all queues, where `?brief=true` leaves out most of it."""

    settings: QueueSettings | msgspec.UnsetType = msgspec.UNSET
    """Left out: the list is brief."""
    partitions: list[QueuePartition] | msgspec.UnsetType = msgspec.UNSET
    """Left out: the list is brief."""
    dead_letters: DeadLetterQueue | msgspec.UnsetType = msgspec.UNSET
    """Left out: the list is brief."""


class QueueList(msgspec.Struct):
    """A page of queues, by name."""

    queues: list[ListedQueue]
    next: str | None = None
    """There are more: ask again with `?after=<this>`."""
    unavailable: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Queues of which a storage cluster does not answer; left out: there are none."""


async def put_queue(broker: BrokerPort, request: Request) -> Response:
    """201 where it was made, 200 where it was there; settings left out have their defaults. To name
    another queue for its dead letters needs `manage` there, too, and for its alerts `publish`: they
    are written into it."""
    name = queue_name(request)
    settings = parse_settings(await read_body(request), QueueSettings)
    other = other_dead_letter_queue(name, settings)
    if other is not None:
        rights(request).check("manage", other)
    for alert in settings.alerts:
        if alert.queue is not None:
            rights(request).check("publish", alert.queue)
    who = principal(request)
    act_of(request).about(changed=changes(_settings_of(broker, request, name), settings))
    _, created = await broker.create_queue(who, name, settings)
    act_of(request).about(created=created)
    return reply(await described(broker, request, name), 201 if created else 200)


def _settings_of(broker: BrokerPort, request: Request, name: str) -> QueueSettings | None:
    try:
        return broker.find_queue(principal(request), name).settings
    except Refused:
        return None


async def get_queue(broker: BrokerPort, request: Request) -> Response:
    """One queue."""
    queue = find_queue(broker, request)
    return reply(await described(broker, request, queue.name))


async def described(broker: BrokerPort, request: Request, name: str) -> dict[str, Any]:
    """A queue, as who asks may see it. Raises Refused(queue_not_found)."""
    return _seen(await broker.describe_queue(principal(request), name), rights(request))


def _seen(queue: dict[str, Any], allowed: Rights) -> dict[str, Any]:
    """How much another queue holds is for who has a right there."""
    dead = queue["dead_letters"]["queue"]
    is_other = queue["settings"]["dead_letter_queue"] == dead != queue["name"] + DEAD_LETTERS
    if is_other and not allowed.sees(dead):
        return {**queue, "dead_letters": {"queue": dead, "messages": None}}
    return queue


async def list_queues(broker: BrokerPort, request: Request) -> Response:
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
    slices = Slices()
    for name in names[:page]:
        await slices.turn()
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
    return reply({"queues": shown, **more})


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
        "/v1/queues/{queue}",
        "Create a queue, or change its settings.",
        put_queue,
        {
            200: Answer("It was there; its settings are now these.", QueueDescription),
            201: Answer("It was created.", QueueDescription),
        },
        needs="manage",
        request=QueueSettings,
        errors=(
            "invalid_name",
            "invalid_json",
            "invalid_request",
            "setting_fixed",
            "request_too_large",
            "too_many",
        ),
        act="queue.put",
    ),
    Operation(
        "GET",
        "/v1/queues/{queue}",
        "Describe a queue.",
        get_queue,
        {200: Answer("The queue.", QueueDescription)},
        needs="any",
        errors=("invalid_name", "queue_not_found"),
    ),
)

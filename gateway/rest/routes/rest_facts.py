"""REST: the facts about single keys: what they wait for, which wait, what is in flight."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.facts_values import Explained, HeldKeys, LeaseList
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    group_name,
    limit_parameter,
    principal,
    query_limit,
)
from gateway.rest.ports import BrokerPort
from gateway.upkeep_values import HeldPlace, Place
from metadata.catalog import Group, Queue, check_name
from push import limits
from push.errors import Refused
from runtime.http_forms import reply

LISTED_DEFAULT: Final = 100


async def explain_key(broker: BrokerPort, request: Request) -> Response:
    """Where a key goes, and for each group who has it, what it waits for, and until when. Takes
    nothing from anybody; a key that never was is told where it would go."""
    query = request.query_params
    key, group, after = query.get("key"), query.get("group"), query.get("after", "")
    if key is None or not 0 < len(key.encode()) <= limits.KEY_BYTES_MAX:
        raise Refused("invalid_request", f"key has 1 to {limits.KEY_BYTES_MAX} bytes")
    if group is not None:
        check_name(group, "group")
    if after:
        check_name(after, "after")
    queue = find_queue(broker, request)
    return reply(await broker.explaining.explain(principal(request), queue, key, group, after))


async def list_held(broker: BrokerPort, request: Request) -> Response:
    """Keys of which messages wait that were come across, and why, by partition and hash."""
    after = request.query_params.get("after")
    place = HeldPlace.parse(after) if after is not None else None
    return reply(await broker.holding.held(*_asked(broker, request), place))


async def list_leases(broker: BrokerPort, request: Request) -> Response:
    """What is in flight here, by partition and offset."""
    after = request.query_params.get("after")
    place = Place.parse(after) if after is not None else None
    return reply(await broker.holding.leases(*_asked(broker, request), place))


def _asked(broker: BrokerPort, request: Request) -> tuple[Queue, Group, int]:
    """The group that a request names, and how many it wants to see."""
    name = group_name(request)
    limit = query_limit(request, limits.KEYS_PER_LOOK_MAX, LISTED_DEFAULT)
    queue = find_queue(broker, request)
    return queue, broker.metadata.find_group(principal(request), queue, name), limit


_QUEUE: Final = "/v1/queues/{queue}"
_GROUP: Final = f"{_QUEUE}/groups/{{group}}"
_ERRORS: Final = ("invalid_name", "invalid_request", "queue_not_found", "group_not_found")
_TEXT: Final = {"type": "string"}
_AFTER: Final = Parameter("after", "Where the answer before said to go on.", _TEXT)

OPERATIONS: Final = (
    Operation(
        "GET",
        f"{_QUEUE}/explain",
        "Explain what a key waits for.",
        explain_key,
        {200: Answer("Where it goes, and what it waits for, by group.", Explained)},
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
        "List what is in flight.",
        list_leases,
        {200: Answer("The deliveries, each with its lease.", LeaseList)},
        needs="consume or manage",
        query=(limit_parameter(limits.KEYS_PER_LOOK_MAX), _AFTER),
        errors=_ERRORS,
    ),
)

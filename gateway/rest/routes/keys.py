"""REST: keys that wait and why, deliveries in flight, parked keys, and an operator's decisions
about parked keys.
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
from gateway.rest.accounting import act_of, key_fields
from gateway.rest.operation import (
    Answer,
    Operation,
    Parameter,
    find_queue,
    group_name,
    limit_parameter,
    principal,
    query_limit,
    read_body,
)
from metadata.catalog import Group, Queue, check_name
from push import limits
from push.errors import Refused
from push.places import Verb
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


_QUEUE: Final = "/v1/queues/{queue}"
_GROUP: Final = f"{_QUEUE}/groups/{{group}}"
_ERRORS: Final = ("invalid_name", "invalid_request", "queue_not_found", "group_not_found")
_TEXT: Final = {"type": "string"}
_AFTER: Final = Parameter("after", "The place to go on, from `next` of the last answer.", _TEXT)

OPERATIONS: Final = (
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

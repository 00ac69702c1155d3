"""REST: the parked keys of a group, and an operator's decisions about them."""

from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.rest.operation import (
    Answer,
    Operation,
    find_queue,
    group_name,
    limit_parameter,
    principal,
    query_limit,
    read_body,
)
from gateway.rest.ports import BrokerPort
from gateway.rest.rest_account import act_of, shown_keys
from gateway.upkeep_values import Decided, ParkedKeys, WhichKey
from push import limits
from push.errors import Refused
from push.places import Verb
from runtime.http_forms import decode, reply

KEYS_DEFAULT: Final = 100


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What becomes of parked keys. Exactly one of `key`, `key_hash` (as listed) and `all`."""

    decision: Verb
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_BYTES_MAX)] | None = None
    key_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None
    all: bool = False

    def which(self) -> WhichKey:
        """The key that is meant. Raises Refused(invalid_request)."""
        if (self.key is not None) + (self.key_hash is not None) + self.all != 1:
            raise Refused("invalid_request", "exactly one of key, key_hash and all")
        hashed = int(self.key_hash, 16) if self.key_hash is not None else None
        return WhichKey(key=self.key, key_hash=hashed, every=self.all)


DECISION: Final = msgspec.json.Decoder(DecisionRequest)


async def list_parked(broker: BrokerPort, request: Request) -> Response:
    """What is parked, by partition."""
    name = group_name(request)
    limit = query_limit(request, limits.PARKED_PER_CALL_MAX, KEYS_DEFAULT)
    queue = find_queue(broker, request)
    group = broker.metadata.find_group(principal(request), queue, name)
    return reply(await broker.parking.parked(queue, group, limit))


async def decide_parked(broker: BrokerPort, request: Request) -> Response:
    """Answered when the decision is durable."""
    name = group_name(request)
    wanted = decode(await read_body(request), DECISION)
    which, queue = wanted.which(), find_queue(broker, request)
    group = broker.metadata.find_group(principal(request), queue, name)
    act = act_of(request)
    act.about(decision=wanted.decision, **shown_keys(which, queue))
    decided = await broker.parking.decide(queue, group, wanted.decision, which)
    act.about(keys=len(decided.keys))
    return reply(decided)


_PATH: Final = "/v1/queues/{queue}/groups/{group}/parked"
_ERRORS: Final = ("invalid_name", "queue_not_found", "group_not_found", "invalid_request")

OPERATIONS: Final = (
    Operation(
        "GET",
        _PATH,
        "List parked keys.",
        list_parked,
        {200: Answer("The keys, and how many there are.", ParkedKeys)},
        needs="consume or manage",
        query=(limit_parameter(limits.PARKED_PER_CALL_MAX),),
        errors=_ERRORS,
    ),
    Operation(
        "POST",
        _PATH,
        "Retry, skip or release parked keys.",
        decide_parked,
        {200: Answer("It is durable; the keys as they were before.", Decided)},
        needs="manage",
        request=DecisionRequest,
        errors=(*_ERRORS, "invalid_json", "request_too_large", "not_parked", "unknown"),
        act="parked.decide",
    ),
)

"""REST: pulls, which take messages of a group, and settle them by their receipts."""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.models import NotLetIn, PulledMessage, PullSettled
from gateway.rest.accounting import actor_of, counter_of
from gateway.rest.operation import (
    Answer,
    Operation,
    admission,
    audit_of,
    authenticator,
    find_queue,
    group_name,
    principal,
    read_body,
)
from metadata.catalog import Group, GroupSettings, Queue
from push import limits
from push.errors import Refused
from runtime.addresses import taken_of_answer
from runtime.operation import decode, reply

PULL_MESSAGES_DEFAULT: Final = 10


class PullRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Largest number of messages to take, and how long to wait for the first one."""

    messages_max: Annotated[int, msgspec.Meta(ge=1, le=limits.PULL_MESSAGES_MAX)] = (
        PULL_MESSAGES_DEFAULT
    )
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=limits.PULL_WAIT_S_MAX)] = 0


class PullAnswer(msgspec.Struct):
    """The messages. The list is empty if none came in time."""

    messages: list[PulledMessage]


ReceiptTexts = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=256)]],
    msgspec.Meta(min_length=1, max_length=limits.PULL_MESSAGES_MAX),
]


class AckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipts of messages that were handled."""

    receipts: ReceiptTexts


class NackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipts of messages to return. They are delivered again after `delay_s`, or after the
    group's backoff. With `reject` they are not tried again; they go to the dead letters at once, or
    their keys are parked. `reason` is stored with the messages."""

    receipts: ReceiptTexts
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=limits.DELAY_S_MAX)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=limits.REASON_CHARS_MAX)] | None = None
    reject: bool = False


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipts whose leases are prolonged. Each lasts `lease_s` from now; if that is left out, as
    long as the group's lease."""

    receipts: ReceiptTexts
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=43_200)] | None = None


class SettleAnswer(msgspec.Struct, omit_defaults=True):
    """The number of receipts that counted, and the `stale` ones, whose delivery had ended.
    `invalid` lists receipts that are not of this group, if others of the request were."""

    settled: int
    stale: list[str]
    invalid: list[str] = []


_PULL: Final = msgspec.json.Decoder(PullRequest)
_ACK: Final = msgspec.json.Decoder(AckRequest)
_NACK: Final = msgspec.json.Decoder(NackRequest)
_EXTEND: Final = msgspec.json.Decoder(ExtendRequest)


async def pull(broker: Broker, request: Request) -> Response:
    """Take messages of a group. The answer comes as soon as there is at least one message, or after
    `wait_s`. The first pull of a group creates it (R11)."""
    name = group_name(request)
    wanted = decode(await read_body(request), _PULL)
    queue = find_queue(broker, request)
    group = await _group_for_pull(broker, request, queue, name)
    messages = await _pull_while_connected(broker, request, queue, group, wanted)
    answer = reply({"messages": messages})
    if messages:
        size = len(answer.body) - len(b'{"messages":[]}') - len(messages) + 1  # without commas
        counter = counter_of(request.scope, request.app.accounting, broker)
        counter.count_delivered(len(messages), size)
        counter.redeliveries += sum(message.attempt > 1 for message in messages)
        if size >= limits.MARK_BYTES:
            taken_bytes = partial(taken_of_answer, request.scope)
            broker.pulls.hand_over(queue, group, messages, size, taken_bytes)
    return answer


async def _group_for_pull(broker: Broker, request: Request, queue: Queue, name: str) -> Group:
    who = principal(request)
    try:
        return broker.metadata.find_group(who, queue, name)
    except Refused as error:
        if error.code.name != "group_not_found":
            raise
    group, _ = await broker.put_group(who, queue, name, GroupSettings(), None)
    asks = actor_of(request.scope)
    audit_of(request).note("group.create", asks, queue=queue.name, group=name)
    return group


async def _pull_while_connected(
    broker: Broker, request: Request, queue: Queue, group: Group, wanted: PullRequest
) -> list[PulledMessage]:
    """Wait for messages while the client does. If the client has gone, return the messages that it
    was given to the group at once, and not when their leases end."""
    admitted = admission(request)
    wait_s = 0 if broker.draining else min(wanted.wait_s, admitted.lasts_s)
    pull = broker.pulls.pull(queue, group, wanted.messages_max, wait_s, who=principal(request))
    pulling = asyncio.ensure_future(pull)
    gone = asyncio.ensure_future(_gone(request))
    waiting = _RevocableWait()
    auth = authenticator(request)
    auth.track(admitted.credential, waiting)
    if not auth.is_live(admitted.credential):  # it ended while the group was made
        waiting.revoked()
    kept = False
    try:
        await asyncio.wait((pulling, gone, waiting.end), return_when=asyncio.FIRST_COMPLETED)
        if waiting.end.done():
            raise NotLetIn("revoked", admitted.credential)
        kept = not gone.done()
        return pulling.result() if kept else []
    finally:  # also when the server, stopping at once, cancels this request
        auth.untrack(admitted.credential, waiting)
        gone.cancel()
        if not kept:
            pulling.cancel()
            await asyncio.wait((pulling,))
            if not pulling.cancelled() and pulling.exception() is None:
                broker.pulls.release(queue, group, pulling.result())


class _RevocableWait:
    """The wait of a pull, which ends when the credential of its request does (P11)."""

    def __init__(self) -> None:
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def revoked(self) -> None:
        """End the wait: the credential was revoked."""
        if not self.end.done():
            self.end.set_result(None)


async def _gone(request: Request) -> None:
    """Return when the client has gone; the body has been read to its end before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def ack(broker: Broker, request: Request) -> Response:
    """Settle messages by their receipts. The answer comes when this is durable, so the ack is
    confirmed (R21)."""
    wanted = decode(await read_body(request), _ACK)
    queue, group = _place(broker, request)
    return await _settle(broker.pulls.ack(queue, group, wanted.receipts))


async def nack(broker: Broker, request: Request) -> Response:
    """Return messages to their group by their receipts, or reject them."""
    wanted = decode(await read_body(request), _NACK)
    queue, group = _place(broker, request)
    if wanted.reject and wanted.delay_s is not None:
        raise Refused("invalid_request", "delay_s: a rejected message is not tried again")
    return await _settle(
        broker.pulls.nack(
            queue,
            group,
            wanted.receipts,
            wanted.delay_s,
            reason=wanted.reason,
            reject=wanted.reject,
        )
    )


async def extend(broker: Broker, request: Request) -> Response:
    """Prolong the leases of messages by their receipts."""
    wanted = decode(await read_body(request), _EXTEND)
    queue, group = _place(broker, request)
    return await _settle(broker.pulls.extend(queue, group, wanted.receipts, wanted.lease_s))


def _place(broker: Broker, request: Request) -> tuple[Queue, Group]:
    name, queue = group_name(request), find_queue(broker, request)
    return queue, broker.metadata.find_group(principal(request), queue, name)


async def _settle(acting: Awaitable[PullSettled]) -> Response:
    """Answer with what was settled. Raises Refused(invalid_receipt) if all receipts are invalid,
    because then nothing has changed; otherwise the answer names the invalid ones."""
    done = await acting
    if done.invalid and not done.settled and not done.stale:
        raise Refused("invalid_receipt")
    return reply(SettleAnswer(done.settled, done.stale, done.invalid))


_GROUP: Final = "/v1/queues/{queue}/groups/{group}"
_FIND: Final = ("invalid_name", "queue_not_found")
_BODY: Final = ("invalid_json", "invalid_request", "request_too_large")


def _settle_operation(verb: str, summary: str, handler: Any, request: Any) -> Operation:
    return Operation(
        "POST",
        f"{_GROUP}/{verb}",
        summary,
        handler,
        {200: Answer("Which receipts counted, and which did not.", SettleAnswer)},
        needs="consume",
        request=request,
        errors=(*_FIND, *_BODY, "group_not_found", "invalid_receipt", "overloaded"),
    )


OPERATIONS: Final = (
    Operation(
        "POST",
        f"{_GROUP}/pull",
        "Take messages.",
        pull,
        {200: Answer("The messages, each with its receipt.", PullAnswer)},
        needs="consume",
        request=PullRequest,
        errors=(*_FIND, *_BODY, "too_many", "limit_reached", "draining"),
    ),
    _settle_operation("ack", "Settle messages.", ack, AckRequest),
    _settle_operation("nack", "Return messages.", nack, NackRequest),
    _settle_operation("extend", "Prolong leases.", extend, ExtendRequest),
)

"""REST: publishing."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.broker import Broker
from gateway.deliverylog.log import DeliveryLog, PublishOrigin, trace_id_of
from gateway.publish.batch import PendingPublish
from gateway.rest.accounting import counter_of
from gateway.rest.operation import (
    Answer,
    Operation,
    allowance,
    principal,
    queue_name,
    read_body,
    rights,
)
from gateway.wire.frames import error_fields, receipt_fields
from metadata.catalog import Queue
from push import limits
from push.due import DueTicket
from push.errors import Refused, TocsinError
from push.message import Message
from push.places import Durability
from runtime.operation import decode, reply
from runtime.trace_context import Trace, Tracer, carried, current


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


def origin_of_request(
    log: DeliveryLog,
    queue: Queue,
    producer: str,
    messages: Sequence[Message],
    trace: Trace | None,
) -> PublishOrigin | None:
    """Return the origin of the messages that one request with this trace publishes. None: the log
    is off."""
    if not log.is_on:
        return None
    first = messages[0]
    return PublishOrigin(
        log,
        queue,
        log.now_ns() // 1000,
        len(messages),
        transport="http",
        producer=producer,
        produced_us=first.sent_unix_ms * 1000 if first.sent_unix_ms is not None else None,
        trace=trace.trace_id if trace is not None else trace_id_of(first),
    )


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
)

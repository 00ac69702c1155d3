"""The frames of `tocsin.v1`: typed structs, one decoder in, encoders out. Pure.

A WebSocket message, or a body of a long poll, carries one frame (an object) or several (an array of
objects). Places are columns of integers, not objects. A **delivery list** is

    [[partition, epoch, push, first, last, first, last, ...], ...]

and names offsets `first..last` of push number `push`, given under `epoch` in `partition`.

    decode            a client's message to its frames, checked as far as types can
    check_deliveries  checks the rest of a delivery list
    welcome, ok …     the broker's frames, encoded
    join              encoded frames to the messages that carry them
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Annotated, Final, Literal

import msgspec

from push import limits
from push.due import DueTicket, ticket_text
from push.errors import CODES, Refused, TocsinError
from push.message import Message

Ref = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Subscription = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]
Delivery = Annotated[
    list[Number], msgspec.Meta(min_length=5, max_length=2 * limits.RANGES_PER_FRAME_MAX + 3)
]
Deliveries = Annotated[list[Delivery], msgspec.Meta(max_length=limits.RANGES_PER_FRAME_MAX)]


class _ClientFrame(
    msgspec.Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True, gc=False
):
    pass


class Position(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A reader's place: the next offset that it wants of each partition. The token of R26."""

    queue_id: Annotated[str, msgspec.Meta(max_length=64)]
    partitions: Annotated[
        dict[str, Annotated[list[Number], msgspec.Meta(min_length=2, max_length=2)]],
        msgspec.Meta(max_length=limits.PARTITIONS_MAX),
    ]
    """Partition number → [generation, next offset]."""
    ring_epoch: Number = 1


class StartAt(msgspec.Struct, forbid_unknown_fields=True):
    """Start at the first message published at or after this time."""

    unix_ms: Number


class Hello(_ClientFrame, tag="hello"):
    """The first frame. `token` is for clients that cannot send an Authorization header, such as a
    browser."""

    token: str | None = None
    producer: Name | None = None
    """The name under which this client numbers its messages, the same after a reconnect."""
    client: Annotated[str, msgspec.Meta(max_length=limits.NAME_CHARS_MAX)] | None = None
    session: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    """The session that lost its transport, from a client that comes back."""
    linger_s: Annotated[float, msgspec.Meta(ge=0, le=limits.SESSION_LINGER_S_MAX)] = 0.0
    """How long the session waits for its client to come back. With 0, a client that cannot come
    back holds up nobody."""


class Held(_ClientFrame, tag="held"):
    """The deliveries of a subscription that a returning client holds, and how many messages it ever
    received there. Deliveries that it does not hold never arrived, and are given again (R22,
    R25)."""

    ref: Ref
    subscription: Subscription
    received: Number
    deliveries: Deliveries = []
    more: bool = False
    """Whether another frame goes on with the list."""


class Publish(_ClientFrame, tag="publish"):
    """Messages for one queue. Message i has the sequence `sequence + i`."""

    ref: Ref
    queue: Name
    messages: Annotated[
        list[Message], msgspec.Meta(min_length=1, max_length=limits.MESSAGES_PER_PUBLISH_MAX)
    ]
    sequence: Number | None = None
    resolved: Number = 0
    """Every sequence below this one has been answered (R6)."""
    produced_unix_us: Number | None = None
    """Time at which the first message was produced, by the client's clock. Clients send it if the
    broker's `welcome` has `clock_unix_us`."""
    clock_offset_us: Annotated[int, msgspec.Meta(ge=-(1 << 53) + 1, le=(1 << 53) - 1)] | None = None
    """The lead of the broker's clock over the client's, as the client measured it. It is sent when
    the client has a better measurement."""


class Subscribe(_ClientFrame, tag="subscribe", kw_only=True):
    """Become a consumer of `group`, or a reader if no group is named."""

    ref: Ref
    subscription: Subscription
    queue: Name
    group: Name | None = None
    credit: Annotated[int, msgspec.Meta(ge=0, le=limits.CREDIT_MAX)]
    """Credit granted in total so far (R25)."""
    start: Literal["earliest", "latest"] | StartAt | None = None
    """The place where a new group, or a reader, starts. The default is earliest for groups, and
    latest for readers."""
    deletes_max: Number = 0
    """For groups, the number of messages that may be deleted because they were kept for the first
    group and are before its start."""
    held: bool = False
    """Whether a `held` for this subscription follows; nothing is given before it. For groups, in a
    session that `hello` named."""
    position: Position | None = None
    """For readers, the place to go on from; excludes `start`."""
    keys: (
        Annotated[
            list[Annotated[str, msgspec.Meta(min_length=1, max_length=limits.KEY_BYTES_MAX)]],
            msgspec.Meta(min_length=1, max_length=limits.KEYS_PER_READER_MAX),
        ]
        | None
    ) = None
    """For readers, the keys whose messages they get; None: all."""


class Unsubscribe(_ClientFrame, tag="unsubscribe"):
    """Leave a subscription. Unsettled messages return to the group."""

    ref: Ref
    subscription: Subscription


class Credit(_ClientFrame, tag="credit"):
    """Grant credit. `granted` counts all messages ever granted on the subscription, and only grows
    (R25)."""

    subscription: Subscription
    granted: Number


class Ack(_ClientFrame, tag="ack"):
    """Settle deliveries. With `ref` the ack is confirmed: it is answered when it is durable
    (R21)."""

    subscription: Subscription
    deliveries: Deliveries
    started: Deliveries = []
    """Deliveries whose handler has begun (R19)."""
    ref: Ref | None = None


class Nack(_ClientFrame, tag="nack"):
    """Return deliveries. They come again after `delay_s`, or with None after the group's backoff,
    and their keys wait for them. With `ref` the nack is answered when count, delay and reason are
    durable."""

    subscription: Subscription
    deliveries: Deliveries
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=limits.DELAY_S_MAX)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=limits.REASON_CHARS_MAX)] | None = None
    reject: bool = False
    """Whether no further attempt can help; then they are dead-lettered, or their keys parked, at
    once."""
    ref: Ref | None = None


class Extend(_ClientFrame, tag="extend"):
    """Prolong leases to `lease_s` from now, or with None by the group's lease, and mark deliveries
    whose handlers have started."""

    subscription: Subscription
    deliveries: Deliveries = []
    started: Deliveries = []
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=43_200)] | None = None
    ref: Ref | None = None


class Ping(_ClientFrame, tag="ping"):
    """Request a `pong` with the same ref."""

    ref: Ref | None = None


class Auth(_ClientFrame, tag="auth"):
    """Present a fresh token, or a ticket, of the same principal. The session goes on with the
    access that it gives."""

    ref: Ref
    token: str


ClientFrame = (
    Hello | Auth | Publish | Subscribe | Unsubscribe | Credit | Ack | Nack | Extend | Held | Ping
)
ONE: Final[msgspec.json.Decoder[ClientFrame]] = msgspec.json.Decoder(ClientFrame)
MANY: Final[msgspec.json.Decoder[list[ClientFrame]]] = msgspec.json.Decoder(
    Annotated[list[ClientFrame], msgspec.Meta(max_length=limits.FRAMES_PER_MESSAGE_MAX)]
)
_ENCODE: Final = msgspec.json.Encoder().encode


# enforces: P12
def decode(data: bytes) -> list[ClientFrame]:
    """Decode the frames of one WebSocket message.

    Raises:
        Refused: invalid_json or invalid_request; the text names the field that is wrong.
    """
    try:
        if not data.isascii():
            data.decode()  # msgspec.Raw lets invalid UTF-8 through
        if data[:1] != b"{" and is_array(data):
            return MANY.decode(data)
        return [ONE.decode(data)]
    except UnicodeDecodeError as error:
        raise Refused("invalid_json", f"not UTF-8: {error}") from None
    except msgspec.ValidationError as error:
        raise Refused("invalid_request", str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused("invalid_json", str(error)) from None


def is_array(data: bytes) -> bool:
    """Whether a message is an array, which holds several frames."""
    return data.lstrip(b" \t\n\r")[:1] == b"["  # strips nothing, copies nothing


def welcome(
    *,
    session: str,
    broker: str,
    heartbeat_s: float,
    linger_s: float,
    resumed: list[int] | None,
    right_lasts_s: float,
    clock_unix_us: int | None = None,
) -> bytes:
    """Encode the answer to `hello`, with the bounds that a client must keep.

    `resumed` are the open subscriptions of a session that goes on here; None if it is a new one.
    `right_lasts_s` is the time after which its credentials expire; infinity if they last until
    they are revoked. `clock_unix_us` is the present time of the delivery log's clock; None if the
    log is off.
    """
    clock = {"clock_unix_us": clock_unix_us} if clock_unix_us is not None else {}
    return _ENCODE(
        {
            "type": "welcome",
            **clock,
            "session": session,
            "broker": broker,
            "heartbeat_s": heartbeat_s,
            "linger_s": linger_s,
            "resumed": resumed,
            "right_lasts_s": lasting(right_lasts_s),
            "frame_bytes_max": limits.FRAME_BYTES_MAX,
            "messages_per_publish_max": limits.MESSAGES_PER_PUBLISH_MAX,
            "in_flight_max": limits.IN_FLIGHT_PER_PRODUCER_MAX,
            "credit_max": limits.CREDIT_MAX,
        }
    )


def lasting(seconds: float) -> float | None:
    """Encode a duration for JSON; null means without end."""
    return None if seconds == inf else round(max(0.0, seconds), 3)


def ok(ref: int, **fields: object) -> bytes:
    """Encode the answer to the frame with this `ref`."""
    return _ENCODE({"type": "ok", "ref": ref, **fields})


def receipts_end(id_prefix: str, durability: Mapping[str, object]) -> bytes:
    """Encode the end of an answer to a publish, which is the same for all messages that were
    published together."""
    return b',"id_prefix":%b,"durability":%b}' % (_ENCODE(id_prefix), _ENCODE(durability))


def receipts(ref: int, outcomes: Sequence[object], end: bytes) -> bytes:
    """Encode the answer to a publish, as `ok` does. `end` is the result of `receipts_end`."""
    return b'{"type":"ok","ref":%d,"receipts":%b%b' % (ref, _ENCODE(outcomes), end)


def receipt_fields(outcome: DueTicket | TocsinError, id_prefix: str) -> dict[str, object]:
    """Return the fields of a message's receipt that is no place in the log. `id_prefix`: as in
    `PendingPublish`."""
    if isinstance(outcome, TocsinError):
        return error_fields(outcome)
    fields: dict[str, object] = {
        "partition": outcome.partition,
        "ticket": ticket_text(id_prefix, outcome.partition, outcome.number),
    }
    if outcome.due_unix_ms:
        fields["due_unix_ms"] = outcome.due_unix_ms
    return {**fields, "duplicate": True} if outcome.duplicate else fields


def error_fields(error: TocsinError) -> dict[str, object]:
    """Return an error as the fields of an `error` frame, or of one message's answer."""
    fields: dict[str, object] = {
        "code": error.code.name,
        "detail": error.detail,
        "retry": error.code.retry,
    }
    if error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    return fields


def code_fields(code: str) -> dict[str, object]:
    """Return the fields of an outcome that is only a code."""
    return {"code": code, "detail": CODES[code].meaning, "retry": CODES[code].retry}


def error(failure: TocsinError, ref: int | None = None, **more: object) -> bytes:
    """Encode an `error` frame. Without `ref` it concerns the session as a whole. `more` are further
    fields, in addition to those of the error itself."""
    fields: dict[str, object] = {"type": "error"}
    if ref is not None:
        fields["ref"] = ref
    return _ENCODE({**fields, **error_fields(failure), **failure.more, **more})


def push_head(
    *,
    subscription: int,
    partition: int,
    epoch: int,
    push: int,
    offset: int,
    attempt: int,
    id_prefix: str,
    published_unix_ms: int,
    skips: Sequence[int] = (),
) -> bytes:
    """Encode a consumer's push up to its messages; `push_frame` closes it. The offsets of the
    messages are those from `offset` on that are not in `skips`. A message without `id` has the id
    `id_prefix` + its offset."""
    more = f',"skips":[{",".join(map(str, skips))}]' if skips else ""
    if attempt > 1:
        more += f',"attempt":{attempt}'
    return (
        f'{{"type":"push","subscription":{subscription},"partition":{partition},'
        f'"epoch":{epoch},"push":{push},"offset":{offset}{more},"id_prefix":"{id_prefix}",'
        f'"published_unix_ms":{published_unix_ms},"messages":['
    ).encode()


def reader_head(
    *,
    subscription: int,
    partition: int,
    next_offset: int,
    id_prefix: str,
    published_unix_ms: int,
    offset: int | None = None,
    offsets: list[int] | None = None,
    gap: tuple[int, int] | None = None,
) -> bytes:
    """Encode a reader's push up to its messages. They are consecutive from `offset` on, or at
    `offsets` if a filter skipped some. `next_offset` is the reader's position afterwards. `gap` is
    (first, last) of messages that are no longer retained (R26)."""
    place = f',"offset":{offset}' if offset is not None else ""
    if offsets is not None:
        place += f',"offsets":{offsets}'.replace(" ", "")
    if gap is not None:
        place += f',"gap":[{gap[0]},{gap[1]}]'
    return (
        f'{{"type":"push","subscription":{subscription},"partition":{partition}{place},'
        f'"next":{next_offset},"id_prefix":"{id_prefix}",'
        f'"published_unix_ms":{published_unix_ms},"messages":['
    ).encode()


def reader_positions(subscription: int, places: dict[str, list[int]]) -> bytes:
    """Encode a filtered reader's push without messages. It says how far the reader has come, as in
    `Position`."""
    return _ENCODE(
        {"type": "push", "subscription": subscription, "positions": places, "messages": []}
    )


def push_frame(head: bytes, *messages: bytes | memoryview) -> bytes:
    """Encode the frame around encoded messages, which may come in pieces."""
    return b"".join((head, *messages, b"]}"))


def revoked(subscription: int, deliveries: list[list[int]], reason: str) -> bytes:
    """Encode that these deliveries are no longer the session's (R17); their acks will be stale."""
    return _ENCODE(
        {
            "type": "revoked",
            "subscription": subscription,
            "deliveries": deliveries,
            "reason": reason,
        }
    )


def drain(reconnect_after_s: float, reason: str) -> bytes:
    """Encode the request to come back, here or elsewhere, after `reconnect_after_s` seconds. The
    gateway closes the session when everything of it is settled, or at the end of the time that it
    gives."""
    return _ENCODE({"type": "drain", "reconnect_after_s": reconnect_after_s, "reason": reason})


def pong(ref: int | None, clock_unix_us: int | None = None) -> bytes:
    """Encode the answer to `ping`. `clock_unix_us` is the present time of the delivery log's clock;
    None if the log is off."""
    fields: dict[str, object] = {"type": "pong"}
    if ref is not None:
        fields["ref"] = ref
    if clock_unix_us is not None:
        fields["clock_unix_us"] = clock_unix_us
    return _ENCODE(fields)


def announce(size: int) -> bytes:
    """Encode the notice that the next message has about `size` bytes and may take its time."""
    return _ENCODE({"type": "announce", "bytes": size})


class Close(msgspec.Struct, frozen=True):
    """A close code. After 4000-4499 a client may come back, after 4500-4999 not."""

    code: int
    reason: str


DRAINING: Final = Close(4000, "the gateway is going down: reconnect")
HEARTBEAT: Final = Close(4001, "nothing was heard from you: reconnect")
HELLO_LATE: Final = Close(4002, "no hello in time: reconnect")
OVERLOADED: Final = Close(4003, "too much at once here: reconnect later")
UNAUTHORIZED: Final = Close(4401, "no valid credentials: reconnect with a fresh token")
PROTOCOL: Final = Close(4500, "a frame that breaks the protocol; the error frame says which")
REVOKED: Final = Close(4501, "the right to be here was revoked")
HELLO_FIRST: Final = Close(4502, "the first frame is hello, and only the first")
REPLACED: Final = Close(4503, "the session goes on over another transport")
TOO_LARGE: Final = Close(4509, "a frame over its limit")
CLOSES: Final = (
    DRAINING,
    HEARTBEAT,
    HELLO_LATE,
    OVERLOADED,
    UNAUTHORIZED,
    PROTOCOL,
    REVOKED,
    HELLO_FIRST,
    REPLACED,
    TOO_LARGE,
)


def check_deliveries(deliveries: list[list[int]]) -> None:
    """Check what the types of a delivery list do not say.

    Raises:
        Refused: invalid_request if a range has no end, if a range ends before it begins, or if
            there are more ranges than one frame may name.
    """
    ranges = 0
    for delivery in deliveries:
        if len(delivery) % 2 == 0:
            raise Refused(
                "invalid_request",
                "a delivery is [partition, epoch, push, first, last, …]: the last range has no end",
            )
        for index in range(3, len(delivery), 2):
            if delivery[index] > delivery[index + 1]:
                raise Refused(
                    "invalid_request",
                    f"a range ends before it begins: {delivery[index]}..{delivery[index + 1]}",
                )
        ranges += (len(delivery) - 3) // 2
    if ranges > limits.RANGES_PER_FRAME_MAX:
        raise Refused(
            "invalid_request", f"at most {limits.RANGES_PER_FRAME_MAX} ranges in one frame"
        )


# --- Frames to messages ---------------------------------------------------------------------------

JOINED_BYTES_MAX: Final = 64 * 1024
"""Largest size in bytes of an array of joined frames. The client handles it in one turn of its
own."""
ALONE_BYTES: Final = 16 * 1024
"""Size in bytes from which a frame travels alone, because joining would copy it again and save
little."""


def join(frames: list[bytes]) -> list[bytes]:
    """Join encoded frames to the messages that carry them, in order. Small frames go in one JSON
    array, so that a thousand receipts are one write, one header, and one wake-up of the client."""
    messages: list[bytes] = []
    group: list[bytes] = []
    size = 1  # "[", then each frame with the "," or "]" behind it
    for frame in frames:
        alone = len(frame) >= ALONE_BYTES
        if group and (alone or size + len(frame) + 1 > JOINED_BYTES_MAX):
            messages.append(_array(group))
            group, size = [], 1
        if alone:
            messages.append(frame)
        else:
            group.append(frame)
            size += len(frame) + 1
    if group:
        messages.append(_array(group))
    return messages


def _array(frames: list[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else b"[" + b",".join(frames) + b"]"

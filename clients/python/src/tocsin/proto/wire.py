"""Frames of `tocsin.v1` as this client writes and reads them. Pure.

A WebSocket message carries one frame, an object, or several, an array of objects. Deliveries are
named in columns: `[partition, epoch, push, first, last, first, last, ...]` are the offsets
`first..last` of push number `push`, given under `epoch` in `partition`.

The decoder ignores fields and frames that it does not know, so that a newer broker can add some.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from tocsin.errors import BrokerError, broker_error

SUBPROTOCOL: Final = "tocsin.v1"
DeliveryList = list[list[int]]
"""[[partition, epoch, push, first, last, first, last, ...], ...]"""

FRAMES_PER_MESSAGE_MAX: Final = 256
"""The number of frames that the broker accepts in one WebSocket message."""
MESSAGE_BYTES_AIM: Final = 64 * 1024
"""The number of bytes at which a WebSocket message gets no further frame; one frame may be larger.
The broker handles a message in one go. Larger ones are no faster, and other clients wait for
longer. measured: docs/benchmarks/noisy.md"""
RANGES_PER_FRAME_MAX: Final = 1000
"""The number of ranges named in one ack, nack or extend; the broker accepts a few more."""


# --- what this client sends ---------------------------------------------------------------------


class OutgoingMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """A message as it is published. Exactly one of `body` and `body_base64` is set."""

    key: str | None = None
    body: Any = msgspec.UNSET
    body_base64: str | msgspec.UnsetType = msgspec.UNSET
    content_type: str | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    ttl_s: float | None = None
    sent_unix_ms: int | None = None
    deliver_at_unix_ms: int | None = None
    delay_s: float | None = None


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reader's position: per partition, as text, the log's generation and the next offset.

    Keep it with `to_json`, and read it again with `from_json`.
    """

    queue_id: str
    partitions: dict[str, tuple[int, int]]
    ring_epoch: int = 1

    def to_json(self) -> bytes:
        """Return the position as JSON text, for storing it."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Position":
        """Return the position that `to_json` wrote. Raises ValueError if the text is no
        position."""
        return msgspec.json.decode(text, type=cls)


class StartAt(msgspec.Struct):
    """A start at the first message published at or after this time."""

    unix_ms: int


class _Sent(msgspec.Struct, tag_field="type", omit_defaults=True, kw_only=True):
    pass


class Hello(_Sent, tag="hello"):
    """The first frame on each connection. It opens a session, or names the `session` to
    continue."""

    producer: str | None = None
    client: str | None = None
    token: str | None = None
    session: str | None = None
    linger_s: float | None = None


class Auth(_Sent, tag="auth"):
    """A fresh token, sent before the present one expires."""

    ref: int
    token: str


class Subscribe(_Sent, tag="subscribe"):
    """The request to become a consumer of `group`, or without one a reader."""

    ref: int
    subscription: int
    queue: str
    credit: int
    group: str | None = None
    start: Literal["earliest", "latest"] | StartAt | None = None
    deletes_max: int | None = None
    """The number of messages that this request may delete, by creating the queue's first group with
    a start after them; None allows none."""
    position: Position | None = None
    keys: list[str] | None = None
    held: bool | None = None
    """Whether a `held` frame follows, with the deliveries that this subscription held before its
    gateway ended; None means no."""


class Unsubscribe(_Sent, tag="unsubscribe"):
    """The request to end a subscription."""

    ref: int
    subscription: int


class Credit(_Sent, tag="credit"):
    """A grant of credit. `granted` counts all messages ever granted on the subscription (R25)."""

    subscription: int
    granted: int


class Ack(_Sent, tag="ack"):
    """The ack of deliveries; with `ref` it is answered once it is durable."""

    subscription: int
    deliveries: DeliveryList
    started: DeliveryList = []
    ref: int | None = None


class Nack(_Sent, tag="nack"):
    """The return of deliveries, or their rejection."""

    subscription: int
    deliveries: DeliveryList
    delay_s: float | None = None
    reason: str | None = None
    reject: bool = False
    ref: int | None = None


class Extend(_Sent, tag="extend"):
    """The request to extend leases, and the marks of started messages (R19)."""

    subscription: int
    deliveries: DeliveryList = []
    started: DeliveryList = []
    lease_s: float | None = None
    ref: int | None = None


class Held(_Sent, tag="held"):
    """The deliveries that a resuming client holds (R22, R25).

    `received` counts all messages ever received on the subscription. `more` says that another
    `held` frame continues the list.
    """

    ref: int
    subscription: int
    received: int
    deliveries: DeliveryList
    more: bool = False


class Ping(_Sent, tag="ping"):
    """The request for a sign of life, which `pong` answers."""

    ref: int | None = None


SentFrame = Hello | Auth | Subscribe | Unsubscribe | Credit | Ack | Nack | Extend | Held | Ping
_ENCODER: Final = msgspec.json.Encoder()
encode = _ENCODER.encode


def publish_frame(
    ref: int,
    queue: str,
    sequence: int,
    resolved: int,
    messages: Iterable[bytes],
    *,
    produced_unix_us: int | None = None,
    clock_offset_us: int | None = None,
) -> bytes:
    """Return a publish frame of encoded messages; message i has the sequence `sequence + i`.

    `produced_unix_us` and `clock_offset_us` are only for brokers whose welcome has their clock.
    """
    head = b'{"type":"publish","ref":%d,"queue":%b,"sequence":%d,"resolved":%d,' % (
        ref,
        encode(queue),
        sequence,
        resolved,
    )
    if produced_unix_us is not None:
        head += b'"produced_unix_us":%d,' % produced_unix_us
    if clock_offset_us is not None:
        head += b'"clock_offset_us":%d,' % clock_offset_us
    return b"".join((head, b'"messages":[', b",".join(messages), b"]}"))


# --- what the broker sends ----------------------------------------------------------------------


class AnswerBody(msgspec.Struct, gc=False):
    """The answer to one message of a publish that is not stored in the log: a ticket, because it is
    scheduled, or with a `code` an error."""

    code: str = ""
    detail: str = ""
    retry: bool = False
    retry_after_s: float | None = None
    partition: int = -1
    ticket: str | None = None
    due_unix_ms: int | None = None
    """The time at which the message is due; None for a duplicate."""
    duplicate: bool = False

    def exception(self) -> BrokerError:
        """Return the exception for this error."""
        return broker_error(
            self.code, self.detail, retry=self.retry, retry_after_s=self.retry_after_s
        )


class Durability(msgspec.Struct, frozen=True):
    """The promise of a receipt: the number of copies with the message on disk, and the level."""

    level: str = ""
    copies: int = 1


PublishAnswer = list[int | bool] | AnswerBody
"""[partition, offset], [partition, offset, true] of a duplicate, or an object: the ticket of a
message that is scheduled, or the error of one that was not stored."""


class Verdict(msgspec.Struct, rename={"first": "from", "last": "to"}):
    """The verdict on a reader's position in one partition (R26), and where reading continues."""

    partition: int
    verdict: str
    first: int | None = None
    """The first lost offset of a gap, up to `last`. Otherwise the offset at which reading
    continues."""
    last: int | None = None
    generation: int = 0
    next: int | None = None
    reason: str = ""

    @property
    def gap(self) -> tuple[int, int] | None:
        """The first and last lost offset; None without a gap."""
        if self.verdict != "gap" or self.first is None or self.last is None:
            return None
        return self.first, self.last

    @property
    def place(self) -> tuple[int, int] | None:
        """The log's generation and the offset at which reading continues; None if the verdict names
        no offset."""
        following = self.next
        if following is None:
            gap = self.gap
            following = gap[1] + 1 if gap else self.first
        return None if following is None else (self.generation, following)


class _Received(msgspec.Struct, tag_field="type", kw_only=True):
    pass


class Welcome(_Received, tag="welcome"):
    """The answer to hello, with the bounds that this client keeps."""

    session: str = ""
    broker: str = ""
    heartbeat_s: float = 20.0
    linger_s: float = 0.0
    resumed: list[int] | None = None
    right_lasts_s: float | None = None
    """The time until the credentials expire, in seconds; None if they hold until they are
    revoked."""
    clock_unix_us: int | None = None
    """The broker's clock, in Unix microseconds; None if it accepts no times of production."""
    frame_bytes_max: int = 2 * 1_048_576
    messages_per_publish_max: int = 1000
    in_flight_max: int = 10_000
    credit_max: int = 10_000


class Ok(_Received, tag="ok"):
    """The answer to the request `ref`; the fields that are set depend on the request."""

    ref: int
    receipts: list[PublishAnswer] = []
    """publish: one receipt or error for each message, in order (R5)."""
    durability: Durability = Durability()
    id_prefix: str | None = None
    """publish: the beginning of the id of a message without one; "<partition>-<offset>" follows. A
    message that is scheduled has its ticket for an id."""
    lease_s: float | None = None
    """subscribe: the lease of a delivery, in seconds."""
    queue_id: str = ""
    positions: list[Verdict] = []
    """subscribe of a reader: where it starts, per partition."""
    settled: int = 0
    """ack, nack, extend: the number of deliveries to which it applied; `stale` names the others."""
    stale: DeliveryList = []
    revoked: DeliveryList = []
    """held: the deliveries that are no longer this client's."""
    right_lasts_s: float | None = None
    """auth: the time for which the token is valid, in seconds; None if until it is revoked."""
    clock_unix_us: int | None = None
    """ping: the broker's clock, in Unix microseconds. The session makes an Ok of each pong that has
    a ref."""


class Error(_Received, tag="error"):
    """The refusal of the request `ref`. Without ref it concerns `subscription` or `deliveries`, or
    if they are not set, the session."""

    code: str
    detail: str = ""
    retry: bool = False
    retry_after_s: float | None = None
    ref: int | None = None
    subscription: int | None = None
    """Without ref: the subscription that has ended, or whose frame was wrong."""
    deliveries: DeliveryList = []
    """not_delivered: the deliveries that were never given to this session."""
    stale: DeliveryList = []
    deleted: int = 0
    """would_delete: the number of messages that the request would delete."""

    def exception(self) -> BrokerError:
        """Return the exception for this error."""
        return broker_error(
            self.code,
            self.detail,
            retry=self.retry,
            retry_after_s=self.retry_after_s,
            more={"deleted": self.deleted},
        )


class PushedMessage(msgspec.Struct, gc=False):
    """A message as it is delivered. The body is left undecoded."""

    key: str | None = None
    body: msgspec.Raw = msgspec.Raw()
    body_base64: str | None = None
    content_type: str | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    sent_unix_ms: int | None = None
    deliver_at_unix_ms: int | None = None


class Push(_Received, tag="push"):
    """Messages of one partition. Their offsets are consecutive from `offset` on, except for
    `skips`; for a reader of some keys they are `offsets`. To a reader, a push may also bring a
    `gap`, or `positions` alone."""

    subscription: int
    partition: int = -1
    messages: list[PushedMessage] = []
    id_prefix: str = ""
    published_unix_ms: int = 0
    offset: int | None = None
    epoch: int = 0
    push: int = 0
    attempt: int = 1
    skips: list[int] = []
    """Offsets between the first and the last message that are not in this push."""
    offsets: list[int] | None = None
    next: int | None = None
    """Readers: the next offset wanted after this push."""
    gap: tuple[int, int] | None = None
    positions: dict[str, tuple[int, int]] = {}
    """Readers of some keys: the position in each partition, as in Position, in a push without
    messages."""

    def places(self) -> Sequence[int]:
        """Return the offset of each message, in order."""
        if self.offsets is not None:
            return self.offsets
        first = self.offset or 0
        whole = range(first, first + len(self.messages) + len(self.skips))
        if not self.skips:
            return whole
        skips = set(self.skips)
        return [offset for offset in whole if offset not in skips]


class Revoked(_Received, tag="revoked"):
    """The deliveries that are no longer this session's (R17)."""

    subscription: int
    deliveries: DeliveryList = []
    reason: str = ""


class Drain(_Received, tag="drain"):
    """The notice that the gateway ends: settle what is held, and reconnect, here or elsewhere. The
    gateway closes the socket soon."""

    reconnect_after_s: float = 0.0
    reason: str = ""


class Pong(_Received, tag="pong"):
    """The answer to the ping `ref`; without ref, a sign of life."""

    ref: int | None = None
    clock_unix_us: int | None = None


class Announce(_Received, tag="announce"):
    """The approximate size of the next message. This client needs no warning, and ignores it."""

    bytes: int


ReceivedFrame = Welcome | Ok | Error | Push | Revoked | Drain | Pong | Announce
_ONE: Final[msgspec.json.Decoder[ReceivedFrame]] = msgspec.json.Decoder(ReceivedFrame)
_MANY: Final[msgspec.json.Decoder[list[ReceivedFrame]]] = msgspec.json.Decoder(list[ReceivedFrame])
_PARTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_KIND: Final[msgspec.json.Decoder[dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any])
_KNOWN: Final = {"welcome", "ok", "error", "push", "revoked", "drain", "pong", "announce"}


def decode(data: bytes) -> list[ReceivedFrame]:
    """Return the frames of one WebSocket message; frames of an unknown type are left out.

    Raises:
        msgspec.DecodeError: the data is not JSON, or a known frame has a field of a wrong type.
    """
    try:
        return _MANY.decode(data) if data[:1] == b"[" else [_ONE.decode(data)]
    except msgspec.ValidationError:
        parts = _PARTS.decode(data) if data[:1] == b"[" else [msgspec.Raw(data)]
        return [_ONE.decode(part) for part in parts if _KIND.decode(part).get("type") in _KNOWN]


# --- times --------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_at(unix_ms: int | None) -> datetime | None:
    """Return the time of these Unix milliseconds, in UTC; None for None, and beyond the year
    9999."""
    if unix_ms is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return None


def unix_ms_after(when: datetime) -> int:
    """Return the first whole Unix millisecond that is not before a time with a time zone."""
    return -((_EPOCH - when) // timedelta(milliseconds=1))


# --- several frames in a message ----------------------------------------------------------------

_TOKEN: Final = re.compile(rb'("type":"auth","ref":\d+,"token":")(?:[^"\\]|\\.)*')


def without_tokens(message: bytes) -> bytes:
    """Return a message as a trace shows it: without the tokens of its `auth` frames."""
    return _TOKEN.sub(b"\\1\xe2\x80\xa6", message) if b'"type":"auth"' in message else message


def join_frames(frames: Sequence[bytes], bytes_aim: int = MESSAGE_BYTES_AIM) -> list[bytes]:
    """Join frames, in order, into messages of about `bytes_aim` bytes and FRAMES_PER_MESSAGE_MAX
    frames at most. A larger frame is a message of its own."""
    if len(frames) == 1:
        return [frames[0]]
    joined: list[bytes] = []
    start = size = 0
    for index, frame in enumerate(frames):
        if index > start and (
            size + len(frame) > bytes_aim or index - start >= FRAMES_PER_MESSAGE_MAX
        ):
            joined.append(_joined(frames[start:index]))
            start, size = index, 0
        size += len(frame) + 1
    if start < len(frames):
        joined.append(_joined(frames[start:]))
    return joined


def _joined(frames: Sequence[bytes]) -> bytes:
    return frames[0] if len(frames) == 1 else b"[%b]" % b",".join(frames)


# --- delivery lists -----------------------------------------------------------------------------


def ranges_of(offsets: list[int]) -> list[int]:
    """Return offsets as first, last, first, last, ... in order. Sorts the list in place."""
    offsets.sort()
    first, last = offsets[0], offsets[-1]
    if last - first == len(offsets) - 1:
        return [first, last]
    pairs: list[int] = []
    previous = first
    for offset in offsets:
        if offset > previous + 1:
            pairs += (first, previous)
            first = offset
        previous = offset
    pairs += (first, previous)
    return pairs


def offsets_of(row: Sequence[int]) -> Iterator[int]:
    """Yield the offsets that a row of a delivery list names."""
    for first, last in zip(row[3::2], row[4::2], strict=False):
        yield from range(first, last + 1)


def delivery_list(places: Iterable[tuple[tuple[int, int, int], int]]) -> DeliveryList:
    """Return the delivery list of (place, offset) pairs. A place is (partition, epoch, push)."""
    offsets: dict[tuple[int, int, int], list[int]] = {}
    for place, offset in places:
        offsets.setdefault(place, []).append(offset)
    return [[*place, *ranges_of(found)] for place, found in offsets.items()]


def split_deliveries(deliveries: Sequence[list[int]]) -> Iterator[DeliveryList]:
    """Split a delivery list into parts of RANGES_PER_FRAME_MAX ranges at most, one for each frame.
    A row with more is a part of its own."""
    part: DeliveryList = []
    count = 0
    for column in deliveries:
        if part and count + len(column) // 2 > RANGES_PER_FRAME_MAX:
            yield part
            part, count = [], 0
        part.append(column)
        count += len(column) // 2
    if part:
        yield part

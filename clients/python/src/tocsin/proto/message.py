"""Messages as a program receives them. Pure.

A body is decoded when it is read. `HeldPush` is the common part of the held messages of one push.
"""

import base64
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, Protocol

import msgspec

from tocsin.errors import InvalidRequest, UndecodableBody
from tocsin.proto import wire

_DECODE: Final = msgspec.json.decode
DELAY_S_MAX: Final = 86_400.0
LEASE_S_MAX: Final = 43_200.0
REASON_CHARS_MAX: Final = 1024
_NO_HEADERS: Final[dict[str, str]] = {}


class Published:
    """The part of a message that its publisher gave, and where it came from."""

    __slots__ = ("_message", "_push", "key")

    key: str | None
    """The routing and ordering key. None means that the message has no promised order."""

    def __init__(self, push: wire.Push, message: wire.PushedMessage) -> None:
        self._push = push
        self._message = message
        self.key = message.key

    @property
    def body(self) -> Any:
        """The JSON value, or the bytes of a binary message. Decoded at each access.

        Raises:
            UndecodableBody: a number in it is out of range (`1e400`, or an integer of more than
                4,300 digits). `body_bytes` has the body nevertheless.
        """
        message = self._message
        if message.body_base64 is not None:
            return base64.b64decode(message.body_base64)
        try:
            return _DECODE(message.body)
        except msgspec.DecodeError as error:
            raise UndecodableBody(self.id, len(message.body), str(error)) from None

    @property
    def body_bytes(self) -> bytes:
        """The JSON text as it was published, byte for byte, or the bytes of a binary message."""
        message = self._message
        if message.body_base64 is not None:
            return base64.b64decode(message.body_base64)
        return bytes(message.body)

    @property
    def is_binary(self) -> bool:
        """Whether the body was published as bytes and not as JSON."""
        return self._message.body_base64 is not None

    @property
    def content_type(self) -> str | None:
        """The type of the body that the publisher named; None if it named none."""
        return self._message.content_type

    @property
    def headers(self) -> dict[str, str]:
        """The publisher's headers; empty if it gave none."""
        return self._message.headers or _NO_HEADERS.copy()

    @property
    def id(self) -> str:
        """The id that the publisher gave. Without one, a name that the broker made."""
        return self._message.id or ""

    @property
    def partition(self) -> int:
        """The number of the message's partition."""
        return self._push.partition

    @property
    def published_unix_ms(self) -> int:
        """The time at which the broker accepted the message, in Unix milliseconds."""
        return self._push.published_unix_ms

    @property
    def sent_unix_ms(self) -> int | None:
        """The time at which the publisher says that it sent the message, in Unix milliseconds; None
        if it does not say."""
        return self._message.sent_unix_ms

    @property
    def deliver_at_unix_ms(self) -> int | None:
        """The time at which the message was due, in Unix milliseconds; None if it was not
        scheduled.

        None, too, if the message was not pushed but pulled, peeked at, or listed as a dead letter.
        """
        return self._message.deliver_at_unix_ms

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} key={self.key!r}>"


class Content(Published):
    """The content of a message that is in a log. While this object exists, the bytes of the whole
    push or answer that brought the message stay in memory."""

    __slots__ = ("offset",)

    offset: int
    """The offset of the message in its partition."""

    def __init__(self, push: wire.Push, offset: int, message: wire.PushedMessage) -> None:
        super().__init__(push, message)
        self.offset = offset

    @property
    def id(self) -> str:
        """The id that the publisher gave. Without one, a name made of the log and the offset, or if
        the message was scheduled, its ticket."""
        return self._message.id or f"{self._push.id_prefix}{self.offset}"

    @property
    def log(self) -> str:
        """The name of the history that the offset counts in: "<queue's
        id>-<generation>-<partition>".

        A log and an offset never name two different messages. Empty if the message was not pushed
        but pulled, peeked at, or listed as a dead letter.
        """
        return self._push.id_prefix[:-1]


class ReadMessage(Content):
    """A message of a reader. It cannot be settled."""

    __slots__ = ()


class State(IntEnum):
    """The state of a delivery at this consumer, which holds the delivery in the first three states,
    up to HANDED."""

    QUEUED = 0  # an earlier message of its key is held
    READY = 1
    HANDED = 2
    ACKED = 3
    NACKED = 4
    GONE = 5  # revoked, its lease over, or the session lost


class Settler(Protocol):
    """The subscription of a message, which carries out the calls on it."""

    def ack(self, message: "Message") -> None:
        """Queue an ack of the message."""

    async def ack_confirmed(self, message: "Message") -> None:
        """Ack the message, and wait until the ack is durable."""

    def nack(
        self, message: "Message", delay_s: float | None, reason: str | None, *, reject: bool = False
    ) -> None:
        """Queue a nack of the message, or with `reject` its rejection."""

    async def nack_confirmed(
        self, message: "Message", delay_s: float | None, reason: str | None, *, reject: bool = False
    ) -> None:
        """Nack the message, or with `reject` reject it, and wait until that is durable."""

    async def extend(self, message: "Message", lease_s: float | None) -> None:
        """Extend the message's lease, and wait for the broker's answer. None takes the group's
        lease."""

    def gone(self, message: "Message") -> bool:
        """Note that a message that was handed out is no longer this consumer's. Returns whether its
        handler still runs.

        If so, no message of its key is handed out until `DeliveryLedger.on_handler_end`.
        """


class HeldPush:
    """A received push, with its messages and their leases, while any of the messages is held."""

    __slots__ = (
        "acked",
        "deadline",
        "deliveries",
        "doubtful",
        "extend_at",
        "left",
        "place",
        "push",
        "settler",
    )

    def __init__(
        self, push: wire.Push, settler: Settler, deadline: float, extend_at: float
    ) -> None:
        self.push = push
        self.settler = settler
        self.deadline = deadline
        """The earliest end of a lease among the held messages of this push, in the loop's seconds,
        by this client's clock; infinity for none."""
        self.extend_at = extend_at
        """The time at which to request more time for the messages of this push, in the loop's
        seconds; infinity while nothing is to be requested."""
        self.place = (push.partition, push.epoch, push.push)
        self.left = len(push.messages)
        self.deliveries: list[Message] = []
        """All messages of this push by offset, ascending, those that are no longer held
        included."""
        self.acked: list[int] = []
        self.doubtful = False
        """Whether its messages may have been in the hands of a consumer that died.

        If so, each is marked as started before its handler runs, so that a message that kills its
        process is counted (R19).
        """

    @property
    def due(self) -> float:
        """The time at which a lease of this push ends or has to be extended, whichever is earlier,
        in the loop's seconds."""
        return min(self.deadline, self.extend_at)

    def held_messages(self) -> Iterator["Message"]:
        """Return the messages of this push that the consumer still holds."""
        return (message for message in self.deliveries if message.state <= State.HANDED)


class Message(Content):
    """A message that this consumer received, until it is settled."""

    __slots__ = ("deadline", "held", "state")

    def __init__(self, held: HeldPush, offset: int, message: wire.PushedMessage) -> None:
        self._push = held.push
        self._message = message
        self.offset = offset
        self.key = message.key
        self.held = held
        self.state = State.READY
        self.deadline = held.deadline

    @property
    def attempt(self) -> int:
        """The number of this attempt at the message: 1, and 1 more for each earlier attempt of the
        group that counts."""
        return self._push.attempt

    async def ack(self, *, confirm: bool = False) -> None:
        """Settle the message. Returns when the ack is queued, or with `confirm` when it is durable
        (P5).

        Acking an acked message again without `confirm` does nothing.

        Raises:
            StaleDelivery: the message is no longer this consumer's, because its lease or the
                session ended, it was revoked, or it was nacked. With `confirm` also if it was acked
                before.
            OutcomeUnknown: only with `confirm`: the connection was lost before the answer, and the
                broker can no longer tell whether the ack counted. The message may come again.
        """
        if confirm:
            await self.held.settler.ack_confirmed(self)
        else:
            self.held.settler.ack(self)

    async def nack(
        self, delay_s: float | None = None, reason: str | None = None, *, confirm: bool = False
    ) -> None:
        """Return the message to the group. Later messages of its key wait for it.

        It is delivered again after `delay_s` seconds, or after the group's backoff if that is None.
        After the last attempt it moves to the dead letters instead, or its key is parked. `reason`,
        up to 1,024 characters, is stored with the attempt. Returns when the nack is queued: count,
        delay and reason may still be lost with the connection or the broker. With `confirm`,
        returns when they are durable.

        Raises:
            StaleDelivery: the message is no longer this consumer's.
            OutcomeUnknown: only with `confirm`: the connection was lost before the answer, and the
                broker can no longer tell whether the nack counted. The message comes again either
                way, unless this was its last attempt.
            InvalidRequest: `delay_s` is not between 0 and 86,400 seconds, or `reason` is no text of
                at most 1,024 characters.
        """
        # Checked here, because the broker would refuse all frames that travel with it.
        if delay_s is not None and not (_is_number(delay_s) and 0 <= delay_s <= DELAY_S_MAX):
            detail = f"delay_s must be between 0 and {DELAY_S_MAX:g} seconds, not {delay_s!r}"
            raise InvalidRequest("invalid_request", detail)
        _check_reason(reason)
        if confirm:
            await self.held.settler.nack_confirmed(self, delay_s, reason)
        else:
            self.held.settler.nack(self, delay_s, reason)

    async def reject(self, reason: str | None = None, *, confirm: bool = False) -> None:
        """Return the message for good, because no further attempt can help.

        It moves to the dead letters at once, or its key is parked if the settings of the group or
        queue say so, as after its last attempt. Returns when the rejection is queued; if that is
        lost with the connection or the broker, the message comes again. With `confirm`, returns
        when the rejection is durable.

        Raises:
            StaleDelivery: the message is no longer this consumer's.
            OutcomeUnknown: only with `confirm`: the connection was lost before the answer, and the
                broker can no longer tell whether the rejection counted. The message may come again.
            InvalidRequest: `reason` is no text of at most 1,024 characters.
        """
        _check_reason(reason)
        if confirm:
            await self.held.settler.nack_confirmed(self, None, reason, reject=True)
        else:
            self.held.settler.nack(self, None, reason, reject=True)

    async def extend(self, lease_s: float | None = None) -> None:
        """Extend the lease to `lease_s` seconds from now, or less if the group's `lease_total_s`
        ends before; None takes the group's lease.

        Returns when the broker has agreed.

        Raises:
            StaleDelivery: the message is no longer this consumer's, or its lease may not be
                extended.
            InvalidRequest: `lease_s` is not above 0 and at most 43,200 seconds.
        """
        if lease_s is not None and not (_is_number(lease_s) and 0 < lease_s <= LEASE_S_MAX):
            detail = f"lease_s must be above 0 and at most {LEASE_S_MAX:g} seconds, not {lease_s!r}"
            raise InvalidRequest("invalid_request", detail)
        await self.held.settler.extend(self, lease_s)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_reason(reason: str | None) -> None:
    if reason is None:
        return
    if not isinstance(reason, str):
        detail = f"reason must be a text, not {reason!r}"
        raise InvalidRequest("invalid_request", detail)
    if len(reason) > REASON_CHARS_MAX:
        detail = f"reason may have at most {REASON_CHARS_MAX} characters, not {len(reason)}"
        raise InvalidRequest("invalid_request", detail)
    try:
        reason.encode()
    except UnicodeEncodeError:  # it would spoil everything in the same WebSocket message
        raise InvalidRequest(
            "invalid_request", "reason is no text, because it holds a lone surrogate"
        ) from None

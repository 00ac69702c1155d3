"""The exceptions of the SDK.

TocsinError                  base of all
├── CannotConnect            no broker answers
│   ├── NotABroker           something that is no broker answers
│   └── NoToken              the function that returns a token has failed
├── SessionEnded             the broker ended the session for good (close codes 4500-4999)
├── ClientClosed             the client, or the subscription, has been closed
├── BrokerError              the broker answered with an error; `code` says which
│   ├── InvalidRequest       a name, a field, a message or a receipt breaks a rule
│   │   └── TooLarge         a message or a request is over its limit
│   ├── Unauthorized         no valid token, or one without the right
│   ├── NotFound             the named object does not exist
│   │   ├── QueueNotFound
│   │   └── GroupNotFound
│   ├── Conflict             it contradicts the present state, or a bound is reached
│   │   ├── SettingsDiffer   the object exists with other settings
│   │   ├── WouldDelete      it would delete messages, and was not carried out
│   │   └── PositionUnknown  the position belongs to another queue or another history
│   ├── Busy                 refused now; the same request may succeed later
│   └── OutcomeUnknown       it may have been carried out; repeat it under the same id
├── PublishTimeout           no final answer within `timeout_s`; may have been stored
├── PublishManyFailed        some messages of a publish_many have no receipt
├── UndecodableBody          a body has a number that Python cannot hold
├── StaleDelivery            the delivery has expired or was revoked; the message comes again
├── Gap                      messages that a reader wanted are no longer retained
├── PositionInUse            another reader uses the name of this position
└── PositionDamaged          the file of a reader's position is invalid
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tocsin.answers import Difference, Verdict

__all__ = [
    "BrokerError",
    "Busy",
    "CannotConnect",
    "ClientClosed",
    "Conflict",
    "Gap",
    "GroupNotFound",
    "InvalidRequest",
    "NoToken",
    "NotABroker",
    "NotFound",
    "OutcomeUnknown",
    "PositionDamaged",
    "PositionInUse",
    "PositionUnknown",
    "PublishManyFailed",
    "PublishTimeout",
    "QueueNotFound",
    "SessionEnded",
    "SettingsDiffer",
    "StaleDelivery",
    "TocsinError",
    "TooLarge",
    "Unauthorized",
    "UndecodableBody",
    "WouldDelete",
    "broker_error",
]


class TocsinError(Exception):
    """Base of all exceptions of the SDK."""


class CannotConnect(TocsinError):
    """No broker answers at the URL, or the answer is not usable."""


class NotABroker(CannotConnect):
    """The server that answers at the URL is no Tocsin broker. Check the URL, and the proxies on the
    way."""


class NoToken(CannotConnect):
    """The function given as `token` has raised, or has returned no valid token. A first attempt to
    connect and calls over HTTP raise this. A client that was connected before tries again later, as
    it does when no broker answers."""


class SessionEnded(TocsinError):
    """The broker ended the session for good. `close_code` is 4500-4999."""

    def __init__(self, close_code: int, reason: str) -> None:
        self.close_code = close_code
        self.reason = reason
        super().__init__(f"the broker ended the session: {reason} ({close_code})")


class ClientClosed(TocsinError):
    """The client, or the subscription, has been closed."""

    def __init__(self, text: str = "the client has been closed") -> None:
        super().__init__(text)


class BrokerError(TocsinError):
    """The broker answered with an error.

    `code` is stable and made for programs; `detail` is a sentence for people. `retry` says whether
    the same request may succeed later. `retry_after_s` is the broker's advice, in seconds, or None.
    """

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        retry: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.retry = retry
        self.retry_after_s = retry_after_s
        super().__init__(f"{detail} ({code})" if detail else code)


class InvalidRequest(BrokerError):
    """A name, a field, a message or a receipt breaks a rule; `detail` names it."""


class TooLarge(InvalidRequest):
    """A message or a request is over its limit."""


class Unauthorized(BrokerError):
    """The token is missing, invalid, or without the right to do this."""


class NotFound(BrokerError):
    """The named object does not exist."""


class QueueNotFound(NotFound):
    """The queue does not exist."""


class GroupNotFound(NotFound):
    """The queue has no group of this name."""


class Conflict(BrokerError):
    """The request contradicts the present state, or a bound is reached that waiting does not
    change. `detail` says which."""


class SettingsDiffer(Conflict):
    """A queue or group exists with other settings than those of the call, and was not changed.

    `differences` has the name of each setting, its `current` value and its `requested` value. A
    group without a value of its own has that of its queue. `update_queue` and `update_group` change
    settings.
    """

    differences: Sequence[Difference] = ()


class WouldDelete(Conflict):
    """A call would delete messages, and was not carried out.

    Such calls are a change of settings, a seek, the deletion of a group, and the creation of the
    first group of a queue if that group starts after existing messages. `deleted` is the number of
    messages to delete, `dead_lettered` the number to move to the dead letters. With a `deletes_max`
    of their sum the call is carried out. If `subscribe` raises this, pass it `deletes_max`, or call
    `create_group` first.
    """

    deleted: int = 0
    dead_lettered: int = 0

    @property
    def messages(self) -> int:
        """The sum of both numbers: the `deletes_max` with which the call is carried out."""
        return self.deleted + self.dead_lettered


class PositionUnknown(Conflict):
    """A reader's position belongs to another queue, or to another history of its log.

    Nobody can say what the reader missed. `verdicts` names the partitions concerned; it is empty if
    the whole queue is another one. Begin again with a `start`, or set `on_unknown` to continue.
    """

    def __init__(
        self,
        code: str,
        detail: str = "",
        *,
        retry: bool = False,
        retry_after_s: float | None = None,
        verdicts: Sequence[Verdict] = (),
    ) -> None:
        super().__init__(code, detail, retry=retry, retry_after_s=retry_after_s)
        self.verdicts = tuple(verdicts)


class Busy(BrokerError):
    """The broker refuses the request now. The same request may succeed later."""


class OutcomeUnknown(BrokerError):
    """The request may have been carried out. A publish under an `id` may be repeated safely under
    the same one."""


class PublishTimeout(TocsinError):
    """No final answer came within `timeout_s`. The message may have been stored.

    Publish it again under the same `id`, and it is stored once. `last` is the broker's last
    refusal, or None.
    """

    def __init__(self, last: BrokerError | None = None) -> None:
        self.last = last
        why = f"; the broker's last answer: {last}" if last else ""
        super().__init__(f"the message was not confirmed in time{why}")


class PublishManyFailed(TocsinError):
    """Some messages of a publish_many have no receipt: they were refused, or nobody knows whether
    they are stored.

    `outcomes` has one entry for each message, in order: its Receipt, or its exception.
    """

    def __init__(self, outcomes: Sequence[object]) -> None:
        self.outcomes = outcomes
        failed = [outcome for outcome in outcomes if isinstance(outcome, TocsinError)]
        super().__init__(f"{len(failed)} of {len(outcomes)} messages failed, first: {failed[0]}")


class UndecodableBody(TocsinError):
    """A body is valid JSON that Python cannot hold, because a number in it is out of range.

    Examples are `1e400` and an integer of more than 4,300 digits. `message.body_bytes` has the body
    as it was published, for another parser. Ack or nack the message like any other.
    """

    def __init__(self, message_id: str, size: int, why: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"the body of message {message_id} is JSON of {size} bytes that Python cannot hold "
            f"({why}); message.body_bytes has these bytes"
        )


class StaleDelivery(TocsinError):
    """The delivery is no longer this consumer's, and cannot be settled.

    Its lease has expired, it was revoked or settled, or the connection was lost meanwhile. A
    message that was not settled will be delivered again.
    """


class Gap(TocsinError):
    """Messages `first`..`last` of `partition` are no longer retained. Continue the iteration to
    read after them."""

    def __init__(self, partition: int, first: int, last: int) -> None:
        self.partition = partition
        self.first = first
        self.last = last
        super().__init__(f"offsets {first} to {last} of partition {partition} are gone")


class PositionInUse(TocsinError):
    """Another reader, in this or another process, keeps its position under this `name`. Close that
    reader first, or give this one another `name`."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        super().__init__(
            f"another reader keeps its position under the name {name!r} ({path} is locked); "
            "close it, or choose another name"
        )


class PositionDamaged(TocsinError):
    """The file at `path` holds no valid position of this reader. Restore it from a copy, or delete
    it; then the reader begins at its `start`."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(
            f"{path} holds no position of this reader ({why}); restore it from a copy, or "
            "delete it to begin at the reader's `start`"
        )


_CLASSES: Final[dict[str, type[BrokerError]]] = {
    "invalid_json": InvalidRequest,
    "invalid_request": InvalidRequest,
    "invalid_message": InvalidRequest,
    "invalid_name": InvalidRequest,
    "invalid_receipt": InvalidRequest,
    "unsupported_encoding": InvalidRequest,
    "message_too_large": TooLarge,
    "request_too_large": TooLarge,
    "unauthorized": Unauthorized,
    "forbidden": Unauthorized,
    "origin_refused": Unauthorized,
    "queue_not_found": QueueNotFound,
    "group_not_found": GroupNotFound,
    "session_not_found": NotFound,
    "not_found": NotFound,
    "id_unknown": NotFound,
    "setting_fixed": Conflict,
    "settings_differ": SettingsDiffer,
    "would_delete": WouldDelete,
    "sequence_too_old": Conflict,
    "already_subscribed": Conflict,
    "not_subscribed": Conflict,
    "not_delivered": Conflict,
    "not_parked": Conflict,
    "already_due": Conflict,
    "cancelled": Conflict,
    "ambiguous": Conflict,
    "limit_reached": Conflict,
    "position_unknown": PositionUnknown,
    "unknown": OutcomeUnknown,
}


def broker_error(
    code: str,
    detail: str = "",
    *,
    retry: bool = False,
    retry_after_s: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> BrokerError:
    """Return the exception for an error code.

    A code that this version does not know becomes Busy if trying again may help, otherwise
    BrokerError. `more` has the other fields of the problem document.
    """
    kind = _CLASSES.get(code, Busy if retry else BrokerError)
    error = kind(code, detail, retry=retry, retry_after_s=retry_after_s)
    if isinstance(error, SettingsDiffer):
        error.differences = (more or {}).get("differences", ())
    elif isinstance(error, WouldDelete):
        error.deleted = (more or {}).get("deleted", 0)
        error.dead_lettered = (more or {}).get("dead_lettered", 0)
    return error

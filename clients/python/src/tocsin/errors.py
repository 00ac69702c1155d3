"""The exceptions of the SDK.

TocsinError                  base of all
├── CannotConnect            no broker answers
│   ├── NotABroker           what answers is not one
│   └── NoToken              the function that is to return a token has failed
├── SessionEnded             the broker ended the session for good (close codes 4500-4999)
├── ClientClosed             the client, or the subscription, has been closed
├── BrokerError              the broker answered with an error; `code` says which
│   ├── InvalidRequest       a name, a field, a message or a receipt breaks a rule
│   │   └── TooLarge         a message or a request is over its limit
│   ├── Unauthorized         no valid token, or one without the right
│   ├── NotFound             no such thing
│   │   ├── QueueNotFound
│   │   └── GroupNotFound
│   ├── Conflict             it contradicts what is there already, or a bound is reached
│   │   ├── SettingsDiffer   it exists with other settings than those that were named
│   │   ├── WouldDelete      it would delete messages, and was not done
│   │   └── PositionUnknown  the position belongs to another queue or another history
│   ├── Busy                 refused now; the same request may succeed later
│   └── OutcomeUnknown       perhaps it happened: send again under the same id
├── PublishTimeout           no final answer within `timeout_s`; perhaps it was stored
├── PublishManyFailed        some messages of a publish_many were not stored
├── UndecodableBody          a body has a number that Python cannot hold; its bytes are there
├── StaleDelivery            the delivery has expired or was revoked; the message comes again
├── Gap                      messages that a reader wanted are no longer retained
├── PositionInUse            another reader has the name under which a position is kept
└── PositionDamaged          what was kept of a reader's position is none
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
    """Base of what the SDK raises."""


class CannotConnect(TocsinError):
    """No broker answers at the URL."""


class NotABroker(CannotConnect):
    """Something answers at the URL that is no Tocsin broker: look at the URL, and at the proxies
    on the way."""


class NoToken(CannotConnect):
    """The function that was given as `token` has raised, or returned what is no token. A client
    that is connected tries again later, as where no broker answers."""


class SessionEnded(TocsinError):
    """The broker ended the session for good. `close_code` is 4401 or 4500-4999."""

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

    `code` is stable and made for programs; `detail` is a sentence for people; `retry` says whether
    the same request may succeed later; `retry_after_s` is the broker's advice, in seconds, if any.
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
    """No valid token, or one without the right to do this."""


class NotFound(BrokerError):
    """There is no such thing."""


class QueueNotFound(NotFound):
    """There is no such queue."""


class GroupNotFound(NotFound):
    """The queue has no such group."""


class Conflict(BrokerError):
    """The request contradicts what is there already, or a bound is reached that waiting does not
    change: `detail` says which."""


class SettingsDiffer(Conflict):
    """A queue or a group exists with other settings than those that were named for it, and nothing
    of it was changed. `differences` has the name of each, the `current` value, and the `requested`
    one; a group that has no value of its own has that of its queue. `update_queue` and
    `update_group` change settings."""

    differences: Sequence[Difference] = ()


class WouldDelete(Conflict):
    """A change of settings, a seek, the deletion of a group, or the first group of a queue that
    begins behind its messages, would delete messages, and was not done. `deleted`: how many;
    `dead_lettered`: how many it would move to the dead letters. With a `deletes_max` of their sum
    it is done; where a `subscribe` says it, `create_group` makes the group before."""

    deleted: int = 0
    dead_lettered: int = 0

    @property
    def messages(self) -> int:
        """All of them: the `deletes_max` with which it is done."""
        return self.deleted + self.dead_lettered


class PositionUnknown(Conflict):
    """A reader's position belongs to another queue or another history of its log: what was missed
    cannot be said. `verdicts` are those of the partitions in which it does; none where the
    whole queue is another one. Begin anew, with a `start`, or let `on_unknown` say where to go on.
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
    """Refused now; the same request may succeed later."""


class OutcomeUnknown(BrokerError):
    """Perhaps it happened, perhaps not. Doing it again under the same id is safe."""


class PublishTimeout(TocsinError):
    """No final answer within `timeout_s`. Perhaps the message was stored: publish it again under
    the same `id`, and it is stored once. `last` is the broker's last refusal, if there was one."""

    def __init__(self, last: BrokerError | None = None) -> None:
        self.last = last
        why = f"; the broker's last answer: {last}" if last else ""
        super().__init__(f"the message was not confirmed in time{why}")


class PublishManyFailed(TocsinError):
    """Some messages of a publish_many were not stored.

    `outcomes` has one entry per message, in order: its Receipt, or its exception.
    """

    def __init__(self, outcomes: Sequence[object]) -> None:
        self.outcomes = outcomes
        failed = [outcome for outcome in outcomes if isinstance(outcome, TocsinError)]
        super().__init__(f"{len(failed)} of {len(outcomes)} messages failed, first: {failed[0]}")


class UndecodableBody(TocsinError):
    """A body is valid JSON and yet no Python value: a number in it is out of range, as `1e400` or
    an integer of more than 4,300 digits is. `message.body_bytes` has it as it was published, for
    a parser of your choice; ack the message, or nack it, as any other."""

    def __init__(self, message_id: str, size: int, why: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"the body of message {message_id} is JSON of {size} bytes that Python cannot hold "
            f"({why}); message.body_bytes has these bytes"
        )


class StaleDelivery(TocsinError):
    """The delivery is no longer this consumer's: its lease has expired, it was revoked or settled,
    or the connection was lost meanwhile. An unsettled message will be delivered again."""


class Gap(TocsinError):
    """Messages `first`..`last` of `partition` are no longer retained. Reading goes on behind them
    when the iteration is continued."""

    def __init__(self, partition: int, first: int, last: int) -> None:
        self.partition = partition
        self.first = first
        self.last = last
        super().__init__(f"offsets {first} to {last} of partition {partition} are gone")


class PositionInUse(TocsinError):
    """Another reader, in this process or another one, keeps its position under this `name`: close
    that one first, or give this one a `name` of its own."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        super().__init__(
            f"another reader keeps its position under the name {name!r} ({path} is locked): "
            "close it, or choose another name"
        )


class PositionDamaged(TocsinError):
    """The file at `path` was to hold a reader's position and does not: bring it back from a copy,
    or delete it, and the reader begins at its `start`."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(
            f"{path} holds no position of this reader ({why}): bring it back from a copy, or "
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
    "setting_fixed": Conflict,
    "settings_differ": SettingsDiffer,
    "would_delete": WouldDelete,
    "sequence_too_old": Conflict,
    "already_subscribed": Conflict,
    "not_subscribed": Conflict,
    "not_delivered": Conflict,
    "not_parked": Conflict,
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
    """The exception for an error code. A code that this version does not know becomes Busy when
    trying again may help, BrokerError when not. `more`: what its problem document says besides."""
    kind = _CLASSES.get(code, Busy if retry else BrokerError)
    error = kind(code, detail, retry=retry, retry_after_s=retry_after_s)
    if isinstance(error, SettingsDiffer):
        error.differences = (more or {}).get("differences", ())
    elif isinstance(error, WouldDelete):
        error.deleted = (more or {}).get("deleted", 0)
        error.dead_lettered = (more or {}).get("dead_lettered", 0)
    return error

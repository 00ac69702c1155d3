"""Calls on scheduled messages, which wait until they are due: list, show, cancel, change."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from tocsin.errors import InvalidRequest
from tocsin.io.requests import TIMEOUT_S, decoded_as, path_to, query_of
from tocsin.proto import wire
from tocsin.proto.message import Published
from tocsin.proto.new_message import NewMessage, encode_message

PER_PAGE_MAX: Final = 1000
"""The largest number of messages that the broker returns in one list."""


class _Scheduled(wire.PushedMessage, kw_only=True):
    ticket: str
    partition: int
    due_unix_ms: int
    published_unix_ms: int = 0
    bytes: int = 0
    ttl_s: float | None = None


class _ListAnswer(msgspec.Struct):
    messages: list[_Scheduled]
    count: int = 0
    next: str | None = None


class ScheduledMessage(Published):
    """A message that waits until it is due.

    Its content is there only if the caller may read it, and in the answers of `scheduled` and
    `scheduled_message`. Otherwise `has_content` is False, `body` is None, and of what the publisher
    gave, only key and id are known.
    """

    __slots__ = ("bytes", "due_unix_ms", "ticket", "ttl_s")

    def __init__(self, shown: _Scheduled) -> None:
        head = wire.Push(
            subscription=0, partition=shown.partition, published_unix_ms=shown.published_unix_ms
        )
        super().__init__(head, shown)
        self.ticket = shown.ticket
        """The name that the broker gave to the message. It is the id, too, if the publisher gave
        none."""
        self.due_unix_ms = shown.due_unix_ms
        """The time at which the message is due, in Unix milliseconds."""
        self.bytes = shown.bytes
        """The size of the whole message as JSON, in bytes."""
        self.ttl_s = shown.ttl_s
        """The time after which it is no longer delivered, in seconds; None if there is none."""

    @property
    def has_content(self) -> bool:
        """Whether the answer has the content of the message."""
        return self.is_binary or bool(len(self._message.body))

    @property
    def body(self) -> Any:
        """The JSON value, or the bytes of a binary message; None without content. Decoded at each
        access.

        Raises:
            UndecodableBody: as for a message that is received.
        """
        return super().body if self.has_content else None

    @property
    def deliver_at_unix_ms(self) -> int:
        """The time at which the message is due, in Unix milliseconds."""
        return self.due_unix_ms

    @property
    def due(self) -> datetime | None:
        """The time at which the message is due, in UTC; None only if it is beyond the year 9999."""
        return wire.time_at(self.due_unix_ms)


@dataclass(frozen=True, slots=True)
class ScheduledList:
    """Scheduled messages, the one that is due first in front."""

    messages: list[ScheduledMessage]
    count: int
    """The number of all messages that wait in the queue, of every key."""
    next: str | None
    """The value of `after` with which the list goes on; None if there are no more."""


_LIST: Final = msgspec.json.Decoder(_ListAnswer)
_ONE: Final = msgspec.json.Decoder(_Scheduled)


class ScheduledCalls(ABC):
    """The calls of `Client` and `Http` on scheduled messages.

    A message is named by its id and its key, or by its ticket alone. An id that holds a slash, or
    is "." or "..", cannot be named in a path, so its message is named by the ticket. Each call
    raises CannotConnect if no broker answers, and otherwise the broker's error.
    """

    @abstractmethod
    async def _call(
        self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
    ) -> bytes: ...

    async def scheduled(
        self, queue: str, *, key: str | None = None, limit: int = 100, after: str | None = None
    ) -> ScheduledList:
        """Return the scheduled messages of a queue that are due first, up to `limit`.

        Args:
            key: return only messages of this key.
            limit: return at most this many.
            after: go on where an earlier answer ended, at its `next`.
        """
        found: list[ScheduledMessage] = []
        while True:
            left = max(1, min(limit - len(found), PER_PAGE_MAX))
            page = await self._scheduled_page(queue, key, left, after)
            found += map(ScheduledMessage, page.messages)
            after = page.next
            if after is None or len(found) >= limit:
                return ScheduledList(found, page.count, after)

    async def all_scheduled(
        self, queue: str, *, key: str | None = None
    ) -> AsyncGenerator[ScheduledMessage, None]:
        """Yield all scheduled messages of a queue, or of a key, the one that is due first in front.

        They are fetched page by page. A message that is moved or becomes due meanwhile may be
        missing.
        """
        after: str | None = None
        while True:
            page = await self._scheduled_page(queue, key, PER_PAGE_MAX, after)
            for one in page.messages:
                yield ScheduledMessage(one)
            after = page.next
            if after is None:
                return

    async def _scheduled_page(
        self, queue: str, key: str | None, limit: int, after: str | None
    ) -> _ListAnswer:
        query = query_of({"key": key, "limit": limit, "after": after})
        path = f"{path_to('queues', queue)}/scheduled{query}"
        return decoded_as(_LIST, await self._call("GET", path))

    async def scheduled_message(
        self, queue: str, id: str, *, key: str | None = None
    ) -> ScheduledMessage:
        """Return a scheduled message, by its id and its key, or by its ticket alone.

        Raises:
            NotFound: no message of this id is scheduled.
            Conflict: it is due already, or cancelled, or messages of several keys have this id.
            QueueNotFound. Unauthorized.
        """
        path = _path_to_one(queue, id, key)
        return ScheduledMessage(decoded_as(_ONE, await self._call("GET", path)))

    async def cancel_scheduled(
        self, queue: str, id: str, *, key: str | None = None
    ) -> ScheduledMessage:
        """Cancel a scheduled message, for good; durable when this returns. Returns what it was,
        without its content.

        A publish under its key and id is answered `cancelled` from then on, within the queue's
        dedup window.

        Raises:
            NotFound, Conflict: as `scheduled_message` does.
            Unauthorized: the caller may neither manage the queue nor publish under the key.
        """
        path = _path_to_one(queue, id, key)
        return ScheduledMessage(decoded_as(_ONE, await self._call("DELETE", path)))

    async def change_scheduled(
        self,
        queue: str,
        id: str,
        *,
        key: str | None = None,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        body: Any = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        ttl_s: float | None = None,
        content_type: str | None = None,
    ) -> ScheduledMessage:
        """Give a scheduled message another time, another content, or both; durable when this
        returns. Returns what it is now, without its content. It keeps its id and its ticket.

        Args:
            deliver_at: the time at which it is due, with a time zone. One that has passed means at
                once.
            delay_s: the same in seconds from the moment at which the broker receives the call.
            body: another body. It takes the place of the whole content, so that headers, `ttl_s`
                and `content_type` that are not given with it are gone.

        Raises:
            NotFound, Conflict: as `scheduled_message` does.
            InvalidRequest: neither a time nor a body is given, both times are, or one breaks a
                rule.
            Unauthorized: the caller may neither manage the queue nor publish under the key.
        """
        change = NewMessage(
            body,
            headers=headers,
            ttl_s=ttl_s,
            content_type=content_type,
            deliver_at=deliver_at,
            delay_s=delay_s,
        )
        encoded = msgspec.Raw(encode_message(change))
        path = _path_to_one(queue, id, key)
        return ScheduledMessage(decoded_as(_ONE, await self._call("POST", path, encoded)))


def _path_to_one(queue: str, id: str, key: str | None) -> str:
    if "/" in id or id in ("", ".", ".."):
        raise InvalidRequest(
            "invalid_request", f"{id!r} cannot be named in a path; name the message by its ticket"
        )
    return path_to("queues", queue, "scheduled", id) + query_of({"key": key})

"""Operators' calls, without an event loop."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

import tocsin
from tocsin.answers import (
    Decided,
    Explanation,
    HeldKey,
    Lease,
    ParkedKeys,
    QueueDescription,
    SessionDescription,
)
from tocsin.api.admin import DeadLetter, Decision, PeekedMessage
from tocsin.api.scheduled import ScheduledList, ScheduledMessage
from tocsin.blocking.loop import LoopThread

T = TypeVar("T")


class AdminCalls:
    """The operators' calls of tocsin.Client, without an event loop."""

    _client: tocsin.Client
    _loop: LoopThread

    def pause_queue(self, name: str) -> QueueDescription:
        """Stop giving messages of a queue to groups, durably, until `resume_queue`; returns the
        queue's description. Publishing continues, and so do readers. Pausing a paused queue does
        nothing."""
        return self._loop.call(lambda: self._client.pause_queue(name))

    def resume_queue(self, name: str) -> QueueDescription:
        """End a pause; returns the queue's description. Resuming a queue that is not paused does
        nothing."""
        return self._loop.call(lambda: self._client.resume_queue(name))

    def purge_queue(self, name: str, *, group: str | None) -> int:
        """Drop the messages that a group has not settled, or with None all messages, for all groups
        and readers. Returns the number of messages. `tocsin.Client.purge_queue` describes the
        details."""
        return self._loop.call(lambda: self._client.purge_queue(name, group=group))

    def peek(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: str | None = None,
        limit: int = 10,
    ) -> list[PeekedMessage]:
        """Return messages of a queue without taking them. `tocsin.Client.peek` describes the
        arguments."""
        return self._loop.call(
            lambda: self._client.peek(
                queue, group=group, partition=partition, offset=offset, key=key, limit=limit
            )
        )

    def dead_letters(
        self, queue: str, *, key: str | None = None, reason: str | None = None
    ) -> list[DeadLetter]:
        """Return the dead letters of a queue that have not been sent back, oldest first. All of
        them are held in memory."""

        async def work() -> list[DeadLetter]:
            found = self._client.dead_letters(queue, key=key, reason=reason)
            return [letter async for letter in found]

        return self._loop.call(work)

    def redrive_dead_letters(
        self,
        queue: str,
        *,
        key: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Send dead letters of a queue back into it; returns their number.

        `tocsin.Client.redrive_dead_letters` describes the arguments. `progress` is called in the
        client's thread.
        """
        return self._loop.call(
            lambda: self._client.redrive_dead_letters(
                queue, key=key, reason=reason, limit=limit, progress=progress
            )
        )

    def parked_keys(self, queue: str, group: str, *, limit: int = 100) -> ParkedKeys:
        """Return parked keys of a group, which wait for an operator, and the number of all of them,
        as `tocsin.Client.parked_keys` does."""
        return self._loop.call(lambda: self._client.parked_keys(queue, group, limit=limit))

    def explain(self, queue: str, key: str, *, group: str | None = None) -> Explanation:
        """Explain why a key waits, for each group. `tocsin.Client.explain` describes the answer."""
        return self._loop.call(lambda: self._client.explain(queue, key, group=group))

    def held_keys(self, queue: str, group: str) -> list[HeldKey]:
        """Return the keys of a group that have waiting messages, each with its reason. All of them
        are held in memory."""
        return self._all(lambda: self._client.held_keys(queue, group))

    def leases(self, queue: str, group: str) -> list[Lease]:
        """Return the deliveries in flight of a group at the gateway that answers. All of them are
        held in memory."""
        return self._all(lambda: self._client.leases(queue, group))

    def sessions(self) -> list[SessionDescription]:
        """Return the sessions at the gateway that answers: this principal's or, with the right
        `manage` on all queues, all those of the tenant. All of them are held in memory."""
        return self._all(self._client.sessions)

    def _all(self, listing: Callable[[], AsyncIterator[T]]) -> list[T]:
        async def work() -> list[T]:
            return [one async for one in listing()]

        return self._loop.call(work)

    def scheduled(
        self, queue: str, *, key: str | None = None, limit: int = 100, after: str | None = None
    ) -> ScheduledList:
        """Return the scheduled messages of a queue that are due first, up to `limit`.
        `tocsin.Client.scheduled` describes the arguments."""
        return self._loop.call(
            lambda: self._client.scheduled(queue, key=key, limit=limit, after=after)
        )

    def all_scheduled(self, queue: str, *, key: str | None = None) -> list[ScheduledMessage]:
        """Return all scheduled messages of a queue, or of a key, the one that is due first in
        front. All of them are held in memory."""
        return self._all(lambda: self._client.all_scheduled(queue, key=key))

    def scheduled_message(self, queue: str, id: str, *, key: str | None = None) -> ScheduledMessage:
        """Return a scheduled message, by its id and its key, or by its ticket alone.
        `tocsin.Client.scheduled_message` describes the errors."""
        return self._loop.call(lambda: self._client.scheduled_message(queue, id, key=key))

    def cancel_scheduled(self, queue: str, id: str, *, key: str | None = None) -> ScheduledMessage:
        """Cancel a scheduled message, for good; returns what it was, without its content.
        `tocsin.Client.cancel_scheduled` describes the errors."""
        return self._loop.call(lambda: self._client.cancel_scheduled(queue, id, key=key))

    def change_scheduled(
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
        """Give a scheduled message another time, another content, or both; returns what it is now,
        without its content. `tocsin.Client.change_scheduled` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.change_scheduled(
                queue,
                id,
                key=key,
                deliver_at=deliver_at,
                delay_s=delay_s,
                body=body,
                headers=headers,
                ttl_s=ttl_s,
                content_type=content_type,
            )
        )

    def decide_parked(
        self,
        queue: str,
        group: str,
        decision: Decision,
        *,
        key: str | None = None,
        key_hash: str | None = None,
    ) -> Decided:
        """Retry, skip or release a parked key or, without `key` and `key_hash`, all.
        `tocsin.Client.decide_parked` describes arguments and errors."""
        return self._loop.call(
            lambda: self._client.decide_parked(queue, group, decision, key=key, key_hash=key_hash)
        )

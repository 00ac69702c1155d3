"""The calls of operators, without an event loop."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

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
from tocsin.blocking.loop import LoopThread

T = TypeVar("T")


class AdminCalls:
    """The operators' calls, as tocsin.Client has them."""

    _client: tocsin.Client
    _loop: LoopThread

    def pause_queue(self, name: str) -> QueueDescription:
        """Let nothing of the queue be given out to groups, durably, until it is resumed; returns
        its description. Publishing and readers go on. Paused already: nothing happens."""
        return self._loop.call(lambda: self._client.pause_queue(name))

    def resume_queue(self, name: str) -> QueueDescription:
        """End a pause; returns the queue's description. Not paused: nothing happens."""
        return self._loop.call(lambda: self._client.resume_queue(name))

    def purge_queue(self, name: str, *, group: str | None) -> int:
        """Drop what a group has not settled or, with None, everything, for all. As
        tocsin.Client.purge_queue; returns how many messages."""
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
        """Return messages of a queue without taking them. As tocsin.Client.peek."""
        return self._loop.call(
            lambda: self._client.peek(
                queue, group=group, partition=partition, offset=offset, key=key, limit=limit
            )
        )

    def dead_letters(
        self, queue: str, *, key: str | None = None, reason: str | None = None
    ) -> list[DeadLetter]:
        """The dead letters of a queue that have not gone back, oldest first: all of them, in
        memory."""

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
        """Send dead letters of a queue back into it; returns how many went. As
        tocsin.Client.redrive_dead_letters; `progress` is called in the client's thread."""
        return self._loop.call(
            lambda: self._client.redrive_dead_letters(
                queue, key=key, reason=reason, limit=limit, progress=progress
            )
        )

    def parked_keys(self, queue: str, group: str, *, limit: int = 100) -> ParkedKeys:
        """Keys of a group that wait for an operator. As tocsin.Client.parked_keys."""
        return self._loop.call(lambda: self._client.parked_keys(queue, group, limit=limit))

    def explain(self, queue: str, key: str, *, group: str | None = None) -> Explanation:
        """Explain what a key waits for, group by group. As tocsin.Client.explain."""
        return self._loop.call(lambda: self._client.explain(queue, key, group=group))

    def held_keys(self, queue: str, group: str) -> list[HeldKey]:
        """Keys of a group that wait: all of them, in memory. As tocsin.Client.held_keys."""
        return self._all(lambda: self._client.held_keys(queue, group))

    def leases(self, queue: str, group: str) -> list[Lease]:
        """Return all deliveries in flight, in memory. As tocsin.Client.leases."""
        return self._all(lambda: self._client.leases(queue, group))

    def sessions(self) -> list[SessionDescription]:
        """The sessions of the broker: all of them, in memory. As tocsin.Client.sessions."""
        return self._all(self._client.sessions)

    def _all(self, listing: Callable[[], AsyncIterator[T]]) -> list[T]:
        async def work() -> list[T]:
            return [one async for one in listing()]

        return self._loop.call(work)

    def decide_parked(
        self,
        queue: str,
        group: str,
        decision: Decision,
        *,
        key: str | None = None,
        key_hash: str | None = None,
    ) -> Decided:
        """Retry, skip or release a parked key, or all. As tocsin.Client.decide_parked."""
        return self._loop.call(
            lambda: self._client.decide_parked(queue, group, decision, key=key, key_hash=key_hash)
        )
